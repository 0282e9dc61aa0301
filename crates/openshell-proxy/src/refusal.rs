//! Every reason to say no, and what each says on every surface.

use hyper::StatusCode;
use openshell_policy::address::never_reachable;
use openshell_policy::denial::{DenialStage, ReasonCode};
use openshell_policy::network::rule::Glob;
use openshell_policy::proposal::is_one_program;

use crate::decide::snapshot::{Matches, Nearest};
use crate::http::target::TargetError;
use crate::peer::Caller;
use crate::record::Record;
use crate::resolve::guard::CONTROL_PLANE_PORTS;
use crate::target::Target;

/// Why a connection is refused. What the workload learns of it is said by the methods; what only the log may hold (an
/// address that a name has, an internal error) is said by [`Self::log_reason`] alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`code` and `log_reason` are the documentation of each")]
pub enum Refusal {
    NotInPolicy { code: ReasonCode, reason: String, nearest: Option<Nearest> },
    PolicyChanged(String),
    NotInThisBuild { what: &'static str, policy: Option<String> },
    CallerUnknown(String),
    CallerChanged(String),
    CallerAmbiguous([String; 2]),
    Address { code: ReasonCode, reason: String, has_list: bool, policy: Option<String> },
    AuthorityUnavailable,
    ClientTlsFailed(String),
    UpstreamTlsInvalid(String),
    AuthorityMismatch(String),
    Request { code: ReasonCode, reason: String, policy: Option<String>, rule: (String, String) },
    UnsupportedProtocol { what: &'static str, policy: Option<String> },
    UnsolicitedUpgrade,
    Credential(CredentialFault),
    Inference(InferenceFault),
    BadRequest(&'static str),
    Target(TargetError),
    EncodedSlash { policy: Option<String>, rule: (String, String) },
    RequestTooLarge,
    Engine(String),
    LimitReached(&'static str),
    UpstreamUnreachable(String),
    UpstreamWithoutHttp2,
    UpstreamTimeout,
}

const NO_HTTP2: &str = "the upstream speaks no HTTP/2, which gRPC needs";

/// What is wrong with the use of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialFault {
    /// There is none of this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// Its secret cannot stand where its placeholder does.
    Unsafe {
        /// Its name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// A placeholder stands where none is replaced, or in disguise.
    Misplaced {
        /// Where.
        place: &'static str,
    },
    /// It is for other hosts, ports or paths.
    Elsewhere {
        /// Its name.
        name: String,
        /// Whether it is for this host and port, and for other paths.
        has_path: bool,
    },
}

impl CredentialFault {
    fn code(&self) -> ReasonCode {
        match self {
            Self::Unknown { .. } => ReasonCode::CredentialUnknown,
            Self::Unsafe { .. } => ReasonCode::CredentialUnsafe,
            Self::Misplaced { .. } => ReasonCode::CredentialNotReplaceable,
            Self::Elsewhere { .. } => ReasonCode::CredentialEndpointMismatch,
        }
    }

    /// The cause, which names no secret.
    fn cause(&self) -> String {
        match self {
            Self::Unknown { name } => format!("there is no credential {name}"),
            Self::Unsafe { name, why } => format!("credential {name}: {why}"),
            Self::Misplaced { place } => format!("a placeholder in {place}, where none is replaced"),
            Self::Elsewhere { name, has_path: false } => format!("credential {name} is not for this host and port"),
            Self::Elsewhere { name, has_path: true } => format!("credential {name} is not for this path"),
        }
    }
}

/// Why a model does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InferenceFault {
    /// Nobody has said which models there are.
    NotConfigured,
    /// So far there are none.
    NoRoutes,
    /// Models serve no such request.
    NoCall,
    /// None serves this one.
    NoRoute,
    /// Its body is not JSON in UTF-8.
    Encoding,
    /// It asks for a WebSocket, which no interface has.
    Upgrade,
    /// It is too large.
    TooLarge {
        /// For this many bytes.
        most: usize,
    },
    /// The run may use no more of it.
    Budget {
        /// Of which route.
        route: String,
        /// By which limit.
        what: &'static str,
    },
    /// The backend cannot be reached, or does not begin to answer; why is the operator's to know.
    Unavailable(String),
    /// The backend answers with what is no answer; why is the operator's to know.
    Failed(String),
}

impl InferenceFault {
    fn code(&self) -> ReasonCode {
        match self {
            Self::NotConfigured | Self::NoRoutes => ReasonCode::InferenceNotConfigured,
            Self::NoCall => ReasonCode::InferencePathNotAllowed,
            Self::NoRoute => ReasonCode::InferenceNoRoute,
            Self::Encoding => ReasonCode::UnsupportedEncoding,
            Self::Upgrade => ReasonCode::UpgradeRefused,
            Self::TooLarge { .. } => ReasonCode::RequestTooLarge,
            Self::Budget { .. } => ReasonCode::InferenceBudgetExhausted,
            Self::Unavailable(_) => ReasonCode::InferenceUnavailable,
            Self::Failed(_) => ReasonCode::InferenceError,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NotConfigured | Self::NoRoutes | Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoCall => StatusCode::FORBIDDEN,
            Self::NoRoute => StatusCode::BAD_REQUEST,
            Self::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Upgrade => StatusCode::UPGRADE_REQUIRED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Budget { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Failed(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// What the workload is told.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::NotConfigured => "no models are configured: --inference-routes names them".to_owned(),
            Self::NoRoutes => "cluster inference is not configured".to_owned(),
            Self::NoCall => "connection not allowed by policy".to_owned(),
            Self::NoRoute => "no compatible inference route available".to_owned(),
            Self::Encoding => "the body of a request for a model is JSON in UTF-8".to_owned(),
            Self::Upgrade => "models have no WebSocket; send the request over HTTP".to_owned(),
            Self::TooLarge { most } => format!("a request for a model has at most {most} bytes"),
            Self::Budget { route, what } => format!("the {what} of route {route} are used up for this run"),
            Self::Unavailable(_) => "inference service unavailable".to_owned(),
            Self::Failed(_) => "inference service error".to_owned(),
        }
    }

    /// What to do, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoRoutes => Some("run: openshell cluster inference set --help"),
            _ => None,
        }
    }

    fn cause(&self) -> String {
        match self {
            Self::Unavailable(why) | Self::Failed(why) => format!("{}: {why}", self.text()),
            _ => self.text(),
        }
    }
}

impl Refusal {
    /// The reason, in one word.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        match self {
            Self::NotInPolicy { code, .. } | Self::Address { code, .. } | Self::Request { code, .. } => *code,
            Self::PolicyChanged(_) => ReasonCode::PolicyChanged,
            Self::NotInThisBuild { .. } => ReasonCode::NotInThisBuild,
            Self::CallerUnknown(_) => ReasonCode::CallerUnknown,
            Self::CallerChanged(_) => ReasonCode::CallerChanged,
            Self::CallerAmbiguous(_) => ReasonCode::CallerAmbiguous,
            Self::AuthorityUnavailable => ReasonCode::AuthorityUnavailable,
            Self::ClientTlsFailed(_) => ReasonCode::ClientTlsFailed,
            Self::UpstreamTlsInvalid(_) => ReasonCode::UpstreamTlsInvalid,
            Self::AuthorityMismatch(_) => ReasonCode::AuthorityMismatch,
            Self::UnsupportedProtocol { .. } => ReasonCode::UnsupportedL7Protocol,
            Self::UnsolicitedUpgrade => ReasonCode::UnsolicitedUpgrade,
            Self::Credential(fault) => fault.code(),
            Self::Inference(fault) => fault.code(),
            Self::BadRequest(_) | Self::Target(_) | Self::EncodedSlash { .. } => ReasonCode::BadRequest,
            Self::RequestTooLarge => ReasonCode::RequestTooLarge,
            Self::Engine(_) => ReasonCode::PolicyEngineError,
            Self::LimitReached(_) => ReasonCode::LimitReached,
            Self::UpstreamUnreachable(_) | Self::UpstreamWithoutHttp2 => ReasonCode::UpstreamUnreachable,
            Self::UpstreamTimeout => ReasonCode::UpstreamTimeout,
        }
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        if let Self::Inference(fault) = self {
            return fault.status();
        }
        match self.code().stage() {
            DenialStage::L4 | DenialStage::Identity | DenialStage::Ssrf | DenialStage::Bypass => StatusCode::FORBIDDEN,
            DenialStage::L7 if self.code() == ReasonCode::BadRequest => StatusCode::BAD_REQUEST,
            DenialStage::L7 => StatusCode::FORBIDDEN,
            DenialStage::Tls => match self {
                Self::AuthorityUnavailable => StatusCode::SERVICE_UNAVAILABLE,
                Self::AuthorityMismatch(_) => StatusCode::MISDIRECTED_REQUEST,
                _ => StatusCode::BAD_GATEWAY,
            },
            DenialStage::Credential if self.code() == ReasonCode::CredentialEndpointMismatch => StatusCode::FORBIDDEN,
            DenialStage::Credential => StatusCode::INTERNAL_SERVER_ERROR,
            DenialStage::Engine => StatusCode::INTERNAL_SERVER_ERROR,
            DenialStage::Limit if matches!(self, Self::RequestTooLarge) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            DenialStage::Limit | DenialStage::Inference => StatusCode::SERVICE_UNAVAILABLE,
            DenialStage::Upstream => StatusCode::BAD_GATEWAY,
        }
    }

    /// The kind of error, for programs.
    #[must_use]
    pub fn error(&self) -> &'static str {
        match self.code().stage() {
            DenialStage::L4 | DenialStage::Identity | DenialStage::Bypass => "policy_denied",
            DenialStage::Ssrf => "ssrf_denied",
            DenialStage::Upstream => "upstream_unreachable",
            DenialStage::L7 if matches!(self, Self::Request { .. }) => "policy_denied",
            DenialStage::Credential if self.code() == ReasonCode::CredentialEndpointMismatch => "policy_denied",
            DenialStage::Credential => "credential_injection_failed",
            DenialStage::Tls | DenialStage::L7 | DenialStage::Inference | DenialStage::Engine | DenialStage::Limit => {
                self.code().as_str()
            }
        }
    }

    /// What was refused, for people, of what `record` is of.
    #[must_use]
    pub fn detail(&self, record: &Record) -> String {
        let (request, target) = (record.request(), record.target());
        match self {
            Self::NotInPolicy { .. }
            | Self::PolicyChanged(_)
            | Self::CallerUnknown(_)
            | Self::CallerChanged(_)
            | Self::CallerAmbiguous(_) => {
                format!("{request} not permitted by policy")
            }
            Self::Request { reason, .. } if record.is_inside() => reason.clone(),
            Self::Request { .. } => format!("{request} denied by L7 policy"),
            Self::UnsupportedProtocol { what, .. } => format!("{request} refused: {what}"),
            Self::NotInThisBuild { what, .. } => format!("{request} refused: {what} is not in this build"),
            Self::UnsolicitedUpgrade => "the upstream switched protocols unasked".to_owned(),
            Self::AuthorityUnavailable => {
                format!(
                    "{request} refused: TLS could not be opened, as the trust files could not be written (--tls-dir)"
                )
            }
            Self::ClientTlsFailed(why) => why.clone(),
            Self::UpstreamTlsInvalid(why) => {
                target.map_or_else(String::new, |target| format!("connection to {target} failed: ")) + why
            }
            Self::AuthorityMismatch(named) => {
                let target = target.map(ToString::to_string).unwrap_or_default();
                format!("the request is for {named}, and its connection is to {target}")
            }
            Self::Credential(fault @ CredentialFault::Elsewhere { .. }) => {
                format!("{request} refused: {}", fault.cause())
            }
            Self::Credential(fault) => format!("unresolved credential placeholder in request: {}", fault.cause()),
            Self::Inference(fault) => fault.text(),
            Self::Target(error) => error.to_string(),
            Self::EncodedSlash { .. } => TargetError::EncodedSlash.to_string(),
            Self::Address { code, has_list, .. } => {
                let method = request.split(' ').next().unwrap_or_default();
                let what = match code {
                    ReasonCode::DnsFailed => "DNS resolution failed",
                    ReasonCode::ControlPlanePort => "control-plane port",
                    _ if *has_list => "allowed_ips check failed",
                    _ => "internal address",
                };
                // What is blocked is the target, whatever of it was asked for.
                target.map_or_else(|| method.to_owned(), |target| format!("{method} {target}")) + " blocked: " + what
            }
            Self::BadRequest(what) => (*what).to_owned(),
            Self::RequestTooLarge => "the head of the request is too large".to_owned(),
            Self::Engine(_) => format!("{request} refused: the policy could not be evaluated; the log says why"),
            Self::LimitReached(what) => format!("{request} refused: {what}"),
            Self::UpstreamWithoutHttp2 => format!("{request} failed: {NO_HTTP2}"),
            Self::UpstreamUnreachable(_) | Self::UpstreamTimeout => {
                target.map_or_else(|| "connection failed".to_owned(), |target| format!("connection to {target} failed"))
            }
        }
    }

    /// The policy that came nearest to permitting it.
    #[must_use]
    pub fn nearest_rule(&self) -> Option<&str> {
        match self {
            Self::NotInPolicy { nearest, .. } => nearest.as_ref().map(|nearest| nearest.name.as_str()),
            Self::UnsupportedProtocol { policy, .. }
            | Self::NotInThisBuild { policy, .. }
            | Self::Address { policy, .. }
            | Self::EncodedSlash { policy, .. }
            | Self::Request { policy, .. } => policy.as_deref(),
            _ => None,
        }
    }

    /// The line of policy that would permit `target` to `caller`.
    #[must_use]
    pub fn fix(&self, target: &Target, caller: Option<&Caller>) -> Option<String> {
        match self {
            Self::NotInPolicy { .. } if self.no_fix(target).is_some() => None,
            Self::NotInPolicy { nearest, .. } => {
                // A rule could not name it without naming others.
                let caller = caller.filter(|caller| is_one_program(&caller.program.executable))?;
                Some(policy_line(nearest.as_ref(), target, caller))
            }
            Self::Address {
                code: ReasonCode::InternalAddress | ReasonCode::AddressNotInAllowedIps, policy, ..
            } => {
                let place = policy.as_ref().map_or_else(String::new, |key| format!("network_policies.{key}."));
                Some(format!("{place}endpoints: add `allowed_ips` to {target}; the address is in the log"))
            }
            Self::EncodedSlash { policy, .. } => {
                let place = policy.as_ref().map_or_else(String::new, |key| format!("network_policies.{key}."));
                Some(format!("{place}endpoints: add `allow_encoded_slash: true` to each of {target} that has rules"))
            }
            Self::Request { code: ReasonCode::RequestNotInRules, policy, rule: (method, path), .. }
                if method == "POST" && path.ends_with(GIT_FETCH) =>
            {
                let place = policy.as_ref().map_or_else(String::new, |key| format!("network_policies.{key}."));
                Some(format!(
                    "{place}endpoints: git fetches by POST; add to the `rules` of {target} `- allow: {{method: POST, path: \"/**{GIT_FETCH}\"}}`, \
                     beside `- allow: {{method: GET, path: \"**\"}}` in place of `access: read-only`"
                ))
            }
            Self::Request { code, policy, rule: (method, path), .. } => {
                let place = policy.as_ref().map_or_else(String::new, |key| format!("network_policies.{key}."));
                let (method, path) = (flow_text(method), flow_text(&Glob::literal(path)));
                Some(match code {
                    ReasonCode::RequestInDenyRules => {
                        format!(
                            "{place}endpoints: `deny_rules` of {target} match {method} {path}, and win over any rule"
                        )
                    }
                    _ => format!(
                        "{place}endpoints: add to the `rules` of {target} (or in place of its `access`) `- allow: {{method: {method}, path: {path}}}`"
                    ),
                })
            }
            Self::Credential(CredentialFault::Elsewhere { name, has_path: false }) => Some(format!(
                "credentials.{name}.hosts: add {} (the file of --credentials)",
                flow_text(&target.to_string())
            )),
            Self::Credential(CredentialFault::Elsewhere { name, has_path: true }) => {
                Some(format!("credentials.{name}.path: shorten or remove it (the file of --credentials)"))
            }
            Self::Credential(CredentialFault::Misplaced { .. }) => Some(
                "send no `openshell:resolve:env:…` there: it is replaced in the value of a header, of a query parameter, and in the path"
                    .to_owned(),
            ),
            Self::Credential(CredentialFault::Unknown { name }) => {
                Some(format!("credentials: add {name} (the file of --credentials)"))
            }
            _ => None,
        }
    }

    /// Why no line of policy would permit `target`, where that is so.
    #[must_use]
    pub fn no_fix(&self, target: &Target) -> Option<String> {
        let host = target.host.to_string();
        let never = |why: &str| Some(format!("no policy permits {target}: {why}"));
        match self {
            Self::NotInPolicy { .. } | Self::Address { .. } if CONTROL_PLANE_PORTS.contains(&target.port) => {
                never("a control plane may listen at this port")
            }
            Self::NotInPolicy { .. } | Self::Address { code: ReasonCode::AlwaysBlockedAddress, .. } => {
                let own =
                    |host: &str| rustix::system::uname().nodename().to_bytes().eq_ignore_ascii_case(host.as_bytes());
                match never_reachable(&host) {
                    Some(why) => never(why),
                    None if own(&host) => never("it is the host itself"),
                    None if matches!(self, Self::Address { .. }) => never("its address is never reachable"),
                    None => None,
                }
            }
            _ => None,
        }
    }

    /// Why, for the operator.
    #[must_use]
    pub fn log_reason(&self) -> String {
        match self {
            Self::NotInPolicy { reason, .. } | Self::Address { reason, .. } => reason.clone(),
            Self::Request { reason, .. } => reason.clone(),
            Self::UnsupportedProtocol { what, .. } => (*what).to_owned(),
            Self::NotInThisBuild { what, .. } => format!("{what} is not in this build"),
            Self::UnsolicitedUpgrade => "101 Switching Protocols that nobody asked for".to_owned(),
            Self::AuthorityUnavailable => "the trust files could not be written".to_owned(),
            Self::ClientTlsFailed(why) | Self::UpstreamTlsInvalid(why) => why.clone(),
            Self::AuthorityMismatch(named) => format!("the request names {named}"),
            Self::Credential(fault) => fault.cause(),
            Self::Inference(fault) => fault.cause(),
            Self::Target(error) => error.to_string(),
            Self::EncodedSlash { .. } => TargetError::EncodedSlash.to_string(),
            Self::PolicyChanged(reason) | Self::CallerUnknown(reason) | Self::CallerChanged(reason) => reason.clone(),
            Self::CallerAmbiguous([one, other]) => {
                format!("{one} and {other} hold the socket and are judged differently")
            }
            Self::BadRequest(what) => (*what).to_owned(),
            Self::RequestTooLarge => "request head too large".to_owned(),
            Self::Engine(error) => error.clone(),
            Self::LimitReached(what) => (*what).to_owned(),
            Self::UpstreamUnreachable(error) => error.clone(),
            Self::UpstreamWithoutHttp2 => NO_HTTP2.to_owned(),
            Self::UpstreamTimeout => "the upstream did not answer".to_owned(),
        }
    }
}

/// How the path of a request ends by which git fetches (gitprotocol-http(5), Smart Service git-upload-pack).
const GIT_FETCH: &str = "/git-upload-pack";

fn policy_line(nearest: Option<&Nearest>, target: &Target, caller: &Caller) -> String {
    let binary = flow_text(&caller.program.executable);
    let endpoint = format!("{{host: {}, port: {}}}", flow_text(&target.host.to_string()), target.port);
    match nearest {
        Some(Nearest { name, matches: Matches::Endpoint }) => {
            format!("network_policies.{name}.binaries: add `- {{path: {binary}}}`")
        }
        Some(Nearest { name, matches: Matches::HostAndBinary | Matches::Binary }) => {
            format!("network_policies.{name}.endpoints: add `- {endpoint}`")
        }
        Some(Nearest { matches: Matches::Host, .. }) | None => {
            format!("network_policies: add `NAME: {{endpoints: [{endpoint}], binaries: [{{path: {binary}}}]}}`")
        }
    }
}

/// A text as it may stand inside braces in YAML: quoted unless it is plain.
fn flow_text(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+');
    if text.bytes().all(plain) { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
