//! One client's HTTP/2 connection, opened: each of its streams is a request like any other.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Waking, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::Executor as _;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::context::Context;
use crate::credentials::body::{self, Held};
use crate::http::head;
use crate::http::reply::{self, Body};
use crate::io::complete_body::CompleteBody;
use crate::io::lingering::Linger;
use crate::io::tasks::{ConnectionTasks, Spawner};
use crate::limits::Limits;
use crate::memory::Windows;
use crate::quota::QuotaGuard;
use crate::record::{Outcome, Record};
use crate::refusal::Refusal;
use crate::relay::http::{Course, Inside, Unanswered};
use crate::relay::session::Session;
use crate::relay::upstream::Upstream;

#[cfg(test)]
mod tests;

/// Where the requests of one client's streams go.
#[derive(Debug)]
pub struct Lanes {
    /// The one for all, where the upstream speaks HTTP/2…
    shared: Option<Upstream>,
    /// …and whether it does, where that is not known.
    confirmed: Option<watch::Receiver<bool>>,
    /// Those that wait for a request, where it does not, each with what its program has of connections for it…
    idle: Mutex<Vec<(Upstream, Option<QuotaGuard>)>>,
    /// …and turns at having one.
    turns: Arc<Semaphore>,
    crew: ConnectionTasks,
    /// Told when the shared one has ended.
    ended: Arc<Notify>,
    /// Told when too many streams were given up.
    flooded: Notify,
    /// Streams so far…
    count: AtomicU64,
    /// …those that are not over…
    open: AtomicUsize,
    /// …and those that were given up before their answers.
    abandoned: AtomicU64,
}

impl Lanes {
    /// Those that begin with `first`. Where that is for all of them, `ended` is told of its end, and `confirmed` says whether it is
    /// what it should be.
    #[must_use]
    pub fn new(first: Upstream, ended: Arc<Notify>, confirmed: Option<watch::Receiver<bool>>) -> Arc<Self> {
        let crew = first.crew();
        let (shared, idle) = if first.is_shared() { (Some(first), Vec::new()) } else { (None, vec![(first, None)]) };
        Arc::new(Self {
            shared,
            confirmed,
            idle: Mutex::new(idle),
            turns: Arc::new(Semaphore::new(Limits::LANES)),
            crew,
            ended,
            flooded: Notify::new(),
            count: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            abandoned: AtomicU64::new(0),
        })
    }

    /// How many requests may go on beside each other.
    fn width(&self) -> u32 {
        if self.shared.is_some() { Limits::STREAMS } else { u32::try_from(Limits::LANES).unwrap_or(u32::MAX) }
    }

    /// One for a request of `program`, as soon as there is one.
    async fn take(self: &Arc<Self>, ctx: &Context, program: &str) -> Result<Lane, Refusal> {
        if let Some(shared) = self.shared.as_ref().and_then(Upstream::share) {
            if let Some(confirmed) = &self.confirmed {
                let mut confirmed = confirmed.clone();
                let said = timeout(Limits::CONNECT_DEADLINE, confirmed.wait_for(|is_http2| *is_http2)).await;
                said.map_err(|_| Refusal::UpstreamTimeout)?.map_err(|_| Refusal::UpstreamWithoutHttp2)?;
            }
            return Ok(Lane { upstream: shared, share: None, turn: None, lanes: Arc::clone(self) });
        }
        // Turns are never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        let idle = self.idle().pop();
        let (upstream, share) = match idle {
            Some(idle) => idle,
            None => {
                let share = ctx.shares.take(program);
                let share = share.ok_or(Refusal::LimitReached("the program has too many connections at once"))?;
                (Upstream::driven_by(self.crew.clone()), Some(share))
            }
        };
        Ok(Lane { upstream, share, turn, lanes: Arc::clone(self) })
    }

    /// What is behind the lock is whole at every moment.
    fn idle(&self) -> MutexGuard<'_, Vec<(Upstream, Option<QuotaGuard>)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One for a request, until both its body and its answer are over.
#[derive(Debug)]
struct Lane {
    upstream: Upstream,
    share: Option<QuotaGuard>,
    turn: Option<OwnedSemaphorePermit>,
    lanes: Arc<Lanes>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.turn.is_some() {
            self.lanes.idle().push((std::mem::take(&mut self.upstream), self.share.take()));
        }
    }
}

/// A stream, until both its request and its answer are over.
#[derive(Debug)]
struct Stream {
    inside: Inside,
    lanes: Arc<Lanes>,
    number: u64,
    /// What it would share with the others of its connection, were it one of HTTP/1.1.
    session: Session,
    /// Once it is answered.
    lane: Mutex<Option<Lane>>,
}

impl Stream {
    fn lane(&self) -> MutexGuard<'_, Option<Lane>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its answer is over. Where its request is not, an upstream that has a connection for it alone may read on for a moment, and
    /// not for good, even if it does: nobody waits for what comes of that, and others may wait for the connection.
    fn answer_is_over(self: Arc<Self>) {
        let is_alone = self.lane().as_ref().is_some_and(|lane| lane.turn.is_some());
        if is_alone && Arc::strong_count(&self) > 1 {
            let stream = Arc::downgrade(&self);
            self.lanes.crew.spawner().execute(async move {
                tokio::time::sleep(Limits::LINGER).await;
                if let Some(stream) = stream.upgrade() {
                    stream.lane().iter_mut().for_each(|lane| lane.upstream.give_up_unless_ready());
                }
            });
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let lanes = &self.lanes;
        self.inside.connection.finished(self.number);
        lanes.open.fetch_sub(1, Ordering::Relaxed);
        if self.session.take_misplaced() {
            let record = Record::of(
                &self.inside.ctx.audit,
                &self.inside.connection.callers(),
                self.inside.connection.target().clone(),
            );
            record.finish(Outcome::Refused(&body::in_body()));
        }
    }
}

/// A request whose client waits for its answer. Dropped before there is one, it was given up: what is to be sent of it may lie
/// about for longer.
struct Awaited<'l> {
    lanes: &'l Lanes,
    is_answered: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let abandoned = self.lanes.abandoned.fetch_add(1, Ordering::Relaxed) + 1;
            if abandoned >= Limits::STREAMS_ABANDONED && 2 * abandoned > self.lanes.count.load(Ordering::Relaxed) {
                self.lanes.flooded.notify_one();
            }
        }
    }
}

/// The body of an answer, and its stream until it is over.
struct Answer {
    body: Body,
    stream: Option<Arc<Stream>>,
}

impl Answer {
    fn end(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.answer_is_over();
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.end();
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Waking<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let answer = self.get_mut();
        let polled = Pin::new(&mut answer.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            answer.end();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request of which nothing was sent: its client may send it again.
#[derive(Debug, thiserror::Error)]
#[error("not sent")]
struct NotSent(#[source] h2::Error);

/// How streams are read: bounded in number, in size, and in what they may cost that is no request.
fn protocol(crew: &ConnectionTasks, width: u32, windows: &Windows) -> http2::Builder<Spawner> {
    let mut protocol = http2::Builder::new(crew.spawner());
    protocol
        .timer(TokioTimer::new())
        .max_concurrent_streams(width)
        .initial_stream_window_size(windows.client_stream())
        .initial_connection_window_size(windows.client())
        .max_send_buf_size(windows.send())
        // What is somewhat larger than it may be is refused in words.
        .max_header_list_size(u32::try_from(4 * Limits::INSPECTED_HEAD_BYTES).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(Limits::STREAM_RESETS)
        .max_local_error_reset_streams(Limits::STREAM_ERRORS)
        .auto_date_header(false);
    protocol
}

/// Serves the streams of `client`, which has these `windows` and whose requests go by `lanes`, until it ends, or its upstream does, or it may last no longer.
///
/// # Errors
/// The client does not keep to the protocol.
pub async fn serve<C>(inside: &Inside, client: C, windows: &Windows, lanes: Arc<Lanes>) -> Result<(), Refusal>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut farewell = inside.connection.farewell();
    let (asked, to) = (inside.clone(), Arc::clone(&lanes));
    let answer = move |request| answer(asked.clone(), Arc::clone(&to), request);
    let client = TokioIo::new(Linger::new(client, Arc::default()));
    let mut connection =
        pin!(protocol(&lanes.crew, lanes.width(), windows).serve_connection(client, service_fn(answer)));
    {
        let (mut driven, mut idle) = (pin!(lanes.crew.run()), pin!(idle(&lanes)));
        let mut is_ending = false;
        loop {
            tokio::select! {
                served = &mut connection => return served.err().as_ref().and_then(broken).map_or(Ok(()), Err),
                () = &mut driven => {}
                _ = farewell.wait_for(|is_over| *is_over) => break,
                () = lanes.flooded.notified() => return Err(FLOODED),
                // What is under way may end; what comes later is the next connection's.
                () = lanes.ended.notified(), if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    is_ending = true;
                }
                // Who does not answer a farewell is waited for no longer than its streams are.
                () = tokio::time::sleep(Limits::HEAD_DEADLINE), if is_ending => {
                    if lanes.open.load(Ordering::Relaxed) == 0 {
                        return Ok(());
                    }
                }
                () = &mut idle, if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    is_ending = true;
                }
            }
        }
    }
    // Nobody drives its streams any more, which resets them.
    connection.as_mut().graceful_shutdown();
    let _ = timeout(Limits::FAREWELL, connection).await;
    Ok(())
}

/// Returns when there has been no stream for long enough.
async fn idle(lanes: &Lanes) {
    const LOOKS: u32 = 8;
    let (mut known, mut quiet) = (0, Duration::ZERO);
    while quiet < Limits::IDLE {
        tokio::time::sleep(Limits::IDLE / LOOKS).await;
        let count = lanes.count.load(Ordering::Relaxed);
        let is_quiet = count == known && lanes.open.load(Ordering::Relaxed) == 0;
        quiet = if is_quiet { quiet + Limits::IDLE / LOOKS } else { Duration::ZERO };
        known = count;
    }
}

const FLOODED: Refusal = Refusal::LimitReached("the client floods its HTTP/2 connection");

/// Why the HTTP library gave a client up, if that is a decision: a client that went away asked for nothing.
fn broken(error: &hyper::Error) -> Option<Refusal> {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return match error.reason() {
                _ if !error.is_library() => None,
                Some(Reason::ENHANCE_YOUR_CALM) => Some(FLOODED),
                _ => Some(Refusal::BadRequest("the client does not keep to HTTP/2")),
            };
        }
        cause = error.source();
    }
    None
}

async fn answer(inside: Inside, lanes: Arc<Lanes>, request: Request<Incoming>) -> Result<Response<Body>, NotSent> {
    let number = lanes.count.fetch_add(1, Ordering::Relaxed) + 1;
    if lanes.open.fetch_add(1, Ordering::Relaxed) >= Limits::STREAMS_HELD {
        lanes.flooded.notify_one();
    }
    let mut awaited = Awaited { lanes: &lanes, is_answered: false };
    let stream = Arc::new(Stream {
        inside: inside.clone(),
        lanes: Arc::clone(&lanes),
        number,
        session: Session::default(),
        lane: Mutex::default(),
    });
    let (callers, target) = (inside.connection.callers(), inside.connection.target().clone());
    let (method, path) = (request.method().as_str(), request.uri().path());
    let mut record = Record::http(&inside.ctx.audit, method, path, inside.scheme, target).inside(number);
    record.called_by(callers.first().clone());
    let is_grpc = head::is_grpc(request.headers());
    let Some(_room) =
        inside.ctx.memory.head(&callers.first().program.executable, head::bytes(request.uri(), request.headers()))
    else {
        let refusal = Refusal::LimitReached("too many requests wait for their answers");
        let response = reply::refused(&refusal, &record);
        record.finish(Outcome::Refused(&refusal));
        awaited.is_answered = true;
        drop(CompleteBody::of_stream(request.into_body(), lanes.crew.spawner()));
        return Ok(response);
    };
    let (mut lane, exchanged) = match lanes.take(&inside.ctx, &callers.first().program.executable).await {
        Ok(mut lane) => {
            let held: Held = Arc::clone(&stream) as _;
            let course = Course { session: &stream.session, number, held: Some(held) };
            let exchanged = Box::pin(inside.exchange(course, &mut lane.upstream, request, &mut record)).await;
            (Some(lane), exchanged)
        }
        Err(refusal) => {
            drop(CompleteBody::of_stream(request.into_body(), lanes.crew.spawner()));
            (None, Err(Unanswered::Refused(refusal)))
        }
    };
    awaited.is_answered = true;
    let is_open = lane.as_ref().is_some_and(|lane| lane.upstream.is_open_to(&inside.origin()));
    if exchanged.is_err() {
        // What there is of the request may still be on its way.
        lane.iter_mut().for_each(|lane| lane.upstream.give_up_unless_ready());
    }
    *stream.lane() = lane;
    match exchanged {
        Ok(response) => {
            record.finish(Outcome::Allowed);
            Ok(response.map(|body| reply::altered(Answer { body, stream: Some(stream) })))
        }
        Err(Unanswered::Refused(refusal)) => {
            let response = match is_grpc {
                true => reply::refused_call(&refusal, &record),
                false => reply::refused(&refusal, &record),
            };
            record.finish(Outcome::Refused(&refusal));
            Ok(response)
        }
        Err(Unanswered::NotSent) => {
            let refusal = Refusal::UpstreamUnreachable("it takes no more requests on its connection".to_owned());
            record.finish(Outcome::Refused(&refusal));
            if !is_open {
                lanes.ended.notify_one();
            }
            Err(NotSent(Reason::REFUSED_STREAM.into()))
        }
    }
}

/// Serves `client` the same `refusal`, whatever it asks first.
pub async fn refuse_all<C>(ctx: &Context, client: C, refusal: &Refusal, record: Record)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (plain, call) = (reply::refused(refusal, &record), reply::refused_call(refusal, &record));
    record.finish(Outcome::Refused(refusal));
    let responses = Arc::new(Mutex::new(Some((plain, call))));
    let answered = Arc::new(Notify::new());
    let tell = Arc::clone(&answered);
    let crew = ConnectionTasks::default();
    let rest = crew.spawner();
    let answer = service_fn(move |request: Request<Incoming>| {
        let responses = responses.lock().unwrap_or_else(PoisonError::into_inner).take();
        let response = responses.map(|(plain, call)| if head::is_grpc(request.headers()) { call } else { plain });
        drop(CompleteBody::of_stream(request.into_body(), rest.clone()));
        tell.notify_one();
        async { response.ok_or(NotSent(Reason::REFUSED_STREAM.into())) }
    });
    let client = TokioIo::new(Linger::new(client, Arc::default()));
    let mut connection = pin!(protocol(&crew, Limits::STREAMS, &ctx.memory.windows()).serve_connection(client, answer));
    let served = async {
        let mut driven = pin!(crew.run());
        let mut is_ending = false;
        loop {
            tokio::select! {
                _ = &mut connection => return,
                () = &mut driven => {}
                () = answered.notified(), if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    is_ending = true;
                }
            }
        }
    };
    let _ = timeout(Limits::HEAD_DEADLINE, served).await;
}
