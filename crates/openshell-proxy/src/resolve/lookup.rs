//! Names to addresses, by the supervisor's own resolver and hosts file.

use std::net::IpAddr;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::ResolveHosts;
use openshell_policy::denial::ReasonCode;
use openshell_policy::network::host::HostName;

use crate::context::Limits;
use crate::refusal::Refusal;

/// The supervisor's resolver.
#[derive(Debug)]
pub struct Resolver(TokioResolver);

/// Why there is no resolver.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up name resolution from /etc/resolv.conf and /etc/hosts: {0}")]
pub struct ResolverError(String);

impl Resolver {
    /// A resolver as `/etc/resolv.conf` and `/etc/hosts` say now.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn from_system() -> Result<Self, ResolverError> {
        let mut builder = TokioResolver::builder_tokio().map_err(|error| ResolverError(error.to_string()))?;
        builder.options_mut().use_hosts_file = ResolveHosts::Always;
        builder.build().map(Self).map_err(|error| ResolverError(error.to_string()))
    }

    pub(super) async fn lookup(&self, name: &HostName) -> Result<Vec<IpAddr>, Refusal> {
        let refuse = |reason| Refusal::Address { code: ReasonCode::DnsFailed, reason, has_list: false, policy: None };
        let looked_up = tokio::time::timeout(Limits::LOOKUP_DEADLINE, self.0.lookup_ip(name.as_str())).await;
        match looked_up {
            Ok(Ok(found)) => Ok(found.iter().take(Limits::ADDRESSES).collect()),
            Ok(Err(error)) => Err(refuse(format!("DNS resolution of {name} failed: {error}"))),
            Err(_) => Err(refuse(format!("DNS resolution of {name} took longer than {:?}", Limits::LOOKUP_DEADLINE))),
        }
    }
}
