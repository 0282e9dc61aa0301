//! Connections out of the sandbox: a permit's host is resolved, its addresses are checked, and one
//! of them is dialled.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use openshell_events::reason::ReasonCode;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
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
use crate::wire::tls::originate::UpstreamRoots;

/// Handles for connections to upstreams.
#[derive(Debug)]
pub struct Egress {
    /// The supervisor's resolver; the workload's is never asked.
    pub resolver: Arc<Resolver>,
    /// Connections of each program.
    quota: Arc<Quota>,
    /// Trusted roots for upstream certificates.
    pub roots: UpstreamRoots,
    /// Ports of the supervisor's own servers on this host, which the workload never reaches.
    own_ports: Vec<u16>,
}

/// A connection to an upstream.
#[derive(Debug)]
pub struct Dialed {
    /// The connected socket.
    pub stream: TcpStream,
    /// The address that was checked and dialled.
    pub address: SocketAddr,
    /// Guard of the program's connection quota.
    pub quota: QuotaGuard,
}

impl Egress {
    /// Creates the egress over `resolver` and `roots`.
    #[must_use]
    pub fn new(resolver: Arc<Resolver>, roots: UpstreamRoots) -> Self {
        Self {
            resolver,
            quota: Arc::default(),
            roots,
            own_ports: Vec::new(),
        }
    }

    /// Refuses connections to `ports` of this host's own addresses, at which the supervisor
    /// listens.
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
    /// The name does not resolve, or an address is not permitted, or is the supervisor's own.
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
    /// The program has all of its connections.
    pub fn reserve(&self, program: &str) -> Result<QuotaGuard, Refusal> {
        self.quota.take(program).ok_or(Refusal::limit_reached(
            "the program has too many connections at once",
        ))
    }

    /// Connects to `destination` for `program`.
    ///
    /// # Errors
    /// The program has all of its connections, or no address answered within
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

/// Returns false if `address` is none of this host's: the kernel binds sockets to its own alone
/// (ip(7)). Any other error, such as that there are no more descriptors, tells nothing.
fn is_of_this_host(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).map_or_else(
        |error| error.kind() != io::ErrorKind::AddrNotAvailable,
        |_| true,
    )
}

/// `addresses` with commas between.
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
/// No address answered in [`Limits::CONNECT_DEADLINE`], or all refused.
pub async fn dial(destination: &Destination) -> Result<(TcpStream, SocketAddr), Refusal> {
    timeout(Limits::CONNECT_DEADLINE, dial_without_deadline(destination))
        .await
        .unwrap_or_else(|_| Err(Refusal::upstream_timeout()))
}

/// As [`dial`], for a caller with a deadline of its own.
///
/// # Errors
/// All addresses refused.
pub async fn dial_without_deadline(
    destination: &Destination,
) -> Result<(TcpStream, SocketAddr), Refusal> {
    let watch = Stopwatch::start();
    let unreachable = |error: io::Error| Refusal::upstream_unreachable(error.to_string());
    let (stream, address) = race(destination.addresses()).await.map_err(unreachable)?;
    prepare(&stream).map_err(unreachable)?;
    debug!(%address, us = watch.micros(), "connected");
    Ok((stream, address))
}

/// Connects to the first of `addresses` that answers, each with a head start over the next (RFC
/// 8305 §5).
async fn race(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    // Dropping the set aborts the attempts that lost.
    let mut attempts = JoinSet::new();
    let mut remaining = addresses.iter().copied();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match remaining.next() {
            Some(address) => {
                attempts.spawn(async move {
                    TcpStream::connect(address)
                        .await
                        .map(|stream| (stream, address))
                });
            }
            None if attempts.is_empty() => return Err(last_error),
            None => {}
        }
        let head_start = tokio::time::sleep(Limits::CONNECT_STAGGER);
        tokio::select! {
            Some(result) = attempts.join_next() => match result {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => last_error = error,
                Err(error) => last_error = io::Error::other(error),
            },
            () = head_start => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use openshell_events::reason::ReasonCode;
    use tokio::net::TcpListener;

    use super::{Destination, Limits, dial};
    use crate::testing;

    /// Checked addresses, as the operator's are without a check.
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
        assert_eq!(
            first,
            dialed.stream.local_addr().unwrap(),
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
