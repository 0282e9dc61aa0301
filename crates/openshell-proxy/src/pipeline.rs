//! A connection's way, from its head to its last byte.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use openshell_policy::denial::DenialStage;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OwnedSemaphorePermit};

use crate::approve::{approve, caller};
use crate::connect::dial;
use crate::context::Context;
use crate::credentials::body::{FirstBytes, misplaced};
use crate::decide::permit::{Inspection, Permit};
use crate::detect::{Detected, Protocol, detect};
use crate::http::head;
use crate::http::reply::{self, Body};
use crate::inference::serve::{self, Models};
use crate::intake;
use crate::io::complete_body::CompleteBody;
use crate::io::lingering::Linger;
use crate::io::prefixed::Prefixed;
use crate::limits::Limits;
use crate::peer::Caller;
use crate::peer::Flow;
use crate::quota::QuotaGuard;
use crate::record::{Outcome, Record};
use crate::refusal::{InferenceFault, Refusal};
use crate::relay::http::{Inside, Speaks, Unread, admit, keep, refuse_all};
use crate::relay::http2;
use crate::relay::opaque;
use crate::relay::session::{Session, revoked};
use crate::relay::upstream::NotAnswered;
use crate::target::{Scheme, Target};
use crate::tenure::{Connection, Does, Tenure};
use crate::tls::authority::HTTP2;
use crate::tls::originate::{self, UpstreamTls};
use crate::tls::terminate::{self, ClientTls, Offers, greet};

/// Serves one client: answers what it asks, and relays what was permitted until that ends.
pub async fn serve(ctx: Arc<Context>, client: TcpStream, flow: Flow) {
    // Boxed, so that what a head takes to be read is given back before the relay, which may last for hours.
    let tunnel = match Box::pin(open(&ctx, client, flow)).await {
        Some(Way::Tunnel(tunnel)) => tunnel,
        Some(Way::Models { client, surplus, caller, target, share }) => {
            Box::pin(serve_models(&ctx, client, surplus, caller, target)).await;
            drop(share);
            return;
        }
        None => return,
    };
    let Tunnel { client, surplus, upstream, address, mut tenure, share } = tunnel;
    let connection = Arc::clone(tenure.connection());
    let mut relayed = pin!(relay(&ctx, client, surplus, upstream, address, &connection));
    let refusal = tokio::select! {
        relayed = &mut relayed => relayed.err(),
        refusal = tenure.ended(&ctx) => {
            if connection.has_farewell() {
                let _ = tokio::time::timeout(2 * Limits::FAREWELL, relayed).await;
            }
            Some(refusal)
        }
    };
    match refusal {
        // It was permitted as what it turned out not to be.
        Some(refusal) if refusal.code().stage() == DenialStage::Credential => {
            let record = Record::of(&ctx.audit, &connection.callers(), connection.target().clone());
            record.finish(Outcome::Refused(&refusal));
        }
        Some(refusal) => revoked(&ctx, &connection, &refusal),
        None => {}
    }
    drop(share);
}

/// Reads and answers what the client asks; what is to be relayed comes of it, if that was permitted.
async fn open(ctx: &Context, client: TcpStream, flow: Flow) -> Option<Way> {
    let session = Session::new(client.as_fd().try_clone_to_owned().ok());
    let opened = Mutex::new(None);
    let answer = |request| answer(ctx, flow, request, &session, &opened);
    if let Err(refusal) = session.serve(ctx, client, &at_the_door(), answer).await {
        if let Some(refusal) = refusal {
            let record = match session.last().filter(|_| refusal.code().stage() == DenialStage::Credential) {
                Some(connection) => Record::of(&ctx.audit, &connection.callers(), connection.target().clone()),
                None => Record::new(&ctx.audit, "request".to_owned(), None),
            };
            record.finish(Outcome::Refused(&refusal));
        }
        return None;
    }
    let Opened { client, to } = opened.into_inner()?;
    let parts = client.await.ok()?.downcast::<TokioIo<Linger<TcpStream>>>().ok()?;
    let (client, surplus) = (parts.io.into_inner().into_inner(), parts.read_buf);
    Some(match to {
        To::Upstream { upstream, address, tenure, share } => {
            Way::Tunnel(Tunnel { client, surplus, upstream, address, tenure, share })
        }
        To::Models { caller, target, share } => Way::Models { client, surplus, caller, target, share },
    })
}

/// Serves models to a client, inside the sandbox's own TLS.
async fn serve_models(ctx: &Context, client: TcpStream, surplus: Bytes, caller: Option<Caller>, target: Target) {
    let (Some(authority), Some(inference)) = (&ctx.authority, &ctx.inference) else { return };
    let socket = client.as_fd().try_clone_to_owned().ok();
    let mut record = Record::new(&ctx.audit, format!("CONNECT {target}"), Some(target.clone()));
    caller.iter().for_each(|caller| record.called_by(caller.clone()));
    let hello = greet(Prefixed::new(surplus, client)).await;
    let opened = match hello {
        Ok(hello) => hello.open(authority, &target.host, false).await,
        Err(refusal) => Err(refusal),
    };
    match opened {
        Ok((client, None)) => {
            record.left_to_requests();
            Models { ctx, inference, caller, target }.serve(client, socket).await;
        }
        Ok((client, Some(other))) => refuse_all(ctx, client, &Refusal::AuthorityMismatch(other), record).await,
        Err(refusal) => record.finish(Outcome::Refused(&refusal)),
    }
}

/// How heads are read at the doors: bounded in size and time; a client that has ended its sending still gets its answer.
fn at_the_door() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Limits::HEAD_DEADLINE)
        .max_buf_size(Limits::HEAD_BYTES)
        .half_close(true)
        .auto_date_header(false)
        .preserve_header_case(true)
        .title_case_headers(true);
    protocol
}

/// Relays a connection as what it turns out to be; what its permit judges is looked at, and nothing else is relayed unseen.
async fn relay(
    ctx: &Arc<Context>,
    mut client: TcpStream,
    surplus: Bytes,
    mut upstream: TcpStream,
    address: SocketAddr,
    connection: &Arc<Connection>,
) -> Result<(), Refusal> {
    let permit = connection.permit();
    if matches!(permit.inspection(), Inspection::Passthrough) {
        return relay_unseen(ctx, connection, |first| opaque::relay(client, surplus, upstream, Bytes::new(), first))
            .await;
    }
    let Ok(found) = Box::pin(detect(&mut client, surplus, &mut upstream, permit.rules().is_none())).await else {
        return Ok(());
    };
    let Detected { protocol, from_client, from_upstream } = found;
    // The policy may have changed while the client was silent.
    let permit = connection.permit();
    let socket = || client.as_fd().try_clone_to_owned().ok();
    match protocol {
        Protocol::Tls => {
            let socket = socket();
            let client = Prefixed::new(from_client, client);
            Box::pin(relay_tls(ctx, client, socket, upstream, address, connection)).await
        }
        Protocol::Http1 => {
            let (inside, socket) = (inside(ctx, connection, Scheme::Http), socket());
            let (client, upstream) = (Prefixed::new(from_client, client), Prefixed::new(from_upstream, upstream));
            Box::pin(inside.serve(client, socket, upstream, address)).await;
            Ok(())
        }
        Protocol::Http2 => {
            let _place = place_for_http2(ctx)?;
            let inside = inside(ctx, connection, Scheme::Http);
            let (client, upstream) = (Prefixed::new(from_client, client), Prefixed::new(from_upstream, upstream));
            Box::pin(inside.serve_http2(client, (upstream, Speaks::AsTheClient), address)).await;
            Ok(())
        }
        Protocol::Other if permit.rules().is_some() => {
            drop(upstream);
            Box::pin(refuse_unseen(ctx, client, connection, &permit)).await;
            Ok(())
        }
        Protocol::Other => {
            relay_unseen(ctx, connection, |first| opaque::relay(client, from_client, upstream, from_upstream, first))
                .await
        }
    }
}

/// Relays what is inside TLS, opened on both sides.
async fn relay_tls(
    ctx: &Arc<Context>,
    client: Prefixed<TcpStream>,
    socket: Option<OwnedFd>,
    upstream: TcpStream,
    address: SocketAddr,
    connection: &Arc<Connection>,
) -> Result<(), Refusal> {
    let permit = connection.permit();
    let Some((mut client, mut upstream, place)) = Box::pin(open_tls(ctx, client, upstream, connection)).await else {
        return Ok(());
    };
    let speaks = match (terminate::protocol(&client), originate::protocol(&upstream)) {
        (_, Some(HTTP2)) => Speaks::Http2,
        // A client that knows without having asked knows its upstream.
        (None, None) => Speaks::AsTheClient,
        _ => Speaks::Http1,
    };
    let found = match agreed(&client) {
        Some(protocol) => Detected { protocol, from_client: Bytes::new(), from_upstream: Bytes::new() },
        None => match Box::pin(detect(&mut client, Bytes::new(), &mut upstream, permit.rules().is_none())).await {
            Ok(found) => found,
            Err(_) => return Ok(()),
        },
    };
    let Detected { protocol, from_client, from_upstream } = found;
    let permit = connection.permit();
    match protocol {
        Protocol::Http1 => {
            let inside = inside(ctx, connection, Scheme::Https);
            let (client, upstream) = (Prefixed::new(from_client, client), Prefixed::new(from_upstream, upstream));
            inside.serve(client, socket, upstream, address).await;
            Ok(())
        }
        Protocol::Http2 => {
            let _place = if place.is_some() { place } else { Some(place_for_http2(ctx)?) };
            drop(socket);
            let inside = inside(ctx, connection, Scheme::Https);
            let (client, upstream) = (Prefixed::new(from_client, client), Prefixed::new(from_upstream, upstream));
            inside.serve_http2(client, (upstream, speaks), address).await;
            Ok(())
        }
        Protocol::Tls | Protocol::Other if permit.rules().is_some() => {
            drop(upstream);
            refuse_unseen(ctx, client, connection, &permit).await;
            Ok(())
        }
        Protocol::Tls | Protocol::Other => {
            let (client, upstream) = (Prefixed::new(from_client, client), Prefixed::new(from_upstream, upstream));
            relay_unseen(ctx, connection, |first| opaque::copy(client, upstream, first)).await
        }
    }
}

/// The protocol that `client` agreed to by ALPN, which settles it before anything is waited for: a server of HTTP/2 speaks first by
/// design. `None` where the client did not ask.
fn agreed<S>(client: &ClientTls<S>) -> Option<Protocol> {
    match terminate::protocol(client)? {
        HTTP2 => Some(Protocol::Http2),
        _ => Some(Protocol::Http1),
    }
}

/// A place for a connection that speaks HTTP/2 without having asked.
fn place_for_http2(ctx: &Context) -> Result<OwnedSemaphorePermit, Refusal> {
    let place = Arc::clone(&ctx.http2).try_acquire_owned();
    place.map_err(|_| Refusal::LimitReached("too many HTTP/2 connections at once"))
}

/// Opens TLS on both sides, and takes a place where that is for HTTP/2. A client that cannot be served is told why inside its own.
async fn open_tls(
    ctx: &Context,
    client: Prefixed<TcpStream>,
    upstream: TcpStream,
    connection: &Connection,
) -> Option<(ClientTls<Prefixed<TcpStream>>, UpstreamTls, Option<OwnedSemaphorePermit>)> {
    let host = &connection.target().host;
    let record = || Record::of(&ctx.audit, &connection.callers(), connection.target().clone());
    let Some(authority) = &ctx.authority else {
        record().finish(Outcome::Refused(&Refusal::AuthorityUnavailable));
        return None;
    };
    let hello = match greet(client).await {
        Ok(hello) => hello,
        Err(refusal) => {
            record().finish(Outcome::Refused(&refusal));
            return None;
        }
    };
    // Beyond the last place everybody speaks HTTP/1.1 who can.
    let place = if hello.offers == Offers::Http1 { None } else { Arc::clone(&ctx.http2).try_acquire_owned().ok() };
    let mut originated = pin!(ctx.trust.open(host, upstream, place.is_some()));
    let mut early = None;
    // Who leaves it open speaks what the upstream does.
    if hello.offers == Offers::Either {
        early = Some((&mut originated).await);
    }
    let speaks_http2 = |upstream: &UpstreamTls| originate::protocol(upstream) == Some(HTTP2);
    let is_http2 = early.as_ref().is_none_or(|upstream| upstream.as_ref().map_or(true, speaks_http2));
    let mut terminated = pin!(hello.open(authority, host, place.is_some() && is_http2));
    // Without a client there is nobody to wait for the upstream.
    let terminated = loop {
        tokio::select! {
            terminated = &mut terminated => break terminated,
            upstream = &mut originated, if early.is_none() => early = Some(upstream),
        }
    };
    let (client, upstream) = match terminated {
        Ok((client, None)) => match early {
            Some(upstream) => (client, upstream),
            None => (client, originated.await),
        },
        Ok((client, Some(other))) => (client, Err(Refusal::AuthorityMismatch(other))),
        Err(refusal) => {
            record().finish(Outcome::Refused(&refusal));
            return None;
        }
    };
    let refusal = match upstream {
        Ok(upstream) => {
            // Who speaks HTTP/1.1 in the end needs none.
            let place = place.filter(|_| terminate::protocol(&client) == Some(HTTP2));
            return Some((client, upstream, place));
        }
        Err(refusal) => refusal,
    };
    match terminate::protocol(&client) == Some(HTTP2) {
        true => http2::refuse_all(ctx, client, &refusal, record()).await,
        false => refuse_all(ctx, client, &refusal, record()).await,
    }
    None
}

fn inside(ctx: &Arc<Context>, connection: &Arc<Connection>, scheme: Scheme) -> Inside {
    Inside { ctx: Arc::clone(ctx), connection: Arc::clone(connection), scheme }
}

/// Relays bytes that nobody looks at, which takes a permit that judges nothing inside.
async fn relay_unseen<F>(
    ctx: &Context,
    connection: &Connection,
    relay: impl FnOnce(FirstBytes) -> F,
) -> Result<(), Refusal>
where
    F: Future<Output = std::io::Result<()>>,
{
    connection.begin(ctx, Does::Opaque).await?;
    if let Some(observations) = &ctx.observations {
        observations.add_opaque(&connection.callers().first().program.executable, connection.target());
    }
    // Which side broke off is nobody's decision; both learn of it by the end of their connection.
    relay(FirstBytes::new(&ctx.vault.load())).await.err().as_ref().and_then(misplaced).map_or(Ok(()), Err)
}

/// Tells a client that what it speaks cannot be judged, and its connection has rules for that.
async fn refuse_unseen<C>(ctx: &Context, client: C, connection: &Connection, permit: &Permit)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let what = "the policy has rules for the requests of this connection, and it speaks neither HTTP/1.1 nor HTTP/2";
    let refusal = Refusal::UnsupportedProtocol { what, policy: permit.policy().map(str::to_owned) };
    let record = Record::of(&ctx.audit, &connection.callers(), connection.target().clone());
    let answer = reply::raw(&refusal, &record);
    record.finish(Outcome::Refused(&refusal));
    // A client that has gone wants no answer.
    let mut client = Linger::new(client, Arc::default());
    let _ = client.write_all(&answer).await;
    let _ = client.shutdown().await;
}

async fn answer(
    ctx: &Context,
    flow: Flow,
    request: Request<Incoming>,
    session: &Session,
    opened: &Mutex<Option<Opened>>,
) -> Option<Response<Body>> {
    let (record, answered) = if request.method() == Method::CONNECT {
        let (mut record, target) = intake::connect::intake(&ctx.audit, &request);
        let answered = match target {
            Ok(target) if serve::is_target(&target) => to_models(ctx, flow, request, target, opened, &mut record).await,
            Ok(target) => tunnel(ctx, flow, request, target, opened, &mut record).await,
            Err(refusal) => Err(refusal),
        };
        (record, answered)
    } else {
        let (mut record, origin) = intake::forward::intake(&ctx.audit, &request);
        let answered = match origin {
            Ok((Scheme::Https, target)) if serve::is_target(&target) => {
                let caller = caller(ctx, flow).await;
                caller.iter().for_each(|caller| record.called_by(caller.clone()));
                match &ctx.inference {
                    Some(inference) => {
                        let models = Models { ctx, inference, caller, target };
                        return Some(Box::pin(models.answer(session, request, record)).await);
                    }
                    None => Err(Refusal::Inference(InferenceFault::NotConfigured)),
                }
            }
            Ok(origin) => Box::pin(forward(ctx, flow, request, origin, session, &mut record)).await,
            Err(refusal) => Err(refusal),
        };
        (record, answered)
    };
    Some(match answered {
        Ok(response) => {
            record.finish(Outcome::Allowed);
            response
        }
        Err(refusal) => refuse(&refusal, record),
    })
}

/// CONNECT: the client has the rest of the connection to itself.
async fn tunnel(
    ctx: &Context,
    flow: Flow,
    mut request: Request<Incoming>,
    target: Target,
    opened: &Mutex<Option<Opened>>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let (decided, upstream, address, share) = loop {
        let (destination, decided) = approve(ctx, flow, &target, record).await?;
        // Whether it has TLS inside nobody knows before the answer.
        if ctx.authority.is_none() && !matches!(decided.permit.inspection(), Inspection::Passthrough) {
            return Err(Refusal::AuthorityUnavailable);
        }
        let (upstream, address, share) = dial(ctx, &destination, &decided.callers).await?;
        // Looking up and dialling take their time; what came into force meanwhile is asked as well.
        if !decided.is_outdated() {
            break (decided, upstream, address, share);
        }
    };
    let client = hyper::upgrade::on(&mut request);
    let to = To::Upstream { upstream, address, tenure: decided.tenure(address), share };
    *opened.lock().await = Some(Opened { client, to });
    Ok(reply::established())
}

/// CONNECT to where models are, which no policy is asked about.
async fn to_models(
    ctx: &Context,
    flow: Flow,
    mut request: Request<Incoming>,
    target: Target,
    opened: &Mutex<Option<Opened>>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let caller = caller(ctx, flow).await;
    caller.iter().for_each(|caller| record.called_by(caller.clone()));
    record.intercepted();
    if ctx.inference.is_none() {
        return Err(Refusal::Inference(InferenceFault::NotConfigured));
    }
    if ctx.authority.is_none() {
        return Err(Refusal::AuthorityUnavailable);
    }
    let program = caller.as_ref().map_or("-", |caller| caller.program.executable.as_str());
    let share = ctx.shares.take(program);
    let share = share.ok_or(Refusal::LimitReached("the program has too many connections at once"))?;
    let client = hyper::upgrade::on(&mut request);
    *opened.lock().await = Some(Opened { client, to: To::Models { caller, target, share } });
    Ok(reply::established())
}

/// A request to the proxy itself: judged by itself, sent on, answered as the upstream answers.
async fn forward(
    ctx: &Context,
    flow: Flow,
    mut request: Request<Incoming>,
    (scheme, target): (Scheme, Target),
    session: &Session,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let mut client = Some(hyper::upgrade::on(&mut request));
    let (mut parts, incoming) = request.into_parts();
    let mut body = Unread::Incoming(CompleteBody::new(incoming, false));
    let mut connection = session.upstream.lock().await;
    let (upstream, held) = &mut *connection;
    let mut may_reuse = true;
    loop {
        let (destination, decided) = approve(ctx, flow, &target, record).await?;
        let admitted = admit(ctx, &decided.permit, &parts, record).await?;
        if let Some(observations) = &ctx.observations {
            let program = &decided.callers.first().program.executable;
            observations.add_request(program, &target, parts.method.as_str(), admitted.path());
        }
        let does = Does::Request(0, parts.method.clone(), parts.uri.clone());
        let origin = (scheme, target.clone());
        let kept = if may_reuse { upstream.reusable(&origin, &destination) } else { None };
        let address = match kept {
            Some(address) => address,
            None => {
                // The one before is given back first, or a program with all of its connections could not change its mind.
                *held = None;
                let (stream, _, share) = dial(ctx, &destination, &decided.callers).await?;
                let address = keep(ctx, upstream, origin, stream).await?;
                *held = Some(share);
                address
            }
        };
        if decided.is_outdated() {
            continue;
        }
        let tenure = decided.tenure(address);
        tenure.connection().begin(ctx, does).await?;
        session.judged_again_by(tenure).await;
        head::mark_forwarded(&mut parts.headers, scheme, &target);
        let scanned = body.scanned(ctx, session, &parts, None).await?;
        let sent = admitted.send((ctx, session), upstream, (scheme, &target), (&parts, scanned), &mut client, record);
        body = match sent.await {
            Ok(response) => return Ok(response),
            // An upstream may end a connection that it has not used for a while.
            Err(NotAnswered::Unsent(unsent)) if kept.is_some() => Unread::Outgoing(unsent),
            Err(NotAnswered::Unsent(_) | NotAnswered::Unprocessed) => {
                return Err(Refusal::UpstreamUnreachable("it closed at once".to_owned()));
            }
            Err(NotAnswered::Failed(refusal)) => return Err(refusal),
        };
        may_reuse = false;
    }
}

fn refuse(refusal: &Refusal, record: Record) -> Response<Body> {
    let response = reply::refused(refusal, &record);
    record.finish(Outcome::Refused(refusal));
    response
}

/// A permitted connection whose answer is on its way.
struct Opened {
    client: OnUpgrade,
    to: To,
}

/// Where it leads.
enum To {
    Upstream { upstream: TcpStream, address: SocketAddr, tenure: Tenure, share: QuotaGuard },
    Models { caller: Option<Caller>, target: Target, share: QuotaGuard },
}

/// How a connection goes on that was opened.
enum Way {
    Tunnel(Tunnel),
    Models { client: TcpStream, surplus: Bytes, caller: Option<Caller>, target: Target, share: QuotaGuard },
}

/// Both ends of a permitted connection, and what the client sent behind the head of its request.
struct Tunnel {
    client: TcpStream,
    surplus: Bytes,
    upstream: TcpStream,
    address: SocketAddr,
    tenure: Tenure,
    share: QuotaGuard,
}

/// Tells a client that there are too many connections already.
pub async fn refuse_excess(ctx: Arc<Context>, client: TcpStream) {
    let ctx = &*ctx;
    let answer = |request: Request<Incoming>| async move {
        let record = match *request.method() {
            Method::CONNECT => intake::connect::intake(&ctx.audit, &request).0,
            _ => intake::forward::intake(&ctx.audit, &request).0,
        };
        Some(refuse(&Refusal::LimitReached("too many connections at once"), record))
    };
    let _ = Session::default().serve(ctx, client, &at_the_door(), answer).await;
}
