//! Reasons of refusals: a closed set with one row for each reason. Status lines, bodies, log lines,
//! denials and metrics all use its words.

use crate::words::{Action, Activity, Engine, Severity};

/// How a refusal is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The step that was not completed.
    pub activity: Activity,
    /// How urgent it is.
    pub severity: Severity,
    /// The effect: denied, or allowed but failed.
    pub action: Action,
}

/// The report of a refusal before anything was opened.
const DENIED: Report = Report {
    activity: Activity::Open,
    severity: Severity::Medium,
    action: Action::Denied,
};
/// The report of a secret that would have gone to the wrong place.
const MISUSED: Report = Report {
    activity: Activity::Open,
    severity: Severity::High,
    action: Action::Denied,
};
/// The report of something that the policy permits, but whose TLS or authority is not acceptable.
const INSECURE: Report = Report {
    activity: Activity::Fail,
    severity: Severity::Medium,
    action: Action::Denied,
};
/// The report of something that the policy permits, but whose other end did not respond.
const UNREACHED: Report = Report {
    activity: Activity::Fail,
    severity: Severity::Low,
    action: Action::Allowed,
};
/// The report of a packet that the network namespace's firewall rejected.
const REJECTED: Report = Report {
    activity: Activity::Refuse,
    severity: Severity::Medium,
    action: Action::Denied,
};

/// How the summary of a run counts a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// As denied: a different policy could permit it.
    Denial,
    /// As permitted but failed, for a cause that the operator can remove.
    Failure,
    /// Not at all, unless a rule for the request would have permitted it.
    No,
}

/// What happens to the client's connection after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// It ends with the answer.
    Ends,
    /// It stays open: the request was read to its end.
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
            /// Returns the word in refusals and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// Returns the engine that events name.
            #[must_use]
            pub const fn engine(self) -> Engine {
                match self { $(Self::$variant => Engine::$engine,)+ }
            }

            /// Returns true if events name the policy that permitted the connection.
            #[must_use]
            pub const fn names_policy(self) -> bool {
                match self { $(Self::$variant => $names_policy,)+ }
            }

            /// Returns true if an endpoint in the policy would permit it, so that one is proposed.
            #[must_use]
            pub const fn is_proposed(self) -> bool {
                match self { $(Self::$variant => $proposed,)+ }
            }

            /// Returns true if the summary of a run shows the cause next to the code.
            #[must_use]
            pub const fn is_explained(self) -> bool {
                match self { $(Self::$variant => $explained,)+ }
            }

            /// Returns the severity of closing a connection that was permitted before.
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
    // High: a program passed a permitted socket to another one that may not have it.
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
        /// The reason of a refusal. Its word never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "`as_str` is the documentation of each")]
        pub enum ReasonCode {
            $($variant,)+
        }

        impl ReasonCode {
            /// All reasons.
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

/// Expands to the second text if there is one, otherwise to the first.
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

// Each row has: variant, word, stage, HTTP status, error, report, count, the client's connection.
// Then follow the detail that the workload is told, and, if it differs, the one for requests inside
// a connection. `{request}`, `{target}`, `{method}`, `{named}` and `{reason}` stand for the facts.
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
        "{request} refused: the proxy cannot open TLS because it could not write the trust files; \
         see --tls-dir";
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
    EndpointsAmbiguous "endpoints_ambiguous" L7 403 "policy_denied" DENIED Denial Ends
        "{request} refused: {reason}";
    BadRequest "bad_request" L7 400 "bad_request" DENIED No Ends
        "{reason}";
    MessageInvalid "message_invalid" L7 400 "message_invalid" DENIED No Stays
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
    /// Returns the word, which is the same in all outputs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().word
    }

    /// Returns the part of the sandbox that gives this reason.
    #[must_use]
    pub const fn stage(self) -> DenialStage {
        self.row().stage
    }

    /// Returns the status of the HTTP answer.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.row().status
    }

    /// Returns the kind of error, for programs.
    #[must_use]
    pub const fn error(self) -> &'static str {
        self.row().error
    }

    /// Returns how events report it.
    #[must_use]
    pub const fn report(self) -> Report {
        self.row().report
    }

    /// Returns how the summary of a run counts it.
    #[must_use]
    pub const fn counted(self) -> Counted {
        self.row().counted
    }

    /// Returns what happens to the client's connection.
    #[must_use]
    pub const fn connection(self) -> Connection {
        self.row().connection
    }

    /// Returns the template of the detail that the workload is told; `is_inside` selects the one
    /// for requests inside a connection.
    #[must_use]
    pub const fn detail(self, is_inside: bool) -> &'static str {
        let [outside, inside] = self.row().details;
        if is_inside { inside } else { outside }
    }

    /// Returns false if the reason is counted as [`Counted::Failure`], true in all other cases.
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
