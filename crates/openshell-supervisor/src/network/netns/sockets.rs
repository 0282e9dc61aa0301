//! The supervisor's sockets in the sandbox's namespaces.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::link::LANDING;
use crate::calls::witness;

/// The non-blocking sockets at [`NAME_SERVER`].
#[derive(Debug)]
pub struct NameServerSockets {
    /// The socket for questions in datagrams.
    pub datagrams: UdpSocket,
    /// The listener for questions over TCP.
    pub listener: TcpListener,
}

/// The address of the name server.
pub const NAME_SERVER: SocketAddrV4 = SocketAddrV4::new(LANDING, 53);

impl NameServerSockets {
    /// Opens the sockets in the calling thread's namespace.
    pub(super) fn open() -> io::Result<Self> {
        let listener = listen(NAME_SERVER)?;
        witness::save_first_packets(&listener)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let datagrams =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        rustix::net::bind(&datagrams, &NAME_SERVER)?;
        Ok(Self {
            datagrams: datagrams.into(),
            listener,
        })
    }
}

/// Opens a non-blocking IPv4 TCP socket in the calling thread's namespace.
pub(super) fn tcp_socket() -> io::Result<OwnedFd> {
    tcp_socket_for(Ipv4Addr::UNSPECIFIED.into())
}

/// Opens a non-blocking TCP socket for addresses of the family of `address` in the calling thread's
/// namespace.
pub(super) fn tcp_socket_for(address: IpAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The first port that any user may bind.
const UNPRIVILEGED_PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// Opens a non-blocking listener in the calling thread's namespace. A listener for all addresses
/// does not take the connections of listeners for single addresses.
pub(super) fn listen(address: SocketAddrV4) -> io::Result<TcpListener> {
    let socket = tcp_socket()?;
    sockopt::set_socket_reuseport(&socket, true)?;
    match rustix::net::bind(&socket, &address) {
        // CAP_NET_BIND_SERVICE is missing, so every port is opened to all users. A container may
        // show the file read-only.
        Err(Errno::ACCESS) if std::fs::write(UNPRIVILEGED_PORTS, "0").is_ok() => {
            rustix::net::bind(&socket, &address)?
        }
        bound => bound?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
