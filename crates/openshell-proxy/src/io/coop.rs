//! Cooperative budget of streams, so that one that never has to wait does not starve the others of its thread.

use std::task::{Context, Poll};

use crate::limits::Limits;

/// Bytes that one stream has moved since it last had to wait.
#[derive(Debug, Default)]
pub(crate) struct CoopBudget(usize);

impl CoopBudget {
    /// Returns pending once after [`Limits::COOP_BYTES`].
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_over() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Yields after [`Limits::COOP_BYTES`].
    pub(crate) async fn next(&mut self) {
        if self.is_over() {
            tokio::task::yield_now().await;
        }
    }

    /// Counts `bytes`; zero, as for a stream that has to wait, resets the budget.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.0 = if bytes == 0 { 0 } else { self.0 + bytes };
    }

    fn is_over(&mut self) -> bool {
        let is_over = self.0 >= Limits::COOP_BYTES;
        if is_over {
            self.0 = 0;
        }
        is_over
    }
}
