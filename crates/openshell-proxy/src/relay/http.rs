//! Requests of one client, each judged by itself: at the doors, and inside a connection that was opened.

use std::future::pending;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify};

use crate::connect::connect;
use crate::context::{Context, Limits};
use crate::decide::connection::Permit;
use crate::decide::request;
use crate::http::head;
use crate::http::reply::{self, Body};
use crate::http::target::RequestTarget;
use crate::intake::Scheme;
use crate::record::{Outcome, Record};
use crate::refusal::Refusal;
use crate::relay::linger::Linger;
use crate::relay::upstream::{NotAnswered, Origin, Upstream};
use crate::resolve::guard::Destination;
use crate::resolve::resolve;
use crate::share::Share;
use crate::tenure::{Connection, Does, Tenure};

/// What the requests of one client connection share.
#[derive(Debug, Default)]
pub struct Session {
    /// The client's socket, to see whether anybody is still there.
    client: Option<OwnedFd>,
    /// The upstream connection of its requests.
    pub(crate) upstream: Mutex<(Upstream, Option<Share>)>,
    /// What its last request may last by, where every request has its own.
    tenure: Mutex<Option<Tenure>>,
    /// There is a new one.
    tenured: Notify,
    /// What goes on instead, after an answer that switched protocols.
    upgraded: Mutex<Option<Upgraded>>,
    requests: AtomicU64,
    has_answered: AtomicBool,
    /// A request has no answer yet.
    is_asked: AtomicBool,
}

/// Both ends of a connection that has become another one.
#[derive(Debug)]
pub struct Upgraded {
    client: OnUpgrade,
    upstream: OnUpgrade,
}

impl Upgraded {
    /// Relays bytes both ways until both sides are done.
    pub async fn relay(self) {
        let (Ok(client), Ok(upstream)) = tokio::join!(self.client, self.upstream) else { return };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        // Which side broke off is nobody's decision; both learn of it by the end of their connection.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
    }
}

impl Session {
    /// Of the client at the other end of `client`.
    #[must_use]
    pub fn new(client: Option<OwnedFd>) -> Self {
        Self { client, ..Self::default() }
    }

    /// Serves `client`, by `protocol`, as `answer` says; ends as well when its last request may last no longer, or when nobody
    /// is there to be answered.
    ///
    /// # Errors
    /// The client sends what is no HTTP, or fails.
    pub async fn serve<S, F>(
        &self,
        ctx: &Context,
        client: S,
        protocol: &http1::Builder,
        answer: impl Fn(Request<Incoming>) -> F,
    ) -> Result<Option<Upgraded>, hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Option<Response<Body>>>,
    {
        let answer = service_fn(|request| {
            self.is_asked.store(true, Ordering::Relaxed);
            let answer = answer(request);
            async {
                let answer = answer.await;
                self.is_asked.store(false, Ordering::Relaxed);
                self.has_answered.store(true, Ordering::Relaxed);
                answer.ok_or(Unanswered)
            }
        });
        let connection = protocol.serve_connection(TokioIo::new(Linger::new(client)), answer).with_upgrades();
        tokio::select! {
            served = connection => match served {
                // Between two requests a client may take its time, and go.
                Err(error) if !(error.is_timeout() && self.has_answered.load(Ordering::Relaxed)) => return Err(error),
                _ => {}
            },
            () = self.revoked(ctx) => return Ok(None),
            () = self.deserted() => return Ok(None),
        }
        Ok(self.upgraded.lock().await.take())
    }

    /// Counts a request.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has the connection judged by `tenure` from now on.
    pub async fn judged_again_by(&self, tenure: Tenure) {
        *self.tenure.lock().await = Some(tenure);
        self.tenured.notify_one();
    }

    /// Returns when the client has ended its sending and has still not been answered a while later. It may be waiting; more
    /// likely it has gone, and what it asked for would be waited for in vain.
    async fn deserted(&self) {
        let mut was_over = false;
        loop {
            tokio::time::sleep(Limits::DESERTED).await;
            let Some(client) = &self.client else { continue };
            let mut over = [PollFd::new(client, PollFlags::RDHUP)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Of an answer that is on its way the client's end is noticed by itself.
            let is_over = self.is_asked.load(Ordering::Relaxed)
                && rustix::event::poll(&mut over, Some(&now)).is_ok_and(|count| count > 0);
            if is_over && was_over {
                return;
            }
            was_over = is_over;
        }
    }

    /// Returns when the last request, whose answer may still be on its way, is permitted no longer.
    async fn revoked(&self, ctx: &Context) {
        let mut current: Option<Tenure> = None;
        loop {
            let ended = async {
                match current.as_mut() {
                    Some(tenure) => tenure.ended(ctx).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.tenured.notified() => {
                    if let Some(mut newer) = self.tenure.lock().await.take() {
                        current.take().into_iter().for_each(|earlier| newer.inherit(earlier));
                        current = Some(newer);
                    }
                }
                refusal = ended => {
                    current.iter().for_each(|tenure| revoked(ctx, tenure.connection(), &refusal));
                    return;
                }
            }
        }
    }
}

/// A request that nothing is answered to: its connection ends.
#[derive(Debug, thiserror::Error)]
#[error("not answered")]
struct Unanswered;

/// How heads are read inside a connection: bounded in size; between two of them a client may take its time.
#[must_use]
pub fn inside() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Limits::IDLE)
        .max_buf_size(Limits::INSPECTED_HEAD_BYTES)
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
pub async fn admit(permit: &Permit, request: &Parts, record: &mut Record) -> Result<Admitted, Refusal> {
    head::check_framing(&request.headers)?;
    let target = match permit.rules() {
        Some(rules) => {
            head::check_text(&request.headers)?;
            RequestTarget::canonical(&request.method, &request.uri, rules.allow_encoded_slash())
                .map_err(Refusal::Target)?
        }
        None => RequestTarget::as_written(&request.uri),
    };
    let leave = request::judge(permit, &request.method, &target).await?;
    record.request_permitted_by(&leave, target.path());
    let upgrade = head::upgrade_asked(&request.headers, permit.rules().is_some());
    Ok(Admitted { target, upgrade })
}

impl Admitted {
    /// Sends `request` on `upstream`. What comes back is the answer for the client; where it switches protocols, `session` goes
    /// on with both ends.
    ///
    /// # Errors
    /// The upstream failed; or was gone before anything was sent, with the request.
    pub async fn send(
        &self,
        session: &Session,
        upstream: &mut Upstream,
        request: Request<Incoming>,
        client: &mut Option<OnUpgrade>,
        record: &mut Record,
    ) -> Result<Response<Body>, NotAnswered> {
        let outgoing = head::outgoing(request, &self.target, self.upgrade.as_ref());
        let outgoing = outgoing.map_err(|error| NotAnswered::Failed(Refusal::Target(error)))?;
        let mut response = upstream.send(outgoing, self.upgrade.as_ref()).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let (Some(protocol), Some(client)) = (&self.upgrade, client.take())
        {
            let upstream = hyper::upgrade::on(&mut response);
            *session.upgraded.lock().await = Some(Upgraded { client, upstream });
            record.upgraded();
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            response.headers_mut().insert(UPGRADE, protocol.clone());
        }
        Ok(response.map(Either::Right))
    }
}

/// A permitted connection whose requests are judged.
#[derive(Debug)]
pub struct Inside<'c> {
    /// What all connections share.
    pub ctx: &'c Context,
    /// The connection.
    pub connection: &'c Arc<Connection>,
    /// How its requests reach their origin.
    pub scheme: Scheme,
}

impl Inside<'_> {
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
        let served = session.serve(self.ctx, client, &inside(), |request| self.answer(&session, request)).await;
        match served {
            Ok(Some(upgraded)) => upgraded.relay().await,
            Ok(None) => {}
            Err(error) => self.refused_by_library(&error),
        }
    }

    fn origin(&self) -> Origin {
        (self.scheme, self.connection.target().clone())
    }

    async fn answer(&self, session: &Session, request: Request<Incoming>) -> Option<Response<Body>> {
        let (path, target) = (request.uri().path(), self.connection.target().clone());
        let callers = self.connection.callers();
        let method = request.method().as_str();
        let mut record = Record::inside(session.count(), method, path, self.scheme, &callers, target);
        match Box::pin(self.exchange(session, request, &mut record)).await {
            Ok(response) => {
                record.finish(Outcome::Allowed, &*self.ctx.denials);
                Some(response)
            }
            Err(refusal) => {
                let response = reply::refused(&refusal, &record);
                record.finish(Outcome::Refused(&refusal), &*self.ctx.denials);
                Some(response)
            }
        }
    }

    async fn exchange(
        &self,
        session: &Session,
        mut request: Request<Incoming>,
        record: &mut Record,
    ) -> Result<Response<Body>, Refusal> {
        let mut client = Some(hyper::upgrade::on(&mut request));
        let (parts, body) = request.into_parts();
        head::check_authority(&parts, self.scheme, self.connection.target())?;
        let does = Does::Request(parts.method.clone(), parts.uri.clone());
        let permit = self.connection.begin(self.ctx, does).await?;
        let admitted = admit(&permit, &parts, record).await?;
        self.observe(&permit, &parts, &admitted);
        let mut request = Request::from_parts(parts, body);
        let mut connection = session.upstream.lock().await;
        let upstream = &mut connection.0;
        let mut is_fresh = false;
        let mut response = loop {
            request = match admitted.send(session, upstream, request, &mut client, record).await {
                Ok(response) => break response,
                // An upstream may end a connection that it has not used for a while.
                Err(NotAnswered::Unsent(unsent)) if !is_fresh => unsent,
                Err(NotAnswered::Unsent(_)) => {
                    return Err(Refusal::UpstreamUnreachable("it closed at once".to_owned()));
                }
                Err(NotAnswered::Failed(refusal)) => return Err(refusal),
            };
            let destination = resolve(&self.ctx.resolver, &permit).await?;
            reach(self.ctx, upstream, self.origin(), &destination).await?;
            is_fresh = true;
        };
        if upstream.is_ending() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    fn observe(&self, permit: &Permit, request: &Parts, admitted: &Admitted) {
        if let Some(observations) = self.ctx.observations.as_ref().filter(|_| permit.is_observed()) {
            let callers = self.connection.callers();
            let (program, method) = (&callers.first().program.executable, request.method.as_str());
            observations.add_request(program, self.connection.target(), method, admitted.path());
        }
    }

    /// What hyper answered by itself is a decision too. A client that went away asked for nothing.
    fn refused_by_library(&self, error: &hyper::Error) {
        let Some(refusal) = refused_by_library(error) else { return };
        let record = Record::of(&self.connection.callers(), self.connection.target().clone());
        record.finish(Outcome::Refused(&refusal), &*self.ctx.denials);
    }
}

impl Admitted {
    /// The path that was judged.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.path()
    }
}

/// Connects to `origin`, at `destination`, and keeps that as `upstream`. Returns which address it is at.
///
/// # Errors
/// It cannot be reached, or is not who it should be.
pub async fn reach(
    ctx: &Context,
    upstream: &mut Upstream,
    origin: Origin,
    destination: &Destination,
) -> Result<SocketAddr, Refusal> {
    let stream = connect(destination).await?;
    keep(ctx, upstream, origin, stream).await
}

/// Keeps `stream`, a connection to `origin`, as `upstream`, inside TLS where that is how requests reach it.
///
/// # Errors
/// As [`reach`].
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
            let stream = ctx.trust.open(&origin.1.host, stream).await?;
            upstream.keep(origin, address, stream).await?;
        }
    }
    Ok(address)
}

/// Why the HTTP library gave a client up, if that is a decision.
#[must_use]
pub fn refused_by_library(error: &hyper::Error) -> Option<Refusal> {
    if error.is_parse_too_large() {
        Some(Refusal::RequestTooLarge)
    } else if error.is_parse() {
        Some(Refusal::BadRequest("the request is not HTTP/1.1"))
    } else if error.is_timeout() {
        Some(Refusal::BadRequest("the head of the request did not arrive in time"))
    } else {
        None
    }
}

/// Reports that an open connection is permitted no longer.
pub fn revoked(ctx: &Context, connection: &Connection, refusal: &Refusal) {
    let record = Record::of(&connection.callers(), connection.target().clone());
    record.finish(Outcome::Revoked(refusal), &*ctx.denials);
}

/// Serves `client` the same `refusal`, whatever it asks.
pub async fn refuse_all<C>(ctx: &Context, client: C, refusal: &Refusal, record: Record)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let response = std::sync::Mutex::new(Some(reply::refused(refusal, &record)));
    record.finish(Outcome::Refused(refusal), &*ctx.denials);
    let session = Session::default();
    let answer = |_| {
        let response = response.lock().ok().and_then(|mut response| response.take());
        async { response }
    };
    let _ = session.serve(ctx, client, &inside(), answer).await;
}
