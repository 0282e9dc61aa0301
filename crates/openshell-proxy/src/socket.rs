//! Sockets of connections: the type of the client's, and the options of both ends.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

use crate::limits::Limits;

/// Stream of a client, as the listener accepts it.
pub(crate) type ClientStream = TcpStream;

/// Sets TCP_NODELAY, and keepalive probes after [`Limits::KEEPALIVE`].
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Limits::KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    Ok(())
}
