//! The network namespace of the workload, its link and its egress firewall.

use std::net::{SocketAddr, SocketAddrV4, TcpListener};

use anyhow::Context as _;
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::netns::{Netns, firewall};
use openshell_supervisor::seccomp::rules::Sockets;

use crate::cli::NetworkMode;
use crate::config::Config;
use crate::logging;

/// The workload's network. Held while the sandbox lives: each command tries the probe.
pub(super) struct Network {
    /// `None` if the workload has the host's network.
    pub(super) netns: Option<Netns>,
    /// Address of the proxy.
    pub(super) proxy: Option<SocketAddrV4>,
    /// Kinds of sockets that the workload may open.
    pub(super) sockets: Sockets,
    /// A listener beside the proxy that the firewall must keep out of reach.
    probe: Option<TcpListener>,
}

impl Drop for Network {
    fn drop(&mut self) {
        let Some(netns) = self.netns.take() else { return };
        drop(netns);
        let what = if self.proxy.is_some() { "namespace, its link and its fence" } else { "namespace" };
        logging::config_event(ConfigState::Disabled, Severity::Info, &format!("Network {what} removed"));
    }
}

impl Network {
    /// Makes the namespace, and with a proxy its link and its firewall.
    ///
    /// # Errors
    /// The kernel refuses one of them.
    pub(super) fn create(config: &Config) -> anyhow::Result<Self> {
        match config.network {
            NetworkMode::Allow => Ok(Self { netns: None, proxy: None, sockets: Sockets::Internet, probe: None }),
            NetworkMode::Block => {
                let netns = Some(Netns::isolated()?);
                logging::config_event(
                    ConfigState::Enabled,
                    Severity::Info,
                    "Network namespace created, without a link",
                );
                Ok(Self { netns, proxy: None, sockets: Sockets::Local, probe: None })
            }
            NetworkMode::Proxy => {
                let (netns, subnet) = Netns::create()?;
                let ends = format!("{} to {}", subnet.workload(), subnet.supervisor());
                logging::config_event(
                    ConfigState::Enabled,
                    Severity::Info,
                    &format!("Network namespace created, with a link {ends}"),
                );
                let proxy = SocketAddrV4::new(subnet.supervisor(), config.proxy_port);
                netns.install_firewall(&firewall::ruleset(proxy))?;
                logging::config_event(
                    ConfigState::Enabled,
                    Severity::Info,
                    &format!("Fence installed: nothing but {proxy} is let through"),
                );
                let probe = TcpListener::bind((subnet.supervisor(), 0));
                let probe = probe.context("cannot open the listener that proves the fence")?;
                Ok(Self { netns: Some(netns), proxy: Some(proxy), sockets: Sockets::Internet, probe: Some(probe) })
            }
        }
    }

    /// Returns the addresses where the supervisor listens for this sandbox.
    pub(super) fn listeners(&self) -> Vec<SocketAddr> {
        self.proxy.into_iter().chain(self.probe_address()).map(SocketAddr::V4).collect()
    }

    pub(super) fn probe_address(&self) -> Option<SocketAddrV4> {
        match self.probe.as_ref()?.local_addr().ok()? {
            SocketAddr::V4(address) => Some(address),
            SocketAddr::V6(_) => None,
        }
    }
}
