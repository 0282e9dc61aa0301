//! The network namespaces of the sandbox, their link and its egress firewall.

use std::net::{SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;

use anyhow::Context as _;
use openshell_events::words::{ConfigState, Severity};
use openshell_supervisor::command::streams::{Inspected, Purpose, Streams};
use openshell_supervisor::confine::LandlockProof;
use openshell_supervisor::network::netlink::Socket;
use openshell_supervisor::network::netns::{
    self, Doors, LANDING, Linked, NAME_SERVER, NameServerSockets, Netns, NetnsError, Pending,
    WORKLOAD,
};
use openshell_supervisor::seccomp::rules::Sockets;
use openshell_telemetry::logging;

use crate::cli::{Args, NetworkMode};
use crate::config::Config;

/// The workload's network. Kept while the sandbox lives, because each command tests the probe.
pub(crate) struct Network {
    /// `None` if the workload has the host's network.
    pub(crate) netns: Option<Netns>,
    /// The link to the proxy, if there is one.
    pub(crate) link: Option<Link>,
}

/// The link from the workload's namespace to the proxy.
pub(crate) struct Link {
    /// Address of the proxy.
    pub(crate) proxy: SocketAddrV4,
    /// An address next to the proxy's, at which [`Self::_probe`] listens.
    pub(crate) probe_address: SocketAddrV4,
    /// A listener that the firewall must make unreachable.
    _probe: TcpListener,
    _landing: Netns,
}

/// The sockets of the proxy in the sandbox's namespaces.
pub(crate) struct ProxySockets {
    /// Accepts the workload's connections.
    pub(crate) listener: TcpListener,
    /// The sockets of the name server; `None` if they cannot be opened.
    pub(crate) name_server: Option<NameServerSockets>,
    /// Addresses that the workload can reach.
    pub(crate) doors: Arc<Doors>,
    /// A socket in the workload's namespace; it does not matter which.
    pub(crate) socket: OwnedFd,
    /// Receives the packets that the firewall refuses.
    pub(crate) packet_log: std::io::Result<Socket>,
}

impl Drop for Network {
    fn drop(&mut self) {
        if self.netns.take().is_none() {
            return;
        }
        let what = if self.link.take().is_some() {
            "namespace, its link and its fence"
        } else {
            "namespace"
        };
        logging::config_event(
            ConfigState::Disabled,
            Severity::Info,
            &format!("Network {what} removed"),
        );
    }
}

/// Returns the kinds of sockets that the workload may open.
pub(crate) fn sockets(config: &Config) -> Sockets {
    match config.network.mode {
        NetworkMode::Block => Sockets::Local,
        NetworkMode::Proxy | NetworkMode::Allow => Sockets::Internet,
    }
}

/// Logs that names do not resolve inside.
pub(crate) fn log_no_names(why: &str) {
    let message = format!(
        "names do not resolve inside, so only programs that use the proxy reach hosts: {why}"
    );
    logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
}

/// A network that a separate thread creates.
pub(crate) enum PendingNetwork {
    /// The host's network, which needs no preparation.
    Host,
    Isolated(Pending<Result<Netns, NetnsError>>),
    Linked {
        proxy: SocketAddrV4,
        linked: Pending<Result<Linked, NetnsError>>,
    },
}

impl PendingNetwork {
    /// Starts to create the namespace and, with a proxy, its link, its firewall and the proxy's
    /// sockets. None of these belongs to the host, so the end of the process removes them.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub(crate) fn start(args: &Args) -> anyhow::Result<Self> {
        Ok(match args.network {
            NetworkMode::Allow => Self::Host,
            NetworkMode::Block => Self::Isolated(Netns::isolated()?),
            NetworkMode::Proxy => Self::Linked {
                proxy: SocketAddrV4::new(LANDING, args.proxy_port),
                linked: Linked::create(args.proxy_port)?,
            },
        })
    }

    /// Waits until the thread has exited.
    pub(crate) fn settle(&mut self) {
        match self {
            Self::Host => {}
            Self::Isolated(pending) => pending.settle(),
            Self::Linked { linked, .. } => linked.settle(),
        }
    }

    /// Waits until the network exists.
    ///
    /// # Errors
    /// Fails if the kernel refuses a part of it.
    pub(crate) fn finish(self) -> anyhow::Result<(Network, Option<ProxySockets>)> {
        match self {
            Self::Host => Ok((
                Network {
                    netns: None,
                    link: None,
                },
                None,
            )),
            Self::Isolated(pending) => {
                let netns = Some(pending.finish()??);
                enabled("Network namespace created, without a link");
                Ok((Network { netns, link: None }, None))
            }
            Self::Linked { proxy, linked } => Ok(linked_network(proxy, linked.finish()??)),
        }
    }
}

/// Returns the network behind a link, and the sockets of its proxy.
fn linked_network(proxy: SocketAddrV4, linked: Linked) -> (Network, Option<ProxySockets>) {
    let Linked {
        workload,
        landing,
        proxy: listener,
        probe,
        probe_address,
        socket,
        packet_log,
        ..
    } = linked;
    let doors = linked.doors;
    let name_server = linked.name_server;
    enabled(&format!(
        "Network namespace created, with a link {WORKLOAD} to {LANDING}"
    ));
    enabled(&format!(
        "Fence installed: nothing but {proxy}, and doors of names, is let through"
    ));
    enabled(&format!("Proxy listening on {proxy}"));
    let link = Link {
        proxy,
        probe_address,
        _probe: probe,
        _landing: landing,
    };
    let network = Network {
        netns: Some(workload),
        link: Some(link),
    };
    let failed = |error| format!("cannot open the name server's sockets at {NAME_SERVER}: {error}");
    let name_server = name_server
        .map_err(failed)
        .inspect_err(|why| log_no_names(why))
        .ok();
    (
        network,
        Some(ProxySockets {
            listener,
            name_server,
            doors,
            socket,
            packet_log,
        }),
    )
}

fn enabled(message: &str) {
    logging::config_event(ConfigState::Enabled, Severity::Info, message);
}

impl Network {
    /// Returns the address of the proxy, if there is one.
    pub(crate) fn proxy(&self) -> Option<SocketAddrV4> {
        self.link.as_ref().map(|link| link.proxy)
    }

    /// Returns the address that the firewall must keep out of reach, if there is one.
    pub(crate) fn probe_address(&self) -> Option<SocketAddrV4> {
        self.link.as_ref().map(|link| link.probe_address)
    }
}

/// Everything that the supervisor holds in the workload's network.
pub(crate) struct Attached {
    /// The command's standard streams.
    pub(crate) streams: Streams,
    pub(crate) network: Network,
    /// The proxy takes them.
    pub(crate) sockets: Option<ProxySockets>,
    /// Listener of the Landlock self-test, if that needs one.
    pub(crate) proof: Option<UnixListener>,
}

impl Attached {
    /// Waits for `network`. In it, opens the standard streams for `purpose` and the socket of the
    /// Landlock self-test.
    ///
    /// # Errors
    /// Fails if the kernel refuses a part of it.
    pub(crate) fn open(
        network: PendingNetwork,
        streams: Inspected<'_>,
        purpose: Purpose<'_>,
        proof: &LandlockProof,
    ) -> anyhow::Result<Self> {
        let (network, sockets) = network.finish()?;
        let makes_sockets =
            streams.has_sockets() || matches!(proof, LandlockProof::AbstractSocket(_));
        let open = || {
            // An abstract socket belongs to a network namespace, so this one must be in the
            // workload's. Otherwise it would be out of reach anyway, and prove nothing.
            let bind = |name: &[u8]| UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?);
            let proof = match proof {
                LandlockProof::AbstractSocket(name) => Some(
                    bind(name).context("cannot open the abstract socket that proves Landlock")?,
                ),
                LandlockProof::File(_) => None,
            };
            anyhow::Ok((proof, streams.open(purpose)?))
        };
        let (proof, streams) = match network.netns.as_ref().filter(|_| makes_sockets) {
            Some(netns) => netns::run_in(netns.as_fd(), || Ok(open()))
                .context("cannot enter the sandbox's network")??,
            None => open()?,
        };
        Ok(Self {
            streams,
            network,
            sockets,
            proof,
        })
    }
}
