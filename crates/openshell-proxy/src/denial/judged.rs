//! The facts of a request that rules have refused.

use openshell_events::reason::ReasonCode;
use openshell_policy::network::endpoint::UpgradeProtocol;

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
            Self::NoRule(_) => ReasonCode::RequestNotInRules,
            Self::DenyRule => ReasonCode::RequestInDenyRules,
            Self::Ambiguous(_) => ReasonCode::EndpointsAmbiguous,
            Self::EncodedSlash => ReasonCode::BadRequest,
            Self::Upgrade(_) => ReasonCode::UnsupportedL7Protocol,
        }
    }
}
