//! Reasons of refusals: the closed set that status lines, bodies, log lines, denials and metrics
//! share, one row each.

use crate::words::{Action, Activity, Engine, Severity};

/// How a refusal is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The step that did not come about.
    pub activity: Activity,
    /// How urgent it is.
    pub severity: Severity,
    /// The effect: denied, or allowed and failed.
    pub action: Action,
}

/// Denied before anything was opened.
const DENIED: Report = Report {
    activity: Activity::Open,
    severity: Severity::Medium,
    action: Action::Denied,
};
/// A secret would have gone to where it does not belong.
const MISUSED: Report = Report {
    activity: Activity::Open,
    severity: Severity::High,
    action: Action::Denied,
};
/// Permitted, and not as secure as it has to be.
const INSECURE: Report = Report {
    activity: Activity::Fail,
    severity: Severity::Medium,
    action: Action::Denied,
};
/// Permitted, and the other end was not there.
const UNREACHED: Report = Report {
    activity: Activity::Fail,
    severity: Severity::Low,
    action: Action::Allowed,
};
/// Rejected by the network namespace's firewall.
const REJECTED: Report = Report {
    activity: Activity::Refuse,
    severity: Severity::Medium,
    action: Action::Denied,
};

/// How the summary of a run counts a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// As denied: another policy could permit it.
    Denial,
    /// As permitted and failed, by a cause that the operator can remove.
    Failure,
    /// Not at all, unless a rule for the request would have permitted it.
    No,
}

/// Fate of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// It ends with the answer.
    Ends,
    /// It goes on: the request was read to its end.
    Stays,
}

macro_rules! stages {
    ($(
        $variant:ident $word:literal $engine:ident $names_policy:literal $severity:ident $proposed:literal $explained:literal;
    )+) => {
        /// The part of the sandbox that refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the names are the layers of the refusal format")]
        pub enum DenialStage {
            $($variant,)+
        }

        impl DenialStage {
            /// The word in refusals and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// The engine that events name.
            #[must_use]
            pub const fn engine(self) -> Engine {
                match self { $(Self::$variant => Engine::$engine,)+ }
            }

            /// True if events name the policy that permitted the connection.
            #[must_use]
            pub const fn names_policy(self) -> bool {
                match self { $(Self::$variant => $names_policy,)+ }
            }

            /// True if an endpoint in the policy would permit it, and is proposed.
            #[must_use]
            pub const fn is_proposed(self) -> bool {
                match self { $(Self::$variant => $proposed,)+ }
            }

            /// True if the summary of a run gives the cause beside the code.
            #[must_use]
            pub const fn is_explained(self) -> bool {
                match self { $(Self::$variant => $explained,)+ }
            }

            /// The severity of closing a connection that was permitted before.
            #[must_use]
            pub const fn severity_of_closing(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)+ }
            }
        }
    };
}

stages! {
    // Stage    Word          Engine      Policy  Closing  Proposed  Explained
    L4          "l4"          Policy      false   Medium   true      false;
    // A permitted socket was passed on to a program that may not have it.
    Identity    "identity"    Policy      false   High     false     false;
    Ssrf        "ssrf"        Address     false   Medium   true      true;
    Tls         "tls"         Tls         true    Medium   false     true;
    L7          "l7"          Rules       true    Medium   false     false;
    Credential  "credential"  Credential  true    Medium   false     false;
    Inference   "inference"   Inference   false   Medium   false     false;
    Engine      "engine"      Policy      false   Medium   false     false;
    Limit       "limit"       Policy      false   Medium   false     false;
    Upstream    "upstream"    Policy      true    Medium   false     false;
    Bypass      "bypass"      Firewall    false   Medium   false     false;
}

macro_rules! reasons {
    ($(
        $variant:ident $word:literal $stage:ident $status:literal $error:literal $report:ident $counted:ident $connection:ident
        $detail:literal $(inside $inside:literal)?;
    )+) => {
        /// One reason. The words never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "`as_str` is the documentation of each")]
        pub enum ReasonCode {
            $($variant,)+
        }

        impl ReasonCode {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            const fn row(self) -> &'static Row {
                match self {
                    $(Self::$variant => &Row {
                        word: $word,
                        stage: DenialStage::$stage,
                        status: $status,
                        error: $error,
                        report: $report,
                        counted: Counted::$counted,
                        connection: Connection::$connection,
                        details: [$detail, last!($detail $(, $inside)?)],
                    },)+
                }
            }
        }
    };
}

/// The second text, if there is one.
macro_rules! last {
    ($one:literal) => {
        $one
    };
    ($one:literal, $other:literal) => {
        $other
    };
}

struct Row {
    word: &'static str,
    stage: DenialStage,
    status: u16,
    error: &'static str,
    report: Report,
    counted: Counted,
    connection: Connection,
    details: [&'static str; 2],
}

// Each row: code, word, stage, HTTP status, error, report, count, the client's connection; then the
// detail that the workload is told, and another one for requests inside a connection where that
// differs. In it `{request}`, `{target}`, `{method}`, `{named}` and `{reason}` stand for the facts.
reasons! {
    EndpointNotInPolicy "endpoint_not_in_policy" L4 403 "policy_denied" DENIED Denial Ends
        "{request} not permitted by policy";
    BinaryNotInPolicy "binary_not_in_policy" L4 403 "policy_denied" DENIED Denial Ends
        "{request} not permitted by policy";
    NoNetworkPolicies "no_network_policies" L4 403 "policy_denied" DENIED Denial Ends
        "{request} not permitted by policy";
    PolicyChanged "policy_changed" L4 403 "policy_denied" DENIED Denial Ends
        "{request} not permitted by policy";
    NotInThisBuild "not_in_this_build" L4 403 "policy_denied" DENIED Denial Ends
        "{request} refused: {reason}";
    PolicyInvalid "policy_invalid" L4 403 "policy_denied" DENIED No Ends
        "{request} refused: the policy of the sandbox is invalid; its log says why";
    CallerUnknown "caller_unknown" Identity 403 "policy_denied" DENIED Denial Ends
        "{request} not permitted by policy";
    CallerChanged "caller_changed" Identity 403 "policy_denied" DENIED Denial Ends
        "{request} not permitted by policy";
    CallerModified "caller_modified" Identity 403 "policy_denied" DENIED Denial Ends
        "{request} not permitted by policy";
    InternalAddress "internal_address" Ssrf 403 "ssrf_denied" DENIED Denial Ends
        "{method} {target} blocked: internal address";
    AddressNotInAllowedIps "address_not_in_allowed_ips" Ssrf 403 "ssrf_denied" DENIED Denial Ends
        "{method} {target} blocked: allowed_ips check failed";
    AlwaysBlockedAddress "always_blocked_address" Ssrf 403 "ssrf_denied" DENIED Denial Ends
        "{method} {target} blocked: internal address";
    ControlPlanePort "control_plane_port" Ssrf 403 "ssrf_denied" DENIED Denial Ends
        "{method} {target} blocked: control-plane port";
    DnsFailed "dns_failed" Ssrf 403 "ssrf_denied" DENIED Failure Ends
        "{method} {target} blocked: DNS resolution failed";
    AuthorityUnavailable "authority_unavailable" Tls 503 "authority_unavailable" INSECURE No Ends
        "{request} refused: TLS could not be opened, as the trust files could not be written \
         (--tls-dir)";
    ClientTlsFailed "client_tls_failed" Tls 502 "client_tls_failed" INSECURE Failure Ends
        "{reason}";
    UpstreamTlsInvalid "upstream_tls_invalid" Tls 502 "upstream_tls_invalid" INSECURE No Ends
        "connection to {target} failed: {reason}";
    AuthorityMismatch "authority_mismatch" Tls 421 "authority_mismatch" INSECURE No Ends
        "the request is for {named}, and its connection is to {target}";
    RequestNotInRules "request_not_in_rules" L7 403 "policy_denied" DENIED Denial Ends
        "{request} denied by L7 policy" inside "{reason}";
    RequestInDenyRules "request_in_deny_rules" L7 403 "policy_denied" DENIED Denial Ends
        "{request} denied by L7 policy" inside "{reason}";
    BadRequest "bad_request" L7 400 "bad_request" DENIED No Ends
        "{reason}";
    UnsupportedL7Protocol "unsupported_l7_protocol" L7 403 "unsupported_l7_protocol" DENIED No Ends
        "{request} refused: {reason}";
    UnsolicitedUpgrade "unsolicited_upgrade" L7 403 "unsolicited_upgrade" DENIED No Ends
        "the upstream switched protocols unasked";
    CredentialUnknown "credential_unknown" Credential 500 "credential_injection_failed" DENIED Denial Ends
        "unresolved credential placeholder in request: {reason}";
    CredentialUnsafe "credential_unsafe" Credential 500 "credential_injection_failed" DENIED Denial Ends
        "unresolved credential placeholder in request: {reason}";
    CredentialNotReplaceable "credential_not_replaceable" Credential 500 "credential_injection_failed" DENIED Denial Ends
        "unresolved credential placeholder in request: {reason}";
    CredentialEndpointMismatch "credential_endpoint_mismatch" Credential 403 "policy_denied" MISUSED Denial Ends
        "{request} refused: {reason}";
    SecretInRequest "secret_in_request" Credential 403 "policy_denied" MISUSED Denial Ends
        "{request} refused: {reason}";
    InferenceNotConfigured "inference_not_configured" Inference 503 "inference_not_configured" DENIED No Ends
        "{reason}";
    InferencePathNotAllowed "inference_path_not_allowed" Inference 403 "inference_path_not_allowed" DENIED No Ends
        "{reason}";
    InferenceNoRoute "inference_no_route" Inference 400 "inference_no_route" DENIED No Ends
        "{reason}";
    InferenceBudgetExhausted "inference_budget_exhausted" Inference 429 "inference_budget_exhausted" DENIED No Stays
        "{reason}";
    InferenceUnavailable "inference_unavailable" Inference 503 "inference_unavailable" UNREACHED No Stays
        "inference service unavailable";
    InferenceError "inference_error" Inference 502 "inference_error" UNREACHED No Stays
        "inference service error";
    UnsupportedEncoding "unsupported_encoding" Inference 415 "unsupported_encoding" DENIED No Ends
        "{reason}";
    UpgradeRefused "upgrade_refused" Inference 426 "upgrade_refused" DENIED No Ends
        "{reason}";
    RequestTooLarge "request_too_large" Limit 431 "request_too_large" DENIED No Ends
        "{reason}";
    PolicyEngineError "policy_engine_error" Engine 500 "policy_engine_error" DENIED No Ends
        "{request} refused: the policy could not be evaluated; the log says why";
    LimitReached "limit_reached" Limit 503 "limit_reached" DENIED No Ends
        "{request} refused: {reason}";
    UpstreamUnreachable "upstream_unreachable" Upstream 502 "upstream_unreachable" UNREACHED No Ends
        "connection to {target} failed";
    UpstreamTimeout "upstream_timeout" Upstream 502 "upstream_unreachable" UNREACHED No Ends
        "connection to {target} failed";
    UpstreamWantsCertificate "upstream_wants_certificate" Upstream 502 "upstream_wants_certificate" UNREACHED No Ends
        "{target} wants a client certificate, and the proxy has none";
    DirectConnection "direct_connection" Bypass 403 "policy_denied" REJECTED Denial Ends
        "{reason}";
}

impl ReasonCode {
    /// The word on every surface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().word
    }

    /// The part of the sandbox that gives this reason.
    #[must_use]
    pub const fn stage(self) -> DenialStage {
        self.row().stage
    }

    /// The status of the HTTP answer.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.row().status
    }

    /// The kind of error, for programs.
    #[must_use]
    pub const fn error(self) -> &'static str {
        self.row().error
    }

    /// How it is reported.
    #[must_use]
    pub const fn report(self) -> Report {
        self.row().report
    }

    /// How the summary of a run counts it.
    #[must_use]
    pub const fn counted(self) -> Counted {
        self.row().counted
    }

    /// Fate of the client's connection.
    #[must_use]
    pub const fn connection(self) -> Connection {
        self.row().connection
    }

    /// The detail that the workload is told, as a template.
    #[must_use]
    pub const fn detail(self, is_inside: bool) -> &'static str {
        let [outside, inside] = self.row().details;
        if is_inside { inside } else { outside }
    }

    /// True if the policy is the cause, false for a connection that was permitted and failed.
    #[must_use]
    pub const fn is_policy_denial(self) -> bool {
        match self.counted() {
            Counted::Denial | Counted::No => true,
            Counted::Failure => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::ReasonCode;

    #[test]
    fn words_are_unique_and_details_name_known_facts() {
        let words: BTreeSet<_> = ReasonCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), ReasonCode::ALL.len());
        for code in ReasonCode::ALL {
            for detail in [code.detail(false), code.detail(true)] {
                for named in detail
                    .split('{')
                    .skip(1)
                    .map(|part| part.split_once('}').unwrap().0)
                {
                    assert!(
                        ["request", "target", "method", "named", "reason"].contains(&named),
                        "{detail}"
                    );
                }
            }
        }
    }
}
