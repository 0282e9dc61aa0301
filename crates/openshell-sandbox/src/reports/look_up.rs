//! Addresses of refused hosts, which proposals need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use openshell_proxy::reach::resolve::lookup::Resolver;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// The most refused names that are looked up for proposals. By each look-up the workload sends
/// something to a name server.
const LOOKED_UP: usize = 32;

/// Addresses of refused names, at most [`LOOKED_UP`] of them per run.
#[derive(Debug, Default)]
pub(crate) struct LookedUp(BTreeMap<String, Vec<IpAddr>>);

impl LookedUp {
    /// Looks up those of `hosts` that are new, as far as there is room.
    pub(crate) async fn add(
        &mut self,
        resolver: &Arc<Resolver>,
        hosts: impl Iterator<Item = String>,
    ) {
        let room = LOOKED_UP.saturating_sub(self.0.len());
        let new: BTreeSet<_> = hosts.filter(|host| !self.0.contains_key(host)).collect();
        let new: BTreeSet<_> = new.into_iter().take(room).collect();
        self.0
            .extend(new.iter().map(|host| (host.clone(), Vec::new())));
        self.0.extend(look_up(resolver, new).await);
    }

    /// Returns the addresses of `host`; empty if it was not looked up.
    pub(crate) fn get(&self, host: &str) -> Vec<IpAddr> {
        self.0.get(host).cloned().unwrap_or_default()
    }
}

/// Returns the addresses of `hosts` that are found within five seconds, which the end of a run
/// waits for.
pub(crate) async fn look_up(
    resolver: &Arc<Resolver>,
    hosts: BTreeSet<String>,
) -> BTreeMap<String, Vec<IpAddr>> {
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
