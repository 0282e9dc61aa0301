//! A socket beneath TLS, read in larger parts than a record, which is all that TLS asks for at once.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::write_through::write_through;

/// Bytes that are read at once: six records, and few enough to be had from the allocator again and again.
const AHEAD: usize = 96 * 1024;

/// `stream`, with what was read ahead. While nothing comes it holds no buffer.
#[derive(Debug)]
pub struct ReadAhead<S> {
    stream: S,
    ahead: BytesMut,
}

impl<S> ReadAhead<S> {
    /// Over `stream`.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self { stream, ahead: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, ahead } = self.get_mut();
        if ahead.is_empty() {
            ahead.reserve(AHEAD);
            let read = pin!(stream.read_buf(ahead)).poll(cx);
            if !matches!(read, Poll::Ready(Ok(1..))) {
                *ahead = BytesMut::new();
            }
            ready!(read)?;
        }
        let count = ahead.len().min(buf.remaining());
        buf.put_slice(ahead.get(..count).unwrap_or_default());
        ahead.advance(count);
        Poll::Ready(Ok(()))
    }
}

write_through!(ReadAhead);
