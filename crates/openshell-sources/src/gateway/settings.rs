//! The settings that a gateway has in force.

use std::collections::BTreeMap;

use openshell_events::words::{ConfigState, Severity};
use openshell_gateway::convert::config::Setting;

use openshell_events::text::printable;
use openshell_telemetry::logging;

/// Settings whose meaning is known.
const KNOWN: &[&str] = &[AGENT_PROPOSALS, OCSF_JSON];

/// The setting that lets agents propose lines of policy.
const AGENT_PROPOSALS: &str = "agent_policy_proposals_enabled";

/// The setting that turns OCSF records on.
const OCSF_JSON: &str = "ocsf_json_enabled";

/// What a gateway says about proposals of lines of policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proposing {
    /// True if agents may propose lines.
    pub takes_of_agents: bool,
    /// True if the policy is one for all sandboxes, beside which no line counts.
    pub is_global: bool,
}

/// Settings in force.
#[derive(Debug, Default)]
pub(super) struct Settings {
    in_force: BTreeMap<String, Setting>,
    /// The number of the policy for all sandboxes, if that is in force.
    global_version: Option<u32>,
}

impl Settings {
    /// Takes over `settings`, and logs each change.
    pub(super) fn apply(&mut self, settings: &BTreeMap<String, Setting>) {
        let gone = self
            .in_force
            .keys()
            .filter(|key| !settings.contains_key(*key));
        let changed = settings
            .iter()
            .filter(|(key, setting)| self.in_force.get(*key) != Some(setting));
        let changes = gone
            .map(|key| (key, None))
            .chain(changed.map(|(key, setting)| (key, Some(setting))));
        for (key, setting) in changes {
            let old = self.in_force.get(key).map_or("-", |old| old.value.as_str());
            let (new, scope) = setting.map_or(("-", "-"), |setting| {
                (setting.value.as_str(), setting.scope)
            });
            let known = if KNOWN.contains(&key.as_str()) {
                ""
            } else {
                ", which this build does not know"
            };
            let message = format!("setting {key}: {old} -> {new} [scope:{scope}]{known}");
            logging::config_event(ConfigState::Loaded, Severity::Info, &printable(&message));
        }
        self.in_force.clone_from(settings);
        logging::enable_json(
            settings
                .get(OCSF_JSON)
                .is_some_and(|setting| setting.value == "true"),
        );
    }

    /// Remembers whose policy is in force: that for all sandboxes, or the sandbox's own.
    pub(super) fn policy_of(&mut self, global_version: Option<u32>) {
        self.global_version = global_version;
    }

    /// Returns what they say about proposals.
    pub(super) fn proposing(&self) -> Proposing {
        let enabled = self.in_force.get(AGENT_PROPOSALS);
        Proposing {
            takes_of_agents: enabled.is_some_and(|setting| setting.value == "true"),
            is_global: !self.is_own_policy(),
        }
    }

    /// Returns true if the policy is the sandbox's own; then its status is reported.
    pub(super) fn is_own_policy(&self) -> bool {
        self.global_version.is_none()
    }
}
