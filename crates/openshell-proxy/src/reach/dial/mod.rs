//! Opens connections out of the sandbox: resolves a permit's host, checks its addresses, and dials
//! one of them.

mod direct;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use openshell_events::reason::ReasonCode;
use tokio::time::timeout;
use tracing::debug;

use crate::decide::permit::Permit;
use crate::denial::refusal::{AddressFault, Refusal};
use crate::ground::limits::Limits;
use crate::ground::quota::{Quota, QuotaGuard};
use crate::ground::socket::prepare;
use crate::ground::trace::Stopwatch;
use crate::reach::resolve::guard::Destination;
use crate::reach::resolve::lookup::Resolver;
use crate::reach::resolve::resolve;
use crate::wire::io::upstream_stream::UpstreamStream;
use crate::wire::tls::originate::UpstreamRoots;

/// The parts that connect to upstreams.
#[derive(Debug)]
pub struct Egress {
    /// The supervisor's resolver; the workload's is never asked.
    pub resolver: Arc<Resolver>,
    /// The number of connections that each program has.
    quota: Arc<Quota>,
    /// The trusted roots for upstream certificates.
    pub roots: UpstreamRoots,
    /// Ports of the supervisor's own servers on this host, which the workload can never reach.
    own_ports: Vec<u16>,
}

/// A connection to an upstream.
#[derive(Debug)]
pub struct Dialed {
    /// The connected socket.
    pub stream: UpstreamStream,
    /// The address that was checked and dialled.
    pub address: SocketAddr,
    /// A guard of the program's connection quota.
    pub quota: QuotaGuard,
}

impl Egress {
    /// Creates an egress that uses `resolver` and `roots`.
    #[must_use]
    pub fn new(resolver: Arc<Resolver>, roots: UpstreamRoots) -> Self {
        Self {
            resolver,
            quota: Arc::default(),
            roots,
            own_ports: Vec::new(),
        }
    }

    /// Refuses connections to this host's own addresses at `ports`, where the supervisor listens.
    #[must_use]
    pub fn without_own(self, ports: Vec<u16>) -> Self {
        Self {
            own_ports: ports,
            ..self
        }
    }

    /// Resolves the host of `permit` and checks its addresses.
    ///
    /// # Errors
    /// Fails if the name does not resolve, or if an address is not permitted or is the supervisor's
    /// own.
    pub async fn destination(&self, permit: &Permit) -> Result<Destination, Refusal> {
        let watch = Stopwatch::start();
        let destination = resolve(&self.resolver, permit).await?;
        let is_own = |address: &SocketAddr| {
            self.own_ports.contains(&address.port()) && is_of_this_host(address.ip())
        };
        if destination.addresses().iter().any(is_own) {
            let reason = format!(
                "port {} of this host is the supervisor's, connection rejected",
                permit.target().port
            );
            return Err(Refusal::address(
                ReasonCode::ControlPlanePort,
                reason,
                AddressFault::Other,
                None,
            ));
        }
        debug!(
            addresses = in_words(destination.addresses()),
            us = watch.micros(),
            "resolved"
        );
        Ok(destination)
    }

    /// Takes one of the connections that `program` may have at once.
    ///
    /// # Errors
    /// Fails if the program has as many connections as it may have.
    pub fn reserve(&self, program: &str) -> Result<QuotaGuard, Refusal> {
        self.quota.take(program).ok_or(Refusal::limit_reached(
            "the program has too many connections at once",
        ))
    }

    /// Connects to `destination` for `program`.
    ///
    /// # Errors
    /// Fails if the program has as many connections as it may have, or if no address answers within
    /// [`Limits::CONNECT_DEADLINE`].
    pub async fn connect(
        &self,
        destination: &Destination,
        program: &str,
    ) -> Result<Dialed, Refusal> {
        let quota = self.reserve(program)?;
        let (stream, address) = dial(destination).await?;
        Ok(Dialed {
            stream,
            address,
            quota,
        })
    }
}

/// Returns false if `address` does not belong to this host: the kernel binds sockets only to its
/// own addresses (ip(7)). Any other error, for example that there are no more descriptors, proves
/// nothing.
fn is_of_this_host(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).map_or_else(
        |error| error.kind() != io::ErrorKind::AddrNotAvailable,
        |_| true,
    )
}

/// Returns `addresses` with commas between them.
fn in_words(addresses: &[SocketAddr]) -> String {
    addresses
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// Connects to the first address of `destination` that answers.
///
/// # Errors
/// Fails if no address answers within [`Limits::CONNECT_DEADLINE`], or if all refuse.
pub async fn dial(destination: &Destination) -> Result<(UpstreamStream, SocketAddr), Refusal> {
    timeout(Limits::CONNECT_DEADLINE, dial_without_deadline(destination))
        .await
        .unwrap_or_else(|_| Err(Refusal::upstream_timeout()))
}

/// Connects like [`dial`], for a caller that has its own deadline.
///
/// # Errors
/// Fails if all addresses refuse.
pub async fn dial_without_deadline(
    destination: &Destination,
) -> Result<(UpstreamStream, SocketAddr), Refusal> {
    let watch = Stopwatch::start();
    let unreachable = |error: io::Error| Refusal::upstream_unreachable(error.to_string());
    let (stream, address) = direct::race(destination.addresses())
        .await
        .map_err(unreachable)?;
    prepare(&stream).map_err(unreachable)?;
    debug!(%address, us = watch.micros(), "connected");
    Ok((UpstreamStream::Direct(stream), address))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use openshell_events::reason::ReasonCode;
    use tokio::net::TcpListener;

    use super::{Destination, Limits, UpstreamStream, dial};
    use crate::testing;

    /// Returns a destination of `addresses`, which are not checked, like those of the operator.
    fn at(addresses: Vec<SocketAddr>) -> Destination {
        Destination::configured_by_operator(addresses)
    }

    async fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn the_next_address_is_dialled_where_one_refuses() {
        let (_listener, open) = listening().await;
        let closed = testing::closed_address().await;
        let (stream, address) = dial(&at(vec![closed, open])).await.unwrap();
        let UpstreamStream::Direct(stream) = stream;
        assert_eq!((address, stream.peer_addr().unwrap()), (open, open));
    }

    #[tokio::test]
    async fn the_first_address_that_answers_is_used() {
        let (_first, one) = listening().await;
        let (_second, other) = listening().await;
        let (_, address) = dial(&at(vec![one, other])).await.unwrap();
        assert_eq!(address, one);
    }

    #[tokio::test]
    async fn addresses_that_all_refuse_or_are_none_are_unreachable() {
        let closed = testing::closed_address().await;
        for addresses in [vec![closed, closed], vec![]] {
            let refusal = dial(&at(addresses)).await.unwrap_err();
            assert_eq!(refusal.code(), ReasonCode::UpstreamUnreachable);
        }
    }

    #[tokio::test]
    async fn a_program_that_has_all_of_its_connections_gets_no_other_and_nothing_is_dialled() {
        let (listener, open) = listening().await;
        let (services, _) = testing::services("");
        let all: Vec<_> = (0..Limits::CONNECTIONS_PER_PROGRAM)
            .map(|_| services.egress.reserve("/usr/bin/curl").unwrap())
            .collect();
        let refusal = services
            .egress
            .connect(&at(vec![open]), "/usr/bin/curl")
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::LimitReached);
        drop(all);
        let dialed = services
            .egress
            .connect(&at(vec![open]), "/usr/bin/curl")
            .await
            .unwrap();
        let (_, first) = listener.accept().await.unwrap();
        let UpstreamStream::Direct(stream) = dialed.stream;
        assert_eq!(
            first,
            stream.local_addr().unwrap(),
            "nothing was dialled before"
        );
    }

    #[tokio::test]
    async fn a_connection_that_failed_is_no_longer_the_programs() {
        let closed = testing::closed_address().await;
        let (services, _) = testing::services("");
        for _ in 0..=Limits::CONNECTIONS_PER_PROGRAM {
            let refusal = services
                .egress
                .connect(&at(vec![closed]), "/usr/bin/curl")
                .await
                .unwrap_err();
            assert_eq!(refusal.code(), ReasonCode::UpstreamUnreachable);
        }
    }
}
