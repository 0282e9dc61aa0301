//! One exchange: a request is authorized, given its credentials, sent, and answered. Forwarded
//! requests, requests in tunnels, HTTP/2 streams and requests for models differ only in their
//! [`UpstreamSource`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::{ACCEPT_ENCODING, CONNECTION, HeaderValue, SEC_WEBSOCKET_EXTENSIONS, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Version};
use openshell_policy::network::host::Host;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::debug;

use crate::credentials::inject::{CredentialedRequest, inject};
use crate::credentials::leaks::detector::LeakWatch;
use crate::credentials::redact::redact;
use crate::credentials::searchable::searchable;
use crate::credentials::vault::Vault;
use crate::credentials::watched::{CurrentVault, Watched};
use crate::decide::own_lines::OwnLines;
use crate::denial::refusal::Refusal;
use crate::ground::quota::QuotaGuard;
use crate::ground::target::Origin;
use crate::ground::trace::Stopwatch;
use crate::reach::authorize::asker::Asker;
use crate::reach::authorize::connection::Connection;
use crate::relay::asking::{Asking, Refused};
use crate::relay::body::Unsent;
use crate::relay::body::ahead::AheadBody;
use crate::relay::body::searched::{self, FoundReport, Kept, RequestBody, Searches};
use crate::relay::inspect::AuthorizedRequest;
use crate::relay::rpc::{self, RpcRequest};
use crate::relay::services::Services;
use crate::relay::upstream::{SendError, Upstream};
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::{ResponseBody, boxed};
use crate::wire::http::head;
use crate::wire::io::complete_body::CompleteBody;
use crate::wire::io::tasks::ConnectionTasks;

/// The upstream side of an exchange.
pub trait UpstreamSource: Send {
    /// Authorizes the request with the head `parts` under the policy in force, reading as much of
    /// its `body` as that needs, and provides a connection to its origin. A `retry` gets a new
    /// connection, because the last one was closed before anything was sent.
    fn prepare(
        &mut self,
        parts: &mut Parts,
        body: &mut Unsent,
        record: &mut Record,
        retry: bool,
    ) -> impl Future<Output = Result<AuthorizedRequest, ExchangeError>> + Send;

    /// Returns the connection that [`Self::prepare`] has provided.
    fn upstream(&mut self) -> &mut Upstream;

    /// Lets others use the connection while a person is asked about the request.
    fn rest(&mut self) {}

    /// Takes a connection again after [`Self::rest`], as soon as one is free.
    ///
    /// # Errors
    /// The program may have no more connections.
    fn resume(&mut self, _record: &Record) -> impl Future<Output = Result<(), Refusal>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns the server of the request.
    fn origin(&self) -> &Origin;

    /// Returns the credentials for the request, and those that its response is searched for.
    fn secrets(&self) -> Secrets;

    /// Returns what to do if the connection was closed before anything was sent.
    fn remedy(&self) -> Remedy;

    /// Returns the client's authorized connection; `None` before it is authorized, and for
    /// exchanges that need no policy.
    fn connection(&self) -> Option<&Arc<Connection>>;

    /// Returns the lines of policy that hold for this exchange only; `None` if no policy judges it.
    fn own_lines(&mut self) -> Option<&mut OwnLines> {
        None
    }

    /// Returns the program that made the request of `record`, for a question; `None` if nobody is
    /// asked about it.
    fn asker(&self, _record: &Record) -> Option<Asker> {
        None
    }

    /// Returns the time in which the response must begin; `None` if there is no limit.
    fn answer_deadline(&self) -> Option<Duration> {
        None
    }
}

/// The credentials that one exchange uses.
#[derive(Debug)]
pub struct Secrets {
    /// The credentials that replace placeholders in the request.
    pub vault: Arc<Vault>,
    /// The credentials that the response is searched for.
    pub watched: Watched,
}

impl Secrets {
    /// Returns the credentials of `vault` for a request to `host`.
    #[must_use]
    pub fn of_host(vault: &CurrentVault, host: &Host) -> Self {
        Self {
            vault: vault.load(),
            watched: vault.watched(host),
        }
    }
}

/// What to do about a connection that was closed before anything was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The proxy opens another connection: an upstream may close an idle one at any time.
    Redial,
    /// The client sends its request again.
    Client,
    /// Nothing: the connection was new.
    None,
}

/// The reason why an exchange has no response of its upstream.
#[derive(Debug)]
pub enum ExchangeError {
    /// The request is refused.
    Refused(Refusal),
    /// There is no connection to the origin.
    Unreachable(Refusal),
    /// A new connection was closed before anything was sent.
    Lost,
    /// The upstream failed after it had the request.
    Failed(Refusal),
    /// The response did not begin within this time.
    TimedOut(Duration),
    /// The upstream has not processed the request, so the client may send it again.
    NotSent,
    /// The upstream closed a kept connection before the first byte of its answer. Without a proxy
    /// the client would see the same, and it knows whether it may send the request again.
    Closed,
}

impl ExchangeError {
    /// Returns true if the upstream may have processed the request.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        match self {
            Self::Failed(_) | Self::TimedOut(_) | Self::Closed => true,
            Self::Refused(_) | Self::Unreachable(_) | Self::Lost | Self::NotSent => false,
        }
    }

    /// Returns the refusal for a client that cannot be told to send its request again.
    #[must_use]
    pub fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) | Self::Unreachable(refusal) | Self::Failed(refusal) => refusal,
            Self::TimedOut(_) => Refusal::upstream_timeout(),
            Self::Lost | Self::NotSent => Refusal::upstream_unreachable(
                "the upstream closed the connection at once".to_owned(),
            ),
            Self::Closed => Refusal::upstream_unreachable(
                "the upstream closed a kept connection and did not answer".to_owned(),
            ),
        }
    }
}

impl From<Refusal> for ExchangeError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The upstream's end of a connection whose response has switched protocols. The client's end comes
/// from the response.
#[derive(Debug)]
pub struct Upgraded {
    /// The authorized connection.
    pub connection: Arc<Connection>,
    /// The upstream's end.
    pub upstream: OnUpgrade,
    /// True if the new protocol is WebSocket.
    pub is_websocket: bool,
    /// The search for secrets in the messages of a WebSocket.
    pub leaks: Option<LeakWatch>,
}

/// A request that is not sent yet.
pub struct Outbound {
    parts: Parts,
    body: Unsent,
}

/// A request that is judged before it is sent.
struct UnsentRequest {
    parts: Parts,
    body: Unsent,
    /// True if the last connection was closed before anything was sent.
    is_retry: bool,
}

/// What became of a request.
enum Sent {
    /// It has a response.
    Answered(Response<ResponseBody>),
    /// It is refused, and a person may undo that.
    Refused(Refusal, Box<UnsentRequest>),
}

/// What the search of a request leaves for later.
#[derive(Default)]
struct Read {
    /// Receives what is found in the part of the body that is read while it is sent.
    report: Option<FoundReport>,
    /// The search for secrets, which goes on in the messages of a WebSocket.
    leaks: Option<LeakWatch>,
}

/// A request in the form in which it is sent.
struct Ready {
    request: CredentialedRequest<RequestBody>,
    /// True if it may be sent twice.
    may_repeat: bool,
    answer: Answer,
}

/// How the response to a request is searched.
struct Answer {
    watched: Watched,
    /// The quota for the search's memory.
    room: Option<QuotaGuard>,
    /// True if a response that cannot be searched is refused.
    must_be_searched: bool,
}

impl Outbound {
    /// Creates a client's request. If the upstream does not take all of an HTTP/2 body, `tasks`
    /// drain the rest.
    #[must_use]
    pub fn of_client(request: Request<Incoming>, tasks: &ConnectionTasks) -> Self {
        let (parts, incoming) = request.into_parts();
        let body = match parts.version {
            Version::HTTP_2 => CompleteBody::of_stream(incoming, tasks.spawner()),
            _ => CompleteBody::new(incoming, false),
        };
        Self {
            parts,
            body: Unsent::Unread(AheadBody::new(body)),
        }
    }

    /// Creates a request that the proxy makes itself.
    #[must_use]
    pub fn own(request: Request<Bytes>) -> Self {
        let (parts, body) = request.into_parts();
        Self {
            parts,
            body: Unsent::whole(body),
        }
    }
}

/// The parts of an exchange that do not depend on its upstream.
#[derive(Debug)]
pub struct Exchange<'e> {
    /// Handles that every exchange needs.
    pub services: &'e Services,
    /// Takes the upstream's end of an upgraded connection; `None` if protocols must not be
    /// switched.
    pub upgrades: Option<&'e mpsc::Sender<Upgraded>>,
    /// The client's socket, if its end is noticed only by looking; in HTTP/2 the exchange ends.
    pub client: Option<BorrowedFd<'e>>,
    /// Kept until the body is sent.
    pub held: Option<Kept>,
}

impl Exchange<'_> {
    /// Authorizes `request`, sends it with its credentials through `source`, and returns the
    /// response for the client. What a person may undo waits for an answer.
    ///
    /// # Errors
    /// Fails if the request is refused, or there is no response.
    pub async fn run(
        self,
        source: &mut impl UpstreamSource,
        request: Outbound,
        record: &mut Record,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let Outbound { parts, body } = request;
        let mut unsent = UnsentRequest {
            parts,
            body,
            is_retry: false,
        };
        let mut asking = Asking::new(self.services);
        loop {
            // A request that waits keeps none of what sending it takes.
            let sent = Box::pin(self.send(source, unsent, &mut asking, record)).await?;
            let refusal = match sent {
                Sent::Answered(response) => return Ok(response),
                Sent::Refused(refusal, request) => {
                    unsent = *request;
                    refusal
                }
            };
            let refused = self.refused(source, &unsent.parts, &unsent.body, record);
            source.rest();
            let (Some(refused), Some(own)) = (refused, source.own_lines()) else {
                return Err(refusal.into());
            };
            let asked = asking.about_request(refusal, refused, own, self.client, record);
            Box::pin(asked).await?;
            source.resume(record).await?;
        }
    }

    /// Authorizes the request `unsent`, sends it, and returns the response; or the request itself, if
    /// it is refused and a person may be asked about that.
    async fn send(
        &self,
        source: &mut impl UpstreamSource,
        unsent: UnsentRequest,
        asking: &mut Asking,
        record: &mut Record,
    ) -> Result<Sent, ExchangeError> {
        let UnsentRequest {
            mut parts,
            body: mut unsent,
            mut is_retry,
        } = unsent;
        let mut read = Read::default();
        loop {
            let prepared = source.prepare(&mut parts, &mut unsent, record, is_retry);
            let authorized = match prepared.await {
                Err(ExchangeError::Refused(refusal)) if asking.may_ask(&refusal) => {
                    let request = UnsentRequest {
                        parts,
                        body: unsent,
                        is_retry,
                    };
                    return Ok(Sent::Refused(refusal, Box::new(request)));
                }
                prepared => prepared?,
            };
            asking.settle();
            let (body, ahead) = match unsent {
                Unsent::Unread(body) => {
                    let ahead = body.ahead();
                    let body = self.search(body, source, &parts, &mut read, record).await?;
                    (body, ahead)
                }
                Unsent::Ready(body, ahead) => (body, ahead),
            };
            let is_searched = read.leaks.is_some();
            let Ready {
                request,
                may_repeat,
                answer,
            } = self.ready(source, &parts, body, &authorized, is_searched, record)?;
            if let Some(rpc) = &authorized.rpc {
                rpc.is_sent(&self.services.sessions);
            }
            let deadline = source.answer_deadline();
            let upgrade = authorized.upgrade.as_ref();
            let watch = Stopwatch::start();
            match within(deadline, source.upstream().send(request, upgrade)).await? {
                Ok(response) => {
                    if let Some(rpc) = &authorized.rpc {
                        rpc.has_arrived(&self.services.sessions);
                    }
                    let status = response.status().as_u16();
                    debug!(status, us = watch.micros(), "response");
                    let connection = source.connection();
                    let leaks = read.leaks.take();
                    let response = self.switched(response, &authorized, connection, leaks, record);
                    let is_shared = source.upstream().is_shared();
                    let response = self.answer(response, answer, &parts, is_shared, record)?;
                    return match (authorized.rpc, source.connection()) {
                        (Some(rpc), Some(connection)) => {
                            let answers = self.read_answers(response, rpc, connection);
                            Ok(Sent::Answered(answers.await?))
                        }
                        _ => Ok(Sent::Answered(response)),
                    };
                }
                Err(error) => {
                    let body = again(error, source.remedy(), may_repeat, &read)?;
                    unsent = Unsent::Ready(body, ahead);
                }
            }
            is_retry = true;
        }
    }

    /// Describes a refused request to a person; `None` if nobody is asked about it.
    fn refused<'r>(
        &self,
        source: &impl UpstreamSource,
        parts: &'r Parts,
        body: &Unsent,
        record: &Record,
    ) -> Option<Refused<'r>> {
        let asker = source.asker(record)?;
        let vault = self.services.vault.load();
        let connection = source.connection();
        let leaks = match connection {
            Some(_) => self.leak_watch(connection, &vault, record),
            None => self.services.leaks.watch(&vault, record, None),
        };
        let finder = self.services.leaks.finder(&vault, record);
        let origin = source.origin();
        Some(Refused::new(parts, body, origin, asker, leaks, finder))
    }

    /// Searches the head and the `body` for secrets and placeholders, the beginning of the body
    /// before anything is sent. Puts what the rest of the exchange needs of the search into `read`.
    ///
    /// # Errors
    /// Fails if there is a secret that must not be sent, or a placeholder, or if the body is
    /// malformed.
    async fn search(
        &self,
        body: AheadBody,
        source: &impl UpstreamSource,
        parts: &Parts,
        read: &mut Read,
        record: &mut Record,
    ) -> Result<RequestBody, Refusal> {
        let connection = source.connection();
        let report = read.report.insert(self.found_report(connection));
        let vault = self.services.vault.load();
        let mut leaks = self.leak_watch(connection, &vault, record);
        if let Some(leaks) = &mut leaks {
            leaks.head(parts, record)?;
        }
        read.leaks.clone_from(&leaks);
        let searches = Searches {
            placeholders: !vault.is_empty(),
            leaks,
            report: report.clone(),
        };
        let room = |bytes| self.services.memory.ahead_now(record.program(), bytes);
        searched::prefetch(body, &parts.headers, searches, self.held.clone(), room).await
    }

    /// Builds the request in the form for the upstream of `source`, with its credentials.
    ///
    /// # Errors
    /// Fails if the request has no such form, or has a placeholder for a secret that must not go
    /// there.
    fn ready(
        &self,
        source: &mut impl UpstreamSource,
        parts: &Parts,
        body: RequestBody,
        authorized: &AuthorizedRequest,
        is_searched: bool,
        record: &mut Record,
    ) -> Result<Ready, Refusal> {
        // Loaded again, because they may have changed while the body was prefetched.
        let Secrets { vault, watched } = source.secrets();
        let memory = &self.services.memory;
        let room = memory.searching(record.program(), watched.longest())?;
        let upgrade = authorized.upgrade.as_ref();
        let request = head::outgoing(parts, body, &authorized.target, upgrade);
        let mut request = request.map_err(Refusal::target)?;
        let is_shared = source.upstream().is_shared();
        if is_shared {
            request = head::to_http2(request, source.origin())?;
        }
        let may_run_alone = !is_shared && has_unexpected_body(&request);
        let permit = source.connection().map(|connection| connection.permit());
        let has_rules = permit
            .as_ref()
            .is_none_or(|permit| permit.rules().is_some());
        if may_run_alone && (has_rules || !watched.is_empty()) && upgrade.is_none() {
            // A server that does not read the body must not take it for the next request.
            let close = HeaderValue::from_static("close");
            request.headers_mut().insert(CONNECTION, close);
        }
        if upgrade.is_some() && (is_searched || !watched.is_empty()) {
            // Compressed messages of a WebSocket cannot be searched.
            request.headers_mut().remove(SEC_WEBSOCKET_EXTENSIONS);
        }
        if authorized.rpc.is_some() {
            // Its answers are read.
            let identity = HeaderValue::from_static("identity");
            request.headers_mut().insert(ACCEPT_ENCODING, identity);
        }
        let may_repeat = is_safe(request.method()) && request.body().is_end_stream();
        let request = inject(request, source.origin(), &vault, !watched.is_empty())?;
        let used = request.used().iter();
        record.carries(used.map(|credential| credential.name().to_owned()));
        let may_leak = permit.is_some_and(|permit| permit.allows_leaks());
        Ok(Ready {
            answer: Answer {
                must_be_searched: !request.used().is_empty() && !may_leak,
                watched,
                room,
            },
            request,
            may_repeat,
        })
    }

    /// Returns `response` for the client, with the secrets of `answer` redacted.
    ///
    /// # Errors
    /// Fails if the response must be searched, but has a form that cannot be.
    fn answer(
        &self,
        response: Response<Incoming>,
        answer: Answer,
        parts: &Parts,
        is_shared: bool,
        record: &Record,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let response = response.map(|body| CompleteBody::new(body, is_shared));
        let Answer {
            watched,
            room,
            must_be_searched,
        } = answer;
        if watched.is_empty() {
            return Ok(response.map(boxed));
        }
        let memory = &self.services.memory;
        let response = searchable(response, memory, record.program(), must_be_searched)?;
        let finding = record.echo(watched.iter().map(|credential| credential.name()));
        let is_grpc_call = is_shared && head::is_grpc_call(parts);
        let response = redact(response, watched, finding, is_grpc_call);
        Ok(response.map(|body| boxed(body.holding(room))))
    }

    /// Returns `response` to messages of MCP with what the client may not use removed from its lists.
    ///
    /// # Errors
    /// Fails as [`rpc::read_answers`] does.
    async fn read_answers(
        &self,
        response: Response<ResponseBody>,
        request: RpcRequest,
        connection: &Arc<Connection>,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let Services {
            sessions, memory, ..
        } = self.services;
        rpc::read_answers(response, request, sessions, connection, memory).await
    }

    /// Returns the detector of secrets in a request on `connection`, unless its endpoints permit
    /// them.
    fn leak_watch(
        &self,
        connection: Option<&Arc<Connection>>,
        vault: &Arc<Vault>,
        record: &Record,
    ) -> Option<LeakWatch> {
        let permit = connection?.permit();
        if permit.allows_leaks() {
            return None;
        }
        let watch = self.services.leaks.watch(vault, record, permit.policy())?;
        Some(if permit.is_observed() {
            watch.reporting()
        } else {
            watch
        })
    }

    /// Creates the report of what is found in a body after a part of it was sent.
    fn found_report(&self, connection: Option<&Arc<Connection>>) -> FoundReport {
        let audit = Arc::clone(&self.services.audit);
        let connection = connection.cloned();
        FoundReport::new(move |refusal| {
            if let Some(connection) = &connection {
                let record = Record::of(&audit, connection.caller(), connection.target().clone());
                record.finish(Outcome::Refused(refusal));
            }
        })
    }

    /// Passes the upstream's end on and puts back the `Connection` and `Upgrade` fields for the
    /// client, if `response` switches protocols.
    fn switched(
        &self,
        mut response: Response<Incoming>,
        authorized: &AuthorizedRequest,
        connection: Option<&Arc<Connection>>,
        leaks: Option<LeakWatch>,
        record: &mut Record,
    ) -> Response<Incoming> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(protocol) = &authorized.upgrade
            && let Some(connection) = connection
            && let Some(upgrades) = self.upgrades
        {
            let upstream = hyper::upgrade::on(&mut response);
            // The channel has room for one upgrade, and a connection has at most one.
            let is_websocket = head::is_websocket(protocol);
            let leaks = leaks.filter(|_| is_websocket);
            let _ = upgrades.try_send(Upgraded {
                connection: Arc::clone(connection),
                upstream,
                is_websocket,
                leaks,
            });
            record.upgraded();
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            response.headers_mut().insert(UPGRADE, protocol.clone());
        }
        response
    }
}

/// Returns the body to send again after `error`, if another attempt is possible.
///
/// # Errors
/// Fails if the request may not be sent again, or another connection does not help.
fn again(
    error: SendError,
    remedy: Remedy,
    may_repeat: bool,
    read: &Read,
) -> Result<RequestBody, ExchangeError> {
    match error {
        SendError::NotSent(body) => match remedy {
            Remedy::Redial => Ok(body),
            Remedy::Client => Err(ExchangeError::NotSent),
            Remedy::None => Err(ExchangeError::Lost),
        },
        SendError::Refused => Err(ExchangeError::NotSent),
        SendError::Closed if may_repeat && remedy == Remedy::Redial => {
            Ok(searched::whole(Bytes::new()))
        }
        SendError::Closed => Err(ExchangeError::Closed),
        SendError::Failed(refusal) => {
            let found = read.report.as_ref().and_then(FoundReport::take);
            Err(found.map_or(ExchangeError::Failed(refusal), ExchangeError::Refused))
        }
    }
}

/// Returns true for a method that changes nothing, so that its request may be sent twice (RFC 9110
/// §9.2.1).
fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

/// Returns true if a request has a body although its method is not POST, PUT or PATCH, in upper
/// case, which are made to have one (RFC 9110 §9.3, RFC 5789): servers may leave such a body
/// unread.
fn has_unexpected_body(request: &Request<RequestBody>) -> bool {
    let methods = [Method::POST, Method::PUT, Method::PATCH];
    !methods.contains(request.method()) && !request.body().is_end_stream()
}

/// Waits for `sent`, at most for `deadline` if there is one.
async fn within<T>(
    deadline: Option<Duration>,
    sent: impl Future<Output = T>,
) -> Result<T, ExchangeError> {
    match deadline {
        Some(deadline) => timeout(deadline, sent)
            .await
            .map_err(|_| ExchangeError::TimedOut(deadline)),
        None => Ok(sent.await),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use bytes::Bytes;
    use hyper::http::request::Parts;
    use hyper::{Method, Request, Response, StatusCode};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::{Exchange, ExchangeError, Outbound, Remedy, Secrets, Unsent, UpstreamSource};
    use crate::credentials::vault::Vault;
    use crate::credentials::watched::Watched;
    use crate::denial::refusal::Refusal;
    use crate::ground::target::{Origin, Scheme};
    use crate::reach::authorize::connection::Connection;
    use crate::relay::inspect::AuthorizedRequest;
    use crate::relay::upstream::Upstream;
    use crate::report::record::{Outcome, Record};
    use crate::testing;
    use crate::wire::http::body::ResponseBody;
    use crate::wire::http::target::RequestTarget;
    use crate::wire::io::tasks::ConnectionTasks;

    /// A source with one upstream after the other, for which no policy is asked.
    struct Scripted {
        upstreams: Vec<DuplexStream>,
        upstream: Upstream,
        origin: Origin,
        remedy: Remedy,
    }

    impl Scripted {
        /// The last of `upstreams` is used first.
        fn new(upstreams: Vec<DuplexStream>, remedy: Remedy, tasks: &ConnectionTasks) -> Self {
            let origin = Origin {
                scheme: Scheme::Http,
                target: testing::target("web.test:80"),
            };
            Self {
                upstreams,
                upstream: Upstream::new(tasks.clone()),
                origin,
                remedy,
            }
        }
    }

    impl UpstreamSource for Scripted {
        async fn prepare(
            &mut self,
            parts: &mut Parts,
            _: &mut Unsent,
            _: &mut Record,
            _: bool,
        ) -> Result<AuthorizedRequest, ExchangeError> {
            let stream = self.upstreams.pop().expect("another upstream is asked for");
            self.upstream
                .establish(
                    self.origin.clone(),
                    (Ipv4Addr::LOCALHOST, 80).into(),
                    stream,
                )
                .await?;
            Ok(AuthorizedRequest {
                target: RequestTarget::as_written(&parts.uri),
                upgrade: None,
                rpc: None,
            })
        }

        fn upstream(&mut self) -> &mut Upstream {
            &mut self.upstream
        }

        fn origin(&self) -> &Origin {
            &self.origin
        }

        fn connection(&self) -> Option<&Arc<Connection>> {
            None
        }

        fn secrets(&self) -> Secrets {
            Secrets {
                vault: Arc::new(Vault::default()),
                watched: Watched::default(),
            }
        }

        fn remedy(&self) -> Remedy {
            self.remedy
        }
    }

    /// A source that refuses every request, and panics if an exchange goes on nevertheless.
    struct Refusing;

    impl UpstreamSource for Refusing {
        async fn prepare(
            &mut self,
            _: &mut Parts,
            _: &mut Unsent,
            _: &mut Record,
            _: bool,
        ) -> Result<AuthorizedRequest, ExchangeError> {
            Err(Refusal::bad_request("refused").into())
        }

        fn upstream(&mut self) -> &mut Upstream {
            unreachable!("a refused request has reached an upstream")
        }

        fn origin(&self) -> &Origin {
            unreachable!("a refused request was given an origin")
        }

        fn connection(&self) -> Option<&Arc<Connection>> {
            unreachable!("the body of a refused request was read")
        }

        fn secrets(&self) -> Secrets {
            unreachable!("a refused request was given secrets")
        }

        fn remedy(&self) -> Remedy {
            unreachable!("a refused request was sent")
        }
    }

    /// Sends a POST of `text` through `source`, and returns the response.
    async fn post(
        mut source: impl UpstreamSource,
        tasks: &ConnectionTasks,
        text: &'static str,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let (services, audit) = testing::services("{host: web.test, port: 80}");
        let mut request = Request::new(Bytes::from_static(text.as_bytes()));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, "/a".parse().unwrap());
        let mut record = Record::new(&(Arc::clone(&audit) as _), "POST /a".to_owned(), None);
        let exchange = Exchange {
            services: &services,
            upgrades: None,
            client: None,
            held: None,
        };
        let exchanged = tokio::select! {
            exchanged = exchange.run(&mut source, Outbound::own(request), &mut record) => exchanged,
            () = tasks.run() => unreachable!("tasks are driven for ever"),
        };
        record.finish(Outcome::Allowed);
        assert!(audit.denials().is_empty());
        exchanged
    }

    /// Answers a request from `upstream`'s end, and returns the bytes of the request.
    async fn answered(mut upstream: DuplexStream, body: &[u8]) -> String {
        let mut got = Vec::new();
        while !got.ends_with(body) {
            assert_ne!(
                upstream.read_buf(&mut got).await.unwrap(),
                0,
                "{}",
                got.escape_ascii()
            );
        }
        upstream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .unwrap();
        String::from_utf8(got).unwrap()
    }

    #[tokio::test]
    async fn a_refused_request_reaches_no_upstream_and_its_body_is_not_read() {
        let exchanged = post(Refusing, &ConnectionTasks::default(), "secret").await;
        assert!(
            matches!(exchanged, Err(ExchangeError::Refused(refusal)) if refusal == Refusal::bad_request("refused"))
        );
    }

    #[tokio::test]
    async fn a_request_whose_kept_connection_is_gone_is_sent_once_more_with_its_body() {
        let tasks = ConnectionTasks::default();
        let (near, far) = duplex(4096);
        let (gone, _) = duplex(4096);
        let source = Scripted::new(vec![near, gone], Remedy::Redial, &tasks);
        let (exchanged, got) = tokio::join!(post(source, &tasks, "body"), answered(far, b"body"));
        assert_eq!(exchanged.unwrap().status(), StatusCode::NO_CONTENT);
        assert!(
            got.starts_with("POST /a HTTP/1.1\r\n") && got.matches("body").count() == 1,
            "{got}"
        );
    }

    #[tokio::test]
    async fn a_request_that_was_not_sent_ends_as_its_source_says() {
        for remedy in [Remedy::Client, Remedy::None] {
            let tasks = ConnectionTasks::default();
            let (gone, _) = duplex(4096);
            let source = Scripted::new(vec![gone], remedy, &tasks);
            match (remedy, post(source, &tasks, "body").await) {
                (Remedy::Client, Err(ExchangeError::NotSent))
                | (Remedy::None, Err(ExchangeError::Lost)) => {}
                (remedy, other) => {
                    panic!("{remedy:?}: {:?}", other.map(|response| response.status()))
                }
            }
        }
    }
}
