//! Starts the server of health and metrics.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use openshell_events::words::{ConfigState, Severity};
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_proxy::wire::tls::originate::UpstreamRoots;
use openshell_supervisor::identity::peer;
use openshell_telemetry::export::{Collector, Exporter};
use openshell_telemetry::health::Health;
use openshell_telemetry::logging;
use openshell_telemetry::metrics::Metrics;
use openshell_telemetry::server::{Server, Sockets};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::bound_socket::BoundSocket;
use crate::config::Config;
use crate::startup::groundwork::export::export;

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The state and the counts of a sandbox, and the server that reports them.
#[derive(Debug)]
pub(crate) struct Monitoring {
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    /// The collector that metrics are exported to, if there is one. The start of the export takes
    /// it.
    collector: Option<Collector>,
    /// The export to the collector, once it has started.
    exporter: Option<Exporter>,
    _server: Option<Server>,
    /// The path of the server's socket, removed last.
    _socket: Option<BoundSocket>,
}

impl Monitoring {
    /// Starts the server, if one is asked for. `init` is the sandbox's first process. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if a port or path is taken or may not be used, or the system has no more threads.
    pub(crate) fn start(config: &mut Config, init: i32) -> anyhow::Result<Option<Self>> {
        let port = config.health.port;
        let path = config.health.socket.as_deref();
        let is_served = port.is_some() || path.is_some();
        if !is_served && config.health.collector.is_none() {
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
        let tcp = port.map(listen).transpose()?;
        let socket = path.map(bind).transpose()?;
        let unix = socket.as_ref().map(BoundSocket::listener).transpose()?;
        let health = Arc::new(Health::new());
        let metrics = Arc::<Metrics>::default();
        let admit = Box::new(move |socket: BorrowedFd<'_>| peer::outside(socket, init).is_ok());
        let serve = || {
            Server::start(
                Sockets { tcp, unix },
                admit,
                Arc::clone(&health),
                Arc::clone(&metrics),
            )
        };
        let server = is_served
            .then(serve)
            .transpose()
            .context("cannot start the server of health and metrics")?;
        if let Some(port) = &port {
            log(&format!("at port {port} of every address"));
        }
        if let Some(path) = &path {
            log(&format!("at {}, for this user and root", path.display()));
        }
        Ok(Some(Self {
            health,
            metrics,
            collector: config.health.collector.take(),
            exporter: None,
            _server: server,
            _socket: socket,
        }))
    }

    /// Starts the export to the collector, if there is one. `resolver` looks up its names.
    ///
    /// # Errors
    /// Fails if the system has no more threads or descriptors.
    pub(crate) fn export(
        &mut self,
        resolver: &Arc<Resolver>,
        roots: &UpstreamRoots,
        start: SystemTime,
    ) -> anyhow::Result<()> {
        if let Some(collector) = self.collector.take() {
            let roots = UpstreamRoots::new(roots.bundles().to_vec());
            let metrics = Arc::clone(&self.metrics);
            let resolver = Arc::clone(resolver);
            self.exporter = Some(export(collector, metrics, resolver, roots, start)?);
        }
        Ok(())
    }

    /// Exports the metrics one last time, if they are exported.
    pub(crate) async fn finish(&mut self) {
        if let Some(exporter) = self.exporter.take() {
            exporter.finish().await;
        }
    }
}

/// Listens at `port` of all IPv6 and IPv4 addresses, because the probes of a container engine come
/// from outside of the container.
fn listen(port: u16) -> io::Result<TcpListener> {
    match listen_at((Ipv6Addr::UNSPECIFIED, port).into()) {
        // The host has no IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
            listen_at((Ipv4Addr::UNSPECIFIED, port).into())
        }
        listening => listening,
    }
    .map_err(io::Error::from)
}

fn listen_at(address: SocketAddr) -> Result<TcpListener, Errno> {
    let family = if address.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // Accepts IPv4 too, whatever net.ipv6.bindv6only says (ipv6(7)).
        net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn log(place: &str) {
    logging::config_event(
        ConfigState::Enabled,
        Severity::Info,
        &format!("Health and metrics {place}"),
    );
}
