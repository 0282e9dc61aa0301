//! A stream that begins with bytes that were read before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, ReadBuf};

use crate::wire::io::delegate::delegate_async_write;

/// A stream that gives `prefix`, and then the bytes of `stream`.
#[derive(Debug)]
pub struct Prefixed<S> {
    prefix: Bytes,
    stream: S,
}

impl<S> Prefixed<S> {
    /// Creates a stream that gives `prefix`, and then the bytes of `stream`.
    #[must_use]
    pub fn new(prefix: Bytes, stream: S) -> Self {
        Self { prefix, stream }
    }
}

impl<S: AsFd> AsFd for Prefixed<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { prefix, stream } = self.get_mut();
        if prefix.is_empty() {
            return Pin::new(stream).poll_read(cx, buf);
        }
        let part = prefix.split_to(prefix.remaining().min(buf.remaining()));
        buf.put_slice(&part);
        if prefix.is_empty() {
            // This releases the allocation, which has the size of the whole read.
            *prefix = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

delegate_async_write!(Prefixed);
