//! A gateway as the source of the policy, the credentials and the routes to models.

mod credentials;
pub mod launcher;
pub mod routes;
mod settings;
pub mod start;
mod status;

use std::sync::Arc;
use std::time::Duration;

use openshell_events::event::PolicyId;
use openshell_events::words::{ConfigState, Severity};
use openshell_gateway::client::{Gateway, PolicyResult};
use openshell_gateway::convert::config::{OnInvalid, SandboxConfig};
use openshell_gateway::convert::policy::{GatewayPolicy, ProviderBinding};
use openshell_telemetry::logging;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::policy::policy_file::{GatewayVersion, PolicyDocument, PolicyFiles};
use crate::update::{Answer, Source, Update};
use credentials::Placeholders;
pub use settings::Proposing;
use settings::Settings;
use status::Outbox;

/// A gateway as the receiver of reports.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The gateway.
    pub gateway: Gateway,
    /// The sandbox's workspace, once it is known.
    pub workspace: watch::Receiver<String>,
    /// The interval of reports on denials.
    pub denials_every: Duration,
    /// The interval of reports on activity.
    pub activity_every: Duration,
    /// What the gateway says about proposals.
    pub proposing: watch::Receiver<Proposing>,
    /// Triggers asking the gateway for its policy at once.
    pub wanted: Arc<Notify>,
}

/// A gateway that is asked for changes at intervals.
pub struct GatewaySource {
    gateway: Gateway,
    /// The context of the policy documents.
    files: PolicyFiles,
    every: Duration,
    /// Triggers asking the gateway at once.
    wanted: Arc<Notify>,
    /// The workspace, once it is known.
    workspace: watch::Sender<String>,
    proposing: watch::Sender<Proposing>,
    outbox: Outbox,
    seen: Seen,
    settings: Settings,
    placeholders: Placeholders,
    /// The policy that was sent to its owner and is not answered yet.
    pending: Option<Pending>,
    /// A part that is sent once the part before it was answered.
    next: Option<Update>,
    /// True if the loss of the gateway was logged. Each loss is logged once.
    is_lost: bool,
    generation: u64,
}

/// What was last taken over from the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    revision: u64,
    version: u32,
    hash: String,
    /// `None` without a policy.
    policy: Option<GatewayPolicy>,
    /// True if that policy is invalid.
    has_failed: bool,
    provider_revision: u64,
    /// True if there are no credentials because the gateway did not give them.
    lacks_credentials: bool,
    /// True if the endpoints that credentials are bound to have changed.
    has_new_bindings: bool,
}

/// A version of the policy that waits for its result.
struct Pending {
    version: u32,
    /// False for a policy of all sandboxes, whose result is not reported.
    is_reported: bool,
    /// Endpoints that name providers, which come into force with the policy.
    bindings: Vec<ProviderBinding>,
}

impl GatewaySource {
    /// Returns the handle that triggers asking the gateway at once.
    pub fn reload(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    /// Asks the gateway, and returns the parts that have changed.
    async fn poll(&mut self) -> Option<Update> {
        let config = match self.gateway.config().await {
            Ok(config) => config,
            Err(error) => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    let message = format!(
                        "cannot ask the gateway for changes; what is in force stays: {error}"
                    );
                    logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
                }
                return None;
            }
        };
        if std::mem::take(&mut self.is_lost) {
            logging::config_event(
                ConfigState::Enabled,
                Severity::Info,
                "the gateway answers again",
            );
        }
        self.take_workspace(&config.workspace);
        let has_new_credentials = config.provider_revision != self.seen.provider_revision
            || self.seen.lacks_credentials
            || self.seen.has_new_bindings;
        if config.revision != self.seen.revision {
            self.settings.apply(&config.settings);
        }
        let policy = self.changed_policy(&config);
        let proposing = self.settings.proposing();
        self.proposing.send_if_modified(|known| {
            let is_new = *known != proposing;
            *known = proposing;
            is_new
        });
        self.seen.revision = config.revision;
        let credentials = if has_new_credentials {
            self.credentials(config.provider_revision).await
        } else {
            None
        };
        match (policy, credentials) {
            (Some(policy), credentials) => {
                // Credentials go first, because they count even if the policy is refused.
                self.next = Some(policy);
                credentials.or_else(|| self.next_policy())
            }
            (None, credentials) => credentials,
        }
    }

    fn next_policy(&mut self) -> Option<Update> {
        let update = self.next.take()?;
        let bindings = self
            .seen
            .policy
            .as_ref()
            .map(|policy| policy.bindings.clone())
            .unwrap_or_default();
        let version = self.seen.version;
        let is_reported = self.settings.is_own_policy();
        self.pending = Some(Pending {
            version,
            is_reported,
            bindings,
        });
        Some(update)
    }

    /// Returns the policy, if it has changed. A version with only another number is acknowledged.
    fn changed_policy(&mut self, config: &SandboxConfig) -> Option<Update> {
        let Some(policy) = &config.policy else {
            return None;
        };
        let is_same = config.hash == self.seen.hash && config.version == self.seen.version;
        let is_other = self.seen.policy.as_ref() != Some(policy);
        if is_same && !is_other {
            return None;
        }
        self.settings.policy_of(config.global_version);
        (self.seen.version, self.seen.hash) = (config.version, config.hash.clone());
        self.seen.policy = Some(policy.clone());
        if !is_other && !self.seen.has_failed {
            if self.settings.is_own_policy() {
                self.outbox.report(config.version, PolicyResult::Loaded);
            }
            return None;
        }
        let policy = document(&self.files, config, policy.document.clone());
        Some(Update {
            policy: Some(policy),
            refuses_if_invalid: self.refuses(config),
            ..Update::default()
        })
    }

    async fn credentials(&mut self, revision: u64) -> Option<Update> {
        let environment = match self.gateway.provider_environment().await {
            Ok(environment) => environment,
            Err(error) => {
                if !std::mem::replace(&mut self.seen.lacks_credentials, true) {
                    let message = format!(
                        "credentials withdrawn, because the gateway does not give them: {error}"
                    );
                    logging::config_event(ConfigState::Failed, Severity::High, &message);
                    return Some(Update {
                        credentials: Some(Placeholders::none()),
                        ..Update::default()
                    });
                }
                return None;
            }
        };
        (
            self.seen.provider_revision,
            self.seen.lacks_credentials,
            self.seen.has_new_bindings,
        ) = (revision, false, false);
        Some(Update {
            credentials: Some(self.placeholders.of(environment)),
            ..Update::default()
        })
    }

    /// Returns true if nothing is permitted any more once the policy of `config` is invalid.
    fn refuses(&self, config: &SandboxConfig) -> bool {
        match config.on_invalid {
            OnInvalid::Retain => false,
            OnInvalid::Refuse => true,
            OnInvalid::Unsaid => self.gateway.is_later(),
        }
    }

    fn take_workspace(&self, workspace: &str) {
        self.workspace.send_if_modified(|known| {
            let is_new = known != workspace;
            workspace.clone_into(known);
            is_new
        });
    }
}

/// Returns the document of the policy `data` of `config`.
fn document(files: &PolicyFiles, config: &SandboxConfig, data: String) -> PolicyDocument {
    // The gateway chose the hash, and it goes into a log line.
    let hash: String = config
        .hash
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(64)
        .collect();
    let version = GatewayVersion {
        number: config.version.into(),
        hash: if hash.is_empty() {
            "-".to_owned()
        } else {
            hash
        },
        global: config.global_version,
    };
    files.document("the gateway".to_owned(), data, Some(version))
}

impl Source for GatewaySource {
    async fn next(&mut self) -> Update {
        if let Some(update) = self.next_policy() {
            return update;
        }
        loop {
            let at = Instant::now() + self.every;
            tokio::select! {
                () = sleep_until(at) => {}
                () = self.wanted.notified() => {}
            }
            if let Some(update) = self.poll().await {
                return update;
            }
        }
    }

    fn answered(&mut self, answer: Answer) {
        let pending = self.pending.take();
        let result = match answer {
            Answer::Applied { generation } => {
                self.generation = generation;
                if let Some(Pending { bindings, .. }) = &pending {
                    self.seen.has_failed = false;
                    if self.placeholders.bind(bindings) {
                        self.seen.has_new_bindings = true;
                        self.wanted.notify_one();
                    }
                }
                PolicyResult::Loaded
            }
            Answer::Rejected(error) => {
                let Some(Pending { version, .. }) = &pending else {
                    return;
                };
                self.seen.has_failed = true;
                let generation = self.generation;
                let hash = &self.seen.hash;
                let message = format!(
                    "Policy reload failed, keeping last-known-good policy unless the gateway fails \
                     closed [version:{version} hash:{hash} generation:{generation} \
                     error:{error:#}]"
                );
                let policy = PolicyId {
                    number: (*version).into(),
                    hash,
                };
                logging::policy_event(ConfigState::Failed, Severity::Medium, &message, policy);
                PolicyResult::Failed(format!("{error:#}"))
            }
        };
        if let Some(Pending {
            version,
            is_reported: true,
            ..
        }) = pending
        {
            self.outbox.report(version, result);
        }
    }
}
