//! The doors of a sandbox: the addresses in its landing that the egress firewall lets witnessed
//! connections reach.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use super::firewall;
use super::sockets::listen;
use super::thread::run_in;
use crate::calls::witness;
use crate::network::netlink::{Protocol, Socket};
use parking_lot::{Mutex, RwLock};

/// The set of doors, which the firewall and the witness share.
#[derive(Debug)]
pub struct Doors {
    workload: OwnedFd,
    landing: OwnedFd,
    open: RwLock<HashSet<SocketAddrV4>>,
    /// The lock of a change. It holds a socket of the workload's namespace, unless none could be
    /// opened yet or the last change failed and may have left answers in it.
    change: Mutex<Option<Socket>>,
}

impl Doors {
    /// Describes the doors of a firewall that was installed with `open`. `socket` belongs to the
    /// workload's namespace.
    pub(super) fn new(
        workload: OwnedFd,
        landing: OwnedFd,
        open: &[SocketAddrV4],
        socket: Option<Socket>,
    ) -> Self {
        Self {
            workload,
            landing,
            open: RwLock::new(open.iter().copied().collect()),
            change: Mutex::new(socket),
        }
    }

    /// Returns true if `address` is a door.
    #[must_use]
    pub fn contains(&self, address: SocketAddrV4) -> bool {
        self.open.read().contains(&address)
    }

    /// Opens and closes doors. Existing connections stay, because their packets do not open a
    /// connection. A door that is already open stays open, and one that is not open stays closed.
    /// Blocks for some tenths of a millisecond.
    ///
    /// # Errors
    /// Fails if the kernel refuses the change; then none of `opened` is open.
    pub fn change(&self, opened: &[SocketAddrV4], closed: &[SocketAddrV4]) -> io::Result<()> {
        let mut change = self.change.lock();
        let (opened, closed): (Vec<_>, Vec<_>) = {
            let mut open = self.open.write();
            let opened = opened
                .iter()
                .filter(|door| !open.contains(door))
                .copied()
                .collect();
            (
                opened,
                closed
                    .iter()
                    .filter(|door| open.remove(door))
                    .copied()
                    .collect(),
            )
        };
        if opened.is_empty() && closed.is_empty() {
            return Ok(());
        }
        let socket = match change.take() {
            Some(socket) => socket,
            None => run_in(self.workload.as_fd(), || Socket::open(Protocol::Netfilter))?,
        };
        // The firewall is changed first. Otherwise it would refuse a connect that the witness lets
        // pass.
        firewall::change_doors(&socket, &opened, &closed)?;
        *change = Some(socket);
        self.open.write().extend(opened);
        Ok(())
    }

    /// Opens a non-blocking listener for each of `ports` at every address of the landing. A
    /// listener fails if no more descriptors are available, or for a port below 1024 if the
    /// supervisor lacks CAP_NET_BIND_SERVICE. Connections reach it only at doors, and only at those
    /// that have no separate listener; the local address of an accepted connection tells its door.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn listen(&self, ports: &[u16]) -> io::Result<Vec<io::Result<TcpListener>>> {
        let open = |port: &u16| {
            let listener = listen(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, *port))?;
            witness::save_first_packets(&listener)?;
            Ok(listener)
        };
        run_in(self.landing.as_fd(), || {
            Ok(ports.iter().map(open).collect())
        })
    }
}
