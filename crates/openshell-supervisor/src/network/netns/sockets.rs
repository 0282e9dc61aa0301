//! Sockets of the supervisor in the sandbox's namespaces.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::link::LANDING;
use crate::calls::witness;

/// Sockets at [`NAME_SERVER`], non-blocking.
#[derive(Debug)]
pub struct NameServerSockets {
    /// For questions in datagrams.
    pub datagrams: UdpSocket,
    /// For questions over TCP.
    pub listener: TcpListener,
}

/// Address of the name server.
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

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The first port that any user may bind.
const UNPRIVILEGED_PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// Opens a non-blocking listener in the calling thread's namespace. One for all addresses leaves
/// each other its own.
pub(super) fn listen(address: SocketAddrV4) -> io::Result<TcpListener> {
    let socket = tcp_socket()?;
    sockopt::set_socket_reuseport(&socket, true)?;
    match rustix::net::bind(&socket, &address) {
        // Without CAP_NET_BIND_SERVICE; a container may show the file read-only.
        Err(Errno::ACCESS) if std::fs::write(UNPRIVILEGED_PORTS, "0").is_ok() => {
            rustix::net::bind(&socket, &address)?
        }
        bound => bound?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
