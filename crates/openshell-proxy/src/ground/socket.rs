//! Sockets of connections: the type of a client's, and the options of both ends.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

use crate::ground::limits::Limits;

/// The stream of a client, as the listener accepts it.
pub(crate) type ClientStream = TcpStream;

/// Sets TCP_NODELAY, and keepalive probes after [`Limits::KEEPALIVE`].
pub(crate) fn prepare(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, Limits::KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(10))?;
    Ok(())
}
