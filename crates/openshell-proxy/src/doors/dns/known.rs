//! The names and addresses that a policy knows, with their ports, for any program.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use openshell_policy::address::AddressRange;
use openshell_policy::approvals::HOST as POLICY_HOST;
use openshell_policy::inference::HOST as MODELS_HOST;
use openshell_policy::network::endpoint::Endpoint;
use openshell_policy::network::host::{Host, HostMatcher, HostName, HostPattern};
use openshell_policy::policy::Policy;

/// The ports of one name.
pub(super) type Ports = BTreeSet<u16>;

/// An index of the endpoints of one policy.
#[derive(Debug, Default)]
pub(super) struct Known {
    exact: HashMap<HostName, Ports>,
    patterns: Vec<(HostMatcher, Ports)>,
    literals: BTreeSet<SocketAddrV4>,
    /// Addresses that endpoints without a host permit.
    ranges: Vec<AddressRange>,
    /// Names that an endpoint with `protocol: tcp` writes out; their bytes are never inspected.
    tcp: BTreeSet<HostName>,
}

impl Known {
    pub(super) fn new(policy: &Policy) -> Self {
        let mut known = Self::default();
        if let Ok(models) = HostName::parse(MODELS_HOST) {
            known.exact.insert(models, Ports::from([443]));
        }
        if let Ok(own) = HostName::parse(POLICY_HOST) {
            known.exact.insert(own, Ports::from([80]));
        }
        for endpoint in policy
            .network()
            .values()
            .flat_map(|policy| &policy.endpoints)
        {
            match endpoint.host() {
                Some(pattern) => known.add(pattern, endpoint),
                None => known.ranges.extend_from_slice(endpoint.allowed_ips()),
            }
        }
        known
    }

    fn add(&mut self, pattern: &HostPattern, endpoint: &Endpoint) {
        let ports = || endpoint.ports().iter().map(|port| port.get());
        match pattern.host() {
            Some(Host::Name(name)) => {
                if endpoint.is_tcp() {
                    self.tcp.insert(name.clone());
                }
                self.exact.entry(name).or_default().extend(ports());
            }
            Some(Host::Address(IpAddr::V4(address))) if is_door(address) => {
                self.literals
                    .extend(ports().map(|port| SocketAddrV4::new(address, port)));
            }
            Some(Host::Address(_)) => {}
            None => self.patterns.push((pattern.matcher(), ports().collect())),
        }
    }

    /// Returns the ports of `name`; empty if the policy does not know it.
    pub(super) fn ports(&self, name: &HostName) -> Ports {
        let exact = self.exact.get(name).into_iter();
        let host = Host::Name(name.clone());
        let matching = self
            .patterns
            .iter()
            .filter(|(pattern, _)| pattern.is_match(&host))
            .map(|(_, ports)| ports);
        exact.chain(matching).flatten().copied().collect()
    }

    /// Returns true if the policy writes out `name`, that is, not only by a pattern.
    pub(super) fn is_exact(&self, name: &HostName) -> bool {
        self.exact.contains_key(name)
    }

    /// Returns true if an endpoint with `protocol: tcp` writes out `name`.
    pub(super) fn is_tcp(&self, name: &HostName) -> bool {
        self.tcp.contains(name)
    }

    /// Iterates over the names that endpoints with `protocol: tcp` write out.
    pub(super) fn tcp_names(&self) -> impl Iterator<Item = &HostName> {
        self.tcp.iter()
    }

    /// Returns true if the policy names `address` as a host, or permits it by a range without a
    /// host.
    pub(super) fn is_listed(&self, address: Ipv4Addr) -> bool {
        let is_literal = self
            .literals
            .range(SocketAddrV4::new(address, 0)..)
            .next()
            .is_some_and(|door| *door.ip() == address);
        is_literal
            || self
                .ranges
                .iter()
                .any(|range| range.contains(address.into()))
    }

    /// Returns the addresses that the policy names as hosts, with their ports.
    pub(super) fn literals(&self) -> &BTreeSet<SocketAddrV4> {
        &self.literals
    }
}

/// Returns false for addresses that lead nowhere outside of the sandbox: those of its own network,
/// and those that are never reachable.
pub(super) fn is_door(address: Ipv4Addr) -> bool {
    // This includes the default range for names, 198.18.0.0/15.
    let is_own = matches!(
        address.octets(),
        [10, 200, 0, _] | [198, 18 | 19, ..] | [0, ..]
    );
    !(is_own || address.is_loopback() || address.is_multicast() || address.is_broadcast())
}

#[cfg(test)]
mod tests {
    use openshell_policy::network::host::HostName;

    use super::{Known, Ports};

    fn known(endpoints: &str) -> Known {
        let policy = format!(
            "network_policies: {{web: {{endpoints: [{endpoints}], binaries: [{{path: /x}}]}}}}"
        );
        Known::new(&openshell_policy::yaml::policy(&policy).unwrap().0)
    }

    #[track_caller]
    fn check(endpoints: &str, name: &str, ports: &[u16]) {
        assert_eq!(
            known(endpoints).ports(&HostName::parse(name).unwrap()),
            Ports::from_iter(ports.iter().copied())
        );
    }

    #[test]
    fn ports_are_those_of_all_endpoints_that_permit_a_name() {
        let endpoints = "{host: db.test, port: 5432, protocol: tcp}, {host: db.test, ports: [80, \
                         443]}, {host: '*.apps.test', port: 22}, {host: '**.deep.test', port: 23}, \
                         {host: '*.a{b,c}.x.test', port: 9}";
        check(endpoints, "db.test", &[80, 443, 5432]);
        check(endpoints, "one.apps.test", &[22]);
        check(endpoints, "two.one.apps.test", &[]);
        check(endpoints, "two.one.deep.test", &[23]);
        check(endpoints, "deep.test", &[]);
        check(endpoints, "other.test", &[]);
        check(endpoints, "one.ac.x.test", &[9]);
        check(endpoints, "two.one.ac.x.test", &[]);
        check(endpoints, "inference.local", &[443]);
    }

    #[test]
    fn addresses_are_doors_unless_they_lead_nowhere() {
        let known = known(
            "{host: 198.51.100.7, ports: [80, 443]}, {host: 127.0.0.1, port: 80}, {host: \
             198.19.0.9, port: 80}, {host: 10.200.0.9, port: 80}, {host: '2001:db8::1', port: 80}, \
             {allowed_ips: [203.0.113.0/24], port: 80}",
        );
        let literals: Vec<_> = known.literals().iter().map(ToString::to_string).collect();
        assert_eq!(literals, ["198.51.100.7:80", "198.51.100.7:443"]);
    }
}
