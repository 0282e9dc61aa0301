//! The workload's network namespace, and the landing at the other end of its only link.
//!
//! A landing is a second namespace, in which no workload runs and in which the supervisor's sockets
//! for the workload are made. So a sandbox adds no interface, address, route or rule to the host.
//! Neither namespace has a name: each lives as long as a descriptor, a socket or a process refers
//! to it, and the veth pair lives with them.

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
        "cannot create a network namespace, which keeps the workload off the host's network; let \
         the container's profile permit it, or raise user.max_net_namespaces"
    )]
    Create { source: io::Error },
    #[error(
        "cannot create the sandbox's veth pair; use a kernel with veth and give the supervisor \
         CAP_NET_ADMIN, or give up the network with --network block"
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
        "cannot install the fence (nftables) inside the sandbox; use a kernel that has nf_tables \
         with limit, log and reject for inet, or give up the network with --network block"
    )]
    Firewall { source: io::Error },
    #[error("the proxy cannot listen on {address}; choose another port with --proxy-port")]
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
    /// Starts to create a namespace that has only loopback, on a separate thread.
    ///
    /// # Errors
    /// Fails if the thread cannot be started. If the kernel refuses the namespace, the result holds
    /// that error.
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
    /// Fails if no more descriptors are available.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
        })
    }

    /// Opens an unconnected, non-blocking TCP socket for the family of `address` in the namespace,
    /// on a separate thread.
    ///
    /// # Errors
    /// Fails if no more threads or descriptors are available, or if the kernel lacks the family.
    pub fn tcp_socket(&self, address: IpAddr) -> io::Result<TcpStream> {
        run_in(self.as_fd(), || Ok(tcp_socket_for(address)?.into()))
    }

    /// Listens at `port` of the namespace's loopback address, on a separate thread. With 0, the
    /// kernel chooses a port.
    ///
    /// # Errors
    /// Fails if the port is taken, or if no more threads or descriptors are available.
    pub fn listen(&self, port: u16) -> io::Result<TcpListener> {
        run_in(self.as_fd(), || loopback_listener(port))
    }
}

/// Listens at `port` of the loopback address of the calling thread's namespace, without blocking.
/// With 0, the kernel chooses a port.
///
/// # Errors
/// Fails if the port is taken, or if no more descriptors are available.
pub fn loopback_listener(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Opens an unconnected, non-blocking TCP socket for the family of `address` in the calling
/// thread's namespace.
///
/// # Errors
/// Fails if no more descriptors are available, or if the kernel lacks the family.
pub fn open_tcp_socket(address: IpAddr) -> io::Result<TcpStream> {
    Ok(tcp_socket_for(address)?.into())
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The network of a workload behind a proxy: two linked namespaces, the egress firewall, and the
/// supervisor's sockets in them. Dropping it removes everything, unless a process or another
/// descriptor still refers to one of the namespaces.
#[derive(Debug)]
pub struct Linked {
    /// The workload's namespace.
    pub workload: Netns,
    /// The namespace at the other end of its link.
    pub landing: Netns,
    /// The non-blocking listener for the proxy; the first of the doors.
    pub proxy: TcpListener,
    /// The sockets for the name server. Nothing gets weaker without them.
    pub name_server: io::Result<NameServerSockets>,
    /// Everything that the firewall lets the workload reach over TCP.
    pub doors: Arc<Doors>,
    /// A listener that is not a door, which the firewall must keep out of reach.
    pub probe: TcpListener,
    /// The address of that listener.
    pub probe_address: SocketAddrV4,
    /// A socket of the workload's namespace.
    pub socket: OwnedFd,
    /// The socket for the log of refused packets, group [`firewall::LOG_GROUP`]. Nothing gets
    /// weaker without it.
    pub packet_log: io::Result<Socket>,
}

impl Linked {
    /// Starts to create the network, with its proxy at `port` of [`LANDING`], on a separate thread.
    ///
    /// # Errors
    /// Fails if the thread cannot be started. If a step fails, the result holds that error, and
    /// everything that was created before is removed.
    pub fn create(port: u16) -> Result<Pending<Result<Self, NetnsError>>, NetnsError> {
        Pending::start(move || Self::create_here(port))
            .map_err(|source| NetnsError::Thread { source })
    }

    /// Creates the network on the calling thread, and so changes the thread's namespace.
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
        // Two listeners at one address would share its connections.
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
    /// Creates both on the calling thread, which is in the landing afterwards. The workload's end
    /// is not configured yet.
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
