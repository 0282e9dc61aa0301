//! What a refusal tells a program that may ask for a line of policy.

use std::sync::atomic::{AtomicBool, Ordering};

use openshell_events::reason::ReasonCode;
use openshell_policy::approvals::HOST;
use serde::Serialize;

use crate::denial::refusal::Refusal;

/// The one sentence for programs that decide by themselves what to do next.
pub(super) const SENTENCE: &str = "Propose the narrowest rule that the task needs, wait for the \
                                   answer of a person, then try once more; do not look for a way \
                                   around.";

/// The path at which the text is served that describes how to ask.
pub const SKILL_PATH: &str = "/v1/skill";

/// Whether programs may ask, and where it is described.
#[derive(Debug, Default)]
pub struct Guidance {
    is_on: AtomicBool,
    /// The path inside of the text that describes it; `None` if it is only served.
    skill: Option<String>,
}

/// Something that a program can do next.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

impl Guidance {
    /// Creates the guidance of programs that may ask if it `is_on`; `skill` is the path inside of the
    /// text that describes it.
    #[must_use]
    pub fn new(is_on: bool, skill: Option<String>) -> Self {
        Self {
            is_on: is_on.into(),
            skill,
        }
    }

    /// Lets programs ask from now on, or not any more.
    pub fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Returns true if programs may ask.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Returns what a program can do after `refusal`; `None` if it is not the policy's, or if programs
    /// may not ask.
    pub(super) fn steps(&self, refusal: &Refusal) -> Option<Vec<Step>> {
        let code = refusal.code();
        if !self.is_on() || !refusal.is_counted() || !code.is_policy_denial() {
            return None;
        }
        let at = |action, path: &str| Step {
            action,
            path: None,
            url: Some(format!("http://{HOST}{path}")),
        };
        let skill = match &self.skill {
            Some(path) => Step {
                action: "read_skill",
                path: Some(path.clone()),
                url: None,
            },
            None => at("read_skill", SKILL_PATH),
        };
        let mut steps = vec![
            skill,
            at("inspect_policy", "/v1/policy/current"),
            at("inspect_recent_denials", "/v1/denials?last=5"),
        ];
        if can_be_proposed(code) {
            steps.push(at("submit_proposal", "/v1/proposals"));
        }
        Some(steps)
    }
}

/// Returns true if a proposal could permit what is refused with `code`.
fn can_be_proposed(code: ReasonCode) -> bool {
    matches!(
        code,
        ReasonCode::EndpointNotInPolicy
            | ReasonCode::BinaryNotInPolicy
            | ReasonCode::NoNetworkPolicies
            | ReasonCode::RequestNotInRules
    )
}
