//! Conversion of single lines of policy that are proposed to a gateway, and of what became of them.

use std::collections::BTreeMap;

use openshell_events::reason::DenialStage;
use openshell_policy::network::{NetworkPolicy, PolicyName};
use openshell_policy::policy::Policy;
use openshell_policy::yaml;

use super::denials::stage;
use super::policy::{message, read, rule};
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

/// Returns the line `policy` with the key `name` as a gateway reads it; `None` if messages cannot say
/// what it permits. They never say that a line is for a program alone, and not for what it starts.
#[must_use]
pub fn as_sent(name: &PolicyName, policy: &NetworkPolicy) -> Option<NetworkPolicy> {
    let mut meant = policy.clone();
    for binary in &mut meant.binaries {
        binary.exact = false;
    }
    let alone = Policy::restrictive()
        .with_network_policies([(name, policy)])
        .ok()?;
    let sent = read(message(&alone), &BTreeMap::new());
    let (back, _) = yaml::policy_of_gateway(&sent.document).ok()?;
    let back = back.network().get(name)?;
    (*back == meant).then_some(meant)
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
        id: id.map(|id| short(&id)).filter(|id| !id.is_empty()),
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
        id: short(&chunk.id),
        name: short(&chunk.rule_name),
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

#[cfg(test)]
mod tests {
    use openshell_policy::network::{NetworkPolicy, PolicyName};
    use openshell_policy::yaml;

    use super::as_sent;

    fn line(endpoint: &str, binary: &str) -> (PolicyName, NetworkPolicy) {
        let text = format!(
            "network_policies: {{a: {{endpoints: [{{host: a.test, port: 443, {endpoint}}}], \
             binaries: [{{path: /bin/a{binary}}}]}}}}"
        );
        let (policy, _) = yaml::policy(&text).unwrap();
        let (name, line) = policy.network().iter().next().unwrap();
        (name.clone(), line.clone())
    }

    #[test]
    fn a_line_is_proposed_to_a_gateway_only_if_messages_can_say_it() {
        let rest =
            "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /a}}]";
        let (name, exact) = line(rest, ", exact: true");
        let (_, loose) = line(rest, "");
        assert_eq!(
            as_sent(&name, &exact),
            Some(loose),
            "also for what it starts"
        );
        let tool = |rule: &str| {
            let endpoint =
                format!("protocol: mcp, enforcement: enforce, rules: [{{allow: {rule}}}]");
            line(&endpoint, "").1
        };
        let put = tool("{method: tools/call, tool: put}");
        assert_eq!(as_sent(&name, &put), Some(put.clone()));
        let resource = tool("{method: resources/read, uri: 'file:///a'}");
        assert_eq!(as_sent(&name, &resource), None);
    }
}
