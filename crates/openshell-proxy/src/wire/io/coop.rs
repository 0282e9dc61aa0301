//! The cooperative budget of streams: a stream that never has to wait must not starve the others of
//! its thread.

use std::task::{Context, Poll};

use crate::ground::limits::Limits;

/// The number of bytes that one stream has moved since it last had to wait, and the most that it
/// may.
#[derive(Debug)]
pub(crate) struct CoopBudget {
    moved: usize,
    most: usize,
}

impl Default for CoopBudget {
    /// Permits [`Limits::COOP_BYTES`].
    fn default() -> Self {
        Self {
            moved: 0,
            most: Limits::COOP_BYTES,
        }
    }
}

impl CoopBudget {
    /// Permits [`Limits::COOP_FRAME_BYTES`], for a stream in which every few bytes cause work.
    pub(crate) fn of_frames() -> Self {
        Self {
            moved: 0,
            most: Limits::COOP_FRAME_BYTES,
        }
    }

    /// Returns pending once after the permitted number of bytes.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_over() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Yields once after the permitted number of bytes.
    pub(crate) async fn next(&mut self) {
        if self.is_over() {
            tokio::task::yield_now().await;
        }
    }

    /// Counts `bytes`. Zero, which means that the stream has to wait, resets the budget.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.moved = if bytes == 0 { 0 } else { self.moved + bytes };
    }

    fn is_over(&mut self) -> bool {
        let is_over = self.moved >= self.most;
        if is_over {
            self.moved = 0;
        }
        is_over
    }
}
