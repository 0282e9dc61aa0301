//! Conversion of denials and activity to the messages of a gateway.

use openshell_events::denial::{DenialSummary, Denials, UnmatchedRequest};
use openshell_events::reason::DenialStage;
use openshell_policy::proposal::{Proposal, ProposedEndpoint};

use crate::proto::sandbox::v1::{
    L7Allow, L7QueryMatcher, L7Rule, NetworkBinary, NetworkEndpoint, NetworkPolicyRule,
};
use crate::proto::v1 as wire;

/// Counts of decisions since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// All decisions.
    pub decisions: u32,
    /// Counts of refusals by group.
    pub denied: std::collections::BTreeMap<&'static str, u32>,
}

impl Activity {
    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: Self) {
        self.decisions = self.decisions.saturating_add(other.decisions);
        for (group, count) in other.denied {
            let known = self.denied.entry(group).or_default();
            *known = known.saturating_add(count);
        }
    }
}

/// Returns the messages for `denials`.
pub(crate) fn summaries(denials: &Denials) -> Vec<wire::DenialSummary> {
    denials.summaries().into_iter().map(summary).collect()
}

fn summary(summary: &DenialSummary) -> wire::DenialSummary {
    let DenialSummary {
        first,
        count,
        first_seen_ms,
        last_seen_ms,
        requests,
        // The gateway makes its own proposals.
        fixes: _,
    } = summary;
    let count = u32::try_from(*count).unwrap_or(u32::MAX);
    let sample = |request: &UnmatchedRequest| wire::L7RequestSample {
        method: request.method.clone(),
        path: request
            .asked
            .as_ref()
            .map_or(String::new(), |(_, asked)| asked.clone()),
        decision: "deny".to_owned(),
        count: 1,
    };
    wire::DenialSummary {
        host: first.host.clone(),
        port: first.port.into(),
        binary: first.binary.clone(),
        ancestors: first.ancestors.clone(),
        deny_reason: first.reason.clone(),
        first_seen_ms: milliseconds(*first_seen_ms),
        last_seen_ms: milliseconds(*last_seen_ms),
        count,
        total_count: count,
        denial_stage: stage(first.code.stage()).to_owned(),
        l7_request_samples: requests.iter().map(sample).collect(),
        ..wire::DenialSummary::default()
    }
}

/// Returns the word that gateways use for a stage.
pub(super) fn stage(stage: DenialStage) -> &'static str {
    match stage {
        DenialStage::Ssrf => "ssrf",
        DenialStage::Bypass => "bypass",
        DenialStage::L7 => "forward-l7-deny",
        _ => "connect",
    }
}

fn milliseconds(since_1970: u64) -> i64 {
    i64::try_from(since_1970).unwrap_or(i64::MAX)
}

/// Returns the message for a proposed rule, with the times of the denials in `summary`; `None` if a
/// gateway has no words for it.
pub(crate) fn chunk(
    proposal: &Proposal,
    summary: Option<&DenialSummary>,
) -> Option<wire::PolicyChunk> {
    let binary = NetworkBinary {
        path: proposal.binary.clone(),
        ..NetworkBinary::default()
    };
    let endpoints: Vec<_> = proposal.endpoints().iter().filter_map(endpoint).collect();
    if endpoints.is_empty() {
        return None;
    }
    let rule = NetworkPolicyRule {
        name: proposal.name.clone(),
        endpoints,
        binaries: vec![binary],
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "two digits behind the point are all that there are"
    )]
    let confidence = proposal.confidence as f32;
    Some(wire::PolicyChunk {
        status: "pending".to_owned(),
        rule_name: proposal.name.clone(),
        proposed_rule: Some(rule),
        rationale: proposal.rationale.clone(),
        security_notes: proposal.security_notes.clone(),
        confidence,
        stage: summary
            .map_or("connect", |summary| stage(summary.first.code.stage()))
            .to_owned(),
        hit_count: i32::try_from(proposal.count).unwrap_or(i32::MAX),
        first_seen_ms: summary.map_or(0, |summary| milliseconds(summary.first_seen_ms)),
        last_seen_ms: summary.map_or(0, |summary| milliseconds(summary.last_seen_ms)),
        binary: proposal.binary.clone(),
        ..wire::PolicyChunk::default()
    })
}

/// Returns the message for an endpoint; `None` if a gateway has no words for its rules.
fn endpoint(endpoint: &ProposedEndpoint<'_>) -> Option<NetworkEndpoint> {
    let protocol = endpoint.protocol().unwrap_or_default();
    let rules: Vec<_> = endpoint.requests.iter().filter_map(rule).collect();
    if rules.is_empty() && !endpoint.requests.is_empty() {
        return None;
    }
    let enforcement = if rules.is_empty() { "" } else { "enforce" };
    Some(NetworkEndpoint {
        host: endpoint.host.to_owned(),
        port: endpoint.port.into(),
        ports: vec![endpoint.port.into()],
        path: endpoint.path().unwrap_or_default().to_owned(),
        protocol: protocol.to_owned(),
        enforcement: enforcement.to_owned(),
        rules,
        allowed_ips: endpoint
            .allowed_ips
            .iter()
            .map(ToString::to_string)
            .collect(),
        ..NetworkEndpoint::default()
    })
}

/// Returns the message for the rule that allows `request`; `None` if it would allow more.
fn rule(request: &UnmatchedRequest) -> Option<L7Rule> {
    let mut allow = L7Allow {
        method: request.method.clone(),
        ..L7Allow::default()
    };
    match &request.asked {
        Some(("path", path)) => allow.path.clone_from(path),
        Some(("tool", tool)) => {
            let glob = L7QueryMatcher {
                glob: tool.clone(),
                any: Vec::new(),
            };
            allow.params.insert("name".to_owned(), glob);
        }
        Some(_) => return None,
        None => {}
    }
    Some(L7Rule { allow: Some(allow) })
}

/// Returns the message for the counts of `activity`.
pub(crate) fn activity(activity: &Activity) -> wire::NetworkActivitySummary {
    let denied = activity.denied.iter();
    let group = |(group, count): (&&str, &u32)| wire::DenialGroupCount {
        deny_group: (*group).to_owned(),
        denied_count: *count,
    };
    wire::NetworkActivitySummary {
        network_activity_count: activity.decisions,
        denied_action_count: activity
            .denied
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count)),
        denials_by_group: denied.map(group).collect(),
    }
}
