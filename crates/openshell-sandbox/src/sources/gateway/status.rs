//! Results of policy versions, reported to the gateway in their order.

use std::time::Duration;

use openshell_gateway::channel::Backoff;
use openshell_gateway::client::{Gateway, PolicyResult};
use tokio::sync::mpsc;

/// Results that wait; a gateway that sends more versions than this within its own silence gets the newest ones.
const WAITING: usize = 64;

/// The queue of results.
pub(super) struct Outbox(mpsc::Sender<(u32, PolicyResult)>);

impl Outbox {
    /// Returns the queue, and the task that reports its results until each is acknowledged.
    pub(super) fn new(gateway: Gateway) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, mut results) = mpsc::channel(WAITING);
        let task = async move {
            let mut newer = None;
            while let Some((version, mut result)) = next(&mut newer, &mut results).await {
                let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(32));
                while let Err(error) = gateway.report_status(version, &result).await {
                    tracing::debug!("the status of version {version} was not reported: {error}");
                    if !error.is_transient() && !error.is_unauthenticated() {
                        tracing::warn!("the gateway takes no status of version {version}: {error}");
                        break;
                    }
                    tokio::time::sleep(backoff.next_wait()).await;
                    // Of one version the newest result counts.
                    while newer.is_none() {
                        match results.try_recv() {
                            Ok((other, newest)) if other == version => result = newest,
                            Ok(other) => newer = Some(other),
                            Err(_) => break,
                        }
                    }
                }
            }
            std::future::pending().await
        };
        (Self(sender), task)
    }

    /// Queues the `result` of `version`.
    pub(super) fn report(&self, version: u32, result: PolicyResult) {
        if self.0.try_send((version, result)).is_err() {
            tracing::warn!("the status of version {version} is not reported: {WAITING} others wait");
        }
    }
}

async fn next(
    newer: &mut Option<(u32, PolicyResult)>,
    results: &mut mpsc::Receiver<(u32, PolicyResult)>,
) -> Option<(u32, PolicyResult)> {
    match newer.take() {
        Some(result) => Some(result),
        None => results.recv().await,
    }
}
