//! Resolves names with the supervisor's resolver and hosts file.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hickory_resolver::config::{ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, Record, RecordType};
use hickory_resolver::proto::serialize::binary::BinEncodable as _;
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{Hosts, TokioResolver};
use openshell_policy::network::host::{Host, HostName};
use tokio::runtime::{Handle, TryCurrentError};
use tokio::task::JoinSet;

use crate::ground::limits::Limits;

/// The supervisor's resolver.
#[derive(Debug)]
pub struct Resolver {
    /// The resolver is made for the first look-up, because many commands never need one.
    resolver: OnceLock<TokioResolver>,
    config: ResolverConfig,
    options: ResolverOpts,
    hosts: Arc<Hosts>,
    /// The runtime of the look-ups. The shared state of name servers must not depend on the runtime
    /// of a connection.
    runtime: Handle,
}

/// Seconds for which an address from the hosts file is valid; the file is read once.
const HOSTS_TTL: u64 = 24 * 60 * 60;

/// The error of a resolver that is created outside a runtime.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up name resolution: {0}")]
pub struct ResolverError(#[from] TryCurrentError);

/// Returns the cause of a failed look-up, short enough for a log line.
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
    /// Creates a resolver from the current `/etc/resolv.conf` and `/etc/hosts`. If there is no
    /// usable `resolv.conf`, for example in minimal images, it uses only the hosts file and logs a
    /// warning. Look-ups run in the runtime of this call.
    ///
    /// # Errors
    /// Fails if the call is outside a runtime.
    pub fn from_system() -> Result<Self, ResolverError> {
        let (config, mut options) = read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(
                "cannot use /etc/resolv.conf: {error}; names are looked up only in /etc/hosts"
            );
            (
                ResolverConfig::from_parts(None, Vec::new(), Vec::new()),
                ResolverOpts::default(),
            )
        });
        options.use_hosts_file = ResolveHosts::Always;
        let hosts = Arc::new(Hosts::from_system().unwrap_or_default());
        Ok(Self {
            resolver: OnceLock::new(),
            config,
            options,
            hosts,
            runtime: Handle::try_current()?,
        })
    }

    fn resolver(&self) -> Result<&TokioResolver, NetError> {
        if let Some(resolver) = self.resolver.get() {
            return Ok(resolver);
        }
        let builder = TokioResolver::builder_with_config(
            self.config.clone(),
            TokioRuntimeProvider::default(),
        );
        let mut resolver = builder.with_options(self.options.clone()).build()?;
        // These are the entries from before the workload started.
        resolver.set_hosts(Arc::clone(&self.hosts));
        Ok(self.resolver.get_or_init(|| resolver))
    }

    /// Returns the addresses of `host`, which is given as text; empty if there are none.
    pub async fn addresses(&self, host: &str) -> Vec<IpAddr> {
        match Host::parse(host) {
            Ok(Host::Address(address)) => vec![address],
            Ok(Host::Name(name)) => self.lookup(&name).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Returns the records of `kind` of `name`, which have at most [`Limits::DNS_RECORDS`] bytes;
    /// empty if it has none.
    ///
    /// # Errors
    /// Fails if the name servers fail, or if the records are larger.
    pub(crate) async fn records(
        &self,
        name: &HostName,
        kind: RecordType,
    ) -> Result<Vec<Record>, String> {
        let resolver = self.resolver().map_err(|error| error.to_string())?;
        let resolver = resolver.clone();
        let text = format!("{name}.");
        // Dropping the set aborts the look-up.
        let mut tasks = JoinSet::new();
        tasks.spawn_on(
            async move { resolver.lookup(text, kind).await },
            &self.runtime,
        );
        let found = match tokio::time::timeout(Limits::LOOKUP_DEADLINE, tasks.join_next()).await {
            Ok(Some(Ok(Ok(found)))) => found,
            Ok(Some(Ok(Err(NetError::Dns(DnsError::NoRecordsFound(_)))))) => return Ok(Vec::new()),
            Ok(Some(Ok(Err(error)))) => return Err(cause(&error)),
            Ok(_) | Err(_) => return Err("no name server answers".to_owned()),
        };
        let records: Vec<_> = found
            .answers()
            .iter()
            .filter(|record| record.record_type() == kind)
            .cloned()
            .collect();
        let bytes = records.iter().try_fold(0_usize, |sum, record| {
            sum.checked_add(record.to_bytes().ok()?.len())
        });
        match bytes {
            Some(..=Limits::DNS_RECORDS) => Ok(records),
            _ => Err("the records are too large".to_owned()),
        }
    }

    /// Returns the first IPv4 address of `name`; `None` if it has none.
    ///
    /// # Errors
    /// Fails if the name servers fail.
    pub(crate) async fn first_ipv4(&self, name: &HostName) -> Result<Option<Ipv4Addr>, String> {
        let ipv4 = |address: IpAddr| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        };
        let known = self.in_hosts_file(name);
        if !known.is_empty() {
            return Ok(known.into_iter().find_map(ipv4));
        }
        let records = self.records(name, RecordType::A).await?;
        Ok(records
            .iter()
            .filter_map(|record| record.data.ip_addr())
            .find_map(ipv4))
    }

    /// Returns the addresses of `name` in the hosts file, IPv4 first.
    fn in_hosts_file(&self, name: &HostName) -> Vec<IpAddr> {
        let Ok(name) = Name::from_ascii(name.as_str()) else {
            return Vec::new();
        };
        let kinds = [RecordType::A, RecordType::AAAA];
        let found = kinds.into_iter().filter_map(|kind| {
            self.hosts
                .lookup_static_host(&Query::query(name.clone(), kind))
        });
        let answers = found.flat_map(|found| found.answers().to_vec());
        answers
            .filter_map(|record| record.data.ip_addr())
            .take(Limits::ADDRESSES)
            .collect()
    }

    /// Returns the addresses of `name`, or the reason why there are none.
    pub(super) async fn lookup(&self, name: &HostName) -> Result<Vec<IpAddr>, String> {
        Ok(self.lookup_with_ttl(name).await?.0)
    }

    /// Returns the addresses of `name`, and the seconds for which they are valid.
    ///
    /// # Errors
    /// Fails with the reason why there are none.
    pub async fn lookup_with_ttl(&self, name: &HostName) -> Result<(Vec<IpAddr>, u64), String> {
        // If the hosts file has a name, no name server is asked for it, as with every program of
        // the host (hosts(5)).
        let known = self.in_hosts_file(name);
        if !known.is_empty() {
            return Ok((known, HOSTS_TTL));
        }
        let resolver = self
            .resolver()
            .map_err(|error| format!("cannot set up DNS resolution: {error}"))?;
        let resolver = resolver.clone();
        let text = name.as_str().to_owned();
        // Dropping the set aborts the look-up.
        let mut tasks = JoinSet::new();
        tasks.spawn_on(async move { resolver.lookup_ip(text).await }, &self.runtime);
        match tokio::time::timeout(Limits::LOOKUP_DEADLINE, tasks.join_next()).await {
            Ok(Some(Ok(Ok(found)))) => {
                let left = found
                    .valid_until()
                    .saturating_duration_since(Instant::now());
                Ok((
                    found.iter().take(Limits::ADDRESSES).collect(),
                    left.as_secs(),
                ))
            }
            Ok(Some(Ok(Err(error)))) => Err(format!(
                "DNS resolution of {name} failed: {}",
                cause(&error)
            )),
            Ok(Some(Err(error))) => Err(format!("DNS resolution of {name} failed: {error}")),
            Ok(None) | Err(_) => Err(format!(
                "DNS resolution of {name} took longer than {:?}",
                Limits::LOOKUP_DEADLINE
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::{Arc, OnceLock};

    use hickory_resolver::Hosts;
    use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
    use openshell_policy::network::host::HostName;
    use tokio::runtime::Handle;

    use super::Resolver;

    #[tokio::test]
    async fn a_name_of_the_hosts_file_is_asked_of_no_name_server() {
        let server = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let mut asked = NameServerConfig::udp(Ipv4Addr::LOCALHOST.into());
        for connection in asked.connections.iter_mut() {
            connection.port = server.local_addr().unwrap().port();
        }
        let mut hosts = Hosts::default();
        let text = "10.0.0.1 Four.test short\n::5 six.test\n10.0.0.2 both.test\n::6 \
                    both.test\n10.0.0.3 both.test\n";
        hosts.read_hosts_conf(text.as_bytes()).unwrap();
        let resolver = Resolver {
            resolver: OnceLock::new(),
            config: ResolverConfig::from_parts(None, Vec::new(), vec![asked]),
            options: ResolverOpts::default(),
            hosts: Arc::new(hosts),
            runtime: Handle::current(),
        };
        for (name, addresses) in [
            ("four.test", &["10.0.0.1"][..]),
            ("short", &["10.0.0.1"]),
            ("six.test", &["::5"]),
            ("both.test", &["10.0.0.2", "10.0.0.3", "::6"]),
        ] {
            let addresses: Vec<IpAddr> =
                addresses.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(
                resolver.lookup(&HostName::parse(name).unwrap()).await,
                Ok(addresses),
                "{name}"
            );
        }
        let mut question = [0; 512];
        assert!(
            server.try_recv(&mut question).is_err(),
            "a name server was asked"
        );
        let other = HostName::parse("other.test").unwrap();
        tokio::select! {
            _ = resolver.lookup(&other) => panic!("no name server was asked"),
            heard = server.recv(&mut question) => assert!(heard.is_ok()),
        }
    }
}
