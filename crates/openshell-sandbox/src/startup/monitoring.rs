//! Starts the server of health and metrics.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use openshell_monitoring::health::Health;
use openshell_monitoring::metrics::Metrics;
use openshell_monitoring::server::{Server, Sockets};
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::peer;

use crate::bound_socket::BoundSocket;
use crate::config::Config;
use crate::logging;

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
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
        // A host without IPv6.
        _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn log(place: &str) {
    logging::config_event(ConfigState::Enabled, Severity::Info, &format!("Health and metrics {place}"));
}
