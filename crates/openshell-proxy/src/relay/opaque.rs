//! Bytes both ways, unseen, until both sides are done or neither has sent anything for long.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::{io, sync::Arc};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

use crate::context::Limits;

/// Bytes moved at once, in each direction.
const BUFFER: usize = 64 * 1024;

/// Relays between `client`, of which `surplus` was read already, and `upstream`. A side that ends its sending may still
/// receive.
///
/// # Errors
/// Either side failed, or both were silent for [`Limits::IDLE`].
pub async fn relay(client: TcpStream, surplus: Bytes, mut upstream: TcpStream) -> io::Result<()> {
    upstream.write_all(&surplus).await?;
    let moved = Arc::new(AtomicU64::new(0));
    let mut client = Counted { inner: client, moved: Arc::clone(&moved) };
    let mut upstream = Counted { inner: upstream, moved: Arc::clone(&moved) };
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER) => copied.map(drop),
        () = idle(&moved) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Returns when nothing has moved for [`Limits::IDLE`].
async fn idle(moved: &AtomicU64) {
    let mut before = moved.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(Limits::IDLE).await;
        let now = moved.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// A stream that counts what is read from it.
struct Counted {
    inner: TcpStream,
    moved: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.moved.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
