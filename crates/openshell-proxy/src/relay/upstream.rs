//! The upstream connection that the requests of one client go through.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_ACCEPT, TRANSFER_ENCODING, UPGRADE};
use hyper::{Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::context::Limits;
use crate::credentials::body::Scanned;
use crate::credentials::release::Released;
use crate::http::head;
use crate::intake::{Scheme, Target};
use crate::refusal::Refusal;
use crate::resolve::guard::Destination;

/// The upstream connection of one client, kept for its next request to the same origin.
#[derive(Debug, Default)]
pub struct Upstream {
    kept: Option<Kept>,
    /// Whether it ends with the last answer.
    is_ending: bool,
    driver: Arc<Driver>,
}

/// What moves the bytes of an upstream connection. It is driven by the task that serves its client, as a body that had to go from
/// one thread to another with every part of it would take twice the time.
#[derive(Default)]
pub struct Driver(Mutex<Driven>);

#[derive(Default)]
struct Driven {
    connection: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Who drives it.
    waker: Option<Waker>,
}

impl Driver {
    /// Drives whatever connection there is, for ever.
    pub async fn run(&self) {
        std::future::poll_fn(|cx| {
            let mut driven = self.lock();
            if let Some(connection) = &mut driven.connection
                && connection.as_mut().poll(cx).is_ready()
            {
                // How it ended, the request on it has heard.
                driven.connection = None;
            }
            if !driven.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                driven.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn replace(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut driven = self.lock();
        driven.connection = Some(Box::pin(connection));
        driven.waker.iter().for_each(Waker::wake_by_ref);
    }

    /// What is behind the lock is whole at every moment.
    fn lock(&self) -> MutexGuard<'_, Driven> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Kept {
    origin: Origin,
    address: SocketAddr,
    sender: SendRequest<Outgoing>,
    /// What was read since the last request, until its answer.
    unanswered: Arc<AtomicUsize>,
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
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, unanswered, .. } = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
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
    /// The upstream failed.
    Failed(Refusal),
}

impl Upstream {
    /// Where the kept connection leads, if it is one to `origin` at an address that `destination` permits, and still open.
    #[must_use]
    pub fn reusable(&self, origin: &Origin, destination: &Destination) -> Option<SocketAddr> {
        let kept = self.kept.as_ref().filter(|kept| kept.origin == *origin && !kept.sender.is_closed())?;
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
        self.kept.as_ref().is_some_and(|kept| kept.origin == *origin && !kept.sender.is_closed())
    }

    /// Keeps `stream`, a connection to `origin`, instead of what was kept before.
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
        let stream = Patient { stream, unanswered: Arc::clone(&unanswered), is_unread: false };
        let handshake = protocol.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| Refusal::UpstreamUnreachable(error.to_string()))?;
        self.driver.replace(async move { drop(connection.with_upgrades().await) });
        self.kept = Some(Kept { origin, address, sender, unanswered });
        self.is_ending = false;
        Ok(())
    }

    /// What must run for anything to be sent or answered.
    #[must_use]
    pub fn driver(&self) -> Arc<Driver> {
        Arc::clone(&self.driver)
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
        let failed = |error: hyper::Error| Refusal::UpstreamUnreachable(error.to_string());
        let request = request.into_request();
        let Some(kept) = self.kept.as_mut() else { return Err(NotAnswered::Unsent(request.into_body())) };
        if kept.sender.ready().await.is_err() {
            return Err(NotAnswered::Unsent(request.into_body()));
        }
        kept.unanswered.store(0, Ordering::Relaxed);
        let sent = kept.sender.try_send_request(request).await;
        kept.unanswered.store(AT_REST, Ordering::Relaxed);
        let mut response = sent.map_err(|mut error| match error.take_message() {
            Some(request) => NotAnswered::Unsent(request.into_body()),
            None => match error.into_error() {
                // What the client sends is ours to give.
                error if error.is_user() => NotAnswered::Failed(Refusal::BadRequest(
                    "the body of the request is malformed, or ended before its end",
                )),
                error => NotAnswered::Failed(failed(error)),
            },
        })?;
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
