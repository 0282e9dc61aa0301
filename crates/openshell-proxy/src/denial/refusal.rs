//! Refusals as data: the code, the cause and the facts that an explanation needs.

use std::borrow::Cow;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use openshell_events::denial::UnmatchedRequest;
use openshell_events::reason::{Counted, DenialStage, ReasonCode};
use openshell_policy::policy::PolicyForm;

use crate::denial::answer::RpcAnswer;
use crate::denial::judged::JudgedRequest;
use crate::ground::limits::Limits;
use crate::ground::peer::Caller;
use crate::ground::target::Target;
use crate::secrets::needles::{CONCEALED, has_secret};

/// An expected denial. The workload is told its code and its [`Self::detail`]. Only
/// [`Self::reason`], which is for the log, contains resolved addresses and internal errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: ReasonCode,
    reason: Cow<'static, str>,
    /// Overrides the code's detail.
    detail: Option<&'static str>,
    /// Overrides the code's HTTP status.
    status: Option<u16>,
    /// The answer in the protocol of the refused message.
    answer: Option<Box<RpcAnswer>>,
    facts: Facts,
    /// What a person has answered, or that nobody has, if one was asked.
    pub(super) asked: Option<&'static str>,
    /// What the policy was made of.
    pub(super) form: PolicyForm,
}

/// The facts of a refusal beyond its code and cause, for its fix or its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Facts {
    /// No facts.
    None,
    /// The policy that comes nearest to permitting the connection, if there is one.
    Nearest(Option<Nearest>),
    /// The policy that permits the connection, but cannot permit this use of it.
    Policy(Option<String>),
    /// The policy that permits the connection, and the fault of the host's addresses.
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
    /// A placeholder in a place where none is replaced.
    Placeholder,
    /// The path of a program, and its fault.
    Program(String, ProgramFault),
    /// A request for a model, whose clients expect their own format of responses; and the command
    /// that would help.
    Model(Option<&'static str>),
}

/// The fault of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    /// Its file is not the one that ran at its first use.
    Changed,
    /// It runs code from a file that the workload can write.
    Modified,
}

/// The fault of a host's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressFault {
    /// These addresses are not in `allowed_ips`.
    Unlisted(Vec<IpAddr>),
    /// An address is never reachable.
    NeverReachable,
    /// The addresses are unknown, or the port is one of a control plane.
    Other,
}

/// The policy that comes nearest to permitting a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// The key of the policy.
    pub name: String,
    /// The part of it that matches.
    pub matches: Matches,
}

/// The part of a policy that matches a connection, although the policy does not permit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matches {
    /// Host and port, but not the program.
    Endpoint,
    /// Host and program, but not the port.
    HostAndBinary,
    /// Only the program.
    Binary,
    /// Only the host.
    Host,
}

/// The connection or request that a refusal is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The request, for example `CONNECT example.com:443`.
    pub request: String,
    /// The target, if there is one.
    pub target: Option<Target>,
    /// The caller, once it is identified.
    pub caller: Option<Caller>,
    /// True for a request inside a connection.
    pub is_inside: bool,
}

impl Refusal {
    /// Creates a refusal that needs no facts beyond its code and a fixed cause.
    #[must_use]
    pub const fn new(code: ReasonCode, reason: &'static str) -> Self {
        Self {
            code,
            reason: Cow::Borrowed(reason),
            detail: None,
            status: None,
            answer: None,
            facts: Facts::None,
            asked: None,
            form: PolicyForm::Document,
        }
    }

    /// Creates a refusal whose cause is known only when it happens.
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

    /// Refuses a connection that no policy permits.
    #[must_use]
    pub fn not_in_policy(code: ReasonCode, reason: String, nearest: Option<Nearest>) -> Self {
        Self::because(code, reason).with(Facts::Nearest(nearest))
    }

    /// Refuses a connection that a new policy no longer permits.
    #[must_use]
    pub fn policy_changed(reason: String) -> Self {
        Self::because(ReasonCode::PolicyChanged, reason)
    }

    /// Refuses because there is no valid policy.
    #[must_use]
    pub fn policy_invalid(reason: String) -> Self {
        Self::because(ReasonCode::PolicyInvalid, reason)
    }

    /// Refuses because the policy demands a feature that this build lacks.
    #[must_use]
    pub fn not_in_this_build(feature: &str, policy: Option<String>) -> Self {
        let reason = format!("{feature} is not in this build");
        Self::because(ReasonCode::NotInThisBuild, reason).with(Facts::Policy(policy))
    }

    /// Refuses a program that cannot be identified.
    #[must_use]
    pub fn caller_unknown(reason: String) -> Self {
        Self::because(ReasonCode::CallerUnknown, reason)
    }

    /// Refuses a connection that no program of the sandbox was seen to make.
    #[must_use]
    pub fn unwitnessed() -> Self {
        let reason = "failed to resolve peer binary: no program of the sandbox was seen to make \
                      this connection within 30 seconds";
        Self::caller_unknown(reason.to_owned())
    }

    /// Refuses the program `path` because it, or an ancestor, has changed since its first use.
    #[must_use]
    pub fn caller_changed(reason: String, path: String) -> Self {
        Self::because(ReasonCode::CallerChanged, reason)
            .with(Facts::Program(path, ProgramFault::Changed))
    }

    /// Refuses the program `path`, which the policy permits only unmodified, because it runs code
    /// from a file that the workload can write.
    #[must_use]
    pub fn caller_modified(reason: String, path: String) -> Self {
        Self::because(ReasonCode::CallerModified, reason)
            .with(Facts::Program(path, ProgramFault::Modified))
    }

    /// Refuses a host that has no address that may be connected to.
    #[must_use]
    pub fn address(
        code: ReasonCode,
        reason: String,
        fault: AddressFault,
        policy: Option<String>,
    ) -> Self {
        Self::because(code, reason).with(Facts::Addresses(policy, fault))
    }

    /// Refuses because the sandbox has no certificate authority that programs trust.
    #[must_use]
    pub const fn authority_unavailable() -> Self {
        Self::new(
            ReasonCode::AuthorityUnavailable,
            "the trust files could not be written",
        )
    }

    /// Refuses because the client's TLS handshake failed.
    #[must_use]
    pub fn client_tls_failed(reason: String) -> Self {
        Self::because(ReasonCode::ClientTlsFailed, reason)
    }

    /// Refuses because the upstream's TLS handshake failed, or its certificate is not valid.
    #[must_use]
    pub fn upstream_tls_invalid(reason: String) -> Self {
        Self::because(ReasonCode::UpstreamTlsInvalid, reason)
    }

    /// Refuses because the upstream asked for a client certificate and does not connect without
    /// one.
    #[must_use]
    pub const fn upstream_wants_certificate() -> Self {
        Self::new(
            ReasonCode::UpstreamWantsCertificate,
            "the upstream wants a client certificate",
        )
    }

    /// Refuses a request that names a different authority than its connection.
    #[must_use]
    pub fn authority_mismatch(named: String) -> Self {
        let reason = format!("the request names {named}");
        Self::because(ReasonCode::AuthorityMismatch, reason).with(Facts::Authority(named))
    }

    /// Refuses a request that the rules do not allow.
    #[must_use]
    pub fn request(mut reason: String, mut request: JudgedRequest) -> Self {
        reason.truncate(reason.floor_char_boundary(Limits::REASON_BYTES));
        // Logs, proposals and responses show the path.
        let reason = if has_secret(&reason) {
            CONCEALED.to_owned()
        } else {
            reason
        };
        request.conceal();
        Self::because(request.fault.code(), reason).with(Facts::Request(Box::new(request)))
    }

    /// Refuses a protocol to which the rules of the connection cannot be applied.
    #[must_use]
    pub fn unsupported_protocol(reason: &'static str, policy: Option<String>) -> Self {
        Self::new(ReasonCode::UnsupportedL7Protocol, reason).with(Facts::Policy(policy))
    }

    /// Refuses a connection to a target whose endpoints contradict each other.
    #[must_use]
    pub fn endpoints_ambiguous(what: &str, policy: Option<String>) -> Self {
        let reason = format!(
            "the endpoints for this host and port have paths and differ in {what}; give them the \
             same"
        );
        Self::because(ReasonCode::EndpointsAmbiguous, reason).with(Facts::Policy(policy))
    }

    /// Refuses an upstream's switch of protocols that the client did not ask for.
    #[must_use]
    pub const fn unsolicited_upgrade() -> Self {
        Self::new(
            ReasonCode::UnsolicitedUpgrade,
            "the upstream answered 101, but the client did not ask for this switch",
        )
    }

    /// Refuses a placeholder because there is no credential `name`.
    #[must_use]
    pub fn credential_unknown(name: String) -> Self {
        let reason = format!("there is no credential {name}");
        Self::because(ReasonCode::CredentialUnknown, reason).with(Facts::NoCredential(name))
    }

    /// Refuses a placeholder because the credential `name` is no longer valid.
    #[must_use]
    pub fn credential_expired(name: String) -> Self {
        let reason = format!("the credential {name} has expired");
        Self::because(ReasonCode::CredentialUnknown, reason).with(Facts::NoCredential(name))
    }

    /// Refuses a secret of the credential `name` that is not valid in the place of its placeholder.
    #[must_use]
    pub fn credential_unsafe(name: &str, why: &'static str) -> Self {
        Self::because(
            ReasonCode::CredentialUnsafe,
            format!("credential {name}: {why}"),
        )
    }

    /// Refuses a placeholder in `place`, where none is replaced.
    #[must_use]
    pub fn placeholder_misplaced(place: &'static str) -> Self {
        let reason = format!("the proxy does not replace placeholders in {place}");
        Self::because(ReasonCode::CredentialNotReplaceable, reason).with(Facts::Placeholder)
    }

    /// Refuses the credential `name` because it is bound to other hosts or ports.
    #[must_use]
    pub fn credential_for_other_hosts(name: String) -> Self {
        let reason = format!("credential {name} is not for this host and port");
        Self::because(ReasonCode::CredentialEndpointMismatch, reason)
            .with(Facts::CredentialHost(name))
    }

    /// Refuses the credential `name` because it is bound to other paths.
    #[must_use]
    pub fn credential_for_other_paths(name: String) -> Self {
        let reason = format!("credential {name} is not for this path");
        Self::because(ReasonCode::CredentialEndpointMismatch, reason)
            .with(Facts::CredentialPath(name))
    }

    /// Refuses a request, which `policy` permits, that holds a secret of the issuer or credential
    /// `name`.
    #[must_use]
    pub fn secret_in_request(name: &str, policy: Option<String>) -> Self {
        let reason = format!("it holds a secret of {name}, which is not for this host");
        Self::because(ReasonCode::SecretInRequest, reason).with(Facts::Leak(policy))
    }

    /// Turns the refusal into one of a request for a model, which no endpoint permits.
    #[must_use]
    pub fn of_model(self) -> Self {
        self.with(Facts::Model(None))
    }

    /// Refuses because the sandbox was started without models.
    #[must_use]
    pub const fn inference_not_configured() -> Self {
        Self::new(
            ReasonCode::InferenceNotConfigured,
            "no models are configured; name them with --inference-routes",
        )
    }

    /// Refuses because no routes for models exist yet.
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

    /// Refuses a request that no model interface has.
    #[must_use]
    pub fn inference_path_not_allowed() -> Self {
        Self::new(
            ReasonCode::InferencePathNotAllowed,
            "connection not allowed by policy",
        )
        .with(Facts::Model(None))
    }

    /// Refuses a request that no model serves.
    #[must_use]
    pub fn inference_no_route() -> Self {
        Self::new(
            ReasonCode::InferenceNoRoute,
            "no compatible inference route available",
        )
        .with(Facts::Model(None))
    }

    /// Refuses a request whose body is not JSON in UTF-8.
    #[must_use]
    pub fn unsupported_encoding() -> Self {
        Self::new(
            ReasonCode::UnsupportedEncoding,
            "the body of a request for a model must be JSON in UTF-8",
        )
        .with(Facts::Model(None))
    }

    /// Refuses a request that asks a model for a WebSocket.
    #[must_use]
    pub fn upgrade_refused() -> Self {
        Self::new(
            ReasonCode::UpgradeRefused,
            "models have no WebSocket; send the request over HTTP",
        )
        .with(Facts::Model(None))
    }

    /// Refuses a request for a model that has more than `most` bytes.
    #[must_use]
    pub fn inference_request_too_large(most: usize) -> Self {
        let reason = format!("a request for a model may have at most {most} bytes");
        let refusal = Self::because(ReasonCode::RequestTooLarge, reason).with(Facts::Model(None));
        Self {
            status: Some(413),
            ..refusal
        }
    }

    /// Refuses because the run has used up a `limit` of `route`.
    #[must_use]
    pub fn inference_budget_exhausted(route: &str, limit: &str) -> Self {
        let reason = format!("the {limit} of route {route} are used up for this run");
        Self::because(ReasonCode::InferenceBudgetExhausted, reason).with(Facts::Model(None))
    }

    /// Refuses because the backend of a model cannot be reached, or does not begin to respond.
    #[must_use]
    pub fn inference_unavailable(why: &str) -> Self {
        Self::because(
            ReasonCode::InferenceUnavailable,
            format!("inference service unavailable: {why}"),
        )
        .with(Facts::Model(None))
    }

    /// Refuses because the backend of a model has not begun to respond within `limit`.
    #[must_use]
    pub fn inference_timeout(limit: Duration) -> Self {
        let reason = format!(
            "the backend did not begin to answer within {} s (`timeouts.first_byte` of the route)",
            limit.as_secs()
        );
        let refusal =
            Self::because(ReasonCode::InferenceUnavailable, reason).with(Facts::Model(None));
        Self {
            detail: Some("inference service unavailable: {reason}"),
            ..refusal
        }
    }

    /// Refuses a response of a model's backend that is not one of its interface.
    #[must_use]
    pub fn inference_failed(why: &str) -> Self {
        Self::because(
            ReasonCode::InferenceError,
            format!("inference service error: {why}"),
        )
        .with(Facts::Model(None))
    }

    /// Refuses a malformed request.
    #[must_use]
    pub const fn bad_request(reason: &'static str) -> Self {
        Self::new(ReasonCode::BadRequest, reason)
    }

    /// Refuses a request in whose body a server could find other messages than the rules.
    #[must_use]
    pub fn message_invalid(reason: String) -> Self {
        Self::because(ReasonCode::MessageInvalid, reason)
    }

    /// Returns the same refusal with an answer in the protocol of the refused message.
    #[must_use]
    pub fn answered(self, answer: RpcAnswer) -> Self {
        Self {
            status: Some(answer.status),
            answer: Some(Box::new(answer)),
            ..self
        }
    }

    /// Returns the answer in the protocol of the refused message, if there is one.
    #[must_use]
    pub fn answer(&self) -> Option<&RpcAnswer> {
        self.answer.as_deref()
    }

    /// Refuses a request whose body has more than the `most` bytes that its rules read.
    #[must_use]
    pub fn body_too_large(most: usize) -> Self {
        let reason = format!(
            "the body has more than the {most} bytes that the rules of the policy can judge"
        );
        Self {
            status: Some(413),
            ..Self::because(ReasonCode::RequestTooLarge, reason)
        }
    }

    /// Refuses a request of which a part that must be read before it is judged did not arrive in
    /// time.
    #[must_use]
    pub fn late() -> Self {
        Self {
            status: Some(408),
            ..Self::bad_request("the body of the request did not arrive in time")
        }
    }

    /// Refuses a request whose target has no canonical form.
    #[must_use]
    pub fn target(error: impl Display) -> Self {
        Self::because(ReasonCode::BadRequest, error.to_string())
    }

    /// Refuses a request whose head is too large.
    #[must_use]
    pub fn head_too_large() -> Self {
        let kib = Limits::HEAD_BYTES / 1024;
        let lines = Limits::HEAD_LINES;
        Self::because(
            ReasonCode::RequestTooLarge,
            format!("the head of a request may have at most {kib} KiB and {lines} lines"),
        )
    }

    /// Refuses a CONNECT whose head is too large.
    #[must_use]
    pub fn connect_head_too_large() -> Self {
        let kib = Limits::CONNECT_HEAD_BYTES / 1024;
        Self::because(
            ReasonCode::RequestTooLarge,
            format!("the head of a CONNECT may have at most {kib} KiB"),
        )
    }

    /// Refuses because the policy could not be evaluated.
    #[must_use]
    pub fn engine(error: String) -> Self {
        Self::because(ReasonCode::PolicyEngineError, error)
    }

    /// Refuses because a limit is reached.
    #[must_use]
    pub const fn limit_reached(reason: &'static str) -> Self {
        Self::new(ReasonCode::LimitReached, reason)
    }

    /// Refuses an upstream's response that cannot be read because of this `defect`.
    #[must_use]
    pub fn upstream_malformed(defect: &'static str) -> Self {
        let refusal = Self::new(ReasonCode::UpstreamUnreachable, defect);
        Self {
            detail: Some("the answer of {target} is malformed: {reason}"),
            ..refusal
        }
    }

    /// Refuses because the upstream cannot be connected to, or broke the connection off.
    #[must_use]
    pub fn upstream_unreachable(error: String) -> Self {
        Self::because(ReasonCode::UpstreamUnreachable, error)
    }

    /// Refuses because the upstream does not speak HTTP/2.
    #[must_use]
    pub fn upstream_without_http2() -> Self {
        let reason = "the upstream does not speak HTTP/2, which gRPC needs";
        Self {
            detail: Some("{request} failed: {reason}"),
            ..Self::new(ReasonCode::UpstreamUnreachable, reason)
        }
    }

    /// Refuses the response to a request with a secret because it cannot be searched for that
    /// secret.
    #[must_use]
    pub fn answer_not_searched(why: &str) -> Self {
        let reason =
            format!("the proxy cannot search the answer for the credential of the request: {why}");
        Self {
            detail: Some("{request} failed: {reason}"),
            ..Self::because(ReasonCode::UpstreamUnreachable, reason)
        }
    }

    /// Refuses because the upstream did not respond in time.
    #[must_use]
    pub const fn upstream_timeout() -> Self {
        Self::new(ReasonCode::UpstreamTimeout, "the upstream did not answer")
    }

    /// Returns the same refusal with the detail for an endpoint that has `allowed_ips`.
    #[must_use]
    pub fn under_allowed_ips(self) -> Self {
        Self {
            detail: Some(ReasonCode::AddressNotInAllowedIps.detail(false)),
            ..self
        }
    }

    /// Returns the reason code.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        self.code
    }

    /// Returns the cause, for the operator.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the HTTP status of the response.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.unwrap_or(self.code.status())
    }

    /// Returns the template of the detail for the workload.
    #[must_use]
    pub fn template(&self, is_inside: bool) -> &'static str {
        self.detail.unwrap_or(self.code.detail(is_inside))
    }

    /// Returns the facts beyond code and cause.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns true if the policy denies the connection itself.
    #[must_use]
    pub fn is_policy_denial(&self) -> bool {
        self.code.stage() == DenialStage::L4
    }

    /// Returns true if bytes of a permitted connection are refused, because of a placeholder among
    /// them or because of their protocol.
    #[must_use]
    pub fn is_of_bytes(&self) -> bool {
        self.code.stage() == DenialStage::Credential
            || self.code == ReasonCode::UnsupportedL7Protocol
    }

    /// Returns true if the summary of a run counts the refusal, because another policy or the
    /// operator could permit what was refused.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        match self.code.counted() {
            Counted::Denial | Counted::Failure => true,
            Counted::No => self.judged_request().is_some(),
        }
    }

    /// Returns the request, if another rule could allow it.
    #[must_use]
    pub fn allowable_request(&self) -> Option<UnmatchedRequest> {
        self.judged_request()?.unmatched()
    }

    /// Returns the judged request that was refused.
    #[must_use]
    pub fn judged_request(&self) -> Option<&JudgedRequest> {
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

    /// Returns the policy that permits the connection or comes nearest to permitting it.
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
