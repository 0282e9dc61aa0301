//! A connection's way, from its head to its last byte.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use crate::connect::connect;
use crate::context::{Context, Limits};
use crate::decide::connection::{Permit, judge};
use crate::http::reply::{self, Body};
use crate::identify::Flow;
use crate::identify::caller::Callers;
use crate::intake::{self, Target};
use crate::record::{Outcome, Record};
use crate::refusal::Refusal;
use crate::relay::opaque;
use crate::resolve::resolve;
use crate::share::Share;
use crate::tenure::Tenure;

/// Serves one client: answers what it asks, and relays what was permitted until that ends.
pub async fn serve(ctx: Arc<Context>, client: TcpStream, flow: Flow) {
    // Boxed, so that what a head takes to be read is given back before the relay, which may last for hours.
    let Some(tunnel) = Box::pin(open(&ctx, client, flow)).await else { return };
    let Tunnel { client, surplus, upstream, approved: Approved { tenure, share } } = tunnel;
    let (callers, target) = (tenure.callers().clone(), tenure.target().clone());
    tokio::select! {
        // Which side broke off is nobody's decision; both learn of it by the end of their connection.
        _ = opaque::relay(client, surplus, upstream) => {}
        refusal = tenure.ended(&ctx) => Record::of(&callers, target).finish(Outcome::Revoked(&refusal), &*ctx.denials),
    }
    drop(share);
}

/// Reads and answers what the client asks; what is to be relayed comes of it, if it was permitted.
async fn open(ctx: &Arc<Context>, client: TcpStream, flow: Flow) -> Option<Tunnel> {
    let opened = Mutex::new(None);
    let answer = service_fn(|request| answer(ctx, flow, request, &opened));
    let served = protocol().serve_connection(TokioIo::new(client), answer).with_upgrades().await;
    if let Err(error) = served {
        refused_by_hyper(ctx, &error);
        return None;
    }
    let Opened { client, upstream, approved } = opened.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    let parts = client.await.ok()?.downcast::<TokioIo<TcpStream>>().ok()?;
    Some(Tunnel { client: parts.io.into_inner(), surplus: parts.read_buf, upstream, approved })
}

/// How heads are read: bounded in size and time; a client that has ended its sending still gets its answer.
fn protocol() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Limits::HEAD_DEADLINE)
        .max_buf_size(Limits::HEAD_BYTES)
        .half_close(true)
        .auto_date_header(false)
        .title_case_headers(true);
    protocol
}

/// Everything that must hold before anything is answered.
async fn approve(
    ctx: &Context,
    flow: Flow,
    target: &Target,
    record: &mut Record,
) -> Result<(TcpStream, Approved), Refusal> {
    let generations = ctx.policy.subscribe();
    let Decided { callers, unsearched, permit } = decide(ctx, flow, target, record).await?;
    record.permitted_by(&permit);
    let program = &callers.first().program.executable;
    let share =
        ctx.shares.take(program).ok_or(Refusal::LimitReached("the program has too many connections at once"))?;
    let destination = resolve(&ctx.resolver, &permit).await?;
    let upstream = connect(&destination).await?;
    let address = upstream.peer_addr().map_err(|error| Refusal::UpstreamUnreachable(error.to_string()))?.ip();
    let tenure = Tenure::new(ctx, callers, target.clone(), address, generations, unsearched);
    Ok((upstream, Approved { tenure, share }))
}

/// Who asks, and whether they may. On a thread of its own, as reading /proc, hashing a program and evaluating foreign rules
/// may take their time; a few at once and not for long, so that no workload can have them all.
async fn decide(ctx: &Context, flow: Flow, target: &Target, record: &mut Record) -> Result<Decided, Refusal> {
    let (identifier, snapshot, to) = (Arc::clone(&ctx.identifier), ctx.policy.load(), target.clone());
    let turn = Arc::clone(&ctx.turns).acquire_owned();
    let decision = async {
        let turn = turn.await;
        let work = tokio::task::spawn_blocking(move || {
            let identified = identifier.identify(flow)?;
            let permit = judge(&snapshot, identified.callers(), &to, || identifier.verify(&identified));
            drop(turn);
            Ok((identified.callers().clone(), identified.unsearched(), permit))
        });
        work.await.map_err(|error| Refusal::Engine(error.to_string()))?
    };
    let decided = tokio::time::timeout(Limits::JUDGE_DEADLINE, decision).await;
    let (callers, unsearched, permit) =
        decided.map_err(|_| Refusal::CallerUnknown("finding out who asks took too long".to_owned()))??;
    record.called_by(callers.first().clone());
    Ok(Decided { callers, unsearched, permit: permit? })
}

/// Who may, and by what.
struct Decided {
    callers: Callers,
    /// Their socket, if not all processes were looked at.
    unsearched: Option<u32>,
    permit: Permit,
}

async fn answer(
    ctx: &Context,
    flow: Flow,
    mut request: Request<Incoming>,
    opened: &Mutex<Option<Opened>>,
) -> Result<Response<Body>, Infallible> {
    let (mut record, target) = intake::connect::intake(&request);
    let target = match target {
        Ok(target) => target,
        Err(refusal) => return Ok(refuse(ctx, &refusal, record)),
    };
    match approve(ctx, flow, &target, &mut record).await {
        Ok((upstream, approved)) => {
            record.finish(Outcome::Allowed, &*ctx.denials);
            let client = hyper::upgrade::on(&mut request);
            *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(Opened { client, upstream, approved });
            Ok(reply::established())
        }
        Err(refusal) => Ok(refuse(ctx, &refusal, record)),
    }
}

fn refuse(ctx: &Context, refusal: &Refusal, record: Record) -> Response<Body> {
    let response = reply::refused(refusal, &record);
    record.finish(Outcome::Refused(refusal), &*ctx.denials);
    response
}

/// What a permitted connection holds until its end.
struct Approved {
    tenure: Tenure,
    share: Share,
}

/// A permitted connection whose answer is on its way.
struct Opened {
    client: OnUpgrade,
    upstream: TcpStream,
    approved: Approved,
}

/// Both ends of a permitted connection, and what the client sent behind the head of its request.
struct Tunnel {
    client: TcpStream,
    surplus: Bytes,
    upstream: TcpStream,
    approved: Approved,
}

/// What hyper answered by itself is a decision too. A client that went away asked for nothing.
fn refused_by_hyper(ctx: &Context, error: &hyper::Error) {
    let refusal = if error.is_parse_too_large() {
        Refusal::RequestTooLarge
    } else if error.is_parse() {
        Refusal::BadRequest("the request is not HTTP/1.1")
    } else if error.is_timeout() {
        Refusal::BadRequest("the head of the request did not arrive in time")
    } else {
        return;
    };
    Record::new("request".to_owned(), None).finish(Outcome::Refused(&refusal), &*ctx.denials);
}

/// Tells a client that there are too many connections already.
pub async fn refuse_excess(ctx: Arc<Context>, client: TcpStream) {
    let ctx = &*ctx;
    let answer = service_fn(|request: Request<Incoming>| async move {
        let (record, _) = intake::connect::intake(&request);
        Ok::<_, Infallible>(refuse(ctx, &Refusal::LimitReached("too many connections at once"), record))
    });
    let _ = protocol().serve_connection(TokioIo::new(client), answer).await;
}
