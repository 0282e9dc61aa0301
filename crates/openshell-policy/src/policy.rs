//! The validated policy.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::approvals::Approvals;
use crate::filesystem::{Filesystem, MissingPlace, Places};
use crate::network::endpoint::{Endpoint, TlsMode};
use crate::network::overlap::{Conflict, conflicts};
use crate::network::{NetworkPolicies, NetworkPolicy, PolicyName};
use crate::process::{Processes, RunAs};
use crate::violation::{FieldPath, ViolationKind};

/// Limit of endpoints per policy, which bounds the memory and the time of decisions.
pub const MAX_ENDPOINTS: usize = 10_000;

/// A filesystem policy that a run cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum UnresolvedPath {
    #[error(transparent)]
    Missing(#[from] MissingPlace),
    #[error("filesystem_policy: {hidden} is hidden, and {granted} is granted; list only one of them", hidden = hidden.display(), granted = granted.display())]
    HiddenGrant { hidden: PathBuf, granted: PathBuf },
}

/// What a policy was made of, and so what a person changes to permit more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyForm {
    /// A document: a file, with or without flags beside it, or the policy of a gateway.
    Document,
    /// Flags of a command line alone.
    Flags,
}

/// Why network policies cannot stand beside those of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum Unfit {
    #[error("there is a network policy {}", .0.as_str())]
    Taken(PolicyName),
    #[error("it contradicts {0}")]
    Contradicts(String),
    #[error("{0}")]
    Invalid(String),
}

/// Policy of one sandbox. A value of this type is always valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    filesystem: Filesystem,
    processes: Processes,
    network: NetworkPolicies,
    form: PolicyForm,
    approvals: Option<Approvals>,
}

impl Policy {
    /// Builds a policy from valid parts.
    ///
    /// # Errors
    /// Fails with every contradiction between the parts, each with its path in the document.
    pub fn new(
        filesystem: Filesystem,
        processes: Processes,
        network: NetworkPolicies,
    ) -> Result<Self, Vec<(FieldPath, ViolationKind)>> {
        let mut violations = Vec::new();
        let count = network.values().map(|policy| policy.endpoints.len()).sum();
        let path = FieldPath::root().key("network_policies");
        if count > MAX_ENDPOINTS {
            violations.push((
                path.clone(),
                ViolationKind::TooManyEndpoints {
                    count,
                    limit: MAX_ENDPOINTS,
                },
            ));
        }
        violations.extend(
            skipped_but_inspected(&network)
                .into_iter()
                .map(|(name, index)| {
                    (
                        path.key(name.as_str()).key("endpoints").index(index),
                        ViolationKind::TlsSkipWithL7,
                    )
                }),
        );
        if !violations.is_empty() {
            return Err(violations);
        }
        Ok(Self {
            filesystem,
            processes,
            network,
            form: PolicyForm::Document,
            approvals: None,
        })
    }

    /// Returns the same policy with the network policies `added`, which have passed a reader.
    ///
    /// # Errors
    /// Fails if a key is taken, if there would be too many endpoints, or if endpoints would contradict
    /// each other.
    pub fn with_network_policies<'a>(
        &self,
        added: impl IntoIterator<Item = (&'a PolicyName, &'a NetworkPolicy)>,
    ) -> Result<Self, Unfit> {
        let mut network = self.network.clone();
        let mut names = BTreeSet::new();
        for (name, policy) in added {
            if network.insert(name.clone(), policy.clone()).is_some() {
                return Err(Unfit::Taken(name.clone()));
            }
            names.insert(name);
        }
        // A gateway's policy may hold conflicts of its own.
        for Conflict { at, other, .. } in conflicts(&network) {
            if names.contains(at.policy) {
                return Err(Unfit::Contradicts(other.to_string()));
            }
            if names.contains(other.policy) {
                return Err(Unfit::Contradicts(at.to_string()));
            }
        }
        let policy = Self::new(self.filesystem.clone(), self.processes.clone(), network);
        let policy = policy.map_err(|violations| {
            let violations: Vec<_> = violations
                .iter()
                .map(|(_, kind)| kind.to_string())
                .collect();
            Unfit::Invalid(violations.join("; "))
        })?;
        Ok(policy.in_form(self.form).asking(self.approvals))
    }

    /// Returns the same policy in another form.
    #[must_use]
    pub fn in_form(self, form: PolicyForm) -> Self {
        Self { form, ..self }
    }

    /// Returns the same policy with another way to ask a person about what it refuses.
    #[must_use]
    pub fn asking(self, approvals: Option<Approvals>) -> Self {
        Self { approvals, ..self }
    }

    /// Returns how a person is asked about what it refuses, if it says so.
    #[must_use]
    pub fn approvals(&self) -> Option<Approvals> {
        self.approvals
    }

    /// Returns what the policy was made of.
    #[must_use]
    pub fn form(&self) -> PolicyForm {
        self.form
    }

    /// Returns a policy with its own network policies, and with the parts of `other` that take
    /// effect only at a start.
    #[must_use]
    pub fn with_static_parts(self, other: &Self) -> Self {
        Self {
            filesystem: other.filesystem.clone(),
            processes: other.processes.clone(),
            ..self
        }
    }

    /// Returns the same policy with absolute paths in its filesystem policy.
    ///
    /// # Errors
    /// Fails if a path begins with a place that the run does not have, or if a grant lies in a
    /// hidden folder.
    pub fn resolved(self, places: &Places) -> Result<Self, UnresolvedPath> {
        let filesystem = self.filesystem.resolved(places)?;
        if let Some((hidden, granted)) = filesystem.hidden_grant() {
            return Err(UnresolvedPath::HiddenGrant {
                hidden: hidden.to_owned(),
                granted: granted.to_owned(),
            });
        }
        Ok(Self { filesystem, ..self })
    }

    /// Returns a policy that grants only the baseline, and no network.
    #[must_use]
    pub fn restrictive() -> Self {
        Self {
            filesystem: Filesystem::default(),
            processes: Processes::default(),
            network: NetworkPolicies::new(),
            form: PolicyForm::Document,
            approvals: None,
        }
    }

    /// Returns the static parts of this policy, with no network policy.
    #[must_use]
    pub fn without_network(self) -> Self {
        Self {
            network: NetworkPolicies::new(),
            ..self
        }
    }

    /// Returns the file access of the workload.
    #[must_use]
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Returns the user and group of the workload.
    #[must_use]
    pub fn run_as(&self) -> &RunAs {
        &self.processes.run_as
    }

    /// Returns true if processes of the workload may trace each other.
    #[must_use]
    pub fn permits_debugging(&self) -> bool {
        self.processes.debug
    }

    /// Returns the network policies, which the proxy enforces.
    #[must_use]
    pub fn network(&self) -> &NetworkPolicies {
        &self.network
    }
}

/// Returns the `tls: skip` endpoints that share a host text and a port with an endpoint that has
/// rules for requests.
fn skipped_but_inspected(network: &NetworkPolicies) -> Vec<(&PolicyName, usize)> {
    let key = |endpoint: &Endpoint| endpoint.host().map(ToString::to_string);
    let all = || {
        network
            .iter()
            .flat_map(|(name, policy)| policy.endpoints.iter().enumerate().map(move |e| (name, e)))
    };
    // With a path they differ in `tls`, which is reported as such.
    let is_judged = |endpoint: &Endpoint| endpoint.l7().is_some() && endpoint.path().is_none();
    let mut judged = BTreeMap::new();
    for (_, (_, endpoint)) in all().filter(|(_, (_, endpoint))| is_judged(endpoint)) {
        judged.extend(
            endpoint
                .ports()
                .iter()
                .map(|port| ((key(endpoint), *port), ())),
        );
    }
    all()
        .filter(|(_, (_, endpoint))| endpoint.tls() == TlsMode::Skip)
        .filter(|(_, (_, endpoint))| {
            endpoint
                .ports()
                .iter()
                .any(|port| judged.contains_key(&(key(endpoint), *port)))
        })
        .map(|(name, (index, _))| (name, index))
        .collect()
}
