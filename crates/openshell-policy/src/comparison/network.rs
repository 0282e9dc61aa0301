//! Comparison of network rules: which program may reach which host and port, and with which
//! requests.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::LazyLock;

use crate::comparison::cover;
use crate::comparison::messages::Messages;
use crate::network::binary::Binary;
use crate::network::endpoint::{Endpoint, Enforcement, L7, Protocol, TlsMode, UpgradeProtocol};
use crate::network::overlap::disagreement;
use crate::network::preset::Access;
use crate::network::rule::{DenyRule, Glob, HttpRule, Specificity};
use crate::network::{NetworkPolicies, NetworkPolicy, PolicyName};

/// An endpoint together with one of the programs that may use it.
#[derive(Clone, Copy)]
struct Grant<'p> {
    binary: &'p Binary,
    endpoint: &'p Endpoint,
}

/// The grants of a policy, by port.
struct Grants<'p>(BTreeMap<NonZeroU16, Vec<Grant<'p>>>);

/// A rule of an endpoint, which counts for the requests of the endpoint's path.
#[derive(Clone, Copy)]
struct AtPath<'p, R> {
    path: Option<&'p Glob>,
    rule: &'p R,
}

/// What a policy permits one program at one endpoint and port.
struct Effect<'p> {
    /// Rules for requests; `None` if every request passes.
    rules: Option<Vec<AtPath<'p, HttpRule>>>,
    deny: Vec<AtPath<'p, DenyRule>>,
    /// Rules for messages.
    messages: Vec<Messages<'p>>,
    /// The paths of the endpoints. The rules of one hold before those of a less specific one.
    paths: Vec<&'p Glob>,
    /// True if bytes that are not HTTP pass.
    takes_bytes: bool,
    /// True if the proxy does not look into the connection at all.
    is_opaque: bool,
    allows_leaks: bool,
    takes_encoded_slash: bool,
    /// Protocols to which requests may switch, each with the path for which it counts.
    upgrades: BTreeSet<(Option<&'p str>, &'p UpgradeProtocol)>,
}

/// Returns what `one` permits and `other` does not, in words.
pub(super) fn permissions(one: &NetworkPolicies, other: &NetworkPolicies) -> Vec<String> {
    let one = Grants::of(one.values());
    let other = Grants::of(other.values());
    other.lacking(&one, |_| true, &one)
}

/// Returns what the policy `name` of `after` permits that `before` does not, and what `before`
/// permits of the same programs and hosts that `after` does not, both in words.
pub(super) fn added(
    before: &NetworkPolicies,
    after: &NetworkPolicies,
    name: &PolicyName,
) -> (Vec<String>, Vec<String>) {
    let line = Grants::of(after.get(name));
    let before = Grants::of(before.values());
    let after = Grants::of(after.values());
    let more = before.lacking(&line, |_| true, &after);
    let less = if only_adds(&line, &before) {
        Vec::new()
    } else {
        lost(&line, &before, &after)
    };
    (more, less)
}

/// Returns what `before` permits of the programs and hosts of `line` and `after` does not, in words.
fn lost(line: &Grants<'_>, before: &Grants<'_>, after: &Grants<'_>) -> Vec<String> {
    after.lacking(before, |grant| line.is_near(grant), before)
}

/// Returns true if `line` takes nothing away from `before`, because all that is there of the same
/// programs and hosts are rules that add up. This spares a comparison of each with each.
fn only_adds(line: &Grants<'_>, before: &Grants<'_>) -> bool {
    let mut new = line.0.values().flatten();
    let mut known = before.0.values().flatten();
    new.all(|grant| adds_up(grant.endpoint))
        && known.all(|grant| !line.is_near(grant) || adds_up(grant.endpoint))
}

/// Returns true for an endpoint whose rules for requests are enforced, and that has nothing else that
/// another endpoint could change.
fn adds_up(endpoint: &Endpoint) -> bool {
    let is_enforced = endpoint.l7().is_some_and(|l7| {
        l7.rpc.is_none() && l7.enforcement == Enforcement::Enforce && l7.deny_rules.is_empty()
    });
    is_enforced
        && judged(&[endpoint]).len() == 1
        && endpoint.path().is_none()
        && endpoint.tls() != TlsMode::Skip
        && !endpoint.allows_leaks()
        && !endpoint.allow_encoded_slash()
        && endpoint.upgrades().is_empty()
        && endpoint.unsupported().is_none()
}

impl<'p> Grants<'p> {
    fn of(policies: impl IntoIterator<Item = &'p NetworkPolicy>) -> Self {
        let mut grants: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for policy in policies {
            for endpoint in &policy.endpoints {
                for (port, binary) in endpoint
                    .ports()
                    .iter()
                    .flat_map(|port| policy.binaries.iter().map(move |binary| (port, binary)))
                {
                    grants
                        .entry(*port)
                        .or_default()
                        .push(Grant { binary, endpoint });
                }
            }
        }
        Self(grants)
    }

    /// Returns true if it has a grant for some of the programs and hosts of `grant`.
    fn is_near(&self, grant: &Grant<'_>) -> bool {
        self.0.values().flatten().any(|new| {
            cover::binaries_overlap(new.binary, grant.binary)
                && cover::hosts_overlap(new.endpoint, grant.endpoint)
        })
    }

    /// Returns what those of `grants` for which `is_meant` returns true permit and this policy does
    /// not, in words. All are grants of the policy `its`.
    fn lacking(
        &self,
        grants: &Grants<'_>,
        is_meant: impl Fn(&Grant<'_>) -> bool,
        its: &Grants<'_>,
    ) -> Vec<String> {
        // Each new permission with the programs that have it, in the order in which the policy names
        // them.
        let mut found: Vec<(String, Vec<String>)> = Vec::new();
        for (port, grants) in &grants.0 {
            for grant in grants.iter().filter(|grant| is_meant(grant)) {
                let program = grant.binary.to_string();
                for what in self.lacks(*port, grant, its) {
                    match found.iter_mut().find(|(known, _)| *known == what) {
                        Some((_, programs)) if programs.contains(&program) => {}
                        Some((_, programs)) => programs.push(program.clone()),
                        None => found.push((what, vec![program.clone()])),
                    }
                }
            }
        }
        found
            .into_iter()
            .map(|(what, programs)| format!("{} may {what}", programs.join(", ")))
            .collect()
    }

    /// Returns what `grant`, a grant of the policy `its`, permits at `port` and this policy does
    /// not.
    fn lacks(&self, port: NonZeroU16, grant: &Grant<'_>, its: &Grants<'_>) -> Vec<String> {
        let place = place(grant.endpoint, port);
        let Some(new) = its.effect(port, grant, None) else {
            return Vec::new();
        };
        let leaks =
            |is_new: bool| is_new.then(|| format!("send secrets to {place} (leaks: allow)"));
        let Some(known) = self.effect(port, grant, Some(its)) else {
            let reach = format!("reach {place}{}", described(grant.endpoint));
            return [Some(reach), leaks(new.allows_leaks)]
                .into_iter()
                .flatten()
                .collect();
        };
        let mut words = Vec::new();
        if new.is_opaque && !known.is_opaque {
            words.push(format!("reach {place} without inspection"));
        } else if new.takes_bytes && !known.takes_bytes {
            words.push(format!("reach {place} without rules for requests"));
        }
        // The words so far say that the connection is open, which includes everything that follows.
        let is_open = !words.is_empty();
        let requests: Vec<_> = match (&new.rules, &known.rules) {
            (_, None) => Vec::new(),
            (None, Some(_)) if is_open => Vec::new(),
            (None, Some(_)) => vec!["every request".to_owned()],
            (Some(rules), Some(_)) => rules
                .iter()
                .filter(|rule| !known.permits(rule, &new.paths))
                .map(written)
                .collect(),
        };
        let kept = |deny: &AtPath<'_, DenyRule>| {
            let keeps = |kept: &AtPath<'_, DenyRule>| {
                cover::is_for(kept.path, deny.path) && cover::deny(kept.rule, deny.rule)
            };
            new.deny.iter().any(keeps)
        };
        let freed = known.deny.iter().filter(|deny| !is_open && !kept(deny));
        let freed = freed.map(|deny| {
            let rule = AtPath {
                path: deny.path,
                rule: &deny.rule.rule,
            };
            format!("{}, which was denied", written(&rule))
        });
        let messages = Messages::of(grant.endpoint)
            .filter(|_| !is_open && known.rules.is_some())
            .map(|new| new.beyond(&known.messages));
        let requests = requests.into_iter().chain(freed);
        let requests: Vec<_> = requests.chain(messages.into_iter().flatten()).collect();
        if !requests.is_empty() {
            words.push(format!("send to {place}: {}", requests.join("; ")));
        }
        if new.takes_encoded_slash && !known.takes_encoded_slash && !is_open {
            words.push(format!(
                "send to {place}: paths with %2F (allow_encoded_slash)"
            ));
        }
        let upgrades: Vec<_> = new
            .upgrades
            .iter()
            .filter(|(path, upgrade)| {
                !known.upgrades.contains(&(*path, *upgrade))
                    && !known.upgrades.contains(&(None, *upgrade))
            })
            .map(|(_, upgrade)| upgrade.as_str())
            .collect();
        if !upgrades.is_empty() && !is_open {
            words.push(format!(
                "switch to {} at {place} (upgrades)",
                upgrades.join(", ")
            ));
        }
        words.extend(leaks(new.allows_leaks && !known.allows_leaks));
        words
    }

    /// Returns what this policy permits for the program, host and port of `grant`; `None` if it
    /// does not cover them. With `after`, an entry that covers only some of those programs or
    /// hosts, and that `after` does not have, narrows the result, because it refuses requests of
    /// theirs.
    fn effect(
        &self,
        port: NonZeroU16,
        grant: &Grant<'_>,
        after: Option<&Grants<'_>>,
    ) -> Option<Effect<'p>> {
        let at_port = self.0.get(&port)?;
        let covers = |known: &&Grant<'p>| {
            cover::binary(known.binary, grant.binary) && cover::host(known.endpoint, grant.endpoint)
        };
        let covering: Vec<_> = at_port
            .iter()
            .filter(covers)
            .map(|known| known.endpoint)
            .collect();
        if covering.is_empty() {
            return None;
        }
        let has = |grants: &Grants<'_>, known: &Grant<'p>| {
            let same = |other: &Grant<'_>| {
                other.binary == known.binary && other.endpoint == known.endpoint
            };
            grants
                .0
                .get(&port)
                .is_some_and(|grants| grants.iter().any(same))
        };
        let restricts = |known: &&Grant<'p>| {
            after.is_some_and(|after| {
                cover::binaries_overlap(known.binary, grant.binary)
                    && cover::hosts_overlap(known.endpoint, grant.endpoint)
                    && !has(after, known)
            })
        };
        let others = at_port
            .iter()
            .filter(|known| !covers(known))
            .filter(restricts)
            .map(|known| known.endpoint);
        let all: Vec<_> = covering.iter().copied().chain(others).collect();
        let l7 = judged(&covering);
        let all_l7 = judged(&all);
        let takes_slash =
            |endpoint: &&Endpoint| endpoint.allow_encoded_slash() || endpoint.l7().is_none();
        if is_refused(&covering, &l7) || is_refused(&all, &all_l7) {
            return None;
        }
        Some(Effect {
            rules: rules(&covering, &all),
            deny: rules_at(&all, |l7| &l7.deny_rules),
            messages: covering
                .iter()
                .filter_map(|endpoint| Messages::of(endpoint))
                .collect(),
            paths: all.iter().filter_map(|endpoint| endpoint.path()).collect(),
            takes_bytes: all_l7.is_empty(),
            is_opaque: covering.iter().any(is_opaque),
            allows_leaks: all.iter().all(|endpoint| endpoint.allows_leaks()),
            takes_encoded_slash: all.iter().all(takes_slash),
            upgrades: upgrades(&all),
        })
    }
}

impl Effect<'_> {
    /// Returns true if every request that `rule` permits in a policy with endpoints at `paths` is
    /// permitted here too.
    fn permits(&self, rule: &AtPath<'_, HttpRule>, paths: &[&Glob]) -> bool {
        let specificity = |path: Option<&Glob>| path.map_or(Specificity::Any, Glob::specificity);
        let permits = |known: &&AtPath<'_, HttpRule>| {
            // Rules of a more specific endpoint hold before it, unless it was there and the rule is
            // not its own.
            let is_before = |path: &&&Glob| {
                specificity(Some(path)) > specificity(known.path)
                    && !(paths.contains(path) && specificity(Some(path)) > specificity(rule.path))
            };
            cover::is_for(known.path, rule.path)
                && cover::rule(known.rule, rule.rule)
                && !self.paths.iter().any(|path| is_before(&path))
        };
        self.rules.iter().flatten().any(|known| permits(&known))
    }
}

/// Returns the rules for requests of the endpoints `covering`, which are some of `all`; `None` if
/// every request passes.
fn rules<'p>(covering: &[&'p Endpoint], all: &[&'p Endpoint]) -> Option<Vec<AtPath<'p, HttpRule>>> {
    /// The rule for what is only audited.
    static EVERYTHING: LazyLock<Vec<HttpRule>> = LazyLock::new(|| Access::Full.rules());
    let judging = all
        .iter()
        .filter(|endpoint| !judged(&[endpoint]).is_empty());
    let enforcing: Vec<_> = judging
        .filter(|endpoint| {
            let l7 = endpoint.l7();
            l7.is_some_and(|l7| l7.enforcement == Enforcement::Enforce)
        })
        .collect();
    let has_paths = all.iter().any(|endpoint| endpoint.path().is_some());
    if enforcing.is_empty() && !has_paths {
        return None;
    }
    let mut rules = rules_at(covering, |l7| &l7.rules);
    for endpoint in covering {
        let path = endpoint.path();
        let is_enforced = enforcing
            .iter()
            .any(|other| cover::is_for(other.path(), path));
        let is_of_requests = endpoint.l7().is_some_and(|l7| l7.rpc.is_none());
        if !judged(&[endpoint]).is_empty() && is_of_requests && !is_enforced {
            rules.extend(EVERYTHING.iter().map(|rule| AtPath { path, rule }));
        }
    }
    Some(rules)
}

/// Returns the rules that `of` takes from those of `endpoints` whose requests are judged.
fn rules_at<'p, R>(
    endpoints: &[&'p Endpoint],
    of: impl Fn(&'p L7) -> &'p [R],
) -> Vec<AtPath<'p, R>> {
    let mut rules = Vec::new();
    for endpoint in endpoints {
        let path = endpoint.path();
        for l7 in judged(&[endpoint]) {
            rules.extend(of(l7).iter().map(|rule| AtPath { path, rule }));
        }
    }
    rules
}

/// Returns the rules of those of `endpoints` whose requests are judged. Other protocols are relayed
/// as bytes.
fn judged<'p>(endpoints: &[&'p Endpoint]) -> Vec<&'p L7> {
    let l7 = endpoints.iter().filter_map(|endpoint| endpoint.l7());
    l7.filter(|l7| l7.protocol == Protocol::Rest || l7.rpc.is_some())
        .collect()
}

fn is_opaque(endpoint: &&Endpoint) -> bool {
    endpoint.tls() == TlsMode::Skip || endpoint.is_tcp()
}

/// Returns true if every connection is refused: the proxy cannot both skip TLS and judge requests,
/// or an endpoint needs a feature that this build lacks.
fn is_refused(endpoints: &[&Endpoint], l7: &[&L7]) -> bool {
    let lacks = |endpoint: &&Endpoint| endpoint.unsupported().is_some();
    endpoints.iter().any(is_opaque) && !l7.is_empty()
        || endpoints.iter().any(lacks)
        || disagreement(endpoints.iter().copied()).is_some()
}

/// Returns the protocols to which requests may switch: those that every endpoint with rules
/// permits; where they have paths, those of each for its own.
fn upgrades<'p>(endpoints: &[&'p Endpoint]) -> BTreeSet<(Option<&'p str>, &'p UpgradeProtocol)> {
    let judging: Vec<_> = endpoints
        .iter()
        .filter(|endpoint| endpoint.l7().is_some())
        .collect();
    let has_paths = judging.iter().any(|endpoint| endpoint.path().is_some());
    let mut permitted = BTreeSet::new();
    for endpoint in &judging {
        for upgrade in endpoint.upgrades() {
            if has_paths {
                permitted.insert((endpoint.path().map(Glob::as_str), upgrade));
            } else if judging
                .iter()
                .all(|other| other.upgrades().contains(upgrade))
            {
                permitted.insert((None, upgrade));
            }
        }
    }
    permitted
}

fn place(endpoint: &Endpoint, port: NonZeroU16) -> String {
    let ranges: Vec<_> = endpoint
        .allowed_ips()
        .iter()
        .map(ToString::to_string)
        .collect();
    match (endpoint.host(), ranges.is_empty()) {
        (Some(host), true) => format!("{host}:{port}"),
        (Some(host), false) => format!("{host}:{port} at {}", ranges.join(", ")),
        (None, _) => format!("any host at {}, port {port}", ranges.join(", ")),
    }
}

/// Describes the requests that a new endpoint permits.
fn described(endpoint: &Endpoint) -> String {
    if let Some(messages) = Messages::of(endpoint) {
        return format!(": {}", messages.described().join("; "));
    }
    match endpoint.l7() {
        Some(l7) if l7.protocol == Protocol::Rest && l7.enforcement == Enforcement::Enforce => {
            let path = endpoint.path();
            let rules = l7.rules.iter().map(|rule| AtPath { path, rule });
            let rules: Vec<_> = rules.map(|rule| written(&rule)).collect();
            format!(": {}", rules.join("; "))
        }
        Some(l7) if l7.protocol == Protocol::Rest => ": every request".to_owned(),
        _ if endpoint.tls() == TlsMode::Skip || endpoint.is_tcp() => {
            ", without inspection".to_owned()
        }
        _ => String::new(),
    }
}

fn written(AtPath { path, rule }: &AtPath<'_, HttpRule>) -> String {
    let query: Vec<_> = rule
        .query
        .iter()
        .map(|(key, matcher)| {
            let globs: Vec<_> = matcher
                .globs()
                .iter()
                .map(|glob| glob.as_str().to_owned())
                .collect();
            format!("{key}={}", globs.join("|"))
        })
        .collect();
    let query = if query.is_empty() {
        String::new()
    } else {
        format!("?{}", query.join("&"))
    };
    let method = if rule.method.as_str() == "*" {
        "every method"
    } else {
        rule.method.as_str()
    };
    let place = path.map_or_else(String::new, |path| format!(" (path: {})", path.as_str()));
    format!("{method} {}{query}{place}", rule.path.as_str())
}

#[cfg(test)]
mod tests {
    use super::{Grants, lost, only_adds};
    use crate::yaml;

    /// Endpoints of many kinds, some of which change what others permit.
    const ENDPOINTS: [&str; 12] = [
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /a}}]",
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: POST, path: '/a/**'}}]",
        "protocol: rest, enforcement: enforce, access: read-only",
        "protocol: rest, enforcement: audit, access: read-only",
        "protocol: rest, enforcement: enforce, access: full, deny_rules: [{method: GET, path: /a}]",
        "protocol: rest, enforcement: enforce, path: '/a/**', access: read-only",
        "protocol: rest, enforcement: enforce, access: read-only, allow_encoded_slash: true",
        "protocol: rest, enforcement: enforce, access: read-only, leaks: allow",
        "protocol: rest, enforcement: enforce, access: read-only, upgrades: [tcp]",
        "protocol: mcp, enforcement: enforce, rules: [{allow: {method: tools/list}}]",
        "tls: skip",
        "protocol: tcp",
    ];

    #[test]
    fn a_line_of_which_is_said_that_it_only_adds_takes_nothing_away() {
        let policy = |endpoints: &[&str], host: &str| {
            let endpoints: Vec<_> = endpoints
                .iter()
                .map(|words| format!("{{host: {host}, port: 443, {words}}}"))
                .collect();
            let text = format!(
                "network_policies: {{p: {{endpoints: [{}], binaries: [{{path: /bin/a}}]}}}}",
                endpoints.join(", ")
            );
            yaml::policy(&text).map(|(policy, _)| policy)
        };
        let mut adding = 0;
        for new in ENDPOINTS {
            for one in ENDPOINTS {
                for other in ENDPOINTS {
                    let Ok(line) = policy(&[new], "a.lab.test") else {
                        continue;
                    };
                    let Ok(before) = policy(&[one, other], "\"*.lab.test\"") else {
                        continue;
                    };
                    let policies = before.network().values();
                    let all = policies.clone().chain(line.network().values());
                    let after = Grants::of(all);
                    let before = Grants::of(policies);
                    let line = Grants::of(line.network().values());
                    if only_adds(&line, &before) {
                        adding += 1;
                        let lost = lost(&line, &before, &after);
                        assert!(lost.is_empty(), "{new} beside {one} and {other}: {lost:?}");
                    }
                }
            }
        }
        assert_eq!(adding, 27, "three kinds add up");
    }
}
