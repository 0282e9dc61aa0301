//! The decision on a connection: turns a snapshot, a caller and a target into a permit or a
//! refusal.

use openshell_events::reason::ReasonCode;
use openshell_policy::network::endpoint::{Endpoint, TlsMode};
use openshell_policy::network::host::Host;
use openshell_policy::network::overlap::disagreement;

use crate::decide::permit::{Inspection, Permit, PermittedAddresses};
use crate::decide::snapshot::{CachedDecision, Snapshot, Verdict};
use crate::denial::refusal::{Matches, Nearest, Refusal};
use crate::ground::peer::Caller;
use crate::ground::target::Target;

/// Judges a connection of `caller` to `target`. `verify` checks the caller's fingerprints before a
/// permit is given.
///
/// # Errors
/// The policy refuses the connection, `verify` fails, or the engine fails.
pub fn judge(
    snapshot: &Snapshot,
    caller: &Caller,
    target: &Target,
    verify: impl FnOnce() -> Result<(), Refusal>,
) -> Result<Permit, Refusal> {
    if let Some(reason) = snapshot.invalid() {
        return Err(Refusal::policy_invalid(reason.to_owned()));
    }
    let answer = snapshot
        .judge(&caller.program, target)
        .map_err(|error| Refusal::engine(error.to_string()))?;
    match &answer.verdict {
        Verdict::Deny { nearest } => {
            let reason = snapshot.deny_reason(&caller.program, target);
            let reason = reason.map_err(|error| Refusal::engine(error.to_string()))?;
            Err(refused(snapshot, reason, nearest.as_ref()))
        }
        Verdict::Allow { policy, endpoints } => {
            if let Some(what) = endpoints.iter().find_map(Endpoint::unsupported) {
                return Err(Refusal::not_in_this_build(what, policy.clone()));
            }
            if let Some(what) = disagreement(endpoints) {
                return Err(Refusal::endpoints_ambiguous(what, policy.clone()));
            }
            let inspection = inspection(&answer, policy.as_deref(), endpoints)?;
            verify()?;
            Ok(Permit {
                target: target.clone(),
                policy: policy.clone(),
                generation: snapshot.generation(),
                addresses: addresses(&target.host, endpoints),
                inspection,
                form: snapshot.policy().form(),
                allows_leaks: !endpoints.is_empty() && endpoints.iter().all(Endpoint::allows_leaks),
                is_observed: false,
                observed: None,
            })
        }
    }
}

/// Judges like [`judge`], but for an observed run: a refusal by the policy becomes a permit that
/// holds the refusal's code. Every permit is for all addresses except those that are never
/// reachable.
///
/// # Errors
/// As for [`judge`], except refusals by the policy.
pub fn observe(
    snapshot: &Snapshot,
    caller: &Caller,
    target: &Target,
    verify: impl Fn() -> Result<(), Refusal>,
) -> Result<Permit, Refusal> {
    let addresses = PermittedAddresses {
        any: true,
        public: true,
        listed: Vec::new(),
        literal: None,
    };
    match judge(snapshot, caller, target, &verify) {
        Ok(permit) => Ok(Permit {
            addresses,
            is_observed: true,
            ..permit
        }),
        Err(refusal)
            if refusal.is_policy_denial() || refusal.code() == ReasonCode::EndpointsAmbiguous =>
        {
            verify()?;
            Ok(Permit {
                target: target.clone(),
                policy: None,
                generation: snapshot.generation(),
                addresses,
                inspection: Inspection::Unjudged,
                form: snapshot.policy().form(),
                allows_leaks: false,
                is_observed: true,
                observed: Some(refusal.code()),
            })
        }
        Err(refusal) => Err(refusal),
    }
}

/// Returns the inspection that the `endpoints` that permit a connection together require.
fn inspection(
    decision: &CachedDecision,
    policy: Option<&str>,
    endpoints: &[Endpoint],
) -> Result<Inspection, Refusal> {
    let is_tcp = endpoints.iter().any(Endpoint::is_tcp);
    let skips_tls = is_tcp
        || endpoints
            .iter()
            .any(|endpoint| endpoint.tls() == TlsMode::Skip);
    match &decision.rules {
        Some(_) if skips_tls => {
            let what = if is_tcp {
                "one endpoint says `protocol: tcp`, but another has rules for what is inside; \
                 remove `protocol: tcp` or the rules"
            } else {
                "one endpoint says `tls: skip`, but another has rules for what is inside; remove \
                 `tls: skip` or the rules"
            };
            Err(Refusal::unsupported_protocol(
                what,
                policy.map(str::to_owned),
            ))
        }
        Some(rules) => Ok(Inspection::Judged(rules.clone())),
        None if skips_tls => Ok(Inspection::Passthrough),
        None => Ok(Inspection::Unjudged),
    }
}

/// Returns the addresses of `host` that `endpoints` permit.
fn addresses(host: &Host, endpoints: &[Endpoint]) -> PermittedAddresses {
    // An endpoint whose host is an address, and that has no list, permits that address.
    let is_listed = |endpoint: &&Endpoint| !endpoint.allowed_ips().is_empty();
    let mut unlisted = endpoints
        .iter()
        .filter(|endpoint| !is_listed(endpoint))
        .filter_map(Endpoint::host);
    let literal = match host {
        Host::Address(address) if unlisted.any(|host| host.is_address(*address)) => Some(*address),
        Host::Address(_) | Host::Name(_) => None,
    };
    PermittedAddresses {
        any: false,
        // Custom rules that name no endpoint permit what an endpoint without a list permits.
        public: endpoints.is_empty() || !endpoints.iter().all(|endpoint| is_listed(&endpoint)),
        listed: endpoints
            .iter()
            .flat_map(|endpoint| endpoint.allowed_ips())
            .copied()
            .collect(),
        literal,
    }
}

fn refused(snapshot: &Snapshot, reason: String, nearest: Option<&Nearest>) -> Refusal {
    let code = match nearest {
        Some(Nearest {
            matches: Matches::Endpoint,
            ..
        }) => ReasonCode::BinaryNotInPolicy,
        _ if snapshot.policy().network().is_empty() => ReasonCode::NoNetworkPolicies,
        _ => ReasonCode::EndpointNotInPolicy,
    };
    let refusal = Refusal::not_in_policy(code, reason, nearest.cloned());
    refusal.under(snapshot.policy().form())
}
