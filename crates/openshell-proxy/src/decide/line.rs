//! A line of policy that a person adds while a sandbox runs.

use openshell_policy::network::{NetworkPolicy, PolicyName};

/// A network policy with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The key.
    pub name: PolicyName,
    /// The policy.
    pub policy: NetworkPolicy,
}
