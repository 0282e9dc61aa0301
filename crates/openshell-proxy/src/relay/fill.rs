//! Reading as much as there is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Reads from `stream` until `buf` is full or nothing more is there: what is read at once goes on at once, and TLS gives no more than
/// a record at a time. An error behind what was read is kept in `failed` for the next time.
pub(super) fn poll_fill<S: AsyncRead + Unpin>(
    stream: &mut S,
    failed: &mut Option<io::Error>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if let Some(error) = failed.take() {
        return Poll::Ready(Err(error));
    }
    let mut before = buf.filled().len();
    ready!(Pin::new(&mut *stream).poll_read(cx, buf))?;
    while buf.filled().len() > before && buf.remaining() > 0 {
        before = buf.filled().len();
        match Pin::new(&mut *stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                *failed = Some(error);
                break;
            }
            Poll::Pending => break,
        }
    }
    Poll::Ready(Ok(()))
}
