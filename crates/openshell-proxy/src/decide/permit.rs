//! The permit to reach a target, and the inspection that it demands.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use openshell_events::reason::ReasonCode;
use openshell_policy::address::AddressRange;

use crate::decide::message::http::HttpRequest;
use crate::decide::message::{Message, Need, Reading};
use crate::decide::rules::Rules;
use crate::denial::refusal::{JudgedRequest, Refusal, RequestFault};
use crate::ground::target::Target;
use crate::wire::http::target::TargetError;

/// Permit to reach one target. Only [`super::connection::judge`] makes one, so that nothing is
/// resolved or dialled without a decision:
///
/// ```compile_fail
/// use openshell_proxy::decide::permit::Permit;
/// let forged = Permit { policy: None };
/// ```
#[derive(Debug)]
pub struct Permit {
    pub(super) target: Target,
    pub(super) policy: Option<String>,
    pub(super) generation: u64,
    pub(super) addresses: PermittedAddresses,
    pub(super) inspection: Inspection,
    /// True if its requests may hold secrets.
    pub(super) allows_leaks: bool,
    /// True in an observed run, in which nothing is refused that a policy could permit.
    pub(super) is_observed: bool,
    /// Reason for which an observed connection would have been refused.
    pub(super) observed: Option<ReasonCode>,
}

/// Inspection that a permit demands. Every stage that relays bytes matches it exhaustively.
#[derive(Clone, Debug)]
pub enum Inspection {
    /// Nothing is read, TLS included (`tls: skip`).
    Passthrough,
    /// TLS is intercepted, and nothing inside is judged.
    Unjudged,
    /// TLS is intercepted, and every message inside is judged by these rules.
    Judged(Arc<Rules>),
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passthrough => f.write_str("passthrough"),
            Self::Unjudged => f.write_str("unjudged"),
            Self::Judged(rules) => f.write_str(rules.protocol().as_str()),
        }
    }
}

/// Addresses of a target that may be dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermittedAddresses {
    /// Any but those that are never reachable: the run is observed.
    pub(crate) any: bool,
    /// Public addresses.
    pub(crate) public: bool,
    /// These ranges, public or not.
    pub(crate) listed: Vec<AddressRange>,
    /// The address that the policy names as the host.
    pub(crate) literal: Option<IpAddr>,
}

impl Permit {
    /// The host and port that may be reached.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The key of the policy that permits it (the smallest, if several do), if the rules name one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// The policy generation that permitted it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Reason for which the connection would have been refused, were the run not observed.
    #[must_use]
    pub fn observed(&self) -> Option<ReasonCode> {
        self.observed
    }

    /// Inspection of the bytes of the connection.
    #[must_use]
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// The rules for the messages inside, if there are any.
    #[must_use]
    pub fn rules(&self) -> Option<&Arc<Rules>> {
        match &self.inspection {
            Inspection::Judged(rules) => Some(rules),
            Inspection::Passthrough | Inspection::Unjudged => None,
        }
    }

    /// True if the requests of the connection may hold secrets: all endpoints that permit it say
    /// so.
    #[must_use]
    pub fn allows_leaks(&self) -> bool {
        self.allows_leaks
    }

    /// True in an observed run, in which nothing is refused that a policy could permit.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// What must be read of a request before its messages can be judged.
    #[must_use]
    pub fn need(&self) -> Need {
        self.rules()
            .map_or(Need::Head, |rules| rules.protocol().need())
    }

    /// Reads `message` in the form in which it is judged and sent.
    ///
    /// # Errors
    /// Rules judge it, and its target has no canonical form, it holds no message, or less of it was
    /// read than they need.
    pub fn read(&self, message: &Message) -> Result<Reading, Refusal> {
        let Some(rules) = self.rules() else {
            let http = HttpRequest::as_written(&message.method, &message.uri);
            return Ok(Reading::of_head(http));
        };
        if !message.ahead.meets(self.need()) {
            let reason = "there are rules now for a part of the body that was not read";
            return Err(Refusal::policy_changed(reason.to_owned()));
        }
        let http = self.canonical(message, rules)?;
        let reading = rules.protocol().read(http);
        if reading.actions.is_empty() {
            return Err(Refusal::bad_request("the request holds no message"));
        }
        Ok(reading)
    }

    /// The head of `message` in the form that `rules` read.
    fn canonical(&self, message: &Message, rules: &Rules) -> Result<HttpRequest, Refusal> {
        let canonical = |takes_encoded_slash| {
            HttpRequest::canonical(&message.method, &message.uri, takes_encoded_slash)
        };
        match canonical(rules.takes_encoded_slash() || self.is_observed) {
            Err(error @ TargetError::EncodedSlash) => {
                let (method, path) = canonical(true).map_err(Refusal::target)?.rule();
                let request = JudgedRequest {
                    policy: self.policy.clone(),
                    method,
                    path,
                    fault: RequestFault::EncodedSlash,
                };
                Err(Refusal::request(error.to_string(), request))
            }
            http => http.map_err(Refusal::target),
        }
    }

    pub(crate) fn addresses(&self) -> &PermittedAddresses {
        &self.addresses
    }
}
