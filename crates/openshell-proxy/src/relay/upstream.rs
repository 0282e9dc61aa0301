//! The upstream connection that the requests of one client go through.

use std::error::Error as _;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderValue, SEC_WEBSOCKET_ACCEPT, TRANSFER_ENCODING, UPGRADE};
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::credentials::body::{Scanned, Unsendable};
use crate::credentials::release::Released;
use crate::http::head;
use crate::io::coop::CoopBudget;
use crate::io::tasks::{AbortOnDrop, ConnectionTasks};
use crate::limits::Limits;
use crate::memory::Windows;
use crate::refusal::Refusal;
use crate::resolve::guard::Destination;
use crate::target::{Scheme, Target};

/// The upstream connection of one client, kept for its next request to the same origin.
#[derive(Debug, Default)]
pub struct Upstream {
    kept: Option<Kept>,
    /// Whether it ends with the last answer.
    is_ending: bool,
    /// Who moves its bytes.
    crew: ConnectionTasks,
}

#[derive(Debug)]
struct Kept {
    origin: Origin,
    address: SocketAddr,
    sender: Sender,
    /// The connection itself.
    hold: Arc<AbortOnDrop>,
}

/// How requests are sent.
#[derive(Debug)]
enum Sender {
    /// One after the other. The second value is what was read since the last one, until its answer.
    Http1(http1::SendRequest<Outgoing>, Arc<AtomicUsize>),
    /// Beside each other.
    Http2(http2::SendRequest<Outgoing>),
}

impl Kept {
    fn is_open_to(&self, origin: &Origin) -> bool {
        let is_closed = match &self.sender {
            Sender::Http1(sender, _) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        };
        self.origin == *origin && !is_closed
    }
}

/// While nothing is waited for.
const AT_REST: usize = usize::MAX;

/// A stream that ends where what is no answer comes without end: interim answers have no number (RFC 9110 §15.2), and one is as
/// good as a thousand.
///
/// Where the other side reads no more it goes on as if it did: an answer that came before may still be there to be read, and without
/// one the connection ends all the same.
struct Patient<S> {
    stream: S,
    unanswered: Arc<AtomicUsize>,
    is_unread: bool,
    turn: CoopBudget,
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, unanswered, turn, .. } = self.get_mut();
        ready!(turn.poll_next(cx));
        let before = buf.filled().len();
        let read = Pin::new(stream).poll_read(cx, buf);
        turn.moved(buf.filled().len() - before);
        ready!(read)?;
        let read = unanswered.load(Ordering::Relaxed);
        if read != AT_REST {
            let read = read + buf.filled().len() - before;
            if read > Limits::UNANSWERED_BYTES {
                return Poll::Ready(Err(io::Error::other("the upstream sends without answering")));
            }
            unanswered.store(read, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    /// What comes of a write of `length` bytes by `write`.
    fn written(
        &mut self,
        length: usize,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if !self.is_unread {
            match ready!(write(Pin::new(&mut self.stream))) {
                Err(error) if is_unread(&error) => self.is_unread = true,
                written => return Poll::Ready(written),
            }
        }
        Poll::Ready(Ok(length))
    }

    fn done(&mut self, done: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if !self.is_unread {
            match ready!(done(Pin::new(&mut self.stream))) {
                Err(error) if is_unread(&error) => self.is_unread = true,
                done => return Poll::Ready(done),
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn is_unread(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().written(bytes.len(), |stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.get_mut().written(length, |stream| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().done(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().done(|stream| stream.poll_shutdown(cx))
    }
}

/// What is sent as a body: a client's, looked at; or one that was read before.
pub type Outgoing = Either<Scanned, Full<Bytes>>;

/// What a connection is kept for.
pub type Origin = (Scheme, Target);

/// Why there is no answer.
#[derive(Debug)]
pub enum NotAnswered {
    /// The connection was gone before anything of the request was sent; another one may serve it. This is its body.
    Unsent(Outgoing),
    /// The upstream says that it has not looked at it: whoever asks may ask again (RFC 9113 §8.7).
    Unprocessed,
    /// The upstream failed.
    Failed(Refusal),
}

impl Upstream {
    /// None yet; `crew` is to drive what it will be.
    #[must_use]
    pub fn driven_by(crew: ConnectionTasks) -> Self {
        Self { crew, ..Self::default() }
    }

    /// Where the kept connection leads, if it is one to `origin` at an address that `destination` permits, and still open.
    #[must_use]
    pub fn reusable(&self, origin: &Origin, destination: &Destination) -> Option<SocketAddr> {
        let kept = self.kept.as_ref().filter(|kept| kept.is_open_to(origin))?;
        destination.addresses().contains(&kept.address).then_some(kept.address)
    }

    /// Whether there has been no connection yet.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.kept.is_none()
    }

    /// Whether the kept connection is one to `origin`, and still open.
    #[must_use]
    pub fn is_open_to(&self, origin: &Origin) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_open_to(origin))
    }

    /// Whether it is one for requests beside each other.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| matches!(kept.sender, Sender::Http2(_)))
    }

    /// Ends what was kept, where something still goes on in it and the next request would have to wait for that.
    pub fn give_up_unless_ready(&mut self) {
        let is_ready = |kept: &Kept| match &kept.sender {
            Sender::Http1(sender, _) => sender.is_ready(),
            Sender::Http2(_) => true,
        };
        self.kept = self.kept.take().filter(is_ready);
    }

    /// The same connection once more, if it is one for requests beside each other.
    #[must_use]
    pub fn share(&self) -> Option<Self> {
        let kept = self.kept.as_ref()?;
        let Sender::Http2(sender) = &kept.sender else { return None };
        let (origin, sender, hold) = (kept.origin.clone(), Sender::Http2(sender.clone()), Arc::clone(&kept.hold));
        let kept = Some(Kept { origin, address: kept.address, sender, hold });
        Some(Self { kept, is_ending: false, crew: self.crew.clone() })
    }

    /// Keeps `stream`, a connection to `origin` for requests one after the other, instead of what was kept before.
    ///
    /// # Errors
    /// The stream has failed already.
    pub async fn keep<S>(&mut self, origin: Origin, address: SocketAddr, stream: S) -> Result<(), Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut protocol = http1::Builder::new();
        protocol.preserve_header_case(true).title_case_headers(true).max_headers(Limits::ANSWER_LINES);
        let unanswered = Arc::new(AtomicUsize::new(AT_REST));
        let stream =
            Patient { stream, unanswered: Arc::clone(&unanswered), is_unread: false, turn: CoopBudget::default() };
        let (sender, connection) = protocol.handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // How it ended, the request on it has heard.
        let hold = Arc::new(self.crew.add(async move { drop(connection.with_upgrades().await) }));
        self.kept = Some(Kept { origin, address, sender: Sender::Http1(sender, unanswered), hold });
        self.is_ending = false;
        Ok(())
    }

    /// Keeps `stream`, a connection to `origin` for requests beside each other, with these `windows`. Calls `ended` when it has.
    ///
    /// # Errors
    /// The stream has failed already.
    pub async fn keep_http2<S>(
        &mut self,
        origin: Origin,
        address: SocketAddr,
        stream: S,
        windows: &Windows,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<(), Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut protocol = http2::Builder::new(self.crew.spawner());
        protocol
            .timer(TokioTimer::new())
            .initial_stream_window_size(windows.upstream_stream())
            .initial_connection_window_size(windows.upstream())
            .max_send_buf_size(windows.send())
            .max_header_list_size(Limits::ANSWER_HEAD_BYTES);
        let (sender, connection) = protocol.handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let hold = Arc::new(self.crew.add(async move {
            drop(connection.await);
            ended();
        }));
        self.kept = Some(Kept { origin, address, sender: Sender::Http2(sender), hold });
        self.is_ending = false;
        Ok(())
    }

    /// What must run for anything to be sent or answered.
    #[must_use]
    pub fn crew(&self) -> ConnectionTasks {
        self.crew.clone()
    }

    /// Whether it ends with the last answer, as its client would see without a proxy.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Sends `request` on the kept connection. An answer that switches protocols is one only if that was `asked` for.
    ///
    /// # Errors
    /// The upstream is gone, with the request if nothing of it was sent; or it answers with what is no HTTP.
    pub async fn send(
        &mut self,
        request: Released<Outgoing>,
        asked: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, NotAnswered> {
        let request = request.into_request();
        let Some(kept) = self.kept.as_mut() else { return Err(NotAnswered::Unsent(request.into_body())) };
        let is_ready = match &mut kept.sender {
            Sender::Http1(sender, _) => sender.ready().await,
            Sender::Http2(sender) => sender.ready().await,
        };
        if is_ready.is_err() {
            return Err(NotAnswered::Unsent(request.into_body()));
        }
        let mut response = match &mut kept.sender {
            Sender::Http1(sender, unanswered) => {
                unanswered.store(0, Ordering::Relaxed);
                let sent = sender.try_send_request(request).await;
                unanswered.store(AT_REST, Ordering::Relaxed);
                sent.map_err(unanswered_by)?
            }
            Sender::Http2(sender) => {
                let request = as_http2(request, &kept.origin).map_err(NotAnswered::Failed)?;
                let mut response = sender.try_send_request(request).await.map_err(unanswered_by)?;
                head::remove_hop_by_hop(response.headers_mut());
                return Ok(response);
            }
        };
        let has_length = [TRANSFER_ENCODING, CONTENT_LENGTH].iter().any(|name| response.headers().contains_key(name));
        let is_delimited = has_length || response.body().is_end_stream();
        self.is_ending = head::closes(response.version(), response.headers()) || !is_delimited;
        let headers = response.headers_mut();
        if headers.get_all(TRANSFER_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let what = "the answer has a transfer coding besides chunked".to_owned();
            return Err(NotAnswered::Failed(Refusal::UpstreamUnreachable(what)));
        }
        // Where both say how long a message is, the coding does (RFC 9112 §6.3).
        if headers.contains_key(TRANSFER_ENCODING) {
            headers.remove(CONTENT_LENGTH);
        }
        let switched = headers.get(UPGRADE).cloned();
        head::remove_hop_by_hop(headers);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let agrees = |(asked, switched): (&HeaderValue, &HeaderValue)| {
                let mut asked = asked.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                asked.any(|asked| asked.eq_ignore_ascii_case(switched.as_bytes().trim_ascii()))
            };
            let is_websocket = asked.is_some_and(head::is_websocket);
            let is_answered = !is_websocket || response.headers().contains_key(SEC_WEBSOCKET_ACCEPT);
            if !is_answered || !asked.zip(switched.as_ref()).is_some_and(agrees) {
                return Err(NotAnswered::Failed(Refusal::UnsolicitedUpgrade));
            }
        }
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }
}

fn failed(error: hyper::Error) -> Refusal {
    Refusal::UpstreamUnreachable(error.to_string())
}

fn unanswered_by(mut error: TrySendError<Request<Outgoing>>) -> NotAnswered {
    match error.take_message() {
        Some(request) => NotAnswered::Unsent(request.into_body()),
        None => match error.into_error() {
            // What the client sends is ours to give.
            error if error.source().is_some_and(|cause| cause.is::<Unsendable>()) => NotAnswered::Failed(
                Refusal::BadRequest("the body of the request is malformed, or ended before its end"),
            ),
            error if is_refused_stream(&error) => NotAnswered::Unprocessed,
            // The library has let go of it, such as one that waited for its stream when the upstream said that it goes. Whether its
            // head left all the same nobody says.
            error if error.is_user() => {
                NotAnswered::Failed(Refusal::UpstreamUnreachable("it ended its connection".to_owned()))
            }
            error => NotAnswered::Failed(failed(error)),
        },
    }
}

/// Refused alone, or with all that came behind the last one of a connection that ends.
fn is_refused_stream(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| match cause.reason() {
        Some(h2::Reason::REFUSED_STREAM) => true,
        Some(h2::Reason::NO_ERROR) => cause.is_go_away() && cause.is_remote(),
        _ => false,
    })
}

/// `request`, which is as HTTP/1.1 has it, as HTTP/2 does (RFC 9113 §8.3.1). That it goes to `origin` was checked.
fn as_http2(mut request: Request<Outgoing>, (scheme, target): &Origin) -> Result<Request<Outgoing>, Refusal> {
    let headers = request.headers_mut();
    let host = headers.remove(HOST).or_else(|| head::host_value(*scheme, target));
    head::remove_connection(headers);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = scheme.as_str().parse().ok();
    parts.authority = host.and_then(|host| host.to_str().ok()?.parse().ok());
    // `*` has no other form that the library knows.
    let uri = Uri::from_parts(parts).map_err(|_| Refusal::BadRequest("the target has no form in HTTP/2"))?;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}
