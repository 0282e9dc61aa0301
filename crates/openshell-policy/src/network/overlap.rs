//! Several endpoints of one host and port, of which some count only for a path.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;

use crate::network::endpoint::{Endpoint, Protocol};
use crate::network::host::HostPattern;
use crate::network::{NetworkPolicies, PolicyName};
use crate::violation::FieldPath;

/// Returns the key in which `endpoints` of one host and port differ, although no path is known yet
/// where it is read; `None` if they agree, or if none has a path.
#[must_use]
pub fn disagreement<'p>(
    endpoints: impl IntoIterator<Item = &'p Endpoint> + Clone,
) -> Option<&'static str> {
    let mut all = endpoints.clone().into_iter();
    let first = all.next()?;
    if !endpoints
        .into_iter()
        .any(|endpoint| endpoint.path().is_some())
    {
        return None;
    }
    all.find_map(|other| differs(first, other))
}

/// Returns the key in which `one` and `other` differ.
fn differs(one: &Endpoint, other: &Endpoint) -> Option<&'static str> {
    if one.tls() != other.tls() {
        Some("`tls`")
    } else if one.is_tcp() != other.is_tcp() {
        Some("`protocol: tcp`")
    } else if !is_same_set(one.allowed_ips(), other.allowed_ips()) {
        Some("`allowed_ips`")
    } else if !is_same_set(one.resolve(), other.resolve()) {
        Some("`resolve`")
    } else {
        None
    }
}

fn is_same_set<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    one.iter().all(|item| other.contains(item)) && other.iter().all(|item| one.contains(item))
}

/// An endpoint and its place in a policy.
#[derive(Clone, Copy, Debug)]
pub struct EndpointAt<'p> {
    /// The key of its policy.
    pub policy: &'p PolicyName,
    /// Its index there.
    pub index: usize,
    /// The endpoint.
    pub endpoint: &'p Endpoint,
}

impl EndpointAt<'_> {
    /// Returns the path in a document.
    #[must_use]
    pub fn path(&self) -> FieldPath {
        let policy = FieldPath::root()
            .key("network_policies")
            .key(self.policy.as_str());
        policy.key("endpoints").index(self.index)
    }
}

impl fmt::Display for EndpointAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().fmt(f)
    }
}

/// Returns the endpoints of each host text and port where there are several and one has a path.
#[must_use]
pub fn overlaps(network: &NetworkPolicies) -> Vec<Vec<EndpointAt<'_>>> {
    groups(network)
        .into_values()
        .filter(|group| has_path(group))
        .collect()
}

/// Returns true if there are several endpoints, and one has a path.
fn has_path(group: &[EndpointAt<'_>]) -> bool {
    group.len() > 1 && group.iter().any(|at| at.endpoint.path().is_some())
}

/// Returns true if the endpoints judge the same requests in different protocols.
fn judge_alike(one: &Endpoint, other: &Endpoint) -> bool {
    let judged = |endpoint: &Endpoint| {
        let l7 = endpoint.l7().filter(|l7| l7.protocol != Protocol::Sql);
        l7.map(|l7| l7.protocol)
    };
    match (judged(one), judged(other)) {
        (Some(of_one), Some(of_other)) => of_one != of_other && one.path() == other.path(),
        _ => false,
    }
}

/// Returns the endpoints of each host text and port.
fn groups(
    network: &NetworkPolicies,
) -> BTreeMap<(Option<&HostPattern>, NonZeroU16), Vec<EndpointAt<'_>>> {
    let mut groups: BTreeMap<(Option<&HostPattern>, NonZeroU16), Vec<EndpointAt<'_>>> =
        BTreeMap::new();
    for (policy, network) in network {
        for (index, endpoint) in network.endpoints.iter().enumerate() {
            let at = EndpointAt {
                policy,
                index,
                endpoint,
            };
            for port in endpoint.ports() {
                groups.entry((endpoint.host(), *port)).or_default().push(at);
            }
        }
    }
    groups
}

/// An endpoint that contradicts another one of the same host text and port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict<'p> {
    pub(crate) at: EndpointAt<'p>,
    pub(crate) other: EndpointAt<'p>,
    pub(crate) cause: Cause,
}

/// Why two endpoints contradict each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// They differ in this key, although no path is known yet where it is read.
    Key(&'static str),
    /// They judge the same requests in different protocols.
    Protocol,
}

/// Returns each endpoint that differs from the first one of the same host text and port where one of
/// them has a path, or that judges the same requests as another one in another protocol.
pub(crate) fn conflicts(network: &NetworkPolicies) -> Vec<Conflict<'_>> {
    let mut found: BTreeMap<FieldPath, Conflict<'_>> = BTreeMap::new();
    for group in groups(network).into_values() {
        let Some((other, rest)) = group.split_first() else {
            continue;
        };
        let has_path = has_path(&group);
        for (index, at) in rest.iter().enumerate() {
            let before = group.iter().take(index + 1);
            let mut of_protocol = before.filter(|other| judge_alike(other.endpoint, at.endpoint));
            let key = differs(other.endpoint, at.endpoint).filter(|_| has_path);
            let conflict = match (key, of_protocol.next()) {
                (Some(key), _) => (other, Cause::Key(key)),
                (None, Some(other)) => (other, Cause::Protocol),
                (None, None) => continue,
            };
            let (other, cause) = conflict;
            let conflict = Conflict {
                at: *at,
                other: *other,
                cause,
            };
            found.entry(at.path()).or_insert(conflict);
        }
    }
    found.into_values().collect()
}
