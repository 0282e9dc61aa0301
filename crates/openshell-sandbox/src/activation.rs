//! The policy, credentials and routes in force, and the one task that replaces them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openshell_events::words::{ConfigState, Severity};
use openshell_policy::filesystem::Filesystem;
use openshell_proxy::approvals::desk::Desk;
use openshell_proxy::credentials::leaks::detector::{LeakDetector, LeakMode};
use openshell_proxy::credentials::vault::{Entry, Vault};
use openshell_proxy::credentials::watched::CurrentVault;
use openshell_proxy::decide::snapshot::Snapshot;
use openshell_proxy::decide::store::PolicyStore;
use openshell_proxy::inference::route::{Inference, Route, RouteTable};
use openshell_proxy::policy_local::serve::PolicyLocal;
use openshell_telemetry::logging;
use tokio::sync::mpsc;

use openshell_sources::origin;
use openshell_sources::policy::{Compile, SymlinkTarget, policy_file};
use openshell_sources::secrets::credential_file::CredentialSet;
use openshell_sources::secrets::route_file::RouteSet;
use openshell_sources::update::{self, Answer, Reloads, Request, Update};

/// A policy as the proxy enforces it.
pub(crate) struct Compiled(pub(crate) Snapshot);

/// The origin that a command line or its environment names.
pub(crate) type Origin = origin::Origin<Compiled>;

/// The policy that a sandbox starts with.
pub(crate) type Policy = policy_file::Policy<Compiled>;

/// The parts that a sandbox starts with.
pub(crate) type Initial = update::Initial<Compiled>;

impl Compile for Compiled {
    fn compile(
        generation: u64,
        policy: openshell_policy::policy::Policy,
        rules: Option<&str>,
        target: SymlinkTarget<'_>,
    ) -> anyhow::Result<Self> {
        Ok(Self(Snapshot::new(generation, policy, rules, target)?))
    }

    fn policy(&self) -> &openshell_policy::policy::Policy {
        self.0.policy()
    }

    fn links(&self) -> &BTreeMap<String, String> {
        self.0.links()
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }
}

/// Returns the vault of `credentials`.
fn vault(credentials: CredentialSet) -> Vault {
    Vault::of(credentials.held.into_iter().map(|held| Entry {
        name: held.name,
        secret: held.secret,
        binding: held.binding,
        expires: held.expires,
        aliases: held.aliases,
    }))
}

/// Returns the table of `routes`. It leaves out a route whose key cannot be sent; no source gives
/// one.
fn table(routes: RouteSet) -> RouteTable {
    let mut usable = Vec::new();
    for route in routes.routes {
        let name = route.spec.name.clone();
        match Route::new(route.spec, route.key) {
            Ok(route) => usable.push(route),
            Err(error) => tracing::error!("the route {name} is left out: {error}"),
        }
    }
    RouteTable::new(usable, routes.max_request_bytes)
}

/// Everything in force that an update replaces. Only [`Self::run`] replaces it.
#[derive(Clone)]
pub(crate) struct InForce {
    pub(crate) policy: Arc<PolicyStore>,
    pub(crate) vault: Arc<CurrentVault>,
    /// `None` if the sandbox was started without routes.
    pub(crate) inference: Option<Arc<Inference>>,
    /// Detects the secrets in force in messages.
    pub(crate) leaks: Arc<LeakDetector>,
    pub(crate) reloads: Arc<Reloads>,
    /// Asks a person; `None` if nobody is asked.
    pub(crate) approvals: Option<Arc<Desk>>,
    /// Answers programs that ask about the policy.
    pub(crate) policy_local: Arc<PolicyLocal>,
}

/// Whom a sandbox asks, and what answers its programs.
pub(crate) type Answering = (Option<Arc<Desk>>, PolicyLocal);

impl InForce {
    /// Puts the parts that a sandbox starts with in force, and logs the credentials. `answering` makes
    /// what answers about the policy.
    pub(crate) fn new(
        initial: Initial,
        leaks: LeakMode,
        answering: impl FnOnce(&Arc<PolicyStore>) -> Answering,
    ) -> Self {
        let Initial {
            policy,
            credentials,
            routes,
            reloads,
        } = initial;
        let vault = Arc::new(CurrentVault::default());
        if let Some(credentials) = credentials {
            let report = credentials.report.clone();
            vault.replace(self::vault(credentials));
            report.log("credentials loaded");
        }
        // A gateway may give routes later.
        let routes = routes.filter(|routes| routes.may_come_later || !routes.routes.is_empty());
        let leaks = Arc::new(LeakDetector::new(leaks));
        let inference = routes.map(|routes| {
            let table = table(routes);
            leaks.know_keys(table.keys());
            Arc::new(Inference::new(table))
        });
        let policy = Arc::new(PolicyStore::new(policy.compiled.0));
        let (approvals, policy_local) = answering(&policy);
        Self {
            policy,
            vault,
            inference,
            leaks,
            reloads,
            approvals,
            policy_local: policy_local.into(),
        }
    }

    /// Puts `snapshot` in force, with the lines that a person has added and that still fit.
    fn put_in_force(&self, snapshot: Snapshot) {
        let dropped = self.policy.replace(snapshot);
        if let Some(approvals) = &self.approvals {
            approvals.dropped(&dropped);
        }
    }

    /// Applies each request and answers it, until no source is left.
    pub(crate) async fn run(self, mut requests: mpsc::Receiver<Request>) {
        let started = self.policy.load();
        let in_force = Arc::new(self);
        while let Some(Request { update, answer }) = requests.recv().await {
            let in_force = Arc::clone(&in_force);
            let started = Arc::clone(&started);
            // Compiling takes time; connections must not wait for it.
            match tokio::task::spawn_blocking(move || in_force.apply(update, &started)).await {
                // A source that is gone needs no answer.
                Ok(result) => drop(answer.send(result)),
                Err(error) => tracing::error!("reading the policy again failed: {error}"),
            }
        }
    }

    /// Puts either all parts of `update` in force or none. `started` is the generation that the
    /// sandbox started with.
    fn apply(&self, update: Update, started: &Snapshot) -> Answer {
        let before = self.policy.load().generation();
        let is_reload = update.policy.is_some();
        let count = |number: &AtomicU64| {
            number.fetch_add(u64::from(is_reload), Ordering::Relaxed);
        };
        let policy = match update
            .policy
            .map(|policy| policy.compile::<Compiled>(before + 1))
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
            .map(|policy| deferred_parts(started.policy(), policy.compiled.policy()))
            .unwrap_or_default();
        if update.routes.is_some() && self.inference.is_none() {
            deferred.push("inference routes");
        }
        if !deferred.is_empty() {
            let parts = deferred.join(", ");
            let message = format!(
                "these parts have changed, but take effect only at the next start: {parts}"
            );
            logging::config_event(ConfigState::Unchanged, Severity::Medium, &message);
        }
        if let Some(credentials) = update.credentials {
            let report = credentials.report.clone();
            self.vault.replace(vault(credentials));
            report.log("Credentials reloaded successfully");
        }
        if let Some((routes, inference)) = update.routes.zip(self.inference.as_ref()) {
            let report = routes.report.clone();
            let table = table(routes);
            self.leaks.know_keys(table.keys());
            inference.replace(table);
            report.log();
        }
        // Prepared now so that no request has to wait for it.
        self.leaks.prepare(&self.vault.load());
        let Some(policy) = policy else {
            return Answer::Applied { generation: before };
        };
        // Prepared now so that no connection has to wait for it.
        policy.compiled.0.prepare();
        self.put_in_force(policy.compiled.0);
        count(&self.reloads.applied);
        policy.report.log("Policy reloaded successfully");
        Answer::Applied {
            generation: self.policy.load().generation(),
        }
    }

    /// Puts in force a policy that permits nothing, because the new one is invalid.
    fn refuse_everything(&self, generation: u64, started: &Snapshot, error: &anyhow::Error) {
        let text = format!("{error:#}");
        let reason = text.lines().next().unwrap_or_default().to_owned();
        match Snapshot::refusing(generation, started.policy().clone(), reason) {
            Ok(snapshot) => self.put_in_force(snapshot),
            Err(error) => {
                tracing::error!(
                    "cannot refuse everything although the policy is invalid: {error}; the policy \
                     before it stays in force"
                )
            }
        }
    }
}

/// Returns the parts of a policy that have changed but take effect only at the next start.
fn deferred_parts(
    started: &openshell_policy::policy::Policy,
    new: &openshell_policy::policy::Policy,
) -> Vec<&'static str> {
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
        ("approvals", started.approvals() != new.approvals()),
    ]
    .into_iter()
    .filter_map(|(name, changed)| changed.then_some(name))
    .collect()
}
