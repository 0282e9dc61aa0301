//! Names to addresses, by the supervisor's own resolver and hosts file.

use std::net::IpAddr;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use openshell_policy::network::host::{Host, HostName};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::limits::Limits;

/// The supervisor's resolver.
#[derive(Debug)]
pub struct Resolver {
    resolver: TokioResolver,
    /// Where it runs: what it keeps of name servers is shared, and waits for no connection.
    runtime: Handle,
}

/// Why there is no resolver.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up name resolution from /etc/resolv.conf and /etc/hosts: {0}")]
pub struct ResolverError(String);

/// Cause of a failed look-up, short enough for a log line.
fn cause(error: &NetError) -> String {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(records)) => match records.response_code {
            ResponseCode::NXDomain => "no such name".to_owned(),
            ResponseCode::NoError => "it has no address".to_owned(),
            code => format!("the name server answers {}", code.to_str()),
        },
        NetError::Timeout => "no name server answers".to_owned(),
        NetError::NoConnections => "no name server can be reached".to_owned(),
        other => other.to_string(),
    }
}

impl Resolver {
    /// A resolver as `/etc/resolv.conf` and `/etc/hosts` say now. Without a usable `resolv.conf`, as in an image that has
    /// none, the hosts file alone is asked, and a warning says so. Names are looked up in the runtime in which this is called.
    ///
    /// # Errors
    /// There is no runtime to look names up in.
    pub fn from_system() -> Result<Self, ResolverError> {
        let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|error| {
            tracing::warn!("names are looked up in /etc/hosts alone: /etc/resolv.conf: {error}");
            let nobody = ResolverConfig::from_parts(None, Vec::new(), Vec::new());
            TokioResolver::builder_with_config(nobody, TokioRuntimeProvider::default())
        });
        builder.options_mut().use_hosts_file = ResolveHosts::Always;
        let runtime = Handle::try_current().map_err(|error| ResolverError(error.to_string()))?;
        let resolver = builder.build().map_err(|error| ResolverError(error.to_string()))?;
        Ok(Self { resolver, runtime })
    }

    /// The addresses of `host`, as text; none if there are none to be found.
    pub async fn addresses(&self, host: &str) -> Vec<IpAddr> {
        match Host::parse(host) {
            Ok(Host::Address(address)) => vec![address],
            Ok(Host::Name(name)) => self.lookup(&name).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// The addresses of `name`, or why there are none.
    pub(super) async fn lookup(&self, name: &HostName) -> Result<Vec<IpAddr>, String> {
        let (resolver, asked) = (self.resolver.clone(), name.as_str().to_owned());
        // Ends with who asks.
        let mut asking = JoinSet::new();
        asking.spawn_on(async move { resolver.lookup_ip(asked).await }, &self.runtime);
        match tokio::time::timeout(Limits::LOOKUP_DEADLINE, asking.join_next()).await {
            Ok(Some(Ok(Ok(found)))) => Ok(found.iter().take(Limits::ADDRESSES).collect()),
            Ok(Some(Ok(Err(error)))) => Err(format!("DNS resolution of {name} failed: {}", cause(&error))),
            Ok(Some(Err(error))) => Err(format!("DNS resolution of {name} failed: {error}")),
            Ok(None) | Err(_) => {
                Err(format!("DNS resolution of {name} took longer than {:?}", Limits::LOOKUP_DEADLINE))
            }
        }
    }
}
