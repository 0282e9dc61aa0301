//! Changes of the policy, credentials and routes: made by a source, put in force by their owner,
//! answered to the source.

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
    /// Counts the reloads after it.
    pub reloads: Arc<Reloads>,
}

/// Updates of the policy so far.
#[derive(Debug, Default)]
pub struct Reloads {
    /// Those that came into force.
    pub applied: AtomicU64,
    /// Invalid ones, and files that could not be read.
    pub failed: AtomicU64,
}

/// A change while the sandbox runs, put in force as a whole or not at all. An absent part stays as
/// it is.
#[derive(Default)]
pub struct Update {
    /// The policy.
    pub policy: Option<PolicyDocument>,
    /// True if nothing is permitted any more where the policy is invalid.
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
        /// Its number.
        generation: u64,
    },
    /// The policy is invalid, with every violation; the generation before stays in force, or one
    /// that refuses everything.
    Rejected(anyhow::Error),
}

/// An update on its way to the owner of what is in force.
pub struct Request {
    /// What changes.
    pub update: Update,
    /// Takes the answer.
    pub answer: oneshot::Sender<Answer>,
}

/// An origin of updates.
pub trait Source: Send + 'static {
    /// Waits for the next update.
    fn next(&mut self) -> impl Future<Output = Update> + Send;

    /// Takes the answer to the last update.
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
        // Without an answer the update failed by an error of the owner's, which the owner has
        // logged.
        if let Ok(answer) = answered.await {
            source.answered(answer);
        }
    }
}
