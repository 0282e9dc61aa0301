//! HTTP inside a tunnel: the requests on a permitted connection, each of which is authorized.

use std::fmt;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{Instrument as _, debug_span};

use crate::decide::message::{Message, Need};
use crate::decide::own_lines::OwnLines;
use crate::decide::permit::Permit;
use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::ground::target::{Origin, Scheme};
use crate::reach::authorize::asker::Asker;
use crate::reach::authorize::connection::{Connection, StreamId};
use crate::reach::dial::{Egress, dial};
use crate::reach::resolve::guard;
use crate::relay::body::Unsent;
use crate::relay::exchange::{Exchange, ExchangeError, Outbound, Remedy, Secrets, UpstreamSource};
use crate::relay::http1::{self, Session, report_refused};
use crate::relay::inspect::{AuthorizedRequest, authorize_request, read_message};
use crate::relay::services::Services;
use crate::relay::upstream::Upstream;
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::{ResponseBody, full};
use crate::wire::http::head;

/// A permitted connection that carries HTTP.
#[derive(Clone, Debug)]
pub struct HttpTunnel {
    /// The handles of its exchanges.
    pub services: Arc<Services>,
    /// The authorized connection.
    pub connection: Arc<Connection>,
    /// The server of its requests.
    pub origin: Origin,
}

impl HttpTunnel {
    /// Creates the tunnel over `connection`, for URLs of `scheme`.
    #[must_use]
    pub fn new(services: &Arc<Services>, connection: &Arc<Connection>, scheme: Scheme) -> Self {
        let origin = Origin {
            scheme,
            target: connection.target().clone(),
        };
        Self {
            services: Arc::clone(services),
            connection: Arc::clone(connection),
            origin,
        }
    }

    /// Serves the HTTP/1.1 requests of `client`, whose socket is `socket`, through `upstream` at
    /// `address`.
    pub async fn serve_http1<C, U>(
        &self,
        client: C,
        socket: Option<OwnedFd>,
        upstream: U,
        address: SocketAddr,
    ) where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (session, driver) = http1::connection(socket);
        let established = session
            .upstream
            .lock()
            .await
            .upstream
            .establish(self.origin.clone(), address, upstream)
            .await;
        if established.is_err() {
            return;
        }
        let answer = |request| self.answer(&session, request);
        let served = driver
            .serve(&self.services, client, &http1::protocol(), answer)
            .await;
        if let Err(refusal) = served {
            report_refused(&self.services, &self.connection, &refusal);
        }
    }

    async fn answer(
        &self,
        session: &Session,
        request: Request<Incoming>,
    ) -> Option<Response<ResponseBody>> {
        let number = session.count();
        let mut record = self.record(&request, number);
        let span = debug_span!("request", n = number, request = record.request());
        let mut kept = session.upstream.lock().await;
        let upstream = &mut kept.upstream;
        let request = Outbound::of_client(request, &session.tasks);
        let mut source = self.source(upstream, None);
        let exchange = Exchange {
            services: &self.services,
            upgrades: Some(&session.upgrades),
            client: session.socket(),
            held: None,
        };
        match exchange
            .run(&mut source, request, &mut record)
            .instrument(span)
            .await
        {
            Ok(mut response) => {
                if upstream.is_ending() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    response
                        .headers_mut()
                        .insert(CONNECTION, HeaderValue::from_static("close"));
                }
                record.finish(Outcome::Allowed);
                Some(response)
            }
            Err(error) => {
                let is_silent = matches!(error, ExchangeError::Closed);
                let refusal = error.into_refusal();
                let guidance = &self.services.guidance;
                let response = reply::refused(&refusal, record.subject(), guidance).map(full);
                record.finish(Outcome::Refused(&refusal));
                Some(response).filter(|_| !is_silent)
            }
        }
    }

    /// Creates the record of the request with this `number`.
    #[must_use]
    pub fn record(&self, request: &Request<Incoming>, number: u64) -> Record {
        let method = request.method().as_str();
        let path = request.uri().path();
        let target = self.origin.target.clone();
        let record = Record::http(
            &self.services.audit,
            method,
            path,
            self.origin.scheme,
            target,
        );
        let mut record = record.inside(number);
        record.called_by(self.connection.caller().clone());
        record
    }

    /// Creates the source of one exchange through `upstream`; `stream` is its id in HTTP/2.
    #[must_use]
    pub fn source<'s>(
        &'s self,
        upstream: &'s mut dyn Lent,
        stream: Option<StreamId>,
    ) -> TunnelSource<'s> {
        TunnelSource {
            tunnel: self,
            upstream,
            stream,
            dialed: None,
            own: self.connection.own().clone(),
        }
    }
}

/// An upstream connection that an exchange uses.
pub trait Lent: fmt::Debug + Send + Sync {
    /// Returns the connection.
    fn upstream(&mut self) -> &mut Upstream;

    /// Returns true if other streams use the connection too.
    fn is_shared(&self) -> bool;

    /// Lets other streams use the connection for a while.
    fn rest(&mut self);

    /// Takes a connection again for a request of `program`, as soon as one is free.
    ///
    /// # Errors
    /// The program may have no more connections.
    fn resume<'f>(&'f mut self, egress: &'f Egress, program: &'f str) -> Resumed<'f>;
}

/// Ends once there is a connection.
pub type Resumed<'f> = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'f>>;

/// A connection that nobody else waits for.
impl Lent for Upstream {
    fn upstream(&mut self) -> &mut Upstream {
        self
    }

    fn is_shared(&self) -> bool {
        Self::is_shared(self)
    }

    fn rest(&mut self) {}

    fn resume<'f>(&'f mut self, _: &'f Egress, _: &'f str) -> Resumed<'f> {
        Box::pin(ready(Ok(())))
    }
}

/// The upstream side of an exchange in a tunnel.
#[derive(Debug)]
pub struct TunnelSource<'s> {
    tunnel: &'s HttpTunnel,
    upstream: &'s mut dyn Lent,
    /// The id of the stream; `None` in HTTP/1.1.
    stream: Option<StreamId>,
    /// The address of the connection, if one was dialled for this exchange.
    dialed: Option<IpAddr>,
    /// The lines of policy that hold for this exchange only.
    own: OwnLines,
}

impl TunnelSource<'_> {
    /// Returns the permit for `message`. In HTTP/1.1, `message` at once replaces that of the
    /// connection; in HTTP/2, the stream registers it once it is authorized.
    async fn permit(&self, message: &Message) -> Result<Arc<Permit>, Refusal> {
        let HttpTunnel {
            services,
            connection,
            ..
        } = self.tunnel;
        let authorizer = &services.authorizer;
        let permit = match self.stream {
            None => {
                let message = message.clone();
                let replaced = connection.replace_message(authorizer, message, &self.own);
                replaced.await?
            }
            Some(_) => connection.permit_with(authorizer, &self.own).await?,
        };
        if let Some(address) = self.dialed {
            // The policy may have changed while the address was dialled.
            guard::check(&permit, vec![address])
                .map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))?;
        }
        Ok(permit)
    }

    /// Connects again to the permitted target.
    async fn redial(&mut self, permit: &Permit) -> Result<(), Refusal> {
        let HttpTunnel {
            services,
            connection,
            origin,
        } = self.tunnel;
        let destination = services.egress.destination(permit).await?;
        let (stream, address) = dial(&destination).await?;
        self.upstream
            .upstream()
            .connect(origin, &services.egress.roots, stream, address)
            .await?;
        match self.stream {
            None => connection.moved_to(address.ip()),
            Some(_) => connection.also_at(address.ip()),
        }
        self.dialed = Some(address.ip());
        Ok(())
    }
}

impl UpstreamSource for TunnelSource<'_> {
    async fn prepare(
        &mut self,
        parts: &mut Parts,
        body: &mut Unsent,
        record: &mut Record,
        retry: bool,
    ) -> Result<AuthorizedRequest, ExchangeError> {
        let HttpTunnel {
            services,
            connection,
            origin,
        } = self.tunnel;
        let mut must_dial = retry;
        loop {
            head::check_authority(parts, origin)?;
            let permit = connection.current_permit(&services.authorizer).await?;
            if self.stream.is_none() && permit.need(&parts.method, &parts.uri) != Need::Head {
                // The body of the last message holds memory, which this one may need.
                connection.forget_message();
            }
            let message = read_message(&services.memory, &permit, parts, body, record).await?;
            let permit = self.permit(&message).await;
            if permit.is_err() && self.stream.is_none() {
                connection.forget_message();
            }
            let permit = permit?;
            if !message.ahead.meets(permit.need(&parts.method, &parts.uri)) && body.is_readable() {
                // The policy has changed while the body was read.
                continue;
            }
            let caller = connection.caller();
            let authorized =
                authorize_request(services, &permit, caller, parts, &message, record).await;
            if authorized.is_err() && self.stream.is_none() {
                // What is refused need not stay permitted.
                connection.forget_message();
            }
            let authorized = authorized?;
            if let Some(stream) = self.stream {
                let authorizer = &services.authorizer;
                if !connection.register(authorizer, &permit, stream, message, &self.own) {
                    continue;
                }
                if head::is_grpc(&parts.headers) && !self.upstream.is_shared() {
                    return Err(Refusal::upstream_without_http2().into());
                }
            }
            if must_dial {
                // Nobody is asked about new addresses: later requests would go there too.
                let redialed = self.redial(&permit).await;
                redialed.map_err(ExchangeError::Unreachable)?;
                must_dial = false;
                // The policy may have changed during the dial.
                continue;
            }
            head::ensure_host(&mut parts.headers, origin);
            return Ok(authorized);
        }
    }

    fn upstream(&mut self) -> &mut Upstream {
        self.upstream.upstream()
    }

    fn rest(&mut self) {
        self.upstream.rest();
    }

    async fn resume(&mut self, record: &Record) -> Result<(), Refusal> {
        let egress = &self.tunnel.services.egress;
        self.upstream.resume(egress, record.program()).await
    }

    fn origin(&self) -> &Origin {
        &self.tunnel.origin
    }

    fn connection(&self) -> Option<&Arc<Connection>> {
        Some(&self.tunnel.connection)
    }

    fn own_lines(&mut self) -> Option<&mut OwnLines> {
        Some(&mut self.own)
    }

    fn asker(&self, _record: &Record) -> Option<Asker> {
        let HttpTunnel {
            services,
            connection,
            ..
        } = self.tunnel;
        Some(connection.asker(&services.authorizer))
    }

    fn secrets(&self) -> Secrets {
        Secrets::of_host(&self.tunnel.services.vault, &self.tunnel.origin.target.host)
    }

    fn remedy(&self) -> Remedy {
        match self.dialed {
            _ if self.upstream.is_shared() => Remedy::Client,
            None => Remedy::Redial,
            Some(_) => Remedy::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use hyper::Method;
    use openshell_events::reason::ReasonCode;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::{
        AuthorizedRequest, HttpTunnel, Parts, Remedy, Request, StreamId, Unsent, Upstream,
        UpstreamSource as _,
    };
    use crate::decide::message::Message;
    use crate::relay::exchange::ExchangeError;
    use crate::report::record::{Outcome, Record};
    use crate::testing::{self, Remembered, UPSTREAM};
    use crate::wire::io::tasks::ConnectionTasks;

    const FULL: &str =
        "{host: web.test, port: 80, protocol: rest, enforcement: enforce, access: full}";
    const ONLY_B: &str = "{host: web.test, port: 80, protocol: rest, enforcement: enforce, rules: \
                          [{allow: {method: GET, path: /b}}]}";

    fn get(path: &str) -> Parts {
        testing::head(
            Request::get(path)
                .header("host", "web.test")
                .body(())
                .unwrap(),
        )
    }

    fn unused() -> Upstream {
        Upstream::new(ConnectionTasks::default())
    }

    /// Authorizes the request with the head `parts`, of `stream` in HTTP/2 or else on a connection
    /// of its own.
    async fn prepared(
        tunnel: &HttpTunnel,
        mut parts: Parts,
        stream: Option<StreamId>,
    ) -> Result<AuthorizedRequest, ExchangeError> {
        let mut record = Record::new(&tunnel.services.audit, String::new(), None);
        let mut upstream = unused();
        let mut body = Unsent::whole(Bytes::new());
        let prepared = tunnel
            .source(&mut upstream, stream)
            .prepare(&mut parts, &mut body, &mut record, false)
            .await;
        record.finish(Outcome::Allowed);
        prepared
    }

    /// Serves a client that sends `said`, through an upstream that reads up to `asked` and sends
    /// `answer`. Returns what each has heard, and all decisions.
    async fn served(
        endpoints: &str,
        said: &str,
        asked: &str,
        answer: &str,
    ) -> (String, String, Vec<&'static str>) {
        let (services, audit) = testing::services(endpoints);
        let tunnel = testing::tunnel(&services, "web.test:80");
        let (mut client, near) = duplex(64 * 1024);
        let (far, upstream) = duplex(64 * 1024);
        let client = async move {
            client.write_all(said.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            read(client).await
        };
        let serving = tunnel.serve_http1(near, None, far, (UPSTREAM, 80).into());
        let ((), by_client, by_upstream) =
            tokio::join!(serving, client, answering(upstream, asked, answer));
        (by_client, by_upstream, audit.decisions())
    }

    async fn read(mut end: DuplexStream) -> String {
        let mut heard = String::new();
        end.read_to_string(&mut heard).await.unwrap();
        heard
    }

    /// Sends `answer` when `asked` has arrived.
    async fn answering(mut upstream: DuplexStream, asked: &str, answer: &str) -> String {
        let mut heard = Vec::new();
        while !heard.ends_with(asked.as_bytes()) && upstream.read_buf(&mut heard).await.unwrap() > 0
        {
        }
        if !heard.is_empty() {
            upstream.write_all(answer.as_bytes()).await.unwrap();
        }
        upstream.read_to_end(&mut heard).await.unwrap();
        String::from_utf8(heard).unwrap()
    }

    #[tokio::test]
    async fn a_request_for_another_server_is_refused_before_the_rules_are_asked() {
        let services =
            testing::services_with(testing::failing_rules(), Arc::new(Remembered::default()));
        let tunnel = testing::tunnel(&services, "web.test:80");
        for (code, parts) in [
            (
                ReasonCode::AuthorityMismatch,
                Request::get("/a").header("host", "other.test"),
            ),
            (
                ReasonCode::AuthorityMismatch,
                Request::get("/a").header("host", "web.test:81"),
            ),
            (
                ReasonCode::AuthorityMismatch,
                Request::get("http://other.test/a").header("host", "web.test"),
            ),
            (
                ReasonCode::AuthorityMismatch,
                Request::get("https://web.test/a").header("host", "web.test"),
            ),
            (ReasonCode::BadRequest, Request::get("/a")),
            (
                ReasonCode::BadRequest,
                Request::get("/a")
                    .header("host", "web.test")
                    .header("host", "web.test"),
            ),
            (
                ReasonCode::PolicyEngineError,
                Request::get("/a").header("host", "web.test"),
            ),
        ] {
            let head = testing::head(parts.body(()).unwrap());
            for stream in [None, Some(StreamId::after(0))] {
                let refusal = prepared(&tunnel, head.clone(), stream)
                    .await
                    .unwrap_err()
                    .into_refusal();
                assert_eq!(refusal.code(), code, "{}", refusal.reason());
            }
        }
    }

    #[tokio::test]
    async fn a_message_stands_in_for_the_one_before_it() {
        for (paths, is_permitted) in [(["/a", "/b"], true), (["/b", "/a"], false)] {
            let (services, _) = testing::services(FULL);
            let tunnel = testing::tunnel(&services, "web.test:80");
            for path in paths {
                prepared(&tunnel, get(path), None).await.unwrap();
            }
            services
                .authorizer
                .policy
                .replace(testing::snapshot(2, ONLY_B));
            let permit = tunnel.connection.current_permit(&services.authorizer).await;
            assert_eq!(permit.is_ok(), is_permitted, "{paths:?}");
        }
    }

    #[tokio::test]
    async fn the_message_of_a_stream_stands_beside_the_others_until_it_has_ended() {
        let (services, _) = testing::services(FULL);
        let tunnel = testing::tunnel(&services, "web.test:80");
        for (stream, path) in [(0, "/a"), (1, "/b")] {
            prepared(&tunnel, get(path), Some(StreamId::after(stream)))
                .await
                .unwrap();
        }
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, ONLY_B));
        assert!(
            tunnel
                .connection
                .current_permit(&services.authorizer)
                .await
                .is_err()
        );
        tunnel.connection.complete(StreamId::after(0));
        assert!(
            tunnel
                .connection
                .current_permit(&services.authorizer)
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn a_stream_that_is_refused_leaves_nothing_to_be_judged_again() {
        let (services, _) = testing::services(ONLY_B);
        let tunnel = testing::tunnel(&services, "web.test:80");
        let refused = prepared(&tunnel, get("/a"), Some(StreamId::after(0))).await;
        assert_eq!(
            refused.unwrap_err().into_refusal().code(),
            ReasonCode::RequestNotInRules
        );
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, ONLY_B));
        assert!(
            tunnel
                .connection
                .current_permit(&services.authorizer)
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn a_call_of_grpc_has_no_http_1_upstream() {
        let (services, _) = testing::services(FULL);
        let tunnel = testing::tunnel(&services, "web.test:80");
        let call = || {
            testing::head(
                Request::post("/s/m")
                    .header("host", "web.test")
                    .header("content-type", "application/grpc")
                    .body(())
                    .unwrap(),
            )
        };
        let refusal = prepared(&tunnel, call(), Some(StreamId::after(0)))
            .await
            .unwrap_err()
            .into_refusal();
        assert_eq!(
            refusal.reason(),
            "the upstream does not speak HTTP/2, which gRPC needs"
        );
        assert!(
            prepared(&tunnel, call(), None).await.is_ok(),
            "a client that speaks HTTP/1.1 has its own reasons"
        );
    }

    #[tokio::test]
    async fn only_a_connection_that_was_there_before_the_request_is_dialled_again() {
        let (services, _) = testing::services(FULL);
        let tunnel = testing::tunnel(&services, "web.test:80");
        let mut upstream = unused();
        let mut source = tunnel.source(&mut upstream, None);
        assert_eq!(source.remedy(), Remedy::Redial);
        source.dialed = Some(UPSTREAM);
        assert_eq!(source.remedy(), Remedy::None);
    }

    #[tokio::test]
    async fn the_address_of_a_new_connection_is_judged_again() {
        let (services, _) = testing::services(FULL);
        let tunnel = testing::tunnel(&services, "web.test:80");
        let mut upstream = unused();
        let mut source = tunnel.source(&mut upstream, None);
        let message = Message::of_head(Method::GET, "/a".parse().unwrap());
        source.dialed = Some("10.0.0.1".parse().unwrap());
        assert_eq!(
            source.permit(&message).await.unwrap_err().code(),
            ReasonCode::PolicyChanged
        );
        source.dialed = Some(UPSTREAM);
        assert!(source.permit(&message).await.is_ok());
    }

    #[tokio::test]
    async fn every_request_of_a_connection_is_judged_by_itself() {
        let said =
            "GET /b HTTP/1.1\r\nHost: web.test\r\n\r\nGET /a HTTP/1.1\r\nHost: web.test\r\n\r\n";
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        let (by_client, by_upstream, decisions) = served(ONLY_B, said, "\r\n\r\n", answer).await;
        assert_eq!(decisions, ["allowed", "request_not_in_rules"]);
        assert!(
            by_upstream.contains("GET /b") && !by_upstream.contains("/a"),
            "{by_upstream}"
        );
        assert!(
            by_client.contains("200 OK") && by_client.contains("403 request_not_in_rules"),
            "{by_client}"
        );
    }

    #[tokio::test]
    async fn a_body_that_a_server_may_leave_unread_is_the_last_of_its_connection() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        for (endpoints, method, is_last) in [
            (FULL, "GET", true),
            (FULL, "DELETE", true),
            (FULL, "POST", false),
            ("{host: web.test, port: 80}", "GET", false),
        ] {
            let said =
                format!("{method} /b HTTP/1.1\r\nHost: web.test\r\nContent-Length: 5\r\n\r\nhello");
            let (_, by_upstream, _) = served(endpoints, &said, "hello", answer).await;
            let is_closed = by_upstream
                .to_ascii_lowercase()
                .contains("connection: close\r\n");
            assert_eq!(is_closed, is_last, "{endpoints} {by_upstream}");
        }
    }

    #[tokio::test]
    async fn a_client_is_told_that_its_connection_ends_with_its_upstreams() {
        let said = "GET /b HTTP/1.1\r\nHost: web.test\r\n\r\n";
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
        let (by_client, ..) = served(ONLY_B, said, "\r\n\r\n", answer).await;
        assert!(
            by_client
                .to_ascii_lowercase()
                .contains("connection: close\r\n"),
            "{by_client}"
        );
    }

    #[tokio::test]
    async fn an_upgraded_connection_is_relayed_both_ways() {
        let said =
            "GET /b HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nmine";
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nyours";
        let (by_client, by_upstream, decisions) =
            served("{host: web.test, port: 80}", said, "\r\n\r\n", answer).await;
        assert_eq!(decisions, ["allowed"]);
        assert!(
            by_client.starts_with("HTTP/1.1 101") && by_client.ends_with("yours"),
            "{by_client}"
        );
        assert!(by_upstream.ends_with("\r\n\r\nmine"), "{by_upstream}");
    }
}
