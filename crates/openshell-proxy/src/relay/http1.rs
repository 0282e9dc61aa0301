//! One client's HTTP/1.1 connection, at the ingress and inside a tunnel.

use std::future::{pending, poll_fn};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use openshell_events::denial::Denial;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Mutex, mpsc};

use crate::credentials::leaks::websocket::MessageScan;
use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::ground::limits::Limits;
use crate::ground::quota::QuotaGuard;
use crate::reach::authorize::connection::Connection;
use crate::reach::authorize::pause::Pause;
use crate::reach::authorize::revocation::RevocationWatch;
use crate::relay::exchange::Upgraded;
use crate::relay::opaque::{self, AnswerSearch, ClientSearch, Mask, OpaqueSearch, StreamEnd};
use crate::relay::services::Services;
use crate::relay::upstream::Upstream;
use crate::report::closing::Closing;
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::{ResponseBody, full};
use crate::wire::io::lingering::Linger;
use crate::wire::io::metered::Side;
use crate::wire::io::prefixed::Prefixed;
use crate::wire::io::tasks::ConnectionTasks;

/// The state that the exchanges of one client connection share.
#[derive(Debug)]
pub struct Session {
    /// The upstream connection of its requests.
    pub upstream: Mutex<KeptUpstream>,
    /// The tasks of all its connections.
    pub tasks: ConnectionTasks,
    /// Takes both ends of the connection once a response has switched protocols.
    pub upgrades: mpsc::Sender<Upgraded>,
    watches: mpsc::Sender<RevocationWatch>,
    requests: AtomicU64,
    closing: CurrentClosing,
    socket: Option<Arc<OwnedFd>>,
}

/// The upstream connection that is kept between requests.
#[derive(Debug)]
pub struct KeptUpstream {
    /// The connection.
    pub upstream: Upstream,
    /// The guard of the program's connection quota, unless something else holds it.
    pub quota: Option<QuotaGuard>,
}

/// The driver of one client connection.
#[derive(Debug)]
pub struct Driver {
    /// The client's socket, by which its end is noticed.
    socket: Option<Arc<OwnedFd>>,
    watches: mpsc::Receiver<RevocationWatch>,
    upgrades: mpsc::Receiver<Upgraded>,
    tasks: ConnectionTasks,
    state: State,
    closing: CurrentClosing,
}

/// The upstream connection of forwarded requests, whose end is reported.
type CurrentClosing = Arc<parking_lot::Mutex<Option<Closing>>>;

#[derive(Debug, Default)]
struct State {
    has_answered: AtomicBool,
    /// True while a request has no response.
    is_pending: AtomicBool,
    /// True after the first request.
    has_requested: AtomicBool,
    /// True after the first bytes.
    has_read: Arc<AtomicBool>,
    /// True if the last answer has switched the connection to another protocol.
    has_switched: AtomicBool,
}

impl State {
    /// Notes that a request has come.
    fn note_request(&self) {
        self.is_pending.store(true, Ordering::Relaxed);
        self.has_requested.store(true, Ordering::Relaxed);
    }

    /// Notes the `answer` to the request, which was a CONNECT if `is_connect` is true.
    fn note_answer(&self, answer: Option<&Response<ResponseBody>>, is_connect: bool) {
        self.is_pending.store(false, Ordering::Relaxed);
        self.has_answered.store(true, Ordering::Relaxed);
        let switches = |status: StatusCode| {
            status == StatusCode::SWITCHING_PROTOCOLS || is_connect && status.is_success()
        };
        let has_switched = answer.is_some_and(|answer| switches(answer.status()));
        self.has_switched.store(has_switched, Ordering::Relaxed);
    }
}

/// The refusal for a head that takes too long.
const LATE: Refusal = Refusal::bad_request("the head of the request did not arrive in time");

/// A client's connection after an answer that has switched it to another protocol.
#[derive(Debug)]
pub struct Released<S> {
    /// The stream.
    pub stream: S,
    /// The bytes that were read from the stream but not consumed.
    pub surplus: Bytes,
}

/// Why a client counts as gone.
enum Gone {
    /// It has closed its connection.
    Closed,
    /// It has begun its first request, and stalled.
    Stalled,
}

/// Creates the session and the driver of a client connection. The driver watches for the end of
/// `socket`.
#[must_use]
pub fn connection(socket: Option<OwnedFd>) -> (Session, Driver) {
    let (watch, watches) = mpsc::channel(1);
    let (upgrade, upgrades) = mpsc::channel(1);
    let tasks = ConnectionTasks::default();
    let upstream = Mutex::new(KeptUpstream {
        upstream: Upstream::new(tasks.clone()),
        quota: None,
    });
    let closing = CurrentClosing::default();
    let socket = socket.map(Arc::new);
    let driver = Driver {
        socket: socket.clone(),
        watches,
        upgrades,
        tasks: tasks.clone(),
        state: State::default(),
        closing: Arc::clone(&closing),
    };
    let session = Session {
        upstream,
        tasks,
        upgrades: upgrade,
        watches: watch,
        requests: AtomicU64::new(0),
        closing,
        socket,
    };
    (session, driver)
}

/// Returns the HTTP/1.1 settings inside a tunnel: heads are limited in size, and a client may be
/// idle between two requests.
#[must_use]
pub fn protocol() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Limits::IDLE)
        .max_header_size(Limits::READ_HEAD_BYTES)
        .max_buf_size(Limits::BUFFER_BYTES)
        .max_headers(Limits::READ_HEAD_LINES)
        .half_close(true)
        .auto_date_header(false)
        .preserve_header_case(true)
        .title_case_headers(true);
    protocol
}

impl Session {
    /// Returns the client's socket.
    #[must_use]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.as_fd())
    }

    /// Counts a request, and returns its number.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Replaces the report of the last upstream connection, which the client has left, with
    /// `closing`.
    pub fn connected(&self, closing: Closing) {
        let mut current = self.closing.lock();
        match current.take() {
            // A connection to the same upstream replaces one that the upstream has ended.
            Some(last) if last.target() == closing.target() => last.finish(),
            Some(last) => last.left(),
            None => {}
        }
        *current = Some(closing);
    }

    /// Replaces the watch over the authorization on which the connection depends.
    pub async fn watch(&self, watch: RevocationWatch) {
        // The driver receives as long as there are requests.
        let _ = self.watches.send(watch).await;
    }
}

impl Driver {
    /// Serves `client` by `protocol` with the responses of `answer`, and relays its bytes after an
    /// upgrade. Ends with the connection, or when the last request is no longer permitted or the
    /// client has gone. After a permitted CONNECT, it returns the client's stream.
    ///
    /// # Errors
    /// Fails if the client sent a malformed head, one that is too large, or none in time.
    pub async fn serve<S, F>(
        self,
        services: &Services,
        client: S,
        protocol: &http1::Builder,
        answer: impl Fn(Request<Incoming>) -> F,
    ) -> Result<Option<Released<S>>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Option<Response<ResponseBody>>>,
    {
        let Self {
            socket,
            mut watches,
            mut upgrades,
            tasks,
            state,
            closing,
        } = self;
        let state = &state;
        let answer = &answer;
        let answer = service_fn(move |request: Request<Incoming>| {
            let is_connect = request.method() == Method::CONNECT;
            state.note_request();
            let answer = answer(request);
            Box::pin(async move {
                let answer = answer.await;
                state.note_answer(answer.as_ref(), is_connect);
                answer.ok_or(NoResponse)
            })
        });
        let client = TokioIo::new(Linger::new(client, Arc::clone(&state.has_read)));
        let connection = Box::new(protocol.serve_connection(client, answer));
        let mut connection = pin!(released(connection, state));
        let pause = Pause::default();
        let mut revoked = pin!(revoked(services, &mut watches, &closing, &pause));
        let mut driven = pin!(tasks.run());
        let mut last = None;
        tokio::select! {
            biased;
            () = &mut revoked => {}
            served = pause.over(connection.as_mut()) => match served {
                // A client may be idle between two requests: a timeout after an answer is not an
                // error.
                Err(error) if !(error.is_timeout() && state.has_answered.load(Ordering::Relaxed)) => {
                    finish(&closing);
                    return violation(&error).map_or(Ok(None), Err);
                }
                Err(_) => {}
                Ok(released) => last = released,
            },
            () = pause.over(driven.as_mut()) => {}
            gone = gone(state, socket.as_deref()) => {
                if let Some(current) = &*closing.lock() {
                    current.meter().note_end(Side::Client);
                }
                finish(&closing);
                return match gone {
                    Gone::Closed => Ok(None),
                    Gone::Stalled => Err(LATE),
                };
            }
        }
        if let Ok(upgraded) = upgrades.try_recv()
            && let Some(client) = last.take()
        {
            let upgraded = pin!(relay_upgraded(services, client, upgraded));
            tokio::select! {
                biased;
                () = revoked => {}
                () = pause.over(upgraded) => {}
                () = pause.over(driven) => {}
            }
        }
        finish(&closing);
        Ok(last)
    }
}

/// Reports the end of the upstream connection, if there is one.
fn finish(closing: &CurrentClosing) {
    let current = closing.lock().take();
    if let Some(current) = current {
        current.finish();
    }
}

/// Returns when the client has gone: it has closed its connection; it has been half-closed without
/// a response for [`Limits::HALF_CLOSE_TIMEOUT`], and has more likely exited than is waiting; or it
/// has stalled in its first request.
async fn gone(state: &State, socket: Option<&OwnedFd>) -> Gone {
    let mut was_half_closed = false;
    let mut was_stalled = false;
    loop {
        tokio::time::sleep(Limits::HALF_CLOSE_TIMEOUT).await;
        let is_pending = state.is_pending.load(Ordering::Relaxed);
        // After the first request, such bytes may be the rest of a body that was answered early.
        let is_stalled =
            !state.has_requested.load(Ordering::Relaxed) && state.has_read.load(Ordering::Relaxed);
        if is_stalled && was_stalled {
            return Gone::Stalled;
        }
        was_stalled = is_stalled;
        let Some(socket) = socket else { continue };
        let mut poll = [PollFd::new(socket, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let events = match rustix::event::poll(&mut poll, Some(&now)) {
            Ok(_) => poll[0].revents(),
            Err(_) => PollFlags::empty(),
        };
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Gone::Closed;
        }
        let is_half_closed = is_pending && events.contains(PollFlags::RDHUP);
        if is_half_closed && was_half_closed {
            return Gone::Closed;
        }
        was_half_closed = is_half_closed;
    }
}

/// Returns when the last request, whose response may be in flight, is no longer permitted.
async fn revoked(
    services: &Services,
    watches: &mut mpsc::Receiver<RevocationWatch>,
    closing: &CurrentClosing,
    pause: &Pause,
) {
    let mut current: Option<RevocationWatch> = None;
    loop {
        let ended = async {
            match current.as_mut() {
                Some(watch) => watch.revoked(&services.authorizer, pause).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // Newer watches come first: a later request does not end with the authorization of an
            // earlier one.
            biased;
            Some(newer) = watches.recv() => current = Some(newer),
            refusal = ended => {
                if let Some(watch) = current {
                    let denial = denial_of_revoked(services, watch.connection(), &refusal);
                    let closing = closing.lock();
                    if let Some(closing) = &*closing {
                        closing.refused(&refusal, denial.clone());
                    }
                }
                return;
            }
        }
    }
}

/// The error of a request without a response, with which its connection ends.
#[derive(Debug, thiserror::Error)]
#[error("not answered")]
struct NoResponse;

/// Serves `connection` to its end. Returns its stream if its last answer has switched it to another
/// protocol.
async fn released<S, A>(
    mut connection: Box<http1::Connection<TokioIo<Linger<S>>, A>>,
    state: &State,
) -> Result<Option<Released<S>>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: HttpService<Incoming, ResBody = ResponseBody, Future: Unpin> + Unpin,
    A::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let served = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    if served.as_ref().is_err_and(|error| !error.is_parse()) {
        return served.map(|()| None);
    }
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner();
    if served.is_ok() && state.has_switched.load(Ordering::Relaxed) {
        // A lingering close would discard the last bytes of the new protocol.
        return Ok(Some(Released {
            stream: stream.into_inner(),
            surplus: parts.read_buf,
        }));
    }
    // The last answer is on its way, maybe the one to a malformed head. It does not matter if the
    // client has gone.
    let _ = stream.shutdown().await;
    served.map(|()| None)
}

/// Relays bytes both ways on an upgraded connection until both sides have ended.
async fn relay_upgraded<S>(services: &Services, client: Released<S>, upgraded: Upgraded)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Upgraded {
        connection,
        upstream,
        is_websocket,
        leaks,
    } = upgraded;
    let Ok(upstream) = upstream.await else {
        return;
    };
    let client = Prefixed::new(client.surplus, client.stream);
    let client_search =
        ClientSearch::new(&services.vault.load()).with_messages(leaks.map(MessageScan::new));
    let answers = match Mask::of(services, &connection) {
        Ok(mask) if is_websocket => AnswerSearch::default().masking(mask.map(Mask::of_messages)),
        Ok(mask) => AnswerSearch::default().masking(mask),
        Err(refusal) => return report_refused(services, &connection, &refusal),
    };
    let search = OpaqueSearch {
        client: client_search,
        answers,
    };
    // An I/O error on either side is not a decision. The other side notices it by the end of its
    // connection.
    let relayed = Box::pin(opaque::copy(client, TokioIo::new(upstream), search)).await;
    if let Err(StreamEnd::Refused(refusal)) = relayed {
        report_refused(services, &connection, &refusal);
    }
}

/// Returns the refusal for an error of the HTTP library, if there is a decision to report. A client
/// that went away made no request.
fn violation(error: &hyper::Error) -> Option<Refusal> {
    if error.is_parse_too_large() {
        Some(Refusal::head_too_large())
    } else if error.is_parse() {
        Some(Refusal::bad_request("the request is not HTTP/1.1"))
    } else if error.is_timeout() {
        Some(LATE)
    } else {
        None
    }
}

/// Answers the first request of `client` with `refusal`, and ends its connection.
pub async fn refuse<C>(services: &Services, client: C, refusal: &Refusal, record: Record)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let response = reply::refused(refusal, record.subject(), &services.guidance);
    record.finish(Outcome::Refused(refusal));
    let (_session, driver) = connection(None);
    let answer = |_| {
        // The response closes the connection.
        let response = response.clone().map(full);
        async { Some(response) }
    };
    let mut protocol = protocol();
    let served = driver.serve(
        services,
        client,
        protocol.header_read_timeout(Limits::HEAD_DEADLINE),
        answer,
    );
    // The client has been refused already.
    let _ = served.await;
}

/// Returns the denial to count for an open connection that is no longer permitted.
pub fn denial_of_revoked(
    services: &Services,
    connection: &Connection,
    refusal: &Refusal,
) -> Option<Denial> {
    Record::of(
        &services.audit,
        connection.caller(),
        connection.target().clone(),
    )
    .revoked(refusal)
}

/// Reports that an open connection is refused because of its content.
pub fn report_refused(services: &Services, connection: &Connection, refusal: &Refusal) {
    let record = Record::of(
        &services.audit,
        connection.caller(),
        connection.target().clone(),
    );
    record.finish(Outcome::Refused(refusal));
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use bytes::Bytes;
    use openshell_events::event::Way;
    use openshell_events::reason::ReasonCode;
    use openshell_events::words::Door;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::{Duration, Instant};

    use super::{
        Closing, Driver, Incoming, Limits, Record, Refusal, Request, Response, ResponseBody,
        Services, Session, connection, full, pending, protocol, refuse,
    };
    use crate::testing;

    const PLAIN: &str = "{host: web.test, port: 80}";
    const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: web.test\r\n\r\n";

    fn hello() -> Option<Response<ResponseBody>> {
        Some(Response::new(full(Bytes::from_static(b"hello"))))
    }

    /// Serves a client that sends `said`, stays connected, and must not be answered.
    async fn served(said: &[u8]) -> Result<(), Refusal> {
        let (services, _) = testing::services(PLAIN);
        let (mut client, near) = duplex(2 * Limits::READ_HEAD_BYTES);
        let (_session, driver) = connection(None);
        client.write_all(said).await.unwrap();
        let answer = |_| async { unreachable!("a head that is refused is answered") };
        let served = driver.serve(&services, near, &protocol(), answer).await;
        served.map(|released| assert!(released.is_none()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_malformed_head_is_refused_and_never_answered() {
        for said in [
            "SSH-2.0-client\r\n\r\n",
            "GET /a HTTP/1.1\r\nno field\r\n\r\n",
            "GET /a b HTTP/1.1\r\n\r\n",
        ] {
            let refusal = served(said.as_bytes()).await.unwrap_err();
            assert_eq!(
                (refusal.code(), refusal.reason()),
                (ReasonCode::BadRequest, "the request is not HTTP/1.1"),
                "{said}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_beyond_its_bounds_is_refused_as_too_large() {
        let long = format!(
            "GET /a HTTP/1.1\r\nX: {}\r\n\r\n",
            "x".repeat(Limits::READ_HEAD_BYTES)
        );
        let many = format!(
            "GET /a HTTP/1.1\r\n{}\r\n",
            "X: y\r\n".repeat(Limits::READ_HEAD_LINES + 1)
        );
        for said in [long, many] {
            assert_eq!(
                served(said.as_bytes()).await.unwrap_err().code(),
                ReasonCode::RequestTooLarge
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_head_that_does_not_end_is_refused_in_a_while() {
        let begin = Instant::now();
        let refusal = served(b"GET /a HTTP/1.1\r\nHost").await.unwrap_err();
        assert_eq!(
            refusal.reason(),
            "the head of the request did not arrive in time"
        );
        assert!(
            begin.elapsed() <= 3 * Limits::HALF_CLOSE_TIMEOUT,
            "{:?}",
            begin.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_no_decision() {
        let begin = Instant::now();
        let refusal = served(b"").await;
        assert!(begin.elapsed() >= Limits::IDLE, "{refusal:?}");
    }

    /// Serves one end of a loopback connection by `answer`, while `client` uses the other end.
    async fn with_client<F>(
        services: &Services,
        (_session, driver): (Session, Driver),
        answer: impl Fn(Request<Incoming>) -> F,
        client: impl AsyncFnOnce(tokio::net::TcpStream),
    ) -> Result<(), Refusal>
    where
        F: Future<Output = Option<Response<ResponseBody>>>,
    {
        let (far, near) = testing::tcp().await;
        let driver = Driver {
            socket: near
                .as_fd()
                .try_clone_to_owned()
                .ok()
                .map(std::sync::Arc::new),
            ..driver
        };
        let protocol = protocol();
        let served = driver.serve(services, near, &protocol, answer);
        let (served, ()) = tokio::join!(served, client(far));
        served.map(|released| assert!(released.is_none()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_ended_its_sending_is_still_answered() {
        let (services, _) = testing::services(PLAIN);
        let answer = |_| async {
            tokio::time::sleep(Limits::HALF_CLOSE_TIMEOUT / 2).await;
            hello()
        };
        let client = async |mut client: tokio::net::TcpStream| {
            client.write_all(GET).await.unwrap();
            client.shutdown().await.unwrap();
            let mut heard = String::new();
            client.read_to_string(&mut heard).await.unwrap();
            assert!(heard.ends_with("hello"), "{heard}");
        };
        assert_eq!(
            with_client(&services, connection(None), answer, client).await,
            Ok(())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_ended_its_sending_is_not_waited_for_without_end() {
        let (services, _) = testing::services(PLAIN);
        let begin = Instant::now();
        let client = async |mut client: tokio::net::TcpStream| client.write_all(GET).await.unwrap();
        assert_eq!(
            with_client(&services, connection(None), |_| pending(), client).await,
            Ok(())
        );
        let waited = begin.elapsed();
        assert!(
            waited >= Limits::HALF_CLOSE_TIMEOUT && waited <= 3 * Limits::HALF_CLOSE_TIMEOUT,
            "{waited:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_its_answer_is_waited_for() {
        let (services, _) = testing::services(PLAIN);
        let answer = |_| async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            hello()
        };
        let client = async |mut client: tokio::net::TcpStream| {
            client.write_all(GET).await.unwrap();
            assert!(client.read_exact(&mut [0; 15]).await.is_ok(), "no answer");
        };
        assert_eq!(
            with_client(&services, connection(None), answer, client).await,
            Ok(())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_permitted_no_longer_ends_its_connection_and_is_reported() {
        let (services, audit) = testing::services(PLAIN);
        let (mut client, near) = duplex(4096);
        let (session, driver) = connection(None);
        client.write_all(GET).await.unwrap();
        let answer = |_| async {
            let target = testing::target("web.test:80");
            let way = Way {
                door: Some(Door::Forward),
                ..Way::default()
            };
            session.connected(Closing::new(&services.audit, None, target, None, way));
            session
                .watch(testing::watch(&services, "web.test:80"))
                .await;
            services
                .authorizer
                .policy
                .replace(testing::snapshot(2, "{host: other.test, port: 80}"));
            pending().await
        };
        let served = driver.serve(&services, near, &protocol(), answer).await;
        assert!(served.unwrap().is_none());
        assert_eq!(audit.decisions(), ["policy_changed"]);
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert!(heard.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_watch_stands_in_for_the_one_before() {
        let (services, audit) =
            testing::services("{host: web.test, port: 80}, {host: other.test, port: 80}");
        let (mut client, near) = duplex(4096);
        let (session, driver) = connection(None);
        client.write_all(GET).await.unwrap();
        client.shutdown().await.unwrap();
        let answer = |_| async {
            session
                .watch(testing::watch(&services, "other.test:80"))
                .await;
            session
                .watch(testing::watch(&services, "web.test:80"))
                .await;
            services
                .authorizer
                .policy
                .replace(testing::snapshot(2, PLAIN));
            tokio::time::sleep(Limits::HALF_CLOSE_TIMEOUT / 2).await;
            hello()
        };
        let served = driver.serve(&services, near, &protocol(), answer).await;
        assert!(served.unwrap().is_none());
        assert!(audit.decisions().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_client_is_told_once_and_its_connection_ends() {
        let (services, audit) = testing::services(PLAIN);
        let (mut client, near) = duplex(4096);
        client.write_all(&[GET, GET].concat()).await.unwrap();
        client.shutdown().await.unwrap();
        let record = Record::new(&services.audit, "CONNECT web.test:80".to_owned(), None);
        refuse(&services, near, &Refusal::upstream_timeout(), record).await;
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        assert_eq!(
            heard.matches("HTTP/1.1 502 upstream_timeout").count(),
            1,
            "{heard}"
        );
        assert_eq!(audit.decisions(), ["upstream_timeout"]);
    }

    #[test]
    fn requests_are_counted_from_one() {
        let (session, _) = connection(None);
        assert_eq!([session.count(), session.count()], [1, 2]);
    }
}
