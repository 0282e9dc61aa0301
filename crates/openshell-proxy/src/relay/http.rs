//! Requests of one client, each judged by itself: at the doors, and inside a connection that was opened.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::connect::connect;
use crate::context::Context;
use crate::credentials::body::{self, Held, Scanned};
use crate::credentials::echo::scrubbed;
use crate::credentials::release::release;
use crate::decide::action::{Action, Message};
use crate::decide::message;
use crate::decide::permit::Permit;
use crate::http::head;
use crate::http::reply::{self, Body};
use crate::http::target::RequestTarget;
use crate::io::complete_body::CompleteBody;
use crate::limits::Limits;
use crate::record::{Outcome, Record};
use crate::refusal::Refusal;
use crate::relay::confirmed::Confirmed;
use crate::relay::http2::{self, Lanes};
use crate::relay::session::Session;
use crate::relay::upstream::{NotAnswered, Origin, Outgoing, Upstream};
use crate::resolve::{guard, resolve};
use crate::target::{Scheme, Target};
use crate::tenure::{Connection, Does};

/// How heads are read inside a connection: bounded in size; between two of them a client may take its time.
#[must_use]
pub fn inside() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Limits::IDLE)
        .max_header_size(Limits::INSPECTED_HEAD_BYTES)
        .max_buf_size(Limits::BUFFER_BYTES)
        .max_headers(Limits::HEAD_LINES)
        .half_close(true)
        .auto_date_header(false)
        .preserve_header_case(true)
        .title_case_headers(true);
    protocol
}

/// A request that may be sent.
#[derive(Debug)]
pub struct Admitted {
    target: RequestTarget,
    /// What it asks its connection to become.
    upgrade: Option<HeaderValue>,
}

/// Judges a request with the head `request` of a connection that `permit` is for.
///
/// # Errors
/// The refusal.
pub async fn admit(ctx: &Context, permit: &Permit, request: &Parts, record: &mut Record) -> Result<Admitted, Refusal> {
    head::check_method(&request.method)?;
    head::check_size(request)?;
    head::check_framing(&request.headers)?;
    if permit.rules().is_some() {
        head::check_text(&request.headers)?;
    }
    let message = Message::Http { method: request.method.clone(), uri: request.uri.clone() };
    let action = permit.action(&message)?;
    let Action::Http { target, .. } = &action;
    record.asks_for(target.path());
    let leave = message::judge(&ctx.turns, permit, &action).await?;
    let Action::Http { target, .. } = action;
    record.request_permitted_by(&leave);
    let upgrade = head::upgrade_asked(request, permit.rules().is_some());
    Ok(Admitted { target, upgrade })
}

impl Admitted {
    /// The path that was judged.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.path()
    }

    /// Sends `request` with `body` to `target` on `upstream`, its placeholders replaced. What comes back is the answer for the client;
    /// where it switches protocols, `session` goes on with both ends.
    ///
    /// # Errors
    /// A placeholder cannot be replaced; the upstream failed; or it was gone before anything was sent, with the body.
    pub async fn send(
        &self,
        (ctx, session): (&Context, &Session),
        upstream: &mut Upstream,
        (scheme, target): (Scheme, &Target),
        (request, body): (&Parts, Outgoing),
        client: &mut Option<OnUpgrade>,
        record: &mut Record,
    ) -> Result<Response<Body>, NotAnswered> {
        let outgoing = head::outgoing(request, body, &self.target, self.upgrade.as_ref());
        let outgoing = outgoing.map_err(|error| NotAnswered::Failed(Refusal::Target(error)))?;
        let watched = ctx.vault.watched(&target.host);
        let program = record.caller().map_or("-", |caller| caller.program.executable.as_str());
        let room = ctx.memory.searching(program, &watched).map_err(NotAnswered::Failed)?;
        let released = release(outgoing, (scheme, target), &ctx.vault.load(), !watched.is_empty());
        let released = released.map_err(NotAnswered::Failed)?;
        record.carries(released.used().iter().map(|credential| credential.name().to_owned()));
        let answered = upstream.send(released, self.upgrade.as_ref()).await;
        let mut response = answered.map_err(|error| match error {
            NotAnswered::Failed(_) if session.take_misplaced() => NotAnswered::Failed(body::in_body()),
            other => other,
        })?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let (Some(protocol), Some(client)) = (&self.upgrade, client.take())
        {
            session.upgrade(client, hyper::upgrade::on(&mut response)).await;
            record.upgraded();
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            response.headers_mut().insert(UPGRADE, protocol.clone());
        }
        let response = response.map(|body| CompleteBody::new(body, upstream.is_shared()));
        Ok(match watched.is_empty() {
            true => response.map(|body| Either::Right(Either::Left(body))),
            false => {
                let is_call = upstream.is_shared() && head::is_call(request);
                let scrubbed = scrubbed(response, &watched, (record.echo(&watched), is_call));
                scrubbed.map(|body| reply::altered(body.holding(room)))
            }
        })
    }
}

/// A permitted connection whose requests are judged.
#[derive(Clone, Debug)]
pub struct Inside {
    /// What all connections share.
    pub ctx: Arc<Context>,
    /// The connection.
    pub connection: Arc<Connection>,
    /// How its requests reach their origin.
    pub scheme: Scheme,
}

/// What an upstream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// One request after the other.
    Http1,
    /// All beside each other.
    Http2,
    /// HTTP/2, if its client knows it: it has not said so itself.
    AsTheClient,
}

/// A request in its connection.
#[derive(Debug)]
pub struct Course<'s> {
    /// What it shares with others.
    pub session: &'s Session,
    /// Its number, where it goes on beside others; 0 where it does not.
    pub number: u64,
    /// What goes on until its body is sent.
    pub held: Option<Held>,
}

/// Why a request has no answer of the upstream's.
#[derive(Debug)]
pub enum Unanswered {
    /// It is refused.
    Refused(Refusal),
    /// Nobody has looked at it, and its client may send it again.
    NotSent,
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Inside {
    /// Serves the requests of `client`, of which the first goes through `upstream`, which is at `address`. The client's socket
    /// is `socket`.
    pub async fn serve<C, U>(&self, client: C, socket: Option<OwnedFd>, upstream: U, address: SocketAddr)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let session = Session::new(socket);
        if session.upstream.lock().await.0.keep(self.origin(), address, upstream).await.is_err() {
            return;
        }
        let answer = |request| self.answer(&session, request);
        if let Err(Some(refusal)) = session.serve(&self.ctx, client, &inside(), answer).await {
            let record = Record::of(&self.ctx.audit, &self.connection.callers(), self.connection.target().clone());
            record.finish(Outcome::Refused(&refusal));
        }
    }

    /// Serves the streams of `client` through `upstream`, which is at `address` and `speaks` one or the other.
    pub async fn serve_http2<C, U>(&self, client: C, (upstream, speaks): (U, Speaks), address: SocketAddr)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let windows = self.ctx.memory.windows();
        let (mut first, ended) = (Upstream::default(), Arc::new(Notify::new()));
        let tell = Arc::clone(&ended);
        let ended_by = move || tell.notify_one();
        let (kept, confirmed) = match speaks {
            Speaks::Http1 => (first.keep(self.origin(), address, upstream).await, None),
            Speaks::Http2 => (first.keep_http2(self.origin(), address, upstream, &windows, ended_by).await, None),
            Speaks::AsTheClient => {
                let (upstream, confirmed) = Confirmed::new(upstream);
                (first.keep_http2(self.origin(), address, upstream, &windows, ended_by).await, Some(confirmed))
            }
        };
        if kept.is_err() {
            return;
        }
        if let Err(refusal) = http2::serve(self, client, &windows, Lanes::new(first, ended, confirmed)).await {
            let record = Record::of(&self.ctx.audit, &self.connection.callers(), self.connection.target().clone());
            record.finish(Outcome::Refused(&refusal));
        }
    }

    /// Where its requests go.
    #[must_use]
    pub fn origin(&self) -> Origin {
        (self.scheme, self.connection.target().clone())
    }

    async fn answer(&self, session: &Session, request: Request<Incoming>) -> Option<Response<Body>> {
        let (path, target) = (request.uri().path(), self.connection.target().clone());
        let callers = self.connection.callers();
        let method = request.method().as_str();
        let mut record = Record::http(&self.ctx.audit, method, path, self.scheme, target).inside(session.count());
        record.called_by(callers.first().clone());
        let mut connection = session.upstream.lock().await;
        let upstream = &mut connection.0;
        let course = Course { session, number: 0, held: None };
        match Box::pin(self.exchange(course, upstream, request, &mut record)).await {
            Ok(mut response) => {
                if upstream.is_ending() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                record.finish(Outcome::Allowed);
                Some(response)
            }
            Err(Unanswered::NotSent) => None,
            Err(Unanswered::Refused(refusal)) => {
                let response = reply::refused(&refusal, &record);
                record.finish(Outcome::Refused(&refusal));
                Some(response)
            }
        }
    }

    /// Has `request` judged and answered by `upstream`, or by another connection in its place.
    ///
    /// # Errors
    /// It is refused; or it was not sent, and there is no other place.
    pub async fn exchange(
        &self,
        Course { session, number, held }: Course<'_>,
        upstream: &mut Upstream,
        mut request: Request<Incoming>,
        record: &mut Record,
    ) -> Result<Response<Body>, Unanswered> {
        let target = self.connection.target();
        let mut client = Some(hyper::upgrade::on(&mut request));
        let (mut parts, incoming) = request.into_parts();
        let mut body = Unread::Incoming(match parts.version {
            Version::HTTP_2 => CompleteBody::of_stream(incoming, upstream.crew().spawner()),
            _ => CompleteBody::new(incoming, false),
        });
        let (mut must_dial, mut fresh) = (false, None);
        loop {
            head::check_authority(&parts, self.scheme, target)?;
            // Beside others it goes on when it is admitted; alone it does instead of the one before.
            let asked = || (parts.method.clone(), parts.uri.clone());
            let does = match number {
                0 => Does::Request(0, parts.method.clone(), parts.uri.clone()),
                _ => Does::Nothing,
            };
            let permit = self.connection.begin(&self.ctx, does).await?;
            if let Some(address) = fresh {
                // The policy may have changed its mind about it while it was dialled.
                guard::check(&self.ctx.own, &permit, vec![address])
                    .map_err(|refusal| Refusal::PolicyChanged(refusal.log_reason()))?;
            }
            let admitted = admit(&self.ctx, &permit, &parts, record).await?;
            if number > 0 && !self.connection.goes_on(&self.ctx, &permit, number, asked()) {
                continue;
            }
            self.observe(&permit, &parts, &admitted);
            if number > 0 && head::is_grpc(&parts.headers) && !upstream.is_shared() {
                return Err(Refusal::UpstreamWithoutHttp2.into());
            }
            if must_dial {
                let destination = resolve(&self.ctx.resolver, &self.ctx.own, &permit).await?;
                let stream = connect(&destination).await?;
                let address = keep(&self.ctx, upstream, self.origin(), stream).await?.ip();
                self.connection.moved_to(address, number > 0);
                (must_dial, fresh) = (false, Some(address));
                // It took its time, so it is asked again.
                continue;
            }
            head::ensure_host(&mut parts.headers, self.scheme, target);
            let scanned = body.scanned(&self.ctx, session, &parts, held.clone()).await?;
            let sent = admitted.send(
                (&self.ctx, session),
                upstream,
                (self.scheme, target),
                (&parts, scanned),
                &mut client,
                record,
            );
            body = match sent.await {
                Ok(response) => return Ok(response),
                Err(NotAnswered::Unsent(_)) if upstream.is_shared() => return Err(Unanswered::NotSent),
                Err(NotAnswered::Unprocessed) => return Err(Unanswered::NotSent),
                // An upstream may end a connection that it has not used for a while.
                Err(NotAnswered::Unsent(unsent)) if fresh.is_none() => Unread::Outgoing(unsent),
                Err(NotAnswered::Unsent(_)) => {
                    return Err(Refusal::UpstreamUnreachable("it closed at once".to_owned()).into());
                }
                Err(NotAnswered::Failed(refusal)) => return Err(refusal.into()),
            };
            must_dial = true;
        }
    }

    fn observe(&self, permit: &Permit, request: &Parts, admitted: &Admitted) {
        if let Some(observations) = self.ctx.observations.as_ref().filter(|_| permit.is_observed()) {
            let callers = self.connection.callers();
            let (program, method) = (&callers.first().program.executable, request.method.as_str());
            observations.add_request(program, self.connection.target(), method, admitted.path());
        }
    }
}

/// The body of a request that is not sent yet.
#[derive(Debug)]
pub enum Unread {
    /// Not looked at.
    Incoming(CompleteBody),
    /// Looked at, as far as it was read.
    Outgoing(Outgoing),
}

impl Unread {
    /// The body of `request`, to be sent; `held` goes on until it is.
    ///
    /// # Errors
    /// It begins with what is not sent.
    pub async fn scanned(
        self,
        ctx: &Context,
        session: &Session,
        request: &Parts,
        held: Option<Held>,
    ) -> Result<Outgoing, Refusal> {
        match self {
            Self::Incoming(body) => {
                let vault = ctx.vault.load();
                let scanned = Scanned::begin(body, &request.headers, &vault, session.misplaced()).await?;
                Ok(Either::Left(scanned.holding(held)))
            }
            Self::Outgoing(body) => Ok(body),
        }
    }
}

/// Keeps `stream`, a connection to `origin`, as `upstream`, inside TLS where that is how requests reach it. Returns which address
/// it is at.
///
/// # Errors
/// It has failed, or is not who it should be.
pub async fn keep(
    ctx: &Context,
    upstream: &mut Upstream,
    origin: Origin,
    stream: TcpStream,
) -> Result<SocketAddr, Refusal> {
    let address = stream.peer_addr().map_err(|error| Refusal::UpstreamUnreachable(error.to_string()))?;
    match origin.0 {
        Scheme::Http => upstream.keep(origin, address, stream).await?,
        Scheme::Https => {
            let stream = ctx.trust.open(&origin.1.host, stream, false).await?;
            upstream.keep(origin, address, stream).await?;
        }
    }
    Ok(address)
}

/// Serves `client` the same `refusal`, whatever it asks.
pub async fn refuse_all<C>(ctx: &Context, client: C, refusal: &Refusal, record: Record)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let response = std::sync::Mutex::new(Some(reply::refused(refusal, &record)));
    record.finish(Outcome::Refused(refusal));
    let session = Session::default();
    let answer = |_| {
        let response = response.lock().ok().and_then(|mut response| response.take());
        async { response }
    };
    let _ = session.serve(ctx, client, inside().header_read_timeout(Limits::HEAD_DEADLINE), answer).await;
}
