//! Changes of the policy, credentials and routes: made by a source, put in force by their owner,
//! answered to the source.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, oneshot};

use crate::sources::credential_file::CredentialSet;
use crate::sources::policy_file::{PolicyDocument, PolicyVersion};
use crate::sources::route_file::RouteSet;

/// The parts that a sandbox starts with, as generation 1.
pub(crate) struct Initial {
    pub(crate) policy: PolicyVersion,
    pub(crate) credentials: Option<CredentialSet>,
    pub(crate) routes: Option<RouteSet>,
    /// Counts the reloads after it.
    pub(crate) reloads: Arc<Reloads>,
}

/// Updates of the policy so far.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) applied: AtomicU64,
    /// Invalid ones, and files that could not be read.
    pub(crate) failed: AtomicU64,
}

/// A change while the sandbox runs, put in force as a whole or not at all. An absent part stays as
/// it is.
#[derive(Default)]
pub(crate) struct Update {
    pub(crate) policy: Option<PolicyDocument>,
    /// True if nothing is permitted any more where the policy is invalid.
    pub(crate) refuses_if_invalid: bool,
    pub(crate) credentials: Option<CredentialSet>,
    pub(crate) routes: Option<RouteSet>,
}

/// Result of an [`Update`].
#[derive(Debug)]
pub(crate) enum Answer {
    /// The update is in force under this generation.
    Applied { generation: u64 },
    /// The policy is invalid, with every violation; the generation before stays in force, or one
    /// that refuses everything.
    Rejected(anyhow::Error),
}

/// An update on its way to the owner of what is in force.
pub(crate) struct Request {
    pub(crate) update: Update,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// An origin of updates.
pub(crate) trait Source: Send + 'static {
    /// Waits for the next update.
    fn next(&mut self) -> impl Future<Output = Update> + Send;

    /// Takes the answer to the last update.
    fn answered(&mut self, answer: Answer);
}

/// Sends each update of `source` as a request, one at a time, until the receiver is gone.
pub(crate) async fn forward(mut source: impl Source, requests: mpsc::Sender<Request>) {
    loop {
        let update = source.next().await;
        let (answer, answered) = oneshot::channel();
        if requests.send(Request { update, answer }).await.is_err() {
            return;
        }
        // Without an answer the update failed by an error of the owner's, which the owner has
        // logged.
        if let Ok(answer) = answered.await {
            source.answered(answer);
        }
    }
}
