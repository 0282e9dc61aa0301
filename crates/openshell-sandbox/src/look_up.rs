//! Addresses of refused hosts, which proposals need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use openshell_proxy::resolve::lookup::Resolver;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Refused names that are looked up for proposals: by each of them the workload sends something to a name server.
const LOOKED_UP: usize = 32;

/// Returns the addresses of `hosts` that are found within five seconds, for which the caller waits at the end.
pub(crate) async fn look_up(resolver: &Arc<Resolver>, hosts: BTreeSet<String>) -> BTreeMap<String, Vec<IpAddr>> {
    let mut lookups = JoinSet::new();
    for host in hosts.into_iter().take(LOOKED_UP) {
        let resolver = Arc::clone(resolver);
        lookups.spawn(async move { (resolver.addresses(&host).await, host) });
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut found = BTreeMap::new();
    while let Ok(Some(looked_up)) = timeout_at(deadline, lookups.join_next()).await {
        found.extend(looked_up.map(|(addresses, host)| (host, addresses)));
    }
    found
}
