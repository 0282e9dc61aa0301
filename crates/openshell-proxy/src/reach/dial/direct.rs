//! Connects to upstreams at their own addresses.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::ground::limits::Limits;

/// Connects to the first of `addresses` that answers. Each one has a head start over the next (RFC
/// 8305 §5).
pub(super) async fn race(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    // Dropping the set aborts the attempts that are not used.
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
