//! Comparison of network rules: each program's way to each host and port, and the requests on it.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use crate::comparison::cover;
use crate::network::NetworkPolicies;
use crate::network::binary::Binary;
use crate::network::endpoint::{Endpoint, Enforcement, L7, TlsMode};
use crate::network::rule::{DenyRule, HttpRule};

/// An endpoint for one program.
#[derive(Clone, Copy)]
struct Grant<'p> {
    binary: &'p Binary,
    endpoint: &'p Endpoint,
}

/// The grants of a policy, by port.
struct Grants<'p>(BTreeMap<NonZeroU16, Vec<Grant<'p>>>);

/// What is permitted on one way.
struct Effect<'p> {
    /// Rules of requests; `None` if every request passes.
    rules: Option<Vec<&'p HttpRule>>,
    deny: Vec<&'p DenyRule>,
    /// True if bytes that are not HTTP pass.
    takes_bytes: bool,
    /// True if nothing is looked into.
    is_opaque: bool,
    allows_leaks: bool,
    takes_encoded_slash: bool,
}

/// Direction in which an effect is estimated where entries for other programs or hosts overlap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// Nothing that is permitted on some of the way is left out.
    Most,
    /// Everything is permitted on all of the way.
    Least,
}

/// Returns what `one` permits and `other` does not, in words.
pub(super) fn permissions(one: &NetworkPolicies, other: &NetworkPolicies) -> Vec<String> {
    let (one, other) = (Grants::of(one), Grants::of(other));
    // Programs by their new permission, in the order in which they are written.
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for (port, grants) in &one.0 {
        for grant in grants {
            let Some(what) = other.lacks(*port, grant, &one) else { continue };
            let program = grant.binary.to_string();
            match found.iter_mut().find(|(known, _)| *known == what) {
                Some((_, programs)) if programs.contains(&program) => {}
                Some((_, programs)) => programs.push(program),
                None => found.push((what, vec![program])),
            }
        }
    }
    found.into_iter().map(|(what, programs)| format!("{} may {what}", programs.join(", "))).collect()
}

impl<'p> Grants<'p> {
    fn of(policies: &'p NetworkPolicies) -> Self {
        let mut grants: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for policy in policies.values() {
            for endpoint in policy.endpoints.iter().filter(|endpoint| endpoint.unsupported().is_none()) {
                for (port, binary) in
                    endpoint.ports().iter().flat_map(|port| policy.binaries.iter().map(move |binary| (port, binary)))
                {
                    grants.entry(*port).or_default().push(Grant { binary, endpoint });
                }
            }
        }
        Self(grants)
    }

    /// Returns what `grant`, one of `its` policy, permits at `port` and this policy does not.
    fn lacks(&self, port: NonZeroU16, grant: &Grant<'_>, its: &Grants<'_>) -> Option<String> {
        let place = place(grant.endpoint, port);
        let Some(effect) = self.effect(port, grant, Bound::Least) else {
            return Some(format!("reach {place}{}", described(grant.endpoint)));
        };
        let its = its.effect(port, grant, Bound::Most)?;
        let requests = |words: Vec<String>| Some(format!("send to {place}: {}", words.join("; ")));
        if its.is_opaque && !effect.is_opaque {
            return Some(format!("reach {place} without being looked into"));
        }
        if its.takes_bytes && !effect.takes_bytes {
            return Some(format!("reach {place} without rules for requests"));
        }
        let new = match (&its.rules, &effect.rules) {
            (_, None) => Vec::new(),
            (None, Some(_)) => vec!["every request".to_owned()],
            (Some(its), Some(known)) => its
                .iter()
                .filter(|new| !known.iter().any(|known| cover::rule(known, new)))
                .map(|rule| written(rule))
                .collect(),
        };
        if !new.is_empty() {
            return requests(new);
        }
        let kept = |deny: &DenyRule| its.deny.iter().any(|kept| cover::deny(kept, deny));
        let freed: Vec<_> = effect.deny.iter().filter(|deny| !kept(deny)).map(|deny| written(&deny.rule)).collect();
        if !freed.is_empty() {
            return requests(freed.into_iter().map(|rule| format!("{rule}, which was denied")).collect());
        }
        if its.takes_encoded_slash && !effect.takes_encoded_slash {
            return Some(format!("send to {place}: paths with %2F (allow_encoded_slash)"));
        }
        (its.allows_leaks && !effect.allows_leaks).then(|| format!("send secrets to {place} (leaks: allow)"))
    }

    /// The effect of this policy on the way of `grant`; `None` if it does not cover that.
    fn effect(&self, port: NonZeroU16, grant: &Grant<'_>, bound: Bound) -> Option<Effect<'p>> {
        let at_port = self.0.get(&port)?;
        let covering: Vec<_> = at_port
            .iter()
            .filter(|known| cover::binary(known.binary, grant.binary) && cover::host(known.endpoint, grant.endpoint))
            .map(|known| known.endpoint)
            .collect();
        if covering.is_empty() {
            return None;
        }
        // Entries for some of the programs or hosts refuse requests of those.
        let overlaps = |known: &&Grant<'p>| {
            cover::binaries_overlap(known.binary, grant.binary) && cover::hosts_overlap(known.endpoint, grant.endpoint)
        };
        let all = match bound {
            Bound::Most => covering.clone(),
            Bound::Least => at_port.iter().filter(overlaps).map(|known| known.endpoint).collect(),
        };
        let l7_of =
            |endpoints: &[&'p Endpoint]| endpoints.iter().filter_map(|endpoint| endpoint.l7()).collect::<Vec<&L7>>();
        let (l7, all_l7) = (l7_of(&covering), l7_of(&all));
        let is_enforced = all_l7.iter().any(|l7| l7.enforcement == Enforcement::Enforce);
        let is_opaque = |endpoint: &&Endpoint| endpoint.tls() == TlsMode::Skip || endpoint.is_tcp();
        let takes_slash = |endpoint: &&Endpoint| endpoint.takes_encoded_slash() || endpoint.l7().is_none();
        Some(Effect {
            rules: is_enforced.then(|| l7.iter().flat_map(|l7| &l7.rules).collect()),
            deny: all_l7.iter().filter(|_| is_enforced).flat_map(|l7| &l7.deny_rules).collect(),
            takes_bytes: all_l7.is_empty(),
            is_opaque: covering.iter().any(is_opaque),
            allows_leaks: all.iter().all(|endpoint| endpoint.allows_leaks()),
            takes_encoded_slash: all.iter().all(takes_slash),
        })
    }
}

fn place(endpoint: &Endpoint, port: NonZeroU16) -> String {
    let ranges: Vec<_> = endpoint.allowed_ips().iter().map(ToString::to_string).collect();
    match (endpoint.host(), ranges.is_empty()) {
        (Some(host), true) => format!("{host}:{port}"),
        (Some(host), false) => format!("{host}:{port} at {}", ranges.join(", ")),
        (None, _) => format!("any host at {}, port {port}", ranges.join(", ")),
    }
}

/// The requests of an endpoint that is new.
fn described(endpoint: &Endpoint) -> String {
    match endpoint.l7() {
        Some(l7) if l7.enforcement == Enforcement::Enforce => {
            let rules: Vec<_> = l7.rules.iter().map(written).collect();
            format!(": {}", rules.join("; "))
        }
        Some(_) => ": every request".to_owned(),
        None if endpoint.tls() == TlsMode::Skip || endpoint.is_tcp() => ", without being looked into".to_owned(),
        None => String::new(),
    }
}

fn written(rule: &HttpRule) -> String {
    let query: Vec<_> = rule
        .query
        .iter()
        .map(|(key, matcher)| {
            let globs: Vec<_> = matcher.globs().iter().map(|glob| glob.as_str().to_owned()).collect();
            format!("{key}={}", globs.join("|"))
        })
        .collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let method = if rule.method.as_str() == "*" { "every method" } else { rule.method.as_str() };
    format!("{method} {}{query}", rule.path.as_str())
}
