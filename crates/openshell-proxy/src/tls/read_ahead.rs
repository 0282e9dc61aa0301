//! A socket beneath TLS, read in larger parts than a record, which is all that TLS asks for at once.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::write_through::write_through;

/// Bytes that are read at once: six records.
const AHEAD: usize = 96 * 1024;

thread_local! {
    /// A buffer that nobody reads into, for whoever does next: most reads find nothing, and one from the allocator for each costs
    /// more than they do. What is left in it is encrypted.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// `stream`, with what was read ahead. While nothing comes it holds no buffer.
#[derive(Debug)]
pub struct ReadAhead<S> {
    stream: S,
    ahead: Vec<u8>,
    /// Bytes of it that were taken.
    taken: usize,
}

impl<S> ReadAhead<S> {
    /// Over `stream`.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self { stream, ahead: Vec::new(), taken: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, ahead, taken } = self.get_mut();
        if *taken == ahead.len() {
            if ahead.capacity() == 0 {
                *ahead = SPARE.take();
            }
            ahead.clear();
            *taken = 0;
            ahead.reserve_exact(AHEAD);
            let read = pin!(stream.read_buf(ahead)).poll(cx);
            if !matches!(read, Poll::Ready(Ok(1..))) {
                SPARE.set(std::mem::take(ahead));
            }
            ready!(read)?;
        }
        let rest = ahead.get(*taken..).unwrap_or_default();
        let (now, _) = rest.split_at(rest.len().min(buf.remaining()));
        buf.put_slice(now);
        *taken += now.len();
        Poll::Ready(Ok(()))
    }
}

write_through!(ReadAhead);
