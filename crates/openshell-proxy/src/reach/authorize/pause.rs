//! Stops the work of a connection while it is not known whether it is still permitted.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// A switch that stops the work of one connection, all of which is polled by one task.
#[derive(Debug, Default)]
pub struct Pause {
    is_paused: AtomicBool,
    waker: AtomicWaker,
}

/// A guard that stops the work until it is dropped.
#[derive(Debug)]
pub(super) struct Paused<'h>(&'h Pause);

impl Pause {
    /// Drives `work` except while it is held. Then it is not polled, so no byte passes.
    pub async fn over<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(move |cx| {
            self.waker.register(cx.waker());
            if self.is_paused.load(Ordering::Acquire) {
                Poll::Pending
            } else {
                work.as_mut().poll(cx)
            }
        })
        .await
    }

    pub(super) fn begin(&self) -> Paused<'_> {
        self.is_paused.store(true, Ordering::Release);
        Paused(self)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.is_paused.store(false, Ordering::Release);
        self.0.waker.wake();
    }
}
