//! Reading ahead beneath TLS, which asks its socket for no more than a record at once.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::wire::io::coop::CoopBudget;
use crate::wire::io::delegate::delegate_async_write;

/// The number of bytes of one read: six records.
const READ_BYTES: usize = 96 * 1024;

thread_local! {
    /// A free buffer of this thread. Most reads find nothing, and allocating a buffer for each
    /// would cost more than the read. The bytes left over in it are ciphertext.
    static FREE_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A stream that is read ahead. It holds no buffer while it is idle.
#[derive(Debug)]
pub struct ReadAhead<S> {
    stream: S,
    ahead: Vec<u8>,
    /// The number of bytes of `ahead` that were taken.
    consumed: usize,
    budget: CoopBudget,
}

impl<S> ReadAhead<S> {
    /// Wraps `stream`.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            ahead: Vec::new(),
            consumed: 0,
            budget: CoopBudget::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream,
            ahead,
            consumed,
            budget,
        } = self.get_mut();
        if *consumed == ahead.len() {
            ready!(budget.poll_next(cx));
            if ahead.capacity() == 0 {
                *ahead = FREE_BUFFER.take();
            }
            ahead.clear();
            *consumed = 0;
            ahead.reserve_exact(READ_BYTES);
            let read = pin!(stream.read_buf(ahead)).poll(cx);
            budget.moved(ahead.len());
            if !matches!(read, Poll::Ready(Ok(1..))) {
                FREE_BUFFER.set(std::mem::take(ahead));
            }
            ready!(read)?;
        }
        let rest = ahead.get(*consumed..).unwrap_or_default();
        let (now, _) = rest.split_at(rest.len().min(buf.remaining()));
        buf.put_slice(now);
        *consumed += now.len();
        Poll::Ready(Ok(()))
    }
}

delegate_async_write!(ReadAhead);

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

    use super::ReadAhead;

    /// A stream that always has more.
    struct Endless;

    impl AsyncRead for Endless {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            buf.initialize_unfilled();
            buf.advance(buf.remaining());
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn who_never_waits_leaves_others_of_its_thread_their_turn() {
        let had_its_turn = Arc::new(AtomicBool::new(false));
        let other = Arc::clone(&had_its_turn);
        let other = tokio::spawn(async move { other.store(true, Ordering::Relaxed) });
        let mut stream = ReadAhead::new(Endless);
        let mut buffer = [0; 4096];
        for _ in 0..1024 {
            stream.read_exact(&mut buffer).await.unwrap();
        }
        assert!(
            had_its_turn.load(Ordering::Relaxed),
            "four megabytes were read at once"
        );
        other.await.unwrap();
    }
}
