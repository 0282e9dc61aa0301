//! Network policies: permitted endpoints, and the programs that may reach them.

pub mod binary;
pub mod endpoint;
pub mod host;
pub mod overlap;
pub mod preset;
pub mod rpc;
pub mod rule;

use std::collections::BTreeMap;

use crate::violation::ViolationKind;
use binary::Binary;
use endpoint::Endpoint;

/// Network policies by name; empty means that nothing is reachable.
pub type NetworkPolicies = BTreeMap<PolicyName, NetworkPolicy>;

/// Key of a network policy and its name in logs: 1 to 128 characters of `[A-Za-z0-9_.-]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyName(String);

impl PolicyName {
    /// Parses a policy's key.
    ///
    /// # Errors
    /// Fails if the name is empty, too long, or has another character.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if text.is_empty() || text.len() > 128 || !text.bytes().all(allowed) {
            return Err(ViolationKind::PolicyName);
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Endpoints and the programs that may reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Permitted endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Permitted programs; empty means none.
    pub binaries: Vec<Binary>,
}
