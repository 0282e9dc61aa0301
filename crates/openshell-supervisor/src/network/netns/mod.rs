//! The workload's network namespace, and the landing at the other end of its one link.
//!
//! A landing is a second namespace, without a workload, in which the supervisor's sockets for the
//! workload are made. So the host has no interface, address, route or rule of a sandbox. Neither
//! namespace has a name: they live as long as a descriptor, a socket or a process refers to them,
//! and the veth pair with them.

mod doors;
pub mod firewall;
mod link;
mod sockets;
mod thread;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::calls::witness;
use crate::network::netlink::{Protocol, Socket};
pub use doors::Doors;
pub use link::{INTERFACE, LANDING, WORKLOAD};
pub use sockets::{NAME_SERVER, NameServerSockets};
use sockets::{listen, tcp_socket, tcp_socket_for};
pub use thread::{Pending, run_in};

/// A failed step of creating a network.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum NetnsError {
    #[error(
        "cannot create a network namespace, which keeps the workload off the host's network; a \
         container's profile or a limit (user.max_net_namespaces) forbids it"
    )]
    Create { source: io::Error },
    #[error(
        "cannot create the sandbox's veth pair; the kernel must have veth, and the supervisor \
         CAP_NET_ADMIN, or the network be given up by --network block"
    )]
    Pair { source: io::Error },
    #[error("cannot set up the network inside the sandbox")]
    Inside { source: io::Error },
    #[error(
        "cannot set up the landing, the network namespace of the proxy; the supervisor needs \
         CAP_NET_ADMIN"
    )]
    Landing { source: io::Error },
    #[error(
        "cannot install the fence (nftables) inside the sandbox; the kernel must have nf_tables \
         with limit, log and reject for inet, or the network be given up by --network block"
    )]
    Firewall { source: io::Error },
    #[error("the proxy cannot listen on {address}; see --proxy-port")]
    Listen {
        address: SocketAddrV4,
        source: io::Error,
    },
    #[error("cannot open the listener that proves the fence")]
    Probe { source: io::Error },
    #[error(
        "cannot start the thread that makes the network namespaces; raise the limit of processes \
         (pids.max, ulimit -u)"
    )]
    Thread { source: io::Error },
}

/// A network namespace.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
}

impl Netns {
    /// Starts to create a namespace with loopback only, on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started. That the kernel refuses the namespace is the error of the
    /// result.
    pub fn isolated() -> Result<Pending<Result<Self, NetnsError>>, NetnsError> {
        let create = || {
            let fd = thread::enter_new().map_err(|source| NetnsError::Create { source })?;
            link::loopback_up().map_err(|source| NetnsError::Inside { source })?;
            Ok(Self { fd })
        };
        Pending::start(create).map_err(|source| NetnsError::Thread { source })
    }

    /// Returns another handle of the namespace.
    ///
    /// # Errors
    /// Descriptors are exhausted.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
        })
    }

    /// Opens an unconnected, non-blocking TCP socket for the family of `address` in the namespace,
    /// on a thread of its own.
    ///
    /// # Errors
    /// Threads or descriptors are exhausted, or the kernel lacks the family.
    pub fn tcp_socket(&self, address: IpAddr) -> io::Result<TcpStream> {
        run_in(self.as_fd(), || Ok(tcp_socket_for(address)?.into()))
    }

    /// Listens at `port` of the loopback address of the namespace, on a thread of its own; 0 has
    /// the kernel choose one.
    ///
    /// # Errors
    /// The port is taken, or threads or descriptors are exhausted.
    pub fn listen(&self, port: u16) -> io::Result<TcpListener> {
        run_in(self.as_fd(), || loopback_listener(port))
    }
}

/// Listens at `port` of the loopback address of the calling thread's namespace, without blocking; 0
/// has the kernel choose one.
///
/// # Errors
/// The port is taken, or descriptors are exhausted.
pub fn loopback_listener(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Opens an unconnected, non-blocking TCP socket for the family of `address` in the calling
/// thread's namespace.
///
/// # Errors
/// Descriptors are exhausted, or the kernel lacks the family.
pub fn open_tcp_socket(address: IpAddr) -> io::Result<TcpStream> {
    Ok(tcp_socket_for(address)?.into())
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The network of a workload behind a proxy: two linked namespaces, the egress firewall, and the
/// supervisor's sockets in them. Dropping it, when no process and no other descriptor refers to
/// either namespace, removes everything.
#[derive(Debug)]
pub struct Linked {
    /// The workload's namespace.
    pub workload: Netns,
    /// The other end of its link.
    pub landing: Netns,
    /// Listener for the proxy, non-blocking; the first of the doors.
    pub proxy: TcpListener,
    /// Sockets for the name server; their absence weakens nothing.
    pub name_server: io::Result<NameServerSockets>,
    /// Everything that the firewall lets the workload reach by TCP.
    pub doors: Arc<Doors>,
    /// Listener beside it, which the firewall must keep out of reach.
    pub probe: TcpListener,
    /// Address of that listener.
    pub probe_address: SocketAddrV4,
    /// Any socket of the workload's namespace.
    pub socket: OwnedFd,
    /// For the log of refused packets, of group [`firewall::LOG_GROUP`]; its absence weakens
    /// nothing.
    pub packet_log: io::Result<Socket>,
}

impl Linked {
    /// Starts to create the network, with its proxy at `port` of [`LANDING`], on a thread of its
    /// own.
    ///
    /// # Errors
    /// The thread cannot be started. The step that failed is the error of the result; everything
    /// created before it is removed.
    pub fn create(port: u16) -> Result<Pending<Result<Self, NetnsError>>, NetnsError> {
        Pending::start(move || Self::create_here(port))
            .map_err(|source| NetnsError::Thread { source })
    }

    /// Creates the network on the calling thread, whose namespace changes.
    fn create_here(port: u16) -> Result<Self, NetnsError> {
        let Pair { landing, workload } = Pair::create()?;
        let address = SocketAddrV4::new(LANDING, port);
        let proxy = listen(address)
            .and_then(|listener| witness::save_first_packets(&listener).map(|()| listener));
        let proxy = proxy.map_err(|source| NetnsError::Listen { address, source })?;
        let probe =
            listen(SocketAddrV4::new(LANDING, 0)).map_err(|source| NetnsError::Probe { source })?;
        let port = probe
            .local_addr()
            .map_err(|source| NetnsError::Probe { source })?
            .port();
        let probe_address = SocketAddrV4::new(LANDING, port);
        // Listeners at one address would share its connections.
        let name_server = if address == NAME_SERVER {
            Err(io::ErrorKind::AddrInUse.into())
        } else {
            NameServerSockets::open()
        };
        let asked = name_server.as_ref().ok().map(|_| NAME_SERVER);
        let open: Vec<_> = [address].into_iter().chain(asked).collect();
        thread::enter(workload.as_fd()).map_err(|source| NetnsError::Inside { source })?;
        link::configure_workload().map_err(|source| NetnsError::Inside { source })?;
        firewall::install(&firewall::ruleset(asked), &open)
            .map_err(|source| NetnsError::Firewall { source })?;
        let handles = workload
            .try_clone()
            .and_then(|workload| Ok((workload, landing.try_clone()?, tcp_socket()?)));
        let (of_workload, of_landing, socket) =
            handles.map_err(|source| NetnsError::Inside { source })?;
        let doors = Arc::new(Doors::new(
            of_workload.fd,
            of_landing.fd,
            &open,
            Socket::open(Protocol::Netfilter).ok(),
        ));
        let packet_log = Socket::open(Protocol::Netfilter);
        Ok(Self {
            workload,
            landing,
            proxy,
            name_server,
            doors,
            probe,
            probe_address,
            socket,
            packet_log,
        })
    }
}

/// The linked namespaces.
struct Pair {
    landing: Netns,
    workload: Netns,
}

impl Pair {
    /// Creates them on the calling thread, which is then in the landing. The workload's end is not
    /// configured yet.
    fn create() -> Result<Self, NetnsError> {
        let landing = thread::enter_new().map_err(|source| NetnsError::Create { source })?;
        let workload = thread::enter_new().map_err(|source| NetnsError::Create { source })?;
        link::create_pair(landing.as_fd()).map_err(|source| NetnsError::Pair { source })?;
        thread::enter(landing.as_fd()).map_err(|source| NetnsError::Landing { source })?;
        link::configure_landing().map_err(|source| NetnsError::Landing { source })?;
        Ok(Self {
            landing: Netns { fd: landing },
            workload: Netns { fd: workload },
        })
    }
}

#[cfg(test)]
mod tests;
