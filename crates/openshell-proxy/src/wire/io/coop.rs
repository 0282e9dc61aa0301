//! Cooperative budget of streams, so that one that never has to wait does not starve the others of
//! its thread.

use std::task::{Context, Poll};

use crate::ground::limits::Limits;

/// Bytes that one stream has moved since it last had to wait, and may.
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
    /// Permits [`Limits::COOP_FRAME_BYTES`], of a stream of which each few bytes are work.
    pub(crate) fn of_frames() -> Self {
        Self {
            moved: 0,
            most: Limits::COOP_FRAME_BYTES,
        }
    }

    /// Returns pending once after as many bytes as are permitted.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_over() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Yields after as many.
    pub(crate) async fn next(&mut self) {
        if self.is_over() {
            tokio::task::yield_now().await;
        }
    }

    /// Counts `bytes`; zero, as for a stream that has to wait, resets the budget.
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
