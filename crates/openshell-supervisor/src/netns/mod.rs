//! The workload's network namespace and its one link to the host.
//!
//! The namespace has no name: it lives as long as a descriptor or a process refers to it, and its veth pair with it.

pub mod firewall;
mod link;
mod thread;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::netlink::{Protocol, Socket};
pub use link::{INTERFACE, Subnet, is_on_link};
pub use thread::run_in;

/// A failed step of creating a namespace.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum NetnsError {
    #[error(
        "cannot create a network namespace, which keeps the workload off the host's network; run as root with CAP_SYS_ADMIN"
    )]
    Create { source: io::Error },
    #[error("cannot list the host's addresses and routes")]
    List { source: io::Error },
    #[error(
        "every /24 of 10.200.0.0/16 is in use on this host, so the sandbox's link has no address left; stop a sandbox or free a subnet"
    )]
    NoFreeSubnet,
    #[error("cannot create the veth pair to the sandbox; the kernel must have veth, and the supervisor CAP_NET_ADMIN")]
    Pair { source: io::Error },
    #[error("cannot set up the network inside the sandbox")]
    Inside { source: io::Error },
    #[error(
        "cannot install the fence (nftables) inside the sandbox; the kernel must have nf_tables with limit, log and reject for inet, or the network be given up by --network block"
    )]
    Firewall { source: io::Error },
    #[error("cannot open a socket inside the sandbox's network")]
    Socket { source: io::Error },
}

/// A network namespace without an exit, or with a link to the supervisor's address alone.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    link: Option<Subnet>,
}

impl Netns {
    /// Creates a namespace with a link to this host, and returns the link's addresses too. Egress is unrestricted until
    /// [`Self::install_firewall`].
    ///
    /// # Errors
    /// The step that failed; everything created before it is removed.
    pub fn create() -> Result<(Self, Subnet), NetnsError> {
        let fd = thread::create().map_err(|source| NetnsError::Create { source })?;
        let socket = Socket::open(Protocol::Route).map_err(|source| NetnsError::List { source })?;
        for subnet in link::free_subnets(&socket).map_err(|source| NetnsError::List { source })? {
            if link::create_pair(&socket, fd.as_fd(), subnet).map_err(|source| NetnsError::Pair { source })? {
                run_in(fd.as_fd(), || link::configure_inside(subnet))
                    .map_err(|source| NetnsError::Inside { source })?;
                return Ok((Self { fd, link: Some(subnet) }, subnet));
            }
        }
        Err(NetnsError::NoFreeSubnet)
    }

    /// Creates a namespace with loopback only.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn isolated() -> Result<Self, NetnsError> {
        let fd = thread::create().map_err(|source| NetnsError::Create { source })?;
        run_in(fd.as_fd(), link::loopback_up).map_err(|source| NetnsError::Inside { source })?;
        Ok(Self { fd, link: None })
    }

    /// Installs the egress firewall.
    ///
    /// # Errors
    /// The kernel refused a rule; none is in force then.
    pub fn install_firewall(&self, rules: &[firewall::Rule]) -> Result<(), NetnsError> {
        run_in(self.fd.as_fd(), || firewall::install(rules)).map_err(|source| NetnsError::Firewall { source })
    }

    /// Opens a netlink socket in this namespace; any thread may use it.
    ///
    /// # Errors
    /// The kernel lacks the protocol.
    pub fn netlink(&self, protocol: Protocol) -> Result<Socket, NetnsError> {
        run_in(self.fd.as_fd(), || Socket::open(protocol)).map_err(|source| NetnsError::Socket { source })
    }

    /// Addresses of the link, if there is one.
    #[must_use]
    pub fn subnet(&self) -> Option<Subnet> {
        self.link
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests;
