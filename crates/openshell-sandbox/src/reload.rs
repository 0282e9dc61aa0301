//! Reads the policy again when it is asked to. What takes effect at a start alone stays as it was started.

use std::path::PathBuf;
use std::sync::Arc;

use openshell_policy::policy::Policy;
use openshell_proxy::decide::current::CurrentPolicy;
use openshell_proxy::decide::snapshot::Snapshot;
use tokio::sync::Notify;

use crate::logging;
use crate::startup;

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) data: PathBuf,
    pub(crate) rules: Option<PathBuf>,
}

/// Puts what `source` says in force each time `wanted` is notified, for as long as the sandbox lives.
pub(crate) async fn run(source: Source, policy: Arc<CurrentPolicy>, wanted: Arc<Notify>) {
    let started = policy.load();
    loop {
        wanted.notified().await;
        let (source, policy, started) = (source.clone(), Arc::clone(&policy), Arc::clone(&started));
        // Reading and compiling take their time, which no connection has to wait for.
        let read = tokio::task::spawn_blocking(move || reload(&source, &policy, started.policy()));
        if let Err(error) = read.await {
            tracing::error!("reading the policy again failed: {error}");
        }
    }
}

fn reload(source: &Source, current: &CurrentPolicy, started: &Policy) {
    let generation = current.load().generation();
    let snapshot = match startup::load_policy(source, generation + 1) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let kept = format!("keeping last-known-good policy [generation:{generation} error:{error:#}]");
            logging::config_event("FAILED", "MED", &format!("Policy reload failed, {kept}"));
            return;
        }
    };
    let waiting = until_next_start(started, &snapshot);
    if !waiting.is_empty() {
        let parts = waiting.join(", ");
        let message = format!("changed in the policy, and in force from the next start on only: {parts}");
        logging::config_event("UNCHANGED", "MED", &message);
    }
    let message = format!("Policy reloaded successfully from {}", startup::described(source, &snapshot));
    current.replace(snapshot);
    logging::config_event("LOADED", "INFO", &message);
}

/// The parts of a policy that have changed and cannot change while the sandbox runs.
fn until_next_start(started: &Policy, new: &Snapshot) -> Vec<&'static str> {
    let (old, new) = ((started.filesystem(), started.run_as()), (new.policy().filesystem(), new.policy().run_as()));
    let folders = |policy: &openshell_policy::filesystem::Filesystem| {
        (policy.include_workdir, policy.read_only.clone(), policy.read_write.clone())
    };
    [
        ("filesystem_policy", folders(old.0) != folders(new.0)),
        ("landlock", old.0.compatibility != new.0.compatibility),
        ("process", old.1 != new.1),
    ]
    .into_iter()
    .filter_map(|(name, changed)| changed.then_some(name))
    .collect()
}
