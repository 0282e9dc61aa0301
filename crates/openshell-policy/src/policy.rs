//! The validated whole.

use std::collections::BTreeMap;

use crate::filesystem::Filesystem;
use crate::network::endpoint::{Endpoint, TlsMode};
use crate::network::{NetworkPolicies, PolicyName};
use crate::process::RunAs;
use crate::violation::{FieldPath, ViolationKind};

/// Endpoints in one policy document; what more would cost in memory and decisions no author wants.
pub const MAX_ENDPOINTS: usize = 10_000;

/// What one sandbox may do. Having one means that it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    filesystem: Filesystem,
    run_as: RunAs,
    network: NetworkPolicies,
}

impl Policy {
    /// Puts valid parts together.
    ///
    /// # Errors
    /// What is wrong between the parts, each with its place.
    pub fn new(
        filesystem: Filesystem,
        run_as: RunAs,
        network: NetworkPolicies,
    ) -> Result<Self, Vec<(FieldPath, ViolationKind)>> {
        let mut violations = Vec::new();
        let count = network.values().map(|policy| policy.endpoints.len()).sum();
        let path = FieldPath::root().key("network_policies");
        if count > MAX_ENDPOINTS {
            violations.push((path.clone(), ViolationKind::TooManyEndpoints { count, limit: MAX_ENDPOINTS }));
        }
        violations.extend(skipped_but_judged(&network).into_iter().map(|(name, index)| {
            (path.key(name.as_str()).key("endpoints").index(index), ViolationKind::TlsSkipWithL7)
        }));
        if !violations.is_empty() {
            return Err(violations);
        }
        Ok(Self { filesystem, run_as, network })
    }

    /// The same network policies, with the parts of `other` that take effect at a start alone.
    #[must_use]
    pub fn with_static_parts(self, other: &Self) -> Self {
        Self { filesystem: other.filesystem.clone(), run_as: other.run_as.clone(), network: self.network }
    }

    /// What the workload may do with files.
    #[must_use]
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Who it runs as.
    #[must_use]
    pub fn run_as(&self) -> &RunAs {
        &self.run_as
    }

    /// What it may reach under the proxy.
    #[must_use]
    pub fn network(&self) -> &NetworkPolicies {
        &self.network
    }
}

/// The `tls: skip` endpoints with the host text and a port of an endpoint that is judged inside.
fn skipped_but_judged(network: &NetworkPolicies) -> Vec<(&PolicyName, usize)> {
    let key = |endpoint: &Endpoint| endpoint.host().map(ToString::to_string);
    let all = || network.iter().flat_map(|(name, policy)| policy.endpoints.iter().enumerate().map(move |e| (name, e)));
    let mut judged = BTreeMap::new();
    for (_, (_, endpoint)) in all().filter(|(_, (_, endpoint))| endpoint.l7().is_some()) {
        judged.extend(endpoint.ports().iter().map(|port| ((key(endpoint), *port), ())));
    }
    all()
        .filter(|(_, (_, endpoint))| endpoint.tls() == TlsMode::Skip)
        .filter(|(_, (_, endpoint))| endpoint.ports().iter().any(|port| judged.contains_key(&(key(endpoint), *port))))
        .map(|(name, (index, _))| (name, index))
        .collect()
}
