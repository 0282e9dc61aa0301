//! Checks resolved addresses: the only defence against server-side request forgery (SSRF).

use std::net::{IpAddr, SocketAddr};

use openshell_events::reason::ReasonCode;
use openshell_policy::address::{AddressClass, CONTROL_PLANE_PORTS};

use crate::decide::permit::Permit;
use crate::denial::refusal::{AddressFault, Refusal};

/// At least one address, all of which were checked against a permit and may be dialled. For a
/// workload, only [`check`] makes one.
#[derive(Debug)]
pub struct Destination {
    addresses: Vec<SocketAddr>,
}

impl Destination {
    /// Returns the addresses of a server in the operator's configuration, which needs no permit.
    #[must_use]
    pub fn configured_by_operator(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses }
    }

    /// Returns the addresses in order of preference.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// Checks all of `addresses`. If one is not permitted, all are refused, because the next attempt
/// could dial it.
///
/// # Errors
/// Fails if an address is not permitted, or if there is none.
pub fn check(permit: &Permit, addresses: Vec<IpAddr>) -> Result<Destination, Refusal> {
    let host = &permit.target().host;
    let port = permit.target().port;
    let permitted = permit.addresses();
    let has_list = !permitted.listed.is_empty();
    let refuse = |code, reason, fault| {
        let policy = permit.policy().map(str::to_owned);
        Err(Refusal::address(code, reason, fault, policy).under(permit.form()))
    };
    if addresses.is_empty() {
        let reason = format!("DNS resolution of {host} returned no addresses");
        return refuse(ReasonCode::DnsFailed, reason, AddressFault::Other);
    }
    if CONTROL_PLANE_PORTS.contains(&port) {
        let reason = format!("port {port} is a blocked control-plane port, connection rejected");
        return refuse(ReasonCode::ControlPlanePort, reason, AddressFault::Other);
    }
    let is_never_reachable = |address: &&IpAddr| AddressClass::of(**address).is_always_blocked();
    if let Some(address) = addresses.iter().find(is_never_reachable) {
        let reason =
            format!("{host} resolves to always-blocked address {address}, connection rejected");
        let code = ReasonCode::AlwaysBlockedAddress;
        let refused = refuse(code, reason, AddressFault::NeverReachable);
        return if has_list {
            refused.map_err(Refusal::under_allowed_ips)
        } else {
            refused
        };
    }
    let unlisted: Vec<IpAddr> = addresses
        .iter()
        .copied()
        .filter(|address| !permitted.include(*address))
        .collect();
    if let Some(address) = unlisted.first() {
        let (code, reason) = if has_list {
            (
                ReasonCode::AddressNotInAllowedIps,
                format!(
                    "{host} resolves to {address} which is not in allowed_ips, connection rejected"
                ),
            )
        } else {
            (
                ReasonCode::InternalAddress,
                format!("{host} resolves to internal address {address}, connection rejected"),
            )
        };
        return refuse(code, reason, AddressFault::Unlisted(unlisted));
    }
    Ok(Destination {
        addresses: addresses
            .into_iter()
            .map(|address| SocketAddr::new(address, port))
            .collect(),
    })
}
