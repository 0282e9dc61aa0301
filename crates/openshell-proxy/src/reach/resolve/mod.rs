//! Resolves a permit's host to addresses, and checks each of them.

pub mod guard;
pub mod lookup;

use openshell_events::reason::ReasonCode;
use openshell_policy::network::host::Host;

use crate::decide::permit::Permit;
use crate::denial::refusal::{AddressFault, Refusal};
use guard::Destination;
use lookup::Resolver;

/// Resolves the host of `permit` and checks its addresses.
///
/// # Errors
/// Fails if the name does not resolve, or if any of its addresses is not permitted.
pub async fn resolve(resolver: &Resolver, permit: &Permit) -> Result<Destination, Refusal> {
    let addresses = match &permit.target().host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => resolver.lookup(name).await.map_err(|reason| {
            let policy = permit.policy().map(str::to_owned);
            Refusal::address(ReasonCode::DnsFailed, reason, AddressFault::Other, policy)
        })?,
    };
    guard::check(permit, addresses)
}

#[cfg(test)]
mod tests;
