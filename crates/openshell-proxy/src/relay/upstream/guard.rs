//! The guard of upstream connections against unsolicited bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::ground::limits::Limits;
use crate::wire::io::coop::CoopBudget;

/// The count of bytes that an upstream has sent since the last request, while its response is
/// expected.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    is_expected: AtomicBool,
    bytes: AtomicUsize,
}

impl Unanswered {
    /// Begins to count, because a response is expected from now on.
    pub(super) fn start(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.is_expected.store(true, Ordering::Relaxed);
    }

    /// Ends the count, because the response has begun.
    pub(super) fn end(&self) {
        self.is_expected.store(false, Ordering::Relaxed);
    }

    /// Returns true if nothing has arrived since the last request.
    pub(super) fn is_silent(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Counts `bytes` that were read; returns false if they are too many.
    fn allows(&self, bytes: usize) -> bool {
        !self.is_expected.load(Ordering::Relaxed)
            || self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= Limits::UNANSWERED_BYTES
    }
}

/// A stream that fails if an upstream sends more than [`Limits::UNANSWERED_BYTES`] before a final
/// response, because the number of interim responses is unbounded (RFC 9110 §15.2).
///
/// Writes succeed even after the upstream has stopped reading. It may have sent a response before
/// that; if it has not, the connection ends anyway.
pub(super) struct UpstreamGuard<S> {
    stream: S,
    unanswered: Arc<Unanswered>,
    is_unread: bool,
    budget: CoopBudget,
}

impl<S> UpstreamGuard<S> {
    /// Wraps `stream`, whose bytes `unanswered` counts.
    pub(super) fn new(stream: S, unanswered: Arc<Unanswered>) -> Self {
        Self {
            stream,
            unanswered,
            is_unread: false,
            budget: CoopBudget::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for UpstreamGuard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream,
            unanswered,
            budget,
            ..
        } = self.get_mut();
        ready!(budget.poll_next(cx));
        let before = buf.filled().len();
        let read = Pin::new(stream).poll_read(cx, buf);
        let bytes = buf.filled().len() - before;
        budget.moved(bytes);
        ready!(read)?;
        if unanswered.allows(bytes) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Ready(Err(io::Error::other(
                "the upstream sends without answering",
            )))
        }
    }
}

impl<S: AsyncWrite + Unpin> UpstreamGuard<S> {
    /// Writes `length` bytes with `write`.
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

    fn done(
        &mut self,
        done: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
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
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UpstreamGuard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .written(bytes.len(), |stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.get_mut()
            .written(length, |stream| stream.poll_write_vectored(cx, parts))
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
