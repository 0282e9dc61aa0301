//! What the searches of a connection that is not inspected have in common.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::denial::refusal::Refusal;
use crate::wire::io::pace::Pace;

/// The reason why a relay of bytes has ended before both of its sides.
#[derive(Debug)]
pub enum StreamEnd {
    /// One side failed.
    Io(io::Error),
    /// Something was found that must not pass.
    Refused(Box<Refusal>),
    /// Neither side has sent anything for too long.
    Idle,
}

impl From<io::Error> for StreamEnd {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Refusal> for StreamEnd {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// A search through the bytes of one side that leaves them as they are.
pub(super) trait Look {
    /// Returns true as long as there is anything to search for.
    fn is_active(&self) -> bool;

    /// Searches `part`, which is the next one.
    ///
    /// # Errors
    /// Fails if something ends in it that is refused.
    fn scan(&mut self, part: &[u8]) -> Result<(), Refusal>;
}

/// The bytes of one side after their search.
pub(super) trait Searched {
    /// Reads the next part into `buf`, which stays empty at the end of the stream.
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), StreamEnd>>;
}

/// A stream whose bytes are searched and passed on unchanged.
pub(super) struct Looked<S, L> {
    stream: S,
    search: L,
    pace: Pace,
}

impl<S, L> Looked<S, L> {
    pub(super) fn new(stream: S, search: L) -> Self {
        Self {
            stream,
            search,
            pace: Pace::default(),
        }
    }
}

impl<S: AsyncRead + Unpin, L: Look> Searched for Looked<S, L> {
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), StreamEnd>> {
        ready!(self.pace.poll_turn(cx));
        ready!(std::pin::Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let part = buf.filled();
        self.pace.measure(part.len(), || self.search.scan(part))?;
        Poll::Ready(Ok(()))
    }
}
