//! What may be reached, and by whom.

pub mod binary;
pub mod endpoint;
pub mod host;
pub mod rule;

use std::collections::BTreeMap;

use crate::violation::ViolationKind;
use binary::BinaryPattern;
use endpoint::Endpoint;

/// The policies of a document by name; empty means that nothing is reachable.
pub type NetworkPolicies = BTreeMap<PolicyName, NetworkPolicy>;

/// The key of a network policy, its name in logs and refusals: 1 to 128 characters of `[A-Za-z0-9_.-]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyName(String);

impl PolicyName {
    /// Reads a policy's key.
    ///
    /// # Errors
    /// An empty name, more than 128 characters, or others than letters, digits, `_`, `.` and `-`.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if text.is_empty() || text.len() > 128 || !text.bytes().all(allowed) {
            return Err(ViolationKind::PolicyName);
        }
        Ok(Self(text.to_owned()))
    }

    /// The name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Endpoints, and the programs that may reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// For people; never used to decide or to log.
    pub display_name: Option<String>,
    /// What may be reached.
    pub endpoints: Vec<Endpoint>,
    /// By whom; empty means by nobody.
    pub binaries: Vec<BinaryPattern>,
}
