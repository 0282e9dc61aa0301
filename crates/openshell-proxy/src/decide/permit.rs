//! The permit to reach a target, and the inspection that it requires.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::{Method, Uri};
use openshell_events::reason::ReasonCode;
use openshell_policy::address::{AddressClass, AddressRange};
use openshell_policy::policy::PolicyForm;

use crate::decide::message::http::HttpRequest;
use crate::decide::message::{Action, Message, Need, Reading};
use crate::decide::rules::{Rules, unread};
use crate::denial::judged::RequestFault;
use crate::denial::refusal::Refusal;
use crate::ground::target::Target;
use crate::wire::http::target::TargetError;

/// A permit to reach one target. Only [`super::connection::judge`] makes one, so that nothing is
/// resolved or dialled without a decision:
///
/// ```compile_fail
/// use openshell_proxy::decide::permit::Permit;
/// let forged = Permit { policy: None };
/// ```
#[derive(Clone, Debug)]
pub struct Permit {
    pub(super) target: Target,
    pub(super) policy: Option<String>,
    pub(super) generation: u64,
    pub(super) addresses: PermittedAddresses,
    pub(super) inspection: Inspection,
    /// What the policy was made of.
    pub(super) form: PolicyForm,
    /// True if requests of the connection may contain secrets.
    pub(super) allows_leaks: bool,
    /// True in an observed run, which refuses nothing that a policy could permit.
    pub(super) is_observed: bool,
    /// Why the connection would have been refused if the run were not observed.
    pub(super) observed: Option<ReasonCode>,
}

/// The inspection that a permit requires. Every stage that relays bytes matches it exhaustively.
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
            Self::Judged(rules) => f.write_str(rules.protocol()),
        }
    }
}

/// The addresses of a target that may be dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermittedAddresses {
    /// All addresses except those that are never reachable, because the run is observed.
    pub(crate) any: bool,
    /// Public addresses.
    pub(crate) public: bool,
    /// Addresses in these ranges, public or not.
    pub(crate) listed: Vec<AddressRange>,
    /// The address, if the policy names it as the host.
    pub(crate) literal: Option<IpAddr>,
}

impl PermittedAddresses {
    /// Returns true if `address`, which is not one that is never reachable, may be dialled.
    pub(crate) fn include(&self, address: IpAddr) -> bool {
        self.any
            || self.literal == Some(address)
            || self.listed.iter().any(|range| range.contains(address))
            || (self.public && !AddressClass::of(address).is_internal())
    }
}

impl Permit {
    /// Returns the host and port that may be reached.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the key of the policy that permits it (the smallest, if several do), if the rules
    /// name one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns what to change to permit more. Where endpoints have paths that is a document, because
    /// the endpoint of a flag could contradict them.
    #[must_use]
    pub fn form(&self) -> PolicyForm {
        match &self.inspection {
            Inspection::Judged(rules) if rules.have_paths() => PolicyForm::Document,
            Inspection::Judged(_) | Inspection::Unjudged | Inspection::Passthrough => self.form,
        }
    }

    /// Returns the policy generation that permitted it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns why the connection would have been refused if the run were not observed.
    #[must_use]
    pub fn observed(&self) -> Option<ReasonCode> {
        self.observed
    }

    /// Returns the inspection that the bytes of the connection require.
    #[must_use]
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// Returns the rules for the messages inside, if there are any.
    #[must_use]
    pub fn rules(&self) -> Option<&Arc<Rules>> {
        match &self.inspection {
            Inspection::Judged(rules) => Some(rules),
            Inspection::Passthrough | Inspection::Unjudged => None,
        }
    }

    /// Returns true if requests of the connection may contain secrets, because all endpoints that
    /// permit it say so.
    #[must_use]
    pub fn allows_leaks(&self) -> bool {
        self.allows_leaks
    }

    /// Returns true in an observed run, which refuses nothing that a policy could permit.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// Returns how much of a `method` request for `uri` must be read before its messages can be
    /// judged.
    #[must_use]
    pub fn need(&self, method: &Method, uri: &Uri) -> Need {
        let Some(rules) = self.rules().filter(|rules| rules.judge_bodies()) else {
            return Need::Head;
        };
        // What has no canonical form is refused when it is read.
        let http = self.canonical(method, uri, rules);
        http.map_or(Need::Head, |http| rules.need(&http))
    }

    /// Reads `message` in the form in which it is judged and sent.
    ///
    /// # Errors
    /// There are rules, and the target has no canonical form, the request holds no message, or less
    /// of it was read than the rules need.
    pub fn read(&self, message: &Message) -> Result<Reading, Refusal> {
        let Message {
            method, uri, ahead, ..
        } = message;
        let Some(rules) = self.rules() else {
            return Ok(Reading::of_head(HttpRequest::as_written(method, uri)));
        };
        let http = self.canonical(method, uri, rules)?;
        if rules.judge_bodies() && !ahead.meets(rules.need(&http)) {
            return Err(unread());
        }
        let reading = rules.read(http, message)?;
        if reading.actions.is_empty() {
            return Err(Refusal::bad_request("the request holds no message"));
        }
        Ok(reading)
    }

    /// Returns the head of a `method` request for `uri` in the form that `rules` read.
    fn canonical(&self, method: &Method, uri: &Uri, rules: &Rules) -> Result<HttpRequest, Refusal> {
        let canonical =
            |takes_encoded_slash| HttpRequest::canonical(method, uri, takes_encoded_slash);
        match canonical(rules.takes_encoded_slash() || self.is_observed) {
            Err(error @ TargetError::EncodedSlash) => {
                let action = Action::Http(canonical(true).map_err(Refusal::target)?);
                let request = action.refused(self.policy.clone(), RequestFault::EncodedSlash);
                Err(Refusal::request(error.to_string(), request))
            }
            http => http.map_err(Refusal::target),
        }
    }

    pub(crate) fn addresses(&self) -> &PermittedAddresses {
        &self.addresses
    }
}
