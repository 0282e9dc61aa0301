//! Starts the server of health and metrics.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use openshell_monitoring::health::Health;
use openshell_monitoring::metrics::Metrics;
use openshell_monitoring::server::{Server, Sockets};
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::peer;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::bound_socket::BoundSocket;
use crate::config::Config;
use crate::logging;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The state and the counts of a sandbox, and the server that tells them.
#[derive(Debug)]
pub(crate) struct Monitoring {
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    _server: Server,
    /// Path of its socket, removed last.
    _socket: Option<BoundSocket>,
}

impl Monitoring {
    /// Starts the server, if one is asked for; `init` is the sandbox's first process. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// A place is taken or may not be used, or the system has no more threads.
    pub(super) fn start(config: &Config, init: i32) -> anyhow::Result<Option<Self>> {
        let (port, path) = (config.health_port, config.health_socket.as_deref());
        if port.is_none() && path.is_none() {
            return Ok(None);
        }
        let listen = |port| {
            let at = || format!("cannot listen at port {port} (--health-port); name another one");
            listen(port).with_context(at)
        };
        let bind = |path: &Path| {
            let at = || format!("cannot listen at {} (--health-socket)", path.display());
            BoundSocket::bind(path).with_context(at)
        };
        let (tcp, socket) = (port.map(listen).transpose()?, path.map(bind).transpose()?);
        let unix = socket.as_ref().map(BoundSocket::listener).transpose()?;
        let (health, metrics) = (Arc::new(Health::new()), Arc::<Metrics>::default());
        let admit = Box::new(move |socket: BorrowedFd<'_>| peer::outside(socket, init).is_ok());
        let server = Server::start(Sockets { tcp, unix }, admit, Arc::clone(&health), Arc::clone(&metrics));
        let server = server.context("no server of health and metrics")?;
        port.iter().for_each(|port| log(&format!("at port {port} of every address")));
        path.iter().for_each(|path| log(&format!("at {}, for this user and root", path.display())));
        Ok(Some(Self { health, metrics, _server: server, _socket: socket }))
    }
}

/// Listens at `port` of all IPv6 and IPv4 addresses: the probes of a container engine come from outside of the container.
fn listen(port: u16) -> io::Result<TcpListener> {
    match listen_at((Ipv6Addr::UNSPECIFIED, port).into()) {
        // A host without IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => listen_at((Ipv4Addr::UNSPECIFIED, port).into()),
        listening => listening,
    }
    .map_err(io::Error::from)
}

fn listen_at(address: SocketAddr) -> Result<TcpListener, Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // Whatever net.ipv6.bindv6only says (ipv6(7)).
        net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn log(place: &str) {
    logging::config_event(ConfigState::Enabled, Severity::Info, &format!("Health and metrics {place}"));
}
