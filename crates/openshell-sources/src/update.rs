//! Changes of the policy, credentials and routes. A source makes them; their owner puts them in
//! force and answers the source.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, oneshot};

use crate::policy::policy_file::{PolicyDocument, PolicyVersion};
use crate::secrets::credential_file::CredentialSet;
use crate::secrets::route_file::RouteSet;

/// The parts that a sandbox starts with, as generation 1.
pub struct Initial<C> {
    /// The policy, as it is enforced.
    pub policy: PolicyVersion<C>,
    /// The credentials, if there may be any.
    pub credentials: Option<CredentialSet>,
    /// The routes to models, if there may be any.
    pub routes: Option<RouteSet>,
    /// Counts of the reloads after the start.
    pub reloads: Arc<Reloads>,
}

/// Counts of policy updates so far.
#[derive(Debug, Default)]
pub struct Reloads {
    /// Updates that came into force.
    pub applied: AtomicU64,
    /// Invalid updates, and files that could not be read.
    pub failed: AtomicU64,
}

/// A change while the sandbox runs. It comes into force as a whole or not at all. A part that is
/// absent stays as it is.
#[derive(Default)]
pub struct Update {
    /// The policy.
    pub policy: Option<PolicyDocument>,
    /// True if an invalid policy means that nothing is permitted any more.
    pub refuses_if_invalid: bool,
    /// The credentials.
    pub credentials: Option<CredentialSet>,
    /// The routes to models.
    pub routes: Option<RouteSet>,
}

/// Result of an [`Update`].
#[derive(Debug)]
pub enum Answer {
    /// The update is in force under this generation.
    Applied {
        /// The generation's number.
        generation: u64,
    },
    /// The policy is invalid, with every violation. The generation before stays in force, or one
    /// that refuses everything.
    Rejected(anyhow::Error),
}

/// An update on its way to the owner of what is in force.
pub struct Request {
    /// What changes.
    pub update: Update,
    /// Receives the answer.
    pub answer: oneshot::Sender<Answer>,
}

/// An origin of updates.
pub trait Source: Send + 'static {
    /// Waits for the next update.
    fn next(&mut self) -> impl Future<Output = Update> + Send;

    /// Receives the answer to the last update.
    fn answered(&mut self, answer: Answer);
}

/// Sends each update of `source` as a request, one at a time, until the receiver is gone.
pub async fn forward(mut source: impl Source, requests: mpsc::Sender<Request>) {
    loop {
        let update = source.next().await;
        let (answer, answered) = oneshot::channel();
        if requests.send(Request { update, answer }).await.is_err() {
            return;
        }
        // If there is no answer, the update failed through an error of the owner's, which the owner
        // has logged.
        if let Ok(answer) = answered.await {
            source.answered(answer);
        }
    }
}
