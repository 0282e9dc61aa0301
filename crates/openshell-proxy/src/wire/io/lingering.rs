//! The lingering close of a connection.
//!
//! Closing a socket with unread bytes resets the connection (RFC 9112 §9.6), which would lose a
//! response in flight, such as the refusal of a large upload. So the peer's bytes are first read
//! and discarded for a moment.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::ground::limits::Limits;
use crate::wire::io::coop::CoopBudget;

/// A stream that lingers on shutdown.
#[derive(Debug)]
pub struct Linger<S> {
    stream: S,
    /// The deadline, and the number of bytes that may still be read; `None` until shutdown.
    closing: Option<(Pin<Box<Sleep>>, usize)>,
    /// Becomes true with the first bytes that are read.
    has_read: Arc<AtomicBool>,
    budget: CoopBudget,
}

impl<S> Linger<S> {
    /// Wraps `stream`; sets `has_read` when bytes are read.
    #[must_use]
    pub fn new(stream: S, has_read: Arc<AtomicBool>) -> Self {
        Self {
            stream,
            closing: None,
            has_read,
            budget: CoopBudget::default(),
        }
    }

    /// Wraps a stream of frames, which yields earlier to others.
    #[must_use]
    pub fn of_frames(stream: S) -> Self {
        Self {
            budget: CoopBudget::of_frames(),
            ..Self::new(stream, Arc::default())
        }
    }

    /// Returns the wrapped stream.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Linger<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream,
            has_read,
            budget,
            ..
        } = self.get_mut();
        ready!(budget.poll_next(cx));
        let before = buf.filled().len();
        let read = Pin::new(stream).poll_read(cx, buf);
        budget.moved(buf.filled().len() - before);
        ready!(read)?;
        if buf.filled().len() > before {
            has_read.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Linger<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self {
            stream, closing, ..
        } = self.get_mut();
        if closing.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            *closing = Some((
                Box::pin(sleep_until(Instant::now() + Limits::LINGER)),
                Limits::LINGER_BYTES,
            ));
        }
        let Some((until, left)) = closing else {
            return Poll::Ready(Ok(()));
        };
        let mut buffer = [0; 4096];
        while *left > 0 && until.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut buffer);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    *left = left.saturating_sub(buffer.filled().len())
                }
                // The peer has closed, or the connection failed.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
