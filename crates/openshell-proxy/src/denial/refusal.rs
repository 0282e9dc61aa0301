//! Refusals as data: the code, the cause and the facts that an explanation needs.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use openshell_events::reason::{Counted, DenialStage, ReasonCode};
use openshell_policy::network::endpoint::UpgradeProtocol;

use crate::ground::limits::Limits;
use crate::ground::peer::Caller;
use crate::ground::target::Target;
use crate::secrets::needles::{CONCEALED, has_secret};

/// An expected denial. The workload is told its code and its [`Self::detail`]; resolved addresses
/// and internal errors are only in [`Self::reason`], for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: ReasonCode,
    reason: Cow<'static, str>,
    /// Overrides the code's detail.
    detail: Option<&'static str>,
    /// Overrides the code's HTTP status.
    status: Option<u16>,
    facts: Facts,
}

/// Facts of a refusal beyond code and cause, for its fix or its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Facts {
    /// No facts.
    None,
    /// The policy that comes nearest to permitting the connection.
    Nearest(Option<Nearest>),
    /// The policy that permits the connection, and cannot permit this use of it.
    Policy(Option<String>),
    /// The addresses of a host, and the policy that permits the connection.
    Addresses(Option<String>, AddressFault),
    /// A judged request.
    Request(Box<JudgedRequest>),
    /// The authority that a request names instead of its connection's.
    Authority(String),
    /// The name of a credential that does not exist.
    NoCredential(String),
    /// The name of a credential that is bound to other hosts or ports.
    CredentialHost(String),
    /// The name of a credential that is bound to other paths.
    CredentialPath(String),
    /// A secret in a request that the policy of this name permits.
    Leak(Option<String>),
    /// A placeholder where none is replaced.
    Placeholder,
    /// The path of a program, and its fault.
    Program(String, ProgramFault),
    /// A request for a model, whose clients read a response format of their own; and the command
    /// that would help.
    Model(Option<&'static str>),
}

/// Fault of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    /// Its file is not the one of its first use.
    Changed,
    /// It runs code from a file that the workload can write.
    Modified,
}

/// Fault of a host's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFault {
    /// One is not in `allowed_ips`.
    Unlisted,
    /// One is never reachable.
    NeverReachable,
    /// They are unknown, or the port is a control plane's.
    Other,
}

/// A judged request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedRequest {
    /// The policy with the rules.
    pub policy: Option<String>,
    /// Method.
    pub method: String,
    /// Canonical path.
    pub path: String,
    /// The fault.
    pub fault: RequestFault,
}

/// Fault of a judged request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// No rule allows it.
    NoRule,
    /// A rule denies it.
    DenyRule,
    /// Its path holds an encoded slash.
    EncodedSlash,
    /// It asks to switch to this protocol, which no rule can judge.
    Upgrade(UpgradeProtocol),
}

impl RequestFault {
    /// Reason code of the fault.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        match self {
            Self::NoRule => ReasonCode::RequestNotInRules,
            Self::DenyRule => ReasonCode::RequestInDenyRules,
            Self::EncodedSlash => ReasonCode::BadRequest,
            Self::Upgrade(_) => ReasonCode::UnsupportedL7Protocol,
        }
    }
}

/// The policy that comes nearest to permitting a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Key of the policy.
    pub name: String,
    /// The part of it that matches.
    pub matches: Matches,
}

/// The part of a policy that matches a connection it does not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matches {
    /// Host and port, not the program.
    Endpoint,
    /// Host and program, not the port.
    HostAndBinary,
    /// The program.
    Binary,
    /// The host.
    Host,
}

/// The connection or request of a refusal.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The request, such as `CONNECT example.com:443`.
    pub request: String,
    /// The target, if there is one.
    pub target: Option<Target>,
    /// The caller, once it is identified.
    pub caller: Option<Caller>,
    /// True for a request inside a connection.
    pub is_inside: bool,
}

impl Refusal {
    /// A refusal that needs no fact beyond its code and a fixed cause.
    #[must_use]
    pub const fn new(code: ReasonCode, reason: &'static str) -> Self {
        Self {
            code,
            reason: Cow::Borrowed(reason),
            detail: None,
            status: None,
            facts: Facts::None,
        }
    }

    /// A refusal with a cause that is known when it happens.
    #[must_use]
    pub fn because(code: ReasonCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason: reason.into(),
            ..Self::new(code, "")
        }
    }

    fn with(mut self, facts: Facts) -> Self {
        self.facts = facts;
        self
    }

    /// No policy permits the connection.
    #[must_use]
    pub fn not_in_policy(code: ReasonCode, reason: String, nearest: Option<Nearest>) -> Self {
        Self::because(code, reason).with(Facts::Nearest(nearest))
    }

    /// A new policy no longer permits the connection.
    #[must_use]
    pub fn policy_changed(reason: String) -> Self {
        Self::because(ReasonCode::PolicyChanged, reason)
    }

    /// There is no valid policy.
    #[must_use]
    pub fn policy_invalid(reason: String) -> Self {
        Self::because(ReasonCode::PolicyInvalid, reason)
    }

    /// The policy demands a feature that this build lacks.
    #[must_use]
    pub fn not_in_this_build(feature: &str, policy: Option<String>) -> Self {
        let reason = format!("{feature} is not in this build");
        Self::because(ReasonCode::NotInThisBuild, reason).with(Facts::Policy(policy))
    }

    /// The program cannot be identified.
    #[must_use]
    pub fn caller_unknown(reason: String) -> Self {
        Self::because(ReasonCode::CallerUnknown, reason)
    }

    /// No program of the sandbox was seen to make the connection.
    #[must_use]
    pub fn unwitnessed() -> Self {
        let reason = "failed to resolve peer binary: no connect of the sandbox made this \
                      connection within 30 seconds";
        Self::caller_unknown(reason.to_owned())
    }

    /// The program `path`, or an ancestor, has changed since its first use.
    #[must_use]
    pub fn caller_changed(reason: String, path: String) -> Self {
        Self::because(ReasonCode::CallerChanged, reason)
            .with(Facts::Program(path, ProgramFault::Changed))
    }

    /// The program `path` runs code from a file that the workload can write, and the policy permits
    /// it only unmodified.
    #[must_use]
    pub fn caller_modified(reason: String, path: String) -> Self {
        Self::because(ReasonCode::CallerModified, reason)
            .with(Facts::Program(path, ProgramFault::Modified))
    }

    /// The host has no address that may be connected to.
    #[must_use]
    pub fn address(
        code: ReasonCode,
        reason: String,
        fault: AddressFault,
        policy: Option<String>,
    ) -> Self {
        Self::because(code, reason).with(Facts::Addresses(policy, fault))
    }

    /// The sandbox has no certificate authority that programs trust.
    #[must_use]
    pub const fn authority_unavailable() -> Self {
        Self::new(
            ReasonCode::AuthorityUnavailable,
            "the trust files could not be written",
        )
    }

    /// The client's TLS handshake failed.
    #[must_use]
    pub fn client_tls_failed(reason: String) -> Self {
        Self::because(ReasonCode::ClientTlsFailed, reason)
    }

    /// The upstream's TLS handshake failed, or its certificate is not valid.
    #[must_use]
    pub fn upstream_tls_invalid(reason: String) -> Self {
        Self::because(ReasonCode::UpstreamTlsInvalid, reason)
    }

    /// The upstream asked for a client certificate, and refused the connection without one.
    #[must_use]
    pub const fn upstream_wants_certificate() -> Self {
        Self::new(
            ReasonCode::UpstreamWantsCertificate,
            "the upstream wants a client certificate",
        )
    }

    /// The request names another authority than that of its connection.
    #[must_use]
    pub fn authority_mismatch(named: String) -> Self {
        let reason = format!("the request names {named}");
        Self::because(ReasonCode::AuthorityMismatch, reason).with(Facts::Authority(named))
    }

    /// The rules do not allow the request.
    #[must_use]
    pub fn request(reason: String, mut request: JudgedRequest) -> Self {
        // Logs, proposals and answers name the path.
        let reason = if has_secret(&reason) {
            CONCEALED.to_owned()
        } else {
            reason
        };
        if has_secret(&request.path) {
            CONCEALED.clone_into(&mut request.path);
        }
        Self::because(request.fault.code(), reason).with(Facts::Request(Box::new(request)))
    }

    /// The rules of the connection cannot be applied to its protocol.
    #[must_use]
    pub fn unsupported_protocol(reason: &'static str, policy: Option<String>) -> Self {
        Self::new(ReasonCode::UnsupportedL7Protocol, reason).with(Facts::Policy(policy))
    }

    /// The upstream switched protocols unasked.
    #[must_use]
    pub const fn unsolicited_upgrade() -> Self {
        Self::new(
            ReasonCode::UnsolicitedUpgrade,
            "101 Switching Protocols that nobody asked for",
        )
    }

    /// There is no credential `name`.
    #[must_use]
    pub fn credential_unknown(name: String) -> Self {
        let reason = format!("there is no credential {name}");
        Self::because(ReasonCode::CredentialUnknown, reason).with(Facts::NoCredential(name))
    }

    /// The credential `name` is no longer valid.
    #[must_use]
    pub fn credential_expired(name: String) -> Self {
        let reason = format!("the credential {name} has expired");
        Self::because(ReasonCode::CredentialUnknown, reason).with(Facts::NoCredential(name))
    }

    /// The secret of the credential `name` is not valid at the place of its placeholder.
    #[must_use]
    pub fn credential_unsafe(name: &str, why: &'static str) -> Self {
        Self::because(
            ReasonCode::CredentialUnsafe,
            format!("credential {name}: {why}"),
        )
    }

    /// A placeholder stands in `place`, where none is replaced.
    #[must_use]
    pub fn placeholder_misplaced(place: &'static str) -> Self {
        let reason = format!("a placeholder in {place}, where none is replaced");
        Self::because(ReasonCode::CredentialNotReplaceable, reason).with(Facts::Placeholder)
    }

    /// The credential `name` is bound to other hosts or ports.
    #[must_use]
    pub fn credential_for_other_hosts(name: String) -> Self {
        let reason = format!("credential {name} is not for this host and port");
        Self::because(ReasonCode::CredentialEndpointMismatch, reason)
            .with(Facts::CredentialHost(name))
    }

    /// The credential `name` is bound to other paths.
    #[must_use]
    pub fn credential_for_other_paths(name: String) -> Self {
        let reason = format!("credential {name} is not for this path");
        Self::because(ReasonCode::CredentialEndpointMismatch, reason)
            .with(Facts::CredentialPath(name))
    }

    /// The request, which `policy` permits, holds a secret: of the issuer or credential `name`.
    #[must_use]
    pub fn secret_in_request(name: &str, policy: Option<String>) -> Self {
        let reason = format!("it holds a secret of {name}, which is not for this host");
        Self::because(ReasonCode::SecretInRequest, reason).with(Facts::Leak(policy))
    }

    /// The same for a request for a model, which no endpoint permits.
    #[must_use]
    pub fn of_model(self) -> Self {
        self.with(Facts::Model(None))
    }

    /// The sandbox was started without models.
    #[must_use]
    pub const fn inference_not_configured() -> Self {
        Self::new(
            ReasonCode::InferenceNotConfigured,
            "no models are configured: --inference-routes names them",
        )
    }

    /// No routes for models exist yet.
    #[must_use]
    pub fn inference_without_routes() -> Self {
        Self::new(
            ReasonCode::InferenceNotConfigured,
            "cluster inference is not configured",
        )
        .with(Facts::Model(Some(
            "run: openshell cluster inference set --help",
        )))
    }

    /// The request is not one of a model's interface.
    #[must_use]
    pub fn inference_path_not_allowed() -> Self {
        Self::new(
            ReasonCode::InferencePathNotAllowed,
            "connection not allowed by policy",
        )
        .with(Facts::Model(None))
    }

    /// No model serves the request.
    #[must_use]
    pub fn inference_no_route() -> Self {
        Self::new(
            ReasonCode::InferenceNoRoute,
            "no compatible inference route available",
        )
        .with(Facts::Model(None))
    }

    /// The body of the request is not JSON in UTF-8.
    #[must_use]
    pub fn unsupported_encoding() -> Self {
        Self::new(
            ReasonCode::UnsupportedEncoding,
            "the body of a request for a model is JSON in UTF-8",
        )
        .with(Facts::Model(None))
    }

    /// The request asks a model for a WebSocket.
    #[must_use]
    pub fn upgrade_refused() -> Self {
        Self::new(
            ReasonCode::UpgradeRefused,
            "models have no WebSocket; send the request over HTTP",
        )
        .with(Facts::Model(None))
    }

    /// The request for a model has more than `most` bytes.
    #[must_use]
    pub fn inference_request_too_large(most: usize) -> Self {
        let reason = format!("a request for a model has at most {most} bytes");
        let refusal = Self::because(ReasonCode::RequestTooLarge, reason).with(Facts::Model(None));
        Self {
            status: Some(413),
            ..refusal
        }
    }

    /// The run has used up a `limit` of `route`.
    #[must_use]
    pub fn inference_budget_exhausted(route: &str, limit: &str) -> Self {
        let reason = format!("the {limit} of route {route} are used up for this run");
        Self::because(ReasonCode::InferenceBudgetExhausted, reason).with(Facts::Model(None))
    }

    /// The backend of a model cannot be reached, or does not begin to respond.
    #[must_use]
    pub fn inference_unavailable(why: &str) -> Self {
        Self::because(
            ReasonCode::InferenceUnavailable,
            format!("inference service unavailable: {why}"),
        )
        .with(Facts::Model(None))
    }

    /// The backend of a model has not begun to respond within this time.
    #[must_use]
    pub fn inference_timeout(limit: Duration) -> Self {
        let reason = format!(
            "no answer began within {} s (`timeouts.first_byte` of the route)",
            limit.as_secs()
        );
        let refusal =
            Self::because(ReasonCode::InferenceUnavailable, reason).with(Facts::Model(None));
        Self {
            detail: Some("inference service unavailable: {reason}"),
            ..refusal
        }
    }

    /// The response of a model's backend is not one of its interface.
    #[must_use]
    pub fn inference_failed(why: &str) -> Self {
        Self::because(
            ReasonCode::InferenceError,
            format!("inference service error: {why}"),
        )
        .with(Facts::Model(None))
    }

    /// The request is malformed.
    #[must_use]
    pub const fn bad_request(reason: &'static str) -> Self {
        Self::new(ReasonCode::BadRequest, reason)
    }

    /// The body of the request has more than the `most` bytes that its rules read.
    #[must_use]
    pub fn body_too_large(most: usize) -> Self {
        let reason = format!("the policy judges bodies of at most {most} bytes here");
        Self {
            status: Some(413),
            ..Self::because(ReasonCode::RequestTooLarge, reason)
        }
    }

    /// A part of the request that must be read before it is judged has not arrived in time.
    #[must_use]
    pub fn late() -> Self {
        Self {
            status: Some(408),
            ..Self::bad_request("the body of the request did not arrive in time")
        }
    }

    /// The target of the request has no canonical form.
    #[must_use]
    pub fn target(error: impl Display) -> Self {
        Self::because(ReasonCode::BadRequest, error.to_string())
    }

    /// The head of the request is too large.
    #[must_use]
    pub fn head_too_large() -> Self {
        let kib = Limits::HEAD_BYTES / 1024;
        let lines = Limits::HEAD_LINES;
        Self::because(
            ReasonCode::RequestTooLarge,
            format!("the head of a request has at most {kib} KiB and {lines} lines"),
        )
    }

    /// The head of a CONNECT is too large.
    #[must_use]
    pub fn connect_head_too_large() -> Self {
        let kib = Limits::CONNECT_HEAD_BYTES / 1024;
        Self::because(
            ReasonCode::RequestTooLarge,
            format!("the head of a CONNECT has at most {kib} KiB"),
        )
    }

    /// The policy could not be evaluated.
    #[must_use]
    pub fn engine(error: String) -> Self {
        Self::because(ReasonCode::PolicyEngineError, error)
    }

    /// A limit is reached.
    #[must_use]
    pub const fn limit_reached(reason: &'static str) -> Self {
        Self::new(ReasonCode::LimitReached, reason)
    }

    /// The upstream's answer cannot be read, because of this `defect`.
    #[must_use]
    pub fn upstream_malformed(defect: &'static str) -> Self {
        let refusal = Self::new(ReasonCode::UpstreamUnreachable, defect);
        Self {
            detail: Some("the answer of {target} is malformed: {reason}"),
            ..refusal
        }
    }

    /// The upstream cannot be connected to, or broke off.
    #[must_use]
    pub fn upstream_unreachable(error: String) -> Self {
        Self::because(ReasonCode::UpstreamUnreachable, error)
    }

    /// The upstream does not speak HTTP/2.
    #[must_use]
    pub fn upstream_without_http2() -> Self {
        let reason = "the upstream speaks no HTTP/2, which gRPC needs";
        Self {
            detail: Some("{request} failed: {reason}"),
            ..Self::new(ReasonCode::UpstreamUnreachable, reason)
        }
    }

    /// The answer to a request with a secret cannot be searched for it.
    #[must_use]
    pub fn answer_not_searched(why: &str) -> Self {
        let reason = format!(
            "the answer cannot be searched for the credential that the request carried: {why}"
        );
        Self {
            detail: Some("{request} failed: {reason}"),
            ..Self::because(ReasonCode::UpstreamUnreachable, reason)
        }
    }

    /// The upstream did not answer in time.
    #[must_use]
    pub const fn upstream_timeout() -> Self {
        Self::new(ReasonCode::UpstreamTimeout, "the upstream did not answer")
    }

    /// The same refusal, with the detail for an endpoint with `allowed_ips`.
    #[must_use]
    pub fn under_allowed_ips(self) -> Self {
        Self {
            detail: Some(ReasonCode::AddressNotInAllowedIps.detail(false)),
            ..self
        }
    }

    /// The reason code.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        self.code
    }

    /// The cause, for the operator.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// HTTP status of the response.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.unwrap_or(self.code.status())
    }

    /// Template of the detail for the workload.
    #[must_use]
    pub fn template(&self, is_inside: bool) -> &'static str {
        self.detail.unwrap_or(self.code.detail(is_inside))
    }

    /// The facts beyond code and cause.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns true if the policy denies the connection itself.
    #[must_use]
    pub fn is_policy_denial(&self) -> bool {
        self.code.stage() == DenialStage::L4
    }

    /// Returns true if bytes of a permitted connection are denied: a placeholder among them, or
    /// what they are.
    #[must_use]
    pub fn is_of_bytes(&self) -> bool {
        self.code.stage() == DenialStage::Credential
            || self.code == ReasonCode::UnsupportedL7Protocol
    }

    /// Returns true if the summary of a run counts it: another policy or the operator could permit
    /// it.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        match self.code.counted() {
            Counted::Denial | Counted::Failure => true,
            Counted::No => self.judged_request().is_some(),
        }
    }

    /// Method and path of the request, if another rule could allow it.
    #[must_use]
    pub fn allowable_request(&self) -> Option<(String, String)> {
        let request = self
            .judged_request()
            .filter(|request| match request.fault {
                RequestFault::NoRule | RequestFault::EncodedSlash => true,
                RequestFault::DenyRule | RequestFault::Upgrade(_) => false,
            })?;
        Some((request.method.clone(), request.path.clone()))
    }

    /// The judged request that was refused.
    pub(super) fn judged_request(&self) -> Option<&JudgedRequest> {
        match &self.facts {
            Facts::Request(request) => Some(request),
            Facts::None
            | Facts::Nearest(_)
            | Facts::Policy(_)
            | Facts::Addresses(..)
            | Facts::Authority(_)
            | Facts::NoCredential(_)
            | Facts::CredentialHost(_)
            | Facts::CredentialPath(_)
            | Facts::Leak(_)
            | Facts::Placeholder
            | Facts::Program(..)
            | Facts::Model(_) => None,
        }
    }

    /// The policy that came nearest to permitting it.
    #[must_use]
    pub fn nearest_rule(&self) -> Option<&str> {
        match &self.facts {
            Facts::Nearest(nearest) => nearest.as_ref().map(|nearest| nearest.name.as_str()),
            Facts::Policy(policy) | Facts::Addresses(policy, _) | Facts::Leak(policy) => {
                policy.as_deref()
            }
            Facts::Request(request) => request.policy.as_deref(),
            Facts::None
            | Facts::Authority(_)
            | Facts::NoCredential(_)
            | Facts::CredentialHost(_)
            | Facts::CredentialPath(_)
            | Facts::Placeholder
            | Facts::Program(..)
            | Facts::Model(_) => None,
        }
    }
}
