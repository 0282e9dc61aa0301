//! The names that programs may connect to without a proxy, and their doors.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use openshell_policy::network::host::{Host, HostName};
use tokio::sync::mpsc;

use super::Doors;
use super::known::{Known, Ports};
use super::pool::Pool;
use crate::decide::store::PolicyStore;
use crate::limits::Limits;
use crate::target::Target;

/// Names with doors, and what the policy in force knows.
#[derive(Debug)]
pub struct Names {
    policy: Arc<PolicyStore>,
    doors: Box<dyn Doors>,
    /// Domains that resolvers inside add to names (resolv.conf(5)).
    search: Vec<HostName>,
    /// True if every name is known and every port is opened, as the run is observed.
    is_observed: bool,
    /// Takes new listeners.
    listeners: mpsc::Sender<TcpListener>,
    table: Mutex<Table>,
    /// Held by a change of doors.
    change: Mutex<Changes>,
}

/// A look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The name's doors are open at this address.
    At(Ipv4Addr),
    /// The policy knows the name, but its doors are not open: see [`Names::open`].
    Closed,
    /// The policy does not know it.
    Unknown,
    /// The same, and it is a known name with a domain to search in behind it.
    UnknownWithDomain,
}

/// Failure to open doors.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum OpenError {
    #[error("the policy does not know the name")]
    Unknown,
    #[error("{} names have had an address, and there is none left", super::pool::ADDRESSES)]
    NoAddress,
    #[error("there are {} new names of wildcards a minute already", Limits::WILDCARD_NAMES)]
    TooManyNew,
    #[error("there are {} names or {} doors in use already", Limits::NAMES, Limits::DOORS)]
    TooManyInUse,
    #[error("there are {} ports of names already", Limits::DOOR_PORTS)]
    TooManyPorts,
    #[error("a door cannot be opened: {0}")]
    Door(#[from] io::Error),
}

#[derive(Debug, Default)]
struct Table {
    /// Generation of [`Self::known`].
    generation: u64,
    known: Known,
    pool: Pool,
    in_use: HashMap<HostName, InUse>,
    /// Addresses that the policy names as hosts and that are doors.
    literals: BTreeSet<SocketAddrV4>,
}

/// A name with doors.
#[derive(Debug)]
struct InUse {
    address: Ipv4Addr,
    /// Generation for which [`Self::ports`] hold.
    generation: u64,
    ports: Ports,
    asked: Instant,
}

#[derive(Debug, Default)]
struct Changes {
    /// Ports with a listener.
    listening: BTreeSet<u16>,
    /// The begin of the current minute, and the new names of wildcards in it.
    minute: Option<(Instant, u32)>,
}

impl Names {
    /// No name is in use at first. New listeners, each of all doors with one port, go to `listeners`.
    #[must_use]
    pub fn new(
        policy: Arc<PolicyStore>,
        doors: Box<dyn Doors>,
        search: Vec<HostName>,
        is_observed: bool,
        listeners: mpsc::Sender<TcpListener>,
    ) -> Self {
        let (table, change) = (Mutex::default(), Mutex::default());
        Self { policy, doors, search, is_observed, listeners, table, change }
    }

    /// Looks `name` up.
    #[must_use]
    pub fn find(&self, name: &HostName) -> Found {
        let mut table = self.table();
        let Table { known, in_use, generation, .. } = &mut *table;
        if let Some(used) = in_use.get_mut(name).filter(|used| used.generation == *generation) {
            used.asked = Instant::now();
            return Found::At(used.address);
        }
        if self.is_observed || !known.ports(name).is_empty() {
            return Found::Closed;
        }
        let bare = |domain: &HostName| {
            let bare = name.as_str().strip_suffix(domain.as_str())?.strip_suffix('.')?;
            HostName::parse(bare).ok()
        };
        match self.search.iter().filter_map(bare).any(|bare| !known.ports(&bare).is_empty()) {
            true => Found::UnknownWithDomain,
            false => Found::Unknown,
        }
    }

    /// Opens the doors of `name` that the policy in force permits, and returns its address. Blocks for up to a millisecond.
    ///
    /// # Errors
    /// The policy does not know it, a bound is reached, or the kernel refuses a door.
    pub fn open(&self, name: &HostName) -> Result<Ipv4Addr, OpenError> {
        let mut change = lock(&self.change);
        let mut closed = Vec::new();
        let found = {
            let mut table = self.table();
            let old = table.in_use.get(name).map(|used| used.ports.clone()).unwrap_or_default();
            let mut ports = table.known.ports(name);
            if self.is_observed {
                ports.extend(&old);
            } else if ports.is_empty() {
                return Err(OpenError::Unknown);
            }
            if table.pool.get(name).is_none() && !table.known.is_exact(name) && !change.has_room() {
                return Err(OpenError::TooManyNew);
            }
            let room = table.make_room(name, ports.len(), &mut closed);
            let address = room.and_then(|()| table.pool.take(name).ok_or(OpenError::NoAddress));
            address.map(|address| (address, table.generation, old, ports))
        };
        let (address, generation, old, ports) = match found {
            Ok(found) => found,
            Err(error) => {
                self.change_doors(&mut change, &[], &closed)?;
                return Err(error);
            }
        };
        let door = |port: &u16| SocketAddrV4::new(address, *port);
        let opened: Vec<_> = ports.difference(&old).map(door).collect();
        closed.extend(old.difference(&ports).map(door));
        self.change_doors(&mut change, &opened, &closed)?;
        let used = InUse { address, generation, ports, asked: Instant::now() };
        self.table().in_use.insert(name.clone(), used);
        Ok(address)
    }

    /// Opens and closes doors so that they are those of the policy in force. Blocks, some microseconds for each name in use.
    ///
    /// # Errors
    /// The kernel refuses a door; then no new one is open.
    pub fn refresh(&self) -> Result<(), OpenError> {
        let mut change = lock(&self.change);
        let (mut opened, mut closed) = (Vec::new(), Vec::new());
        {
            let mut table = self.table();
            let Table { generation, known, in_use, literals, .. } = &mut *table;
            for (name, used) in in_use.iter_mut() {
                let mut ports = known.ports(name);
                if self.is_observed {
                    ports.extend(&used.ports);
                }
                let door = |port: &u16| SocketAddrV4::new(used.address, *port);
                opened.extend(ports.difference(&used.ports).map(door));
                closed.extend(used.ports.difference(&ports).map(door));
                (used.ports, used.generation) = (ports, *generation);
            }
            in_use.retain(|_, used| self.is_observed || !used.ports.is_empty());
            opened.extend(known.literals().difference(literals));
            closed.extend(literals.difference(known.literals()));
            literals.clone_from(known.literals());
        }
        let changed = self.change_doors(&mut change, &opened, &closed);
        if changed.is_err() {
            // Names open their doors again when they are asked for; addresses without a listener are tried by the next change.
            let mut table = self.table();
            table.in_use.clear();
            table.literals.retain(|door| change.listening.contains(&door.port()));
        }
        changed
    }

    /// Opens the door at `address`, if the run is observed and a name has this address. Blocks as [`Self::open`] does.
    #[must_use]
    pub fn open_observed(&self, address: SocketAddrV4) -> bool {
        if !self.is_observed {
            return false;
        }
        let mut change = lock(&self.change);
        let Some(name) = self.table().pool.name(*address.ip()).cloned() else { return false };
        let in_use = |table: &Table| -> usize { table.in_use.values().map(|used| used.ports.len()).sum() };
        if !self.table().in_use.contains_key(&name) || in_use(&self.table()) >= Limits::DOORS {
            return false;
        }
        let opened = self.change_doors(&mut change, &[address], &[]);
        if opened.is_ok()
            && let Some(used) = self.table().in_use.get_mut(&name)
        {
            used.ports.insert(address.port());
        }
        opened.is_ok()
    }

    /// The target of a connection to `address`: a name, or an address that the policy names as a host.
    #[must_use]
    pub fn target(&self, address: SocketAddr) -> Option<Target> {
        let IpAddr::V4(ip) = address.ip().to_canonical() else { return None };
        let table = self.table();
        let host = match table.pool.name(ip) {
            Some(name) => Host::Name(name.clone()),
            None if table.literals.contains(&SocketAddrV4::new(ip, address.port())) => Host::Address(ip.into()),
            None => return None,
        };
        Some(Target { host, port: address.port() })
    }

    /// The name whose address is `address`.
    #[must_use]
    pub fn name(&self, address: IpAddr) -> Option<HostName> {
        let IpAddr::V4(address) = address.to_canonical() else { return None };
        self.table().pool.name(address).cloned()
    }

    /// Returns true if the policy writes `name` out for connections whose bytes are never looked into.
    #[must_use]
    pub fn is_tcp(&self, name: &HostName) -> bool {
        self.table().known.is_tcp(name)
    }

    /// Names that the policy writes out for connections whose bytes are never looked into.
    #[must_use]
    pub fn tcp_names(&self) -> Vec<HostName> {
        self.table().known.tcp_names().cloned().collect()
    }

    /// Listens for the ports of `opened` that have no listener, and changes the doors.
    fn change_doors(
        &self,
        change: &mut Changes,
        opened: &[SocketAddrV4],
        closed: &[SocketAddrV4],
    ) -> Result<(), OpenError> {
        let failure = self.listen(change, opened).err();
        let heard: Vec<_> = opened.iter().filter(|door| change.listening.contains(&door.port())).copied().collect();
        self.doors.change(&heard, closed)?;
        failure.map_or(Ok(()), Err)
    }

    /// Listens for the ports of `opened`, unless that was begun before; the others are tried whichever fails.
    fn listen(&self, change: &mut Changes, opened: &[SocketAddrV4]) -> Result<(), OpenError> {
        let new: Ports =
            opened.iter().map(|door| door.port()).filter(|port| !change.listening.contains(port)).collect();
        let ports: Vec<_> = new.iter().copied().take(Limits::DOOR_PORTS - change.listening.len()).collect();
        let mut failure = (ports.len() < new.len()).then_some(OpenError::TooManyPorts);
        let listeners = if ports.is_empty() { Vec::new() } else { self.doors.listen(&ports)? };
        for (port, listener) in ports.into_iter().zip(listeners) {
            match listener {
                Ok(listener) => {
                    // There is room for one of each port; without a receiver the sandbox is ending.
                    let _ = self.listeners.try_send(listener);
                    change.listening.insert(port);
                }
                Err(error) => failure = Some(error.into()),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// The table, by the policy in force.
    fn table(&self) -> MutexGuard<'_, Table> {
        let policy = self.policy.load();
        let mut table = lock(&self.table);
        if table.generation < policy.generation() {
            (table.generation, table.known) = (policy.generation(), Known::new(policy.policy()));
        }
        table
    }
}

impl Table {
    /// Makes room for `name` with `ports`, by names that nobody has asked for lately, whose doors are added to `closed`.
    fn make_room(&mut self, name: &HostName, ports: usize, closed: &mut Vec<SocketAddrV4>) -> Result<(), OpenError> {
        let doors = |table: &Self| -> usize {
            let others = table.in_use.iter().filter(|(other, _)| *other != name);
            others.map(|(_, used)| used.ports.len()).sum()
        };
        if self.in_use.len() < Limits::NAMES && doors(self) + ports <= Limits::DOORS {
            return Ok(());
        }
        let now = Instant::now();
        let is_unasked = |used: &InUse| now.duration_since(used.asked) >= Limits::NAME_UNASKED;
        let unasked: Vec<_> = self.in_use.extract_if(|other, used| other != name && is_unasked(used)).collect();
        for (_, used) in unasked {
            closed.extend(used.ports.iter().map(|port| SocketAddrV4::new(used.address, *port)));
        }
        match self.in_use.len() < Limits::NAMES && doors(self) + ports <= Limits::DOORS {
            true => Ok(()),
            false => Err(OpenError::TooManyInUse),
        }
    }
}

impl Changes {
    /// Returns true if there is room for a new name of a wildcard in this minute, and takes it.
    fn has_room(&mut self) -> bool {
        let now = Instant::now();
        match &mut self.minute {
            Some((begin, count)) if now.duration_since(*begin) < Duration::from_secs(60) => {
                *count += 1;
                *count <= Limits::WILDCARD_NAMES
            }
            minute => {
                *minute = Some((now, 1));
                true
            }
        }
    }
}

/// `target` with a name in place of an address that one of `names` has.
pub(crate) fn named(names: Option<&Names>, target: Target) -> Target {
    let name = match (&target.host, names) {
        (Host::Address(address), Some(names)) => names.name(*address),
        (Host::Address(_) | Host::Name(_), _) => None,
    };
    match name {
        Some(name) => Target { host: Host::Name(name), port: target.port },
        None => target,
    }
}

/// Locks a value that is consistent at every moment, so a poisoned lock is used all the same.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
