//! The policy, credentials and routes in force, and the one task that replaces them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openshell_events::words::{ConfigState, Severity};
use openshell_policy::filesystem::Filesystem;
use openshell_policy::policy::Policy;
use openshell_proxy::credentials::leaks::detector::{LeakDetector, LeakMode};
use openshell_proxy::credentials::watched::CurrentVault;
use openshell_proxy::decide::snapshot::Snapshot;
use openshell_proxy::decide::store::PolicyStore;
use openshell_proxy::inference::route::Inference;
use openshell_telemetry::logging;
use tokio::sync::mpsc;

use crate::sources::update::{Answer, Initial, Reloads, Request, Update};

/// Everything in force that an update replaces. Only [`Self::run`] replaces it.
#[derive(Clone)]
pub(crate) struct InForce {
    pub(crate) policy: Arc<PolicyStore>,
    pub(crate) vault: Arc<CurrentVault>,
    /// `None` if the sandbox was started without routes.
    pub(crate) inference: Option<Arc<Inference>>,
    /// Knows the secrets in force.
    pub(crate) leaks: Arc<LeakDetector>,
    pub(crate) reloads: Arc<Reloads>,
}

impl InForce {
    /// Puts the parts that a sandbox starts with in force, and logs the credentials.
    pub(crate) fn new(initial: Initial, leaks: LeakMode) -> Self {
        let Initial {
            policy,
            credentials,
            routes,
            reloads,
        } = initial;
        let vault = Arc::new(CurrentVault::default());
        if let Some(credentials) = credentials {
            vault.replace(credentials.vault);
            credentials.report.log("credentials loaded");
        }
        // A gateway may give routes later.
        let routes = routes.filter(|routes| routes.may_come_later || !routes.table.is_empty());
        let leaks = Arc::new(LeakDetector::new(leaks));
        let inference = routes.map(|routes| {
            leaks.know_keys(routes.table.keys());
            Arc::new(Inference::new(routes.table))
        });
        Self {
            policy: Arc::new(PolicyStore::new(policy.snapshot)),
            vault,
            inference,
            leaks,
            reloads,
        }
    }

    /// Applies each request and answers it, until no source is left.
    pub(crate) async fn run(self, mut requests: mpsc::Receiver<Request>) {
        let started = self.policy.load();
        let in_force = Arc::new(self);
        while let Some(Request { update, answer }) = requests.recv().await {
            let in_force = Arc::clone(&in_force);
            let started = Arc::clone(&started);
            // Compiling takes time, for which no connection has to wait.
            match tokio::task::spawn_blocking(move || in_force.apply(update, &started)).await {
                // A source that is gone needs no answer.
                Ok(result) => drop(answer.send(result)),
                Err(error) => tracing::error!("reading the policy again failed: {error}"),
            }
        }
    }

    /// Puts all parts of `update` in force, or none. `started` is the generation that the sandbox
    /// was started with.
    fn apply(&self, update: Update, started: &Snapshot) -> Answer {
        let before = self.policy.load().generation();
        let is_reload = update.policy.is_some();
        let count = |number: &AtomicU64| {
            number.fetch_add(u64::from(is_reload), Ordering::Relaxed);
        };
        let policy = match update
            .policy
            .map(|policy| policy.compile(before + 1))
            .transpose()
        {
            Ok(policy) => policy,
            Err(error) => {
                if update.refuses_if_invalid {
                    self.refuse_everything(before + 1, started, &error);
                }
                count(&self.reloads.failed);
                return Answer::Rejected(error);
            }
        };
        let mut deferred = policy
            .as_ref()
            .map(|policy| deferred_parts(started.policy(), policy.snapshot.policy()))
            .unwrap_or_default();
        if update.routes.is_some() && self.inference.is_none() {
            deferred.push("inference routes");
        }
        if !deferred.is_empty() {
            let parts = deferred.join(", ");
            let message =
                format!("changed in the policy, and in force from the next start on only: {parts}");
            logging::config_event(ConfigState::Unchanged, Severity::Medium, &message);
        }
        if let Some(credentials) = update.credentials {
            self.vault.replace(credentials.vault);
            credentials.report.log("Credentials reloaded successfully");
        }
        if let Some((routes, inference)) = update.routes.zip(self.inference.as_ref()) {
            self.leaks.know_keys(routes.table.keys());
            inference.replace(routes.table);
            routes.report.log();
        }
        // No request has to wait for it.
        self.leaks.prepare(&self.vault.load());
        let Some(policy) = policy else {
            return Answer::Applied { generation: before };
        };
        // No connection has to wait for it.
        policy.snapshot.prepare();
        self.policy.replace(policy.snapshot);
        count(&self.reloads.applied);
        policy.report.log("Policy reloaded successfully");
        Answer::Applied {
            generation: before + 1,
        }
    }

    /// Puts a policy in force that permits nothing, in place of an invalid one.
    fn refuse_everything(&self, generation: u64, started: &Snapshot, error: &anyhow::Error) {
        let text = format!("{error:#}");
        let reason = text.lines().next().unwrap_or_default().to_owned();
        match Snapshot::refusing(generation, started.policy().clone(), reason) {
            Ok(snapshot) => self.policy.replace(snapshot),
            Err(error) => {
                tracing::error!("an invalid policy could not be put out of force: {error}")
            }
        }
    }
}

/// Returns the parts of a policy that have changed and cannot change while the sandbox runs.
fn deferred_parts(started: &Policy, new: &Policy) -> Vec<&'static str> {
    let old = started.filesystem();
    let compatibility = new.filesystem().compatibility;
    let same_folders = Filesystem {
        compatibility,
        ..old.clone()
    } == *new.filesystem();
    [
        ("filesystem_policy", !same_folders),
        ("landlock", old.compatibility != compatibility),
        ("process", started.run_as() != new.run_as()),
    ]
    .into_iter()
    .filter_map(|(name, changed)| changed.then_some(name))
    .collect()
}
