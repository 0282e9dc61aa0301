//! Why something was refused: the closed set of reasons that status lines, bodies, log lines, denials and metrics share;
//! and refusals counted.

use std::collections::{BTreeMap, BTreeSet};

/// Which part of the sandbox refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the layers of the refusal format")]
pub enum DenialStage {
    L4,
    Identity,
    Ssrf,
    Tls,
    L7,
    Credential,
    Inference,
    Engine,
    Limit,
    Upstream,
    Bypass,
}

impl DenialStage {
    /// The word in refusals and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::L4 => "l4",
            Self::Identity => "identity",
            Self::Ssrf => "ssrf",
            Self::Tls => "tls",
            Self::L7 => "l7",
            Self::Credential => "credential",
            Self::Inference => "inference",
            Self::Engine => "engine",
            Self::Limit => "limit",
            Self::Upstream => "upstream",
            Self::Bypass => "bypass",
        }
    }
}

/// One reason. The variants grow with what can refuse; the words never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "`as_str` is the documentation of each")]
pub enum ReasonCode {
    EndpointNotInPolicy,
    BinaryNotInPolicy,
    NoNetworkPolicies,
    PolicyChanged,
    NotInThisBuild,
    CallerUnknown,
    CallerChanged,
    CallerAmbiguous,
    InternalAddress,
    AddressNotInAllowedIps,
    AlwaysBlockedAddress,
    ControlPlanePort,
    DnsFailed,
    AuthorityUnavailable,
    ClientTlsFailed,
    UpstreamTlsInvalid,
    AuthorityMismatch,
    RequestNotInRules,
    RequestInDenyRules,
    BadRequest,
    UnsupportedL7Protocol,
    UnsolicitedUpgrade,
    CredentialUnknown,
    CredentialUnsafe,
    CredentialNotReplaceable,
    CredentialEndpointMismatch,
    InferenceNotConfigured,
    InferencePathNotAllowed,
    InferenceNoRoute,
    InferenceBudgetExhausted,
    InferenceUnavailable,
    InferenceError,
    UnsupportedEncoding,
    UpgradeRefused,
    RequestTooLarge,
    PolicyEngineError,
    LimitReached,
    UpstreamUnreachable,
    UpstreamTimeout,
    DirectConnection,
}

impl ReasonCode {
    /// The word on every surface.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndpointNotInPolicy => "endpoint_not_in_policy",
            Self::BinaryNotInPolicy => "binary_not_in_policy",
            Self::NoNetworkPolicies => "no_network_policies",
            Self::PolicyChanged => "policy_changed",
            Self::NotInThisBuild => "not_in_this_build",
            Self::CallerUnknown => "caller_unknown",
            Self::CallerChanged => "caller_changed",
            Self::CallerAmbiguous => "caller_ambiguous",
            Self::InternalAddress => "internal_address",
            Self::AddressNotInAllowedIps => "address_not_in_allowed_ips",
            Self::AlwaysBlockedAddress => "always_blocked_address",
            Self::ControlPlanePort => "control_plane_port",
            Self::DnsFailed => "dns_failed",
            Self::AuthorityUnavailable => "authority_unavailable",
            Self::ClientTlsFailed => "client_tls_failed",
            Self::UpstreamTlsInvalid => "upstream_tls_invalid",
            Self::AuthorityMismatch => "authority_mismatch",
            Self::RequestNotInRules => "request_not_in_rules",
            Self::RequestInDenyRules => "request_in_deny_rules",
            Self::BadRequest => "bad_request",
            Self::UnsupportedL7Protocol => "unsupported_l7_protocol",
            Self::UnsolicitedUpgrade => "unsolicited_upgrade",
            Self::CredentialUnknown => "credential_unknown",
            Self::CredentialUnsafe => "credential_unsafe",
            Self::CredentialNotReplaceable => "credential_not_replaceable",
            Self::CredentialEndpointMismatch => "credential_endpoint_mismatch",
            Self::InferenceNotConfigured => "inference_not_configured",
            Self::InferencePathNotAllowed => "inference_path_not_allowed",
            Self::InferenceNoRoute => "inference_no_route",
            Self::InferenceBudgetExhausted => "inference_budget_exhausted",
            Self::InferenceUnavailable => "inference_unavailable",
            Self::InferenceError => "inference_error",
            Self::UnsupportedEncoding => "unsupported_encoding",
            Self::UpgradeRefused => "upgrade_refused",
            Self::RequestTooLarge => "request_too_large",
            Self::PolicyEngineError => "policy_engine_error",
            Self::LimitReached => "limit_reached",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::DirectConnection => "direct_connection",
        }
    }

    /// Which part of the sandbox gives this reason.
    #[must_use]
    pub fn stage(self) -> DenialStage {
        match self {
            Self::EndpointNotInPolicy
            | Self::BinaryNotInPolicy
            | Self::NoNetworkPolicies
            | Self::PolicyChanged
            | Self::NotInThisBuild => DenialStage::L4,
            Self::CallerUnknown | Self::CallerChanged | Self::CallerAmbiguous => DenialStage::Identity,
            Self::InternalAddress
            | Self::AddressNotInAllowedIps
            | Self::AlwaysBlockedAddress
            | Self::ControlPlanePort
            | Self::DnsFailed => DenialStage::Ssrf,
            Self::AuthorityUnavailable | Self::ClientTlsFailed | Self::UpstreamTlsInvalid | Self::AuthorityMismatch => {
                DenialStage::Tls
            }
            Self::RequestNotInRules
            | Self::RequestInDenyRules
            | Self::BadRequest
            | Self::UnsupportedL7Protocol
            | Self::UnsolicitedUpgrade => DenialStage::L7,
            Self::CredentialUnknown
            | Self::CredentialUnsafe
            | Self::CredentialNotReplaceable
            | Self::CredentialEndpointMismatch => DenialStage::Credential,
            Self::InferenceNotConfigured
            | Self::InferencePathNotAllowed
            | Self::InferenceNoRoute
            | Self::InferenceBudgetExhausted
            | Self::InferenceUnavailable
            | Self::InferenceError
            | Self::UnsupportedEncoding
            | Self::UpgradeRefused => DenialStage::Inference,
            Self::PolicyEngineError => DenialStage::Engine,
            Self::RequestTooLarge | Self::LimitReached => DenialStage::Limit,
            Self::UpstreamUnreachable | Self::UpstreamTimeout => DenialStage::Upstream,
            Self::DirectConnection => DenialStage::Bypass,
        }
    }
}

impl ReasonCode {
    /// Whether the policy is why: false for what failed although it was permitted.
    #[must_use]
    pub fn is_policy_denial(self) -> bool {
        !matches!(self, Self::DnsFailed | Self::ClientTlsFailed)
    }
}

/// One refusal, as it is counted and proposed upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The host that was asked for; an IP address where a program went past the proxy.
    pub host: String,
    /// Its port; 0 for protocols that have none.
    pub port: u16,
    /// The program that asked; `-` if that could not be found out.
    pub binary: String,
    /// The programs that started it, nearest first.
    pub ancestors: Vec<String>,
    /// Why, in one word.
    pub code: ReasonCode,
    /// Why, in a sentence.
    pub reason: String,
    /// The line of policy that would permit it, where there is one.
    pub fix: Option<String>,
    /// Method and path, where it was a request inside a permitted connection.
    pub request: Option<(String, String)>,
}

impl Denial {
    /// The request, if another rule could allow it: what a deny rule refuses none does.
    fn could_be_allowed(&self) -> Option<(String, String)> {
        self.request.clone().filter(|_| matches!(self.code, ReasonCode::RequestNotInRules | ReasonCode::BadRequest))
    }
}

/// Refusals of one host and port to one program, or failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialSummary {
    /// The first of them.
    pub first: Denial,
    /// How many there were.
    pub count: u64,
    /// Methods and paths of the requests among them that no rule allowed, the first [`Denials::SAMPLES`] different ones.
    pub requests: BTreeSet<(String, String)>,
}

/// Refusals, counted by host, port, program, and apart from failures; bounded, as the workload chooses what it asks for.
#[derive(Clone, Debug, Default)]
pub struct Denials {
    summaries: BTreeMap<(String, u16, String, bool), DenialSummary>,
    /// Summaries of failures.
    failures: usize,
    others: u64,
}

impl Denials {
    /// Summaries that are kept; what comes beyond them is only counted.
    pub const SUMMARIES: usize = 1024;
    /// Summaries of failures among them, so that names without an address leave room for refusals.
    pub const FAILURES: usize = 128;
    /// Bytes of a summary's ancestors that are kept, nearest first.
    pub const ANCESTOR_BYTES: usize = 4096;
    /// Different requests of a summary that are kept.
    pub const SAMPLES: usize = 20;

    /// Counts `denial`.
    pub fn add(&mut self, mut denial: Denial) {
        let key = (denial.host.clone(), denial.port, denial.binary.clone(), denial.code.is_policy_denial());
        if let Some(known) = self.summaries.get_mut(&key) {
            known.count += 1;
            if known.requests.len() < Self::SAMPLES {
                known.requests.extend(denial.could_be_allowed());
            }
        } else if self.summaries.len() == Self::SUMMARIES
            || (!denial.code.is_policy_denial() && self.failures == Self::FAILURES)
        {
            self.others += 1;
        } else {
            self.failures += usize::from(!denial.code.is_policy_denial());
            let mut room = Self::ANCESTOR_BYTES;
            denial.ancestors.retain(|ancestor| {
                let rest = room.checked_sub(ancestor.len());
                room = rest.unwrap_or(0);
                rest.is_some()
            });
            let requests = denial.could_be_allowed().into_iter().collect();
            self.summaries.insert(key, DenialSummary { first: denial, count: 1, requests });
        }
    }

    /// What was kept, most frequent first.
    #[must_use]
    pub fn summaries(&self) -> Vec<&DenialSummary> {
        let mut summaries: Vec<_> = self.summaries.values().collect();
        summaries.sort_by_key(|summary| std::cmp::Reverse(summary.count));
        summaries
    }

    /// How many refusals there were beyond [`Self::summaries`].
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use super::{Denial, Denials, ReasonCode};

    fn denial(host: &str, binary: &str) -> Denial {
        let (host, binary) = (host.to_owned(), binary.to_owned());
        let code = ReasonCode::EndpointNotInPolicy;
        Denial { host, port: 443, binary, ancestors: Vec::new(), code, reason: String::new(), fix: None, request: None }
    }

    #[test]
    fn refusals_are_counted_by_host_port_and_program() {
        let mut denials = Denials::default();
        for (host, binary) in [("a", "/1"), ("b", "/1"), ("b", "/2"), ("b", "/1")] {
            denials.add(denial(host, binary));
        }
        denials.add(Denial { port: 80, ..denial("b", "/1") });
        let counts: Vec<_> = denials.summaries().iter().map(|summary| summary.count).collect();
        assert_eq!(counts, [2, 1, 1, 1]);
        assert_eq!(denials.summaries()[0].first.host, "b");
    }

    #[test]
    fn what_a_workload_asks_for_cannot_grow_them_without_end() {
        let mut denials = Denials::default();
        for n in 0..5000 {
            denials.add(denial(&n.to_string(), "/1"));
        }
        assert_eq!((denials.summaries().len(), denials.others()), (1024, 5000 - 1024));
        let mut denials = Denials::default();
        denials.add(Denial { ancestors: vec!["x".repeat(1000); 64], ..denial("a", "/1") });
        assert_eq!(denials.summaries()[0].first.ancestors.len(), 4);
    }

    #[test]
    fn failures_leave_room_for_refusals() {
        let mut denials = Denials::default();
        for n in 0..5000 {
            denials.add(Denial { code: ReasonCode::DnsFailed, ..denial(&n.to_string(), "/1") });
        }
        denials.add(denial("0", "/1"));
        let refused = denials.summaries().into_iter().filter(|summary| summary.first.code.is_policy_denial());
        assert_eq!((refused.count(), denials.others()), (1, 5000 - 128));
    }

    #[test]
    fn of_many_requests_twenty_are_kept_and_all_are_counted() {
        let mut denials = Denials::default();
        let refused =
            |code, n| Denial { code, request: Some(("GET".to_owned(), format!("/{n}"))), ..denial("a", "/1") };
        denials.add(refused(ReasonCode::RequestInDenyRules, 1000));
        for n in 0..100 {
            denials.add(refused(ReasonCode::RequestNotInRules, n));
        }
        let summary = denials.summaries()[0];
        assert_eq!((summary.count, summary.requests.len()), (101, Denials::SAMPLES));
        assert!(!summary.requests.iter().any(|(_, path)| path == "/1000"), "what a deny rule refuses is not proposed");
    }
}
