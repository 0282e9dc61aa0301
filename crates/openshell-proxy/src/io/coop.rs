//! What keeps a connection that never has to wait from keeping all others of its thread waiting.

use std::task::{Context, Poll};

use crate::limits::Limits;

/// What one stream has moved since it last had to wait.
#[derive(Debug, Default)]
pub(crate) struct CoopBudget(usize);

impl CoopBudget {
    /// Not ready, once, where [`Limits::COOP_BYTES`] were moved: it is the others' turn.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_over() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Gives the others their turn, if it is.
    pub(crate) async fn next(&mut self) {
        if self.is_over() {
            tokio::task::yield_now().await;
        }
    }

    /// Notes that `bytes` were moved; none if there was nothing to move.
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
