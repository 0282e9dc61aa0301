//! A stream whose bytes are counted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The numbers of bytes from and to a client, and the side that ended its connection.
#[derive(Debug, Default)]
pub struct Meter {
    from_client: AtomicU64,
    to_client: AtomicU64,
    ended: OnceLock<Side>,
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The workload's.
    Client,
    /// The upstream's.
    Upstream,
}

impl Meter {
    /// Counts bytes from the client.
    pub fn add_from_client(&self, count: usize) {
        self.from_client.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts bytes to the client.
    pub fn add_to_client(&self, count: usize) {
        self.to_client.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Notes that `side` has ended its sending, or failed; the first one counts.
    pub fn note_end(&self, side: Side) {
        // This may be the second one.
        let _ = self.ended.set(side);
    }

    /// Returns the numbers of bytes from the client and to it.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.from_client.load(Ordering::Relaxed),
            self.to_client.load(Ordering::Relaxed),
        )
    }

    /// Returns the side that has ended first, if one has.
    #[must_use]
    pub fn ended(&self) -> Option<Side> {
        self.ended.get().copied()
    }
}

/// The stream of a client whose bytes a meter counts.
#[derive(Debug)]
pub struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    /// Wraps `stream`, whose bytes `meter` counts.
    #[must_use]
    pub fn new(stream: S, meter: &Arc<Meter>) -> Self {
        Self {
            stream,
            meter: Arc::clone(meter),
        }
    }

    /// Returns the stream itself.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.stream
    }

    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(count)) => self.meter.add_to_client(*count),
            Poll::Ready(Err(_)) => self.meter.note_end(Side::Client),
            Poll::Pending => {}
        }
        written
    }
}

impl<S: AsFd> AsFd for Metered<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, meter } = self.get_mut();
        let before = buf.filled().len();
        let room = buf.remaining();
        let read = Pin::new(stream).poll_read(cx, buf);
        match &read {
            Poll::Ready(Ok(())) => match buf.filled().len() - before {
                0 if room > 0 => meter.note_end(Side::Client),
                count => meter.add_from_client(count),
            },
            Poll::Ready(Err(_)) => meter.note_end(Side::Client),
            Poll::Pending => {}
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
