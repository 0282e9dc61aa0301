//! Dials a destination: its addresses one after the other, each with a head start over the next (RFC 8305).

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::context::Context;
use crate::limits::Limits;
use crate::peer::Callers;
use crate::quota::QuotaGuard;
use crate::refusal::Refusal;
use crate::resolve::guard::Destination;
use crate::socket::prepare;

/// Connects for a permitted connection, of which its program has only so many.
///
/// # Errors
/// It has them all, or nobody is there.
pub async fn dial(
    ctx: &Context,
    destination: &Destination,
    callers: &Callers,
) -> Result<(TcpStream, SocketAddr, QuotaGuard), Refusal> {
    let share = ctx.shares.take(&callers.first().program.executable);
    let share = share.ok_or(Refusal::LimitReached("the program has too many connections at once"))?;
    let upstream = connect(destination).await?;
    let address = upstream.peer_addr().map_err(|error| Refusal::UpstreamUnreachable(error.to_string()))?;
    Ok((upstream, address, share))
}

/// Connects to the first of the destination's addresses that answers.
///
/// # Errors
/// None answered in time, or all refused.
pub async fn connect(destination: &Destination) -> Result<TcpStream, Refusal> {
    let deadline = Instant::now() + Limits::CONNECT_DEADLINE;
    match timeout_at(deadline, race(destination.addresses())).await {
        Ok(Ok(stream)) => match prepare(&stream) {
            Ok(()) => Ok(stream),
            Err(error) => Err(Refusal::UpstreamUnreachable(error.to_string())),
        },
        Ok(Err(error)) => Err(Refusal::UpstreamUnreachable(error.to_string())),
        Err(_) => Err(Refusal::UpstreamTimeout),
    }
}

/// Connects to the first of `addresses` that answers: for what the operator names, which no policy is asked about.
///
/// # Errors
/// All refused.
pub async fn connect_to(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = race(addresses).await?;
    prepare(&stream)?;
    Ok(stream)
}

async fn race(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    // Dropping the set ends the attempts that lost.
    let mut attempts = JoinSet::new();
    let mut remaining = addresses.iter().copied();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match remaining.next() {
            Some(address) => drop(attempts.spawn(TcpStream::connect(address))),
            None if attempts.is_empty() => return Err(last_error),
            None => {}
        }
        let head_start = tokio::time::sleep(Limits::CONNECT_STAGGER);
        tokio::select! {
            Some(result) = attempts.join_next() => match result {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last_error = error,
                Err(error) => last_error = io::Error::other(error),
            },
            () = head_start => {}
        }
    }
}
