//! The facts of a request that rules have refused.

use openshell_events::denial::UnmatchedRequest;
use openshell_events::reason::ReasonCode;
use openshell_policy::network::endpoint::{Protocol, UpgradeProtocol};
use openshell_policy::network::rpc::glob::NameGlob;
use openshell_policy::network::rpc::{Revision, RpcMethod, is_strict_name};
use openshell_policy::network::rule::Glob;

use crate::secrets::needles::{CONCEALED, has_secret};

/// A request that was judged by rules, and refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedRequest {
    /// The policy with the rules.
    pub policy: Option<String>,
    /// Its method.
    pub method: String,
    /// Its canonical path.
    pub path: String,
    /// Its fault.
    pub fault: RequestFault,
    /// The message in its body that was refused, if that was judged.
    pub message: Option<JudgedMessage>,
}

/// The end of the path of git's fetch requests (gitprotocol-http(5), Smart Service
/// git-upload-pack).
pub(super) const GIT_FETCH: &str = "/git-upload-pack";

/// Returns true if git fetches by a request with `method` and `path`.
pub(crate) fn is_git_fetch(method: &str, path: &str) -> bool {
    method == "POST" && path.ends_with(GIT_FETCH)
}

impl JudgedRequest {
    /// Returns true if git fetches by it.
    pub(super) fn is_git_fetch(&self) -> bool {
        is_git_fetch(&self.method, &self.path)
    }

    /// Returns what a rule would have to allow; `None` if none could.
    pub(crate) fn unmatched(&self) -> Option<UnmatchedRequest> {
        let endpoint_path = match &self.fault {
            RequestFault::NoRule(At::Path(path)) => Some(path.clone()),
            RequestFault::NoRule(At::Any | At::Nowhere) | RequestFault::EncodedSlash => None,
            RequestFault::DenyRule
            | RequestFault::Ambiguous(_)
            | RequestFault::Version { .. }
            | RequestFault::Upgrade(_) => return None,
        };
        match &self.message {
            Some(message) => message.unmatched(endpoint_path),
            None => Some(UnmatchedRequest {
                endpoint_path,
                protocol: Protocol::Rest.as_str(),
                method: self.method.clone(),
                asked: Some(("path", self.path.clone())),
            }),
        }
    }

    /// Conceals the words of the workload that hold a secret.
    pub(super) fn conceal(&mut self) {
        let message = self.message.iter_mut();
        let of_message = message.flat_map(|message| {
            let about = message.about.iter_mut().map(|(_, value)| value);
            message.method.iter_mut().chain(about)
        });
        let requested = match &mut self.fault {
            RequestFault::Version { requested, .. } => Some(requested),
            RequestFault::NoRule(_)
            | RequestFault::DenyRule
            | RequestFault::Ambiguous(_)
            | RequestFault::EncodedSlash
            | RequestFault::Upgrade(_) => None,
        };
        for word in of_message.chain([&mut self.path]).chain(requested) {
            if has_secret(word) {
                CONCEALED.clone_into(word);
            }
        }
    }
}

/// A message of JSON-RPC or MCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedMessage {
    /// JSON-RPC or MCP.
    pub protocol: Protocol,
    /// True if it is a response.
    pub is_response: bool,
    /// Its method; `None` for what is no request and no notification.
    pub method: Option<String>,
    /// What it is about.
    pub about: Option<(About, String)>,
    /// False if it is about several things, or about all of a kind.
    pub is_about_one: bool,
    /// True if rules for its tool have conditions on arguments.
    pub is_limited: bool,
}

impl JudgedMessage {
    /// Returns what a rule would have to allow, at an endpoint with this path; `None` if it takes more
    /// than a rule, or if a rule that allows exactly this cannot be written.
    fn unmatched(&self, endpoint_path: Option<String>) -> Option<UnmatchedRequest> {
        let method = self.method.clone()?;
        let parsed = if self.protocol == Protocol::Mcp {
            RpcMethod::of_mcp(&method)
        } else {
            RpcMethod::of_json_rpc(&method)
        };
        let is_plain = parsed.is_ok() && !method.contains('*') && method != CONCEALED;
        let is_exact = self
            .about
            .as_ref()
            .is_none_or(|(about, value)| about.has_exact_rule(value));
        if self.is_response || self.is_limited || !self.is_about_one || !is_plain || !is_exact {
            return None;
        }
        let asked = self.about.clone();
        Some(UnmatchedRequest {
            endpoint_path,
            protocol: self.protocol.as_str(),
            method,
            asked: asked.map(|(about, value)| (about.key(), value)),
        })
    }
}

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A tool.
    Tool,
    /// A resource.
    Uri,
    /// A resource whose URI has another form than the one that rules compare.
    OtherForm,
    /// A prompt.
    Name,
}

/// The number of bytes of a word that refusals repeat. A longer one is cut.
pub const WORD_BYTES: usize = 512;

impl About {
    /// Returns true if a rule can name exactly `value`, which is whole, and tells nobody a secret.
    fn has_exact_rule(self, value: &str) -> bool {
        let is_word = match self {
            Self::Tool => is_strict_name(value),
            // Queries hold values.
            Self::Uri => !value.contains('?'),
            Self::Name => true,
            Self::OtherForm => false,
        };
        let literal = Glob::literal(value);
        is_word
            && value != CONCEALED
            && value.len() < WORD_BYTES
            && !value.contains(char::is_control)
            && NameGlob::parse(&literal).is_ok()
            && Glob::parse(&literal).is_ok()
    }

    /// Returns the key of rules for it.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Uri | Self::OtherForm => "uri",
            Self::Name => "name",
        }
    }
}

/// The fault of a judged request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// No rule of the endpoints here allows it.
    NoRule(At),
    /// A rule denies it.
    DenyRule,
    /// Its path may be read as one for another endpoint, which has this path if it has one.
    Ambiguous(Option<String>),
    /// Its path holds an encoded slash.
    EncodedSlash,
    /// It speaks a revision of MCP that the policy does not list.
    Version {
        /// Those that the policy lists.
        supported: Vec<Revision>,
        /// The name of the one that it speaks.
        requested: String,
    },
    /// It asks to switch to this protocol, inside which no rule can judge anything.
    Upgrade(UpgradeProtocol),
}

/// The endpoints whose rules could allow a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// Those without a path.
    Any,
    /// Those with this path.
    Path(String),
    /// None: the path of none matches.
    Nowhere,
}

impl RequestFault {
    /// Returns the reason code of the fault.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        match self {
            Self::NoRule(_) | Self::Version { .. } => ReasonCode::RequestNotInRules,
            Self::DenyRule => ReasonCode::RequestInDenyRules,
            Self::Ambiguous(_) => ReasonCode::EndpointsAmbiguous,
            Self::EncodedSlash => ReasonCode::BadRequest,
            Self::Upgrade(_) => ReasonCode::UnsupportedL7Protocol,
        }
    }
}
