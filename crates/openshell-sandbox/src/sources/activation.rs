//! Reads the policy and the credentials again when that is asked for. What takes effect at a start alone stays as it was started.

use std::sync::Arc;

use openshell_policy::filesystem::Filesystem;
use openshell_policy::policy::Policy;
use openshell_proxy::credentials::vault::CurrentVault;
use openshell_proxy::decide::store::PolicyStore;
use tokio::sync::Notify;

use crate::logging;
use crate::sources::credential_file;
use crate::sources::policy_file::Source;

/// What is read again, and where it is put in force.
pub(crate) struct Reloading {
    pub(crate) source: Source,
    pub(crate) policy: Arc<PolicyStore>,
    pub(crate) credentials: Option<credential_file::Source>,
    pub(crate) vault: Arc<CurrentVault>,
}

/// Puts what the files say in force each time `wanted` is notified, for as long as the sandbox lives.
pub(crate) async fn run(reloading: Arc<Reloading>, wanted: Arc<Notify>) {
    let started = reloading.policy.load();
    loop {
        wanted.notified().await;
        let (reloading, started) = (Arc::clone(&reloading), Arc::clone(&started));
        // Reading and compiling take their time, which no connection has to wait for.
        let read = tokio::task::spawn_blocking(move || reloading.reload(started.policy()));
        if let Err(error) = read.await {
            tracing::error!("reading the policy again failed: {error}");
        }
    }
}

impl Reloading {
    /// Puts both in force, or neither.
    fn reload(&self, started: &Policy) {
        let generation = self.policy.load().generation();
        let failed = |what: &str, error: anyhow::Error| {
            let kept = format!("keeping last-known-good policy [generation:{generation} error:{error:#}]");
            logging::config_event("FAILED", "MED", &format!("{what} reload failed, {kept}"));
        };
        let credentials = match self.credentials.as_ref().map(credential_file::Source::reload).transpose() {
            Ok(loaded) => loaded,
            Err(error) => return failed("Credentials", error),
        };
        let loaded = match self.source.load(generation + 1) {
            Ok(loaded) => loaded,
            Err(error) => return failed("Policy", error),
        };
        let waiting = until_next_start(started, loaded.snapshot.policy());
        if !waiting.is_empty() {
            let parts = waiting.join(", ");
            let message = format!("changed in the policy, and in force from the next start on only: {parts}");
            logging::config_event("UNCHANGED", "MED", &message);
        }
        if let Some(credentials) = credentials {
            credentials.taken("Credentials reloaded successfully", |vault| self.vault.replace(vault));
        }
        loaded.taken("Policy reloaded successfully", |snapshot| self.policy.replace(snapshot));
    }
}

/// The parts of a policy that have changed and cannot change while the sandbox runs.
fn until_next_start(started: &Policy, new: &Policy) -> Vec<&'static str> {
    let (old, compatibility) = (started.filesystem(), new.filesystem().compatibility);
    let same_folders = Filesystem { compatibility, ..old.clone() } == *new.filesystem();
    [
        ("filesystem_policy", !same_folders),
        ("landlock", old.compatibility != compatibility),
        ("process", started.run_as() != new.run_as()),
    ]
    .into_iter()
    .filter_map(|(name, changed)| changed.then_some(name))
    .collect()
}
