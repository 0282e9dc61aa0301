//! Connections out of the sandbox: a permit's host is resolved, its addresses are checked, and one of them is dialled.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

use crate::decide::permit::Permit;
use crate::denial::refusal::Refusal;
use crate::limits::Limits;
use crate::quota::{Quota, QuotaGuard};
use crate::resolve::guard::{Destination, OwnAddresses};
use crate::resolve::lookup::Resolver;
use crate::resolve::resolve;
use crate::socket::prepare;
use crate::tls::originate::UpstreamRoots;
use crate::trace::Stopwatch;

/// Handles for connections to upstreams.
#[derive(Debug)]
pub struct Egress {
    /// The supervisor's resolver; the workload's is never asked.
    pub resolver: Arc<Resolver>,
    /// The supervisor's own addresses, which no policy makes reachable.
    own: Arc<OwnAddresses>,
    /// Connections of each program.
    quota: Arc<Quota>,
    /// Trusted roots for upstream certificates.
    pub roots: UpstreamRoots,
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
    /// Creates the egress over `resolver` and `roots`; the `own` addresses of the supervisor are never reachable.
    #[must_use]
    pub fn new(resolver: Arc<Resolver>, own: Arc<OwnAddresses>, roots: UpstreamRoots) -> Self {
        Self { resolver, own, quota: Arc::default(), roots }
    }

    /// Resolves the host of `permit` and checks its addresses.
    ///
    /// # Errors
    /// The name does not resolve, or an address is not permitted.
    pub async fn destination(&self, permit: &Permit) -> Result<Destination, Refusal> {
        let watch = Stopwatch::start();
        let destination = resolve(&self.resolver, &self.own, permit).await?;
        debug!(addresses = ?destination.addresses(), us = watch.micros(), "resolved");
        Ok(destination)
    }

    /// Takes one of the connections that `program` may have at once.
    ///
    /// # Errors
    /// The program has all of its connections.
    pub fn reserve(&self, program: &str) -> Result<QuotaGuard, Refusal> {
        self.quota.take(program).ok_or(Refusal::limit_reached("the program has too many connections at once"))
    }

    /// Connects to `destination` for `program`.
    ///
    /// # Errors
    /// The program has all of its connections, or no address answered within [`Limits::CONNECT_DEADLINE`].
    pub async fn connect(&self, destination: &Destination, program: &str) -> Result<Dialed, Refusal> {
        let quota = self.reserve(program)?;
        let (stream, address) = dial(destination, Limits::CONNECT_DEADLINE).await?;
        Ok(Dialed { stream, address, quota })
    }
}

/// Connects to the first address of `destination` that answers.
///
/// # Errors
/// No address answered within `patience`, or all refused.
pub async fn dial(destination: &Destination, patience: Duration) -> Result<(TcpStream, SocketAddr), Refusal> {
    let watch = Stopwatch::start();
    let unreachable = |error: io::Error| Refusal::upstream_unreachable(error.to_string());
    let raced = timeout(patience, race(destination.addresses())).await.map_err(|_| Refusal::upstream_timeout())?;
    let (stream, address) = raced.map_err(unreachable)?;
    prepare(&stream).map_err(unreachable)?;
    debug!(%address, us = watch.micros(), "connected");
    Ok((stream, address))
}

/// Connects to the first of `addresses` that answers, each with a head start over the next (RFC 8305 §5).
async fn race(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    // Dropping the set aborts the attempts that lost.
    let mut attempts = JoinSet::new();
    let mut remaining = addresses.iter().copied();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match remaining.next() {
            Some(address) => {
                attempts.spawn(async move { TcpStream::connect(address).await.map(|stream| (stream, address)) });
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
