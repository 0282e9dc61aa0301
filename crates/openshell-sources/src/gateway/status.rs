//! The results of policy versions, which are reported to the gateway in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use openshell_gateway::channel::Backoff;
use openshell_gateway::client::{Gateway, PolicyResult};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// The most results that wait; if there are more, the oldest are dropped.
const WAITING: usize = 256;

/// The queue of results.
#[derive(Default)]
pub(super) struct Outbox(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<VecDeque<(u32, PolicyResult)>>,
    added: Notify,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<(u32, PolicyResult)>> {
        self.waiting.lock()
    }

    /// Reports each result, until it is acknowledged or the gateway takes none.
    async fn report(&self, gateway: &Gateway) {
        loop {
            let first = self.waiting().front().cloned();
            let Some((version, result)) = first else {
                self.added.notified().await;
                continue;
            };
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(32));
            while let Err(error) = gateway.report_status(version, &result).await {
                if error.is_unimplemented() {
                    tracing::warn!("the gateway does not accept the status of policies: {error}");
                    break;
                }
                tracing::debug!("the status of version {version} was not reported: {error}");
                tokio::time::sleep(backoff.next_wait()).await;
                // Only the newest result of a version counts.
                if self.waiting().front() != Some(&(version, result.clone())) {
                    break;
                }
            }
            let mut waiting = self.waiting();
            if waiting.front() == Some(&(version, result)) {
                waiting.pop_front();
            }
        }
    }
}

impl Outbox {
    /// Returns the queue, and the task that reports its results.
    pub(super) fn new(gateway: Gateway) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let outbox = Self::default();
        let shared = Arc::clone(&outbox.0);
        (outbox, async move { shared.report(&gateway).await })
    }

    /// Queues the `result` of `version`.
    pub(super) fn report(&self, version: u32, result: PolicyResult) {
        let mut waiting = self.0.waiting();
        waiting.retain(|(other, _)| *other != version);
        if waiting.len() == WAITING {
            let oldest = waiting.pop_front().map_or(0, |(version, _)| version);
            tracing::warn!(
                "the status of version {oldest} is not reported: {WAITING} newer ones wait"
            );
        }
        waiting.push_back((version, result));
        drop(waiting);
        self.0.added.notify_one();
    }
}
