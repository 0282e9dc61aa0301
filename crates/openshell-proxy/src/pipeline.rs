//! A connection's way, from its head to its last byte.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify, watch};

use crate::connect::connect;
use crate::context::{Context, Limits};
use crate::decide::connection::{Permit, judge, observe};
use crate::http::reply::{self, Body};
use crate::identify::Flow;
use crate::identify::caller::Callers;
use crate::intake::{self, Target};
use crate::record::{Outcome, Record};
use crate::refusal::Refusal;
use crate::relay::forward::{self, NotAnswered, Upstream};
use crate::relay::opaque;
use crate::resolve::guard::Destination;
use crate::resolve::resolve;
use crate::share::Share;
use crate::tenure::Tenure;

/// Serves one client: answers what it asks, and relays what was permitted until that ends.
pub async fn serve(ctx: Arc<Context>, client: TcpStream, flow: Flow) {
    // Boxed, so that what a head takes to be read is given back before the relay, which may last for hours.
    let Some(tunnel) = Box::pin(open(&ctx, client, flow)).await else { return };
    let Tunnel { client, surplus, upstream, approved: Approved { mut tenure, share } } = tunnel;
    let refusal = tokio::select! {
        // Which side broke off is nobody's decision; both learn of it by the end of their connection.
        _ = opaque::relay(client, surplus, upstream) => None,
        refusal = tenure.ended(&ctx) => Some(refusal),
    };
    if let Some(refusal) = refusal {
        revoked(&ctx, &tenure, &refusal);
    }
    drop(share);
}

/// Reads and answers what the client asks; what is to be relayed comes of it, if that was permitted.
async fn open(ctx: &Arc<Context>, client: TcpStream, flow: Flow) -> Option<Tunnel> {
    let session = Session { client: client.as_fd().try_clone_to_owned().ok(), ..Session::default() };
    let answer = service_fn(|request| answer(ctx, flow, request, &session));
    let served = tokio::select! {
        served = protocol().serve_connection(TokioIo::new(client), answer).with_upgrades() => served,
        () = session.revoked(ctx) => return None,
        () = session.deserted() => return None,
    };
    if let Err(error) = served {
        // Between two requests a client may take its time, and go.
        if !(error.is_timeout() && session.has_answered.load(Ordering::Relaxed)) {
            refused_by_hyper(ctx, &error);
        }
        return None;
    }
    let Opened { client, upstream, approved } = session.opened.lock().await.take()?;
    let parts = client.await.ok()?.downcast::<TokioIo<TcpStream>>().ok()?;
    Some(Tunnel { client: parts.io.into_inner(), surplus: parts.read_buf, upstream, approved })
}

/// What the requests of one client connection share.
#[derive(Default)]
struct Session {
    /// The client's socket, to see whether anybody is still there.
    client: Option<OwnedFd>,
    /// A tunnel that was permitted, after which there are no more requests.
    opened: Mutex<Option<Opened>>,
    /// The upstream connection of its plain requests.
    upstream: Mutex<(Upstream, Option<Share>)>,
    /// What its last plain request may last by.
    tenure: Mutex<Option<Tenure>>,
    /// There is a new one.
    tenured: Notify,
    has_answered: AtomicBool,
    /// A request has no answer yet.
    is_asked: AtomicBool,
}

impl Session {
    /// Has the connection judged by `tenure` from now on.
    async fn judged_again_by(&self, tenure: Tenure) {
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

    /// Returns when the last plain request, whose answer may still be on its way, is permitted no longer.
    async fn revoked(&self, ctx: &Arc<Context>) {
        let mut current = None;
        loop {
            let ended = async {
                match current.as_mut() {
                    Some(tenure) => Tenure::ended(tenure, ctx).await,
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
                    current.iter().for_each(|tenure| revoked(ctx, tenure, &refusal));
                    return;
                }
            }
        }
    }
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

/// Everything that must hold before anything is answered or dialled.
async fn approve(
    ctx: &Context,
    flow: Flow,
    target: &Target,
    record: &mut Record,
) -> Result<(Destination, Decided), Refusal> {
    let decided = decide(ctx, flow, target, record).await?;
    record.permitted_by(&decided.permit);
    let destination = resolve(&ctx.resolver, &decided.permit).await?;
    if let Some(observations) = &ctx.observations {
        observations.add(&decided.callers.first().program.executable, target, &destination);
    }
    Ok((destination, decided))
}

/// Connects for a permitted connection, of which its program has only so many.
async fn dial(
    ctx: &Context,
    destination: &Destination,
    callers: &Callers,
) -> Result<(TcpStream, SocketAddr, Share), Refusal> {
    let share = ctx.shares.take(&callers.first().program.executable);
    let share = share.ok_or(Refusal::LimitReached("the program has too many connections at once"))?;
    let upstream = connect(destination).await?;
    let address = upstream.peer_addr().map_err(|error| Refusal::UpstreamUnreachable(error.to_string()))?;
    Ok((upstream, address, share))
}

/// Who asks, and whether they may. On a thread of its own, as reading /proc, hashing a program and evaluating foreign rules
/// may take their time; a few at once and not for long, so that no workload can have them all.
async fn decide(ctx: &Context, flow: Flow, target: &Target, record: &mut Record) -> Result<Decided, Refusal> {
    let generations = ctx.policy.subscribe();
    let (identifier, policy, to) = (Arc::clone(&ctx.identifier), Arc::clone(&ctx.policy), target.clone());
    let (turn, is_observed) = (Arc::clone(&ctx.turns).acquire_owned(), ctx.observations.is_some());
    let decision = async {
        let turn = turn.await;
        let work = tokio::task::spawn_blocking(move || {
            let identified = identifier.identify(flow)?;
            let snapshot = policy.load();
            let verify = || identifier.verify(&identified);
            let permit = match is_observed {
                false => judge(&snapshot, identified.callers(), &to, verify),
                true => observe(&snapshot, identified.callers(), &to, verify),
            };
            drop(turn);
            Ok((identified.callers().clone(), identified.unsearched(), permit))
        });
        work.await.map_err(|error| Refusal::Engine(error.to_string()))?
    };
    let decided = tokio::time::timeout(Limits::JUDGE_DEADLINE, decision).await;
    let (callers, unsearched, permit) =
        decided.map_err(|_| Refusal::CallerUnknown("finding out who asks took too long".to_owned()))??;
    record.called_by(callers.first().clone());
    Ok(Decided { callers, unsearched, permit: permit?, generations })
}

/// Who may, and by what.
struct Decided {
    callers: Callers,
    /// Their socket, if not all processes were looked at.
    unsearched: Option<u32>,
    permit: Permit,
    /// Tells of what comes into force.
    generations: watch::Receiver<u64>,
}

impl Decided {
    fn tenure(&self, target: Target, address: SocketAddr) -> Tenure {
        let generations = (self.generations.clone(), self.permit.generation());
        Tenure::new(self.callers.clone(), target, address.ip(), generations, self.unsearched)
    }

    /// Whether another generation has come into force since.
    fn is_outdated(&self) -> bool {
        *self.generations.borrow() != self.permit.generation()
    }
}

async fn answer(
    ctx: &Context,
    flow: Flow,
    request: Request<Incoming>,
    session: &Session,
) -> Result<Response<Body>, Infallible> {
    let is_tunnel = request.method() == Method::CONNECT;
    let (mut record, target) =
        if is_tunnel { intake::connect::intake(&request) } else { intake::forward::intake(&request) };
    session.is_asked.store(true, Ordering::Relaxed);
    let answered = match target {
        Err(refusal) => Err(refusal),
        Ok(target) if is_tunnel => tunnel(ctx, flow, request, target, session, &mut record).await,
        Ok(target) => forward(ctx, flow, request, target, session, &mut record).await,
    };
    session.is_asked.store(false, Ordering::Relaxed);
    session.has_answered.store(true, Ordering::Relaxed);
    Ok(match answered {
        Ok(response) => {
            record.finish(Outcome::Allowed, &*ctx.denials);
            response
        }
        Err(refusal) => refuse(ctx, &refusal, record),
    })
}

/// CONNECT: the client has the rest of the connection to itself.
async fn tunnel(
    ctx: &Context,
    flow: Flow,
    mut request: Request<Incoming>,
    target: Target,
    session: &Session,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let (decided, upstream, address, share) = loop {
        let (destination, decided) = approve(ctx, flow, &target, record).await?;
        let (upstream, address, share) = dial(ctx, &destination, &decided.callers).await?;
        // Looking up and dialling take their time; what came into force meanwhile is asked as well.
        if !decided.is_outdated() {
            break (decided, upstream, address, share);
        }
    };
    let approved = Approved { tenure: decided.tenure(target, address), share };
    let client = hyper::upgrade::on(&mut request);
    *session.opened.lock().await = Some(Opened { client, upstream, approved });
    Ok(reply::established())
}

/// A plain-HTTP request: judged by itself, sent on, answered as the upstream answers.
async fn forward(
    ctx: &Context,
    flow: Flow,
    request: Request<Incoming>,
    target: Target,
    session: &Session,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let (mut destination, mut decided) = approve(ctx, flow, &target, record).await?;
    let mut connection = session.upstream.lock().await;
    let (upstream, held) = &mut *connection;
    let mut request = forward::rewrite(request, &target);
    let mut kept = upstream.reusable(&target, &destination);
    loop {
        let is_kept = kept.is_some();
        let address = match kept.take() {
            Some(address) => address,
            None => {
                // The one before is given back first, or a program with all of its connections could not change its mind.
                *held = None;
                let (stream, address, share) = dial(ctx, &destination, &decided.callers).await?;
                upstream.keep(target.clone(), address, stream).await?;
                *held = Some(share);
                address
            }
        };
        if decided.is_outdated() {
            (destination, decided) = approve(ctx, flow, &target, record).await?;
            kept = upstream.reusable(&target, &destination);
            continue;
        }
        session.judged_again_by(decided.tenure(target.clone(), address)).await;
        request = match upstream.send(request).await {
            Ok(response) => return Ok(response.map(Either::Right)),
            // An upstream may end a connection that it has not used for a while.
            Err(NotAnswered::Unsent(unsent)) if is_kept => unsent,
            Err(NotAnswered::Unsent(_)) => return Err(Refusal::UpstreamUnreachable("it closed at once".to_owned())),
            Err(NotAnswered::Failed(refusal)) => return Err(refusal),
        };
    }
}

/// Reports that an open connection is permitted no longer.
fn revoked(ctx: &Context, tenure: &Tenure, refusal: &Refusal) {
    let record = Record::of(tenure.callers(), tenure.target().clone());
    record.finish(Outcome::Revoked(refusal), &*ctx.denials);
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
        let (record, _) = match *request.method() {
            Method::CONNECT => intake::connect::intake(&request),
            _ => intake::forward::intake(&request),
        };
        Ok::<_, Infallible>(refuse(ctx, &Refusal::LimitReached("too many connections at once"), record))
    });
    let _ = protocol().serve_connection(TokioIo::new(client), answer).await;
}
