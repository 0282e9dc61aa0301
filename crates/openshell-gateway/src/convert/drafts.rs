//! Conversion of single lines of policy that are proposed to a gateway, and of what became of them.

use openshell_events::reason::DenialStage;
use openshell_policy::network::{NetworkPolicy, PolicyName};

use super::denials::stage;
use super::policy::rule;
use crate::proto::v1 as wire;

/// A line that is proposed.
#[derive(Clone, Copy, Debug)]
pub struct ProposedLine<'l> {
    /// Its key.
    pub name: &'l PolicyName,
    /// The line.
    pub policy: &'l NetworkPolicy,
    /// Why it is proposed.
    pub rationale: &'l str,
    /// The part of the sandbox that has refused what it would permit.
    pub stage: DenialStage,
    /// When it was proposed, in milliseconds since 1970.
    pub at_ms: u64,
}

/// What a gateway has answered to a proposal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submitted {
    /// The id of the line; `None` if it was not taken, or if the gateway is of a generation that
    /// gives none.
    pub id: Option<String>,
    /// Why it was not taken; `None` if it was.
    pub rejection: Option<String>,
}

/// Whether a line is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftStatus {
    /// Nobody has decided.
    Pending,
    /// It is permitted.
    Approved,
    /// It is not.
    Rejected,
}

/// A proposed line as a gateway has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its id.
    pub id: String,
    /// Its key.
    pub name: String,
    /// Whether it is permitted.
    pub status: DraftStatus,
    /// Why it is not.
    pub rejection_reason: String,
    /// What the gateway says of it.
    pub details: DraftDetails,
}

/// What a gateway says of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the messages")]
pub struct DraftDetails {
    pub validation_result: String,
    pub application_error: String,
    pub review_token: String,
    pub current_effective_policy_hash: String,
    pub candidate_effective_policy_hash: String,
}

/// Longest text of a gateway that is kept, in characters.
const TEXT_CHARS: usize = 1_024;

/// Returns the message for `line`.
pub(crate) fn chunk(line: ProposedLine<'_>) -> wire::PolicyChunk {
    let (name, proposed_rule) = rule(line.name, line.policy);
    let at = i64::try_from(line.at_ms).unwrap_or(i64::MAX);
    let binary = line.policy.binaries.first();
    wire::PolicyChunk {
        status: "pending".to_owned(),
        rule_name: name,
        proposed_rule: Some(proposed_rule),
        rationale: line.rationale.to_owned(),
        stage: stage(line.stage).to_owned(),
        hit_count: 1,
        first_seen_ms: at,
        last_seen_ms: at,
        binary: binary.map(ToString::to_string).unwrap_or_default(),
        ..wire::PolicyChunk::default()
    }
}

/// Reads what a gateway has answered to one line.
pub(crate) fn submitted(response: wire::SubmitPolicyAnalysisResponse) -> Submitted {
    let is_rejected = response.accepted_chunks == 0 && response.rejected_chunks > 0;
    let reason = response.rejection_reasons.into_iter().next();
    let id = response.accepted_chunk_ids.into_iter().next();
    Submitted {
        id: id.filter(|id| !id.is_empty()),
        rejection: is_rejected.then(|| short(&reason.unwrap_or_default())),
    }
}

/// Reads a line; `None` if it says neither that it waits nor what was decided.
pub(crate) fn draft(chunk: wire::PolicyChunk) -> Option<Draft> {
    let status = match chunk.status.as_str() {
        "pending" => DraftStatus::Pending,
        "approved" => DraftStatus::Approved,
        "rejected" => DraftStatus::Rejected,
        _ => return None,
    };
    Some(Draft {
        id: chunk.id,
        name: chunk.rule_name,
        status,
        rejection_reason: short(&chunk.rejection_reason),
        details: DraftDetails {
            validation_result: short(&chunk.validation_result),
            application_error: short(&chunk.application_error),
            review_token: short(&chunk.review_token),
            current_effective_policy_hash: short(&chunk.current_effective_policy_hash),
            candidate_effective_policy_hash: short(&chunk.candidate_effective_policy_hash),
        },
    })
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS).collect()
}
