//! Snapshot, callers and target to a permit, or to a refusal.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::{Method, Uri};
use openshell_policy::address::AddressRange;
use openshell_policy::denial::{DenialStage, ReasonCode};
use openshell_policy::network::endpoint::{Endpoint, TlsMode};
use openshell_policy::network::host::Host;

use crate::decide::request::RequestRules;
use crate::decide::snapshot::{Matches, Nearest, Snapshot, Verdict};
use crate::http::target::{RequestTarget, TargetError};
use crate::peer::{Caller, Callers};
use crate::refusal::Refusal;
use crate::target::Target;

/// Leave to reach one target. Only [`judge`] makes one, so that nothing is resolved or dialled without a decision:
///
/// ```compile_fail
/// use openshell_proxy::decide::connection::Permit;
/// let forged = Permit { policy: None };
/// ```
#[derive(Debug)]
pub struct Permit {
    target: Target,
    policy: Option<String>,
    generation: u64,
    addresses: PermittedAddresses,
    /// What judges the requests inside.
    rules: Option<Arc<RequestRules>>,
    /// Whether TLS is left closed.
    skips_tls: bool,
    /// Whether the run is observed, and nothing refused that a policy could permit.
    is_observed: bool,
    /// What it would have been refused for, where a run is observed instead.
    observed: Option<ReasonCode>,
}

/// Which of a target's addresses a permit is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermittedAddresses {
    /// All but those that are never reachable: the run is observed.
    pub(crate) any: bool,
    /// Public ones.
    pub(crate) public: bool,
    /// These, public or not.
    pub(crate) listed: Vec<AddressRange>,
    /// The one that the policy names as the host.
    pub(crate) literal: Option<IpAddr>,
}

impl Permit {
    /// What may be reached.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The smallest key of a policy that permits it, if the rules name one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// The policy generation that permitted it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What it would have been refused for, where a run is observed instead.
    #[must_use]
    pub fn observed(&self) -> Option<ReasonCode> {
        self.observed
    }

    /// What judges the requests inside; `None` where nothing does.
    #[must_use]
    pub fn rules(&self) -> Option<&Arc<RequestRules>> {
        self.rules.as_ref()
    }

    /// Whether TLS is left closed.
    #[must_use]
    pub fn skips_tls(&self) -> bool {
        self.skips_tls
    }

    /// Whether the run is observed, and nothing refused that a policy could permit.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// The target of a `method` request for `uri`, in the form in which it is judged and sent.
    ///
    /// # Errors
    /// It is judged, and has no canonical form.
    pub fn request_target(&self, method: &Method, uri: &Uri) -> Result<RequestTarget, Refusal> {
        let Some(rules) = &self.rules else { return Ok(RequestTarget::as_written(uri)) };
        let takes_encoded_slash = rules.takes_encoded_slash() || self.is_observed;
        match RequestTarget::canonical(method, uri, takes_encoded_slash) {
            Err(TargetError::EncodedSlash) => {
                let target = RequestTarget::canonical(method, uri, true).map_err(Refusal::Target)?;
                let rule = (method.to_string(), target.path().to_owned());
                Err(Refusal::EncodedSlash { policy: self.policy.clone(), rule })
            }
            target => target.map_err(Refusal::Target),
        }
    }

    pub(crate) fn addresses(&self) -> &PermittedAddresses {
        &self.addresses
    }
}

/// Judges a connection of `callers` to `target`. Where a socket has several owners, the policy must say the same about
/// each of them. Where it permits, `verify` has the last word on whether they are who they seem to be.
///
/// # Errors
/// The refusal, and for an engine that failed, a refusal too.
pub fn judge(
    snapshot: &Snapshot,
    callers: &Callers,
    target: &Target,
    verify: impl FnOnce() -> Result<(), Refusal>,
) -> Result<Permit, Refusal> {
    let verdict_on =
        |caller: &Caller| snapshot.judge(&caller.program, target).map_err(|error| Refusal::Engine(error.to_string()));
    let answer = verdict_on(callers.first())?;
    for other in callers.others() {
        // What foreign rules say about requests may depend on who asks.
        let is_judged_by_whom = answer.rules.is_some() && !snapshot.is_built_in();
        if is_judged_by_whom || !same(&answer.verdict, &verdict_on(other)?.verdict) {
            let both = [callers.first(), other].map(|caller| caller.program.executable.clone());
            return Err(Refusal::CallerAmbiguous(both));
        }
    }
    match &answer.verdict {
        Verdict::Deny { nearest } => {
            let reason = snapshot.deny_reason(&callers.first().program, target);
            let reason = reason.map_err(|error| Refusal::Engine(error.to_string()))?;
            Err(refused(snapshot, reason, nearest.as_ref()))
        }
        Verdict::Allow { policy, endpoints } => {
            if endpoints.iter().any(Endpoint::is_tcp) {
                return Err(Refusal::NotInThisBuild { what: "`protocol: tcp`", policy: policy.clone() });
            }
            let skips_tls = endpoints.iter().any(|endpoint| endpoint.tls() == TlsMode::Skip);
            if skips_tls && answer.rules.is_some() {
                let what = "one endpoint says `tls: skip`, and another has rules for what is inside";
                return Err(Refusal::UnsupportedProtocol { what, policy: policy.clone() });
            }
            // An address as the host is its own list, where the endpoint has none.
            let is_listed = |endpoint: &&Endpoint| !endpoint.allowed_ips().is_empty();
            let mut unlisted = endpoints.iter().filter(|endpoint| !is_listed(endpoint)).filter_map(Endpoint::host);
            let literal = match &target.host {
                Host::Address(address) if unlisted.any(|host| host.is_address(*address)) => Some(*address),
                Host::Address(_) | Host::Name(_) => None,
            };
            let addresses = PermittedAddresses {
                any: false,
                // Foreign rules that name no endpoint permit what any endpoint without a list would.
                public: endpoints.is_empty() || !endpoints.iter().all(|endpoint| is_listed(&endpoint)),
                listed: endpoints.iter().flat_map(|endpoint| endpoint.allowed_ips()).copied().collect(),
                literal,
            };
            verify()?;
            Ok(Permit {
                target: target.clone(),
                policy: policy.clone(),
                generation: snapshot.generation(),
                addresses,
                rules: answer.rules.clone(),
                skips_tls,
                is_observed: false,
                observed: None,
            })
        }
    }
}

/// Judges as [`judge`] does, in a run that is observed: what the policy refuses is permitted, with its code; whatever
/// address the host has, but those that are never reachable.
///
/// # Errors
/// As [`judge`], where it is not the policy that refuses.
pub fn observe(
    snapshot: &Snapshot,
    callers: &Callers,
    target: &Target,
    verify: impl Fn() -> Result<(), Refusal>,
) -> Result<Permit, Refusal> {
    let addresses = PermittedAddresses { any: true, public: true, listed: Vec::new(), literal: None };
    match judge(snapshot, callers, target, &verify) {
        Ok(permit) => Ok(Permit { addresses, is_observed: true, ..permit }),
        Err(refusal) if refusal.code().stage() == DenialStage::L4 => {
            verify()?;
            Ok(Permit {
                target: target.clone(),
                policy: None,
                generation: snapshot.generation(),
                addresses,
                rules: None,
                skips_tls: false,
                is_observed: true,
                observed: Some(refusal.code()),
            })
        }
        Err(refusal) => Err(refusal),
    }
}

fn same(one: &Verdict, other: &Verdict) -> bool {
    match (one, other) {
        // What comes nearest may differ; a refusal is a refusal.
        (Verdict::Deny { .. }, Verdict::Deny { .. }) => true,
        (one, other) => one == other,
    }
}

fn refused(snapshot: &Snapshot, reason: String, nearest: Option<&Nearest>) -> Refusal {
    let code = match nearest {
        Some(Nearest { matches: Matches::Endpoint, .. }) => ReasonCode::BinaryNotInPolicy,
        _ if snapshot.policy().network().is_empty() => ReasonCode::NoNetworkPolicies,
        _ => ReasonCode::EndpointNotInPolicy,
    };
    Refusal::NotInPolicy { code, reason, nearest: nearest.cloned() }
}
