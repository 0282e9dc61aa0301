//! The names to which programs may connect without a proxy, and their doors.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openshell_policy::inference::HOST as MODELS_HOST;
use openshell_policy::network::host::{Host, HostName};
use openshell_policy::policy::{Policy, PolicyForm};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;

use super::Doors;
use super::known::{Known, Ports};
use super::pool::{NameAddresses, Pool, PoolRange};
use super::table::{InUse, OpenError, Table};
use super::unknown::{AskedNames, UnknownNames, is_askable};
use crate::decide::store::PolicyStore;
use crate::ground::limits::Limits;
use crate::ground::target::Target;

/// The names with doors, and the names that the policy in force knows.
#[derive(Debug)]
pub struct Names {
    policy: Arc<PolicyStore>,
    doors: Box<dyn Doors>,
    /// The domains that resolvers inside append to names (resolv.conf(5)).
    search: Vec<HostName>,
    /// What happens to names that the policy does not know.
    unknown: UnknownNames,
    /// True if names have the same addresses as outside.
    has_real: bool,
    /// Receives new listeners.
    listeners: mpsc::Sender<TcpListener>,
    table: Mutex<Table>,
    /// Locked while doors change.
    change: Mutex<Changes>,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The name's doors are open at this address.
    At(Ipv4Addr),
    /// The policy knows the name, but its doors are not open: see [`Names::open`].
    Closed,
    /// The policy does not know the name.
    Unknown,
    /// The policy does not know the name, which is a known name with a search domain appended.
    UnknownWithDomain,
    /// The policy does not know the name, and a person is asked about connections to it: see
    /// [`Names::open`].
    Asked,
}

#[derive(Debug, Default)]
struct Changes {
    /// The ports that have a listener.
    listening: BTreeSet<u16>,
    /// The beginning of the current minute, and the number of new names for wildcards in it.
    minute: Option<(Instant, u32)>,
    /// The unknown names that a person is asked about.
    asked: AskedNames,
}

impl Names {
    /// Returns what the policy in force was made of.
    pub(super) fn form(&self) -> PolicyForm {
        self.policy.load().policy().form()
    }

    /// Creates the table without any name in use; names get their addresses from `addresses`. Each
    /// new listener, which serves all doors with one port, is sent to `listeners`.
    #[must_use]
    pub fn new(
        policy: Arc<PolicyStore>,
        doors: Box<dyn Doors>,
        search: Vec<HostName>,
        unknown: UnknownNames,
        addresses: NameAddresses,
        listeners: mpsc::Sender<TcpListener>,
    ) -> Self {
        let (range, has_real) = match addresses {
            NameAddresses::Of(range) => (range, false),
            NameAddresses::Real => (PoolRange::default(), true),
        };
        let table = Mutex::new(Table {
            pool: Pool::new(range),
            ..Table::default()
        });
        Self {
            policy,
            doors,
            search,
            unknown,
            has_real,
            listeners,
            table,
            change: Mutex::default(),
        }
    }

    /// Returns true if `name` should get the address that it has outside, and has no address yet.
    /// That applies only to names that the policy writes out: to look up any other name outside
    /// would send the workload's own words there, for a program that may not connect.
    pub(super) fn needs_real(&self, name: &HostName) -> bool {
        if !self.has_real || name.as_str() == MODELS_HOST {
            return false;
        }
        let table = self.table();
        table.pool.get(name).is_none() && table.known.is_exact(name)
    }

    /// Looks up `name`.
    #[must_use]
    pub fn find(&self, name: &HostName) -> Found {
        let mut table = self.table();
        let Table {
            known,
            in_use,
            generation,
            ..
        } = &mut *table;
        if let Some(used) = in_use
            .get_mut(name)
            .filter(|used| used.generation == *generation)
        {
            used.asked = Instant::now();
            return Found::At(used.address);
        }
        if self.unknown == UnknownNames::Observed || !known.ports(name).is_empty() {
            return Found::Closed;
        }
        let bare = |domain: &HostName| {
            let bare = name
                .as_str()
                .strip_suffix(domain.as_str())?
                .strip_suffix('.')?;
            HostName::parse(bare).ok()
        };
        if self
            .search
            .iter()
            .filter_map(bare)
            .any(|bare| !known.ports(&bare).is_empty())
        {
            Found::UnknownWithDomain
        } else if self.unknown == UnknownNames::Asked && is_askable(name, &self.search) {
            Found::Asked
        } else {
            Found::Unknown
        }
    }

    /// Opens the doors of `name` that the policy in force permits, and returns its address: the
    /// `real` one if that is free. Blocks for up to a millisecond.
    ///
    /// # Errors
    /// The policy does not know the name, a limit is reached, or the kernel refuses a door.
    pub fn open(&self, name: &HostName, real: Option<Ipv4Addr>) -> Result<Ipv4Addr, OpenError> {
        let mut change = self.change.lock();
        let mut closed = Vec::new();
        let found = {
            let mut table = self.table();
            let old = table
                .in_use
                .get(name)
                .map(|used| used.ports.clone())
                .unwrap_or_default();
            let mut ports = table.known.ports(name);
            let is_known = !ports.is_empty();
            match self.unknown {
                UnknownNames::Refused if !is_known => return Err(OpenError::Unknown),
                UnknownNames::Refused => {}
                UnknownNames::Asked if !is_known && !is_askable(name, &self.search) => {
                    return Err(OpenError::Unknown);
                }
                UnknownNames::Observed | UnknownNames::Asked => ports.extend(&old),
            }
            let room = if !is_known && self.unknown == UnknownNames::Asked {
                table.make_room_for_asked(name, &mut change.asked, &mut closed)
            } else {
                let is_new = table.pool.get(name).is_none() && !table.known.is_exact(name);
                if is_new && !change.has_room() {
                    return Err(OpenError::TooManyNew);
                }
                table.make_room(name, ports.len(), &mut closed)
            };
            let address =
                room.and_then(|()| table.take_address(name, real).ok_or(OpenError::NoAddress));
            address.map(|address| (address, table.generation, old, ports, is_known))
        };
        let (address, generation, old, ports, is_known) = match found {
            Ok(found) => found,
            Err(error) => {
                self.doors.change(&[], &closed)?;
                return Err(error);
            }
        };
        let door = |port: &u16| SocketAddrV4::new(address, *port);
        let wanted: Vec<_> = ports.difference(&old).map(door).collect();
        let failure = self.listen(&mut change, &wanted).err();
        let ports: Ports = ports
            .into_iter()
            .filter(|port| change.listening.contains(port))
            .collect();
        let opened: Vec<_> = ports.difference(&old).map(door).collect();
        closed.extend(old.difference(&ports).map(door));
        closed.retain(|door| !self.table().literals.contains(door));
        self.doors.change(&opened, &closed)?;
        if let Some(error) = failure {
            if ports.is_empty() {
                return Err(error);
            }
            tracing::warn!("cannot open every port of {name}: {error}");
        }
        let used = InUse {
            address,
            generation,
            ports,
            is_known,
            asked: Instant::now(),
        };
        self.table().in_use.insert(name.clone(), used);
        Ok(address)
    }

    /// Opens and closes doors so that they match the policy in force. Blocks, for some microseconds
    /// for each name in use.
    ///
    /// # Errors
    /// A limit is reached, or the kernel refuses a door. If the kernel refuses the change, no new
    /// door is open.
    pub fn refresh(&self) -> Result<(), OpenError> {
        let mut change = self.change.lock();
        let mut opened = Vec::new();
        let mut closed = Vec::new();
        let (now, wanted, literals) = {
            let table = self.table();
            let ports = |(name, used): (&HostName, &InUse)| {
                let mut ports = table.known.ports(name);
                if self.unknown.have_doors() {
                    ports.extend(&used.ports);
                }
                let door = |port: &u16| SocketAddrV4::new(used.address, *port);
                opened.extend(ports.difference(&used.ports).map(door));
                closed.extend(used.ports.difference(&ports).map(door));
                (name.clone(), ports)
            };
            let wanted: HashMap<_, _> = table.in_use.iter().map(ports).collect();
            let literals = table.known.literals().clone();
            opened.extend(literals.difference(&table.literals));
            closed.extend(table.literals.difference(&literals));
            // A name may have the same address as a literal.
            let mut kept: HashSet<_> = literals.iter().copied().collect();
            for (name, used) in &table.in_use {
                let ports = wanted.get(name).into_iter().flatten();
                kept.extend(ports.map(|port| SocketAddrV4::new(used.address, *port)));
            }
            closed.retain(|door| !kept.contains(door));
            (table.generation, wanted, literals)
        };
        let failure = self.listen(&mut change, &opened).err();
        let is_heard = |port: u16| change.listening.contains(&port);
        opened.retain(|door| is_heard(door.port()));
        let changed = self.doors.change(&opened, &closed);
        let mut table = self.table();
        // Doors that could not be opened are tried again at the next change, or when somebody asks
        // for their name.
        (table.in_use, table.literals) = match &changed {
            Ok(()) => {
                let in_use =
                    std::mem::take(&mut table.in_use)
                        .into_iter()
                        .filter_map(|(name, mut used)| {
                            used.ports = wanted
                                .get(&name)?
                                .iter()
                                .copied()
                                .filter(|port| is_heard(*port))
                                .collect();
                            used.generation = now;
                            used.is_known = !table.known.ports(&name).is_empty();
                            let is_kept = self.unknown.have_doors() || !used.ports.is_empty();
                            is_kept.then_some((name, used))
                        });
                (
                    in_use.collect(),
                    literals
                        .into_iter()
                        .filter(|door| is_heard(door.port()))
                        .collect(),
                )
            }
            Err(_) => (HashMap::new(), BTreeSet::new()),
        };
        drop(table);
        changed?;
        failure.map_or(Ok(()), Err)
    }

    /// Opens the door at `address` if a name has this address, and doors open when a program connects
    /// to them. Blocks like [`Self::open`].
    #[must_use]
    pub fn open_on_demand(&self, address: SocketAddrV4) -> bool {
        if !self.unknown.have_doors() {
            return false;
        }
        let mut change = self.change.lock();
        let Some(name) = self.table().pool.name(*address.ip()).cloned() else {
            return false;
        };
        let in_use =
            |table: &Table| -> usize { table.in_use.values().map(|used| used.ports.len()).sum() };
        let doors = self.table().in_use.get(&name).map(|used| used.ports.len());
        let Some(doors) = doors.filter(|_| in_use(&self.table()) < Limits::DOORS) else {
            return false;
        };
        let is_asked = self.unknown == UnknownNames::Asked;
        if is_asked && !change.asked.admit_port(address.port(), doors) {
            return false;
        }
        let opened = self.listen(&mut change, &[address]).is_ok()
            && self.doors.change(&[address], &[]).is_ok();
        if opened && let Some(used) = self.table().in_use.get_mut(&name) {
            used.ports.insert(address.port());
        }
        opened
    }

    /// Returns the target of a connection to `address`: a name, or an address that the policy names
    /// as a host.
    #[must_use]
    pub fn target(&self, address: SocketAddr) -> Option<Target> {
        let IpAddr::V4(ip) = address.ip().to_canonical() else {
            return None;
        };
        let table = self.table();
        // A later policy may name the address of a name as a host.
        let host = match table.pool.name(ip) {
            _ if table
                .literals
                .contains(&SocketAddrV4::new(ip, address.port())) =>
            {
                Host::Address(ip.into())
            }
            Some(name) => Host::Name(name.clone()),
            None => return None,
        };
        Some(Target {
            host,
            port: address.port(),
        })
    }

    /// Returns the name whose address is `address`, unless the policy permits that address itself.
    #[must_use]
    pub fn name(&self, address: IpAddr) -> Option<HostName> {
        let IpAddr::V4(address) = address.to_canonical() else {
            return None;
        };
        let table = self.table();
        table
            .pool
            .name(address)
            .filter(|_| !table.known.is_listed(address))
            .cloned()
    }

    /// Returns true if the policy writes out `name` for connections whose bytes are never
    /// inspected.
    #[must_use]
    pub fn is_tcp(&self, name: &HostName) -> bool {
        self.table().known.is_tcp(name)
    }

    /// Returns the names that the policy writes out for connections whose bytes are never
    /// inspected.
    #[must_use]
    pub fn tcp_names(&self) -> Vec<HostName> {
        self.table().known.tcp_names().cloned().collect()
    }

    /// Listens on the ports of `opened` that have no listener yet. If one port fails, the others
    /// are still tried.
    fn listen(&self, change: &mut Changes, opened: &[SocketAddrV4]) -> Result<(), OpenError> {
        let new: Ports = opened
            .iter()
            .map(|door| door.port())
            .filter(|port| !change.listening.contains(port))
            .collect();
        let ports: Vec<_> = new
            .iter()
            .copied()
            .take(Limits::DOOR_PORTS - change.listening.len())
            .collect();
        let mut failure = (ports.len() < new.len()).then_some(OpenError::TooManyPorts);
        let listeners = if ports.is_empty() {
            Vec::new()
        } else {
            self.doors.listen(&ports)?
        };
        for (port, listener) in ports.into_iter().zip(listeners) {
            match listener {
                Ok(listener) => {
                    // The channel has room for one listener of each port; without a receiver the
                    // sandbox is ending.
                    let _ = self.listeners.try_send(listener);
                    change.listening.insert(port);
                }
                Err(error) => failure = Some(error.into()),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Returns the table, after an update to the policy in force.
    fn table(&self) -> MutexGuard<'_, Table> {
        let policy = self.policy.load();
        let mut table = self.table.lock();
        if table.generation < policy.generation() {
            (table.generation, table.known) = (policy.generation(), Known::new(policy.policy()));
        }
        table
    }
}

impl Changes {
    /// Takes room for a new name of a wildcard in this minute; returns false if there is none.
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

/// How a program that knows no proxy reaches a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By an open door.
    Open,
    /// The policy knows the host, but not this port of it: the kernel refuses the connection.
    OtherPort,
    /// The policy does not know the host: a name gets no address, an address has no door.
    Unknown,
}

/// Returns the way to `target` under `policy`, for any program.
#[must_use]
pub fn way(policy: &Policy, target: &Target) -> Way {
    let known = Known::new(policy);
    let ports: Ports = match &target.host {
        Host::Name(name) => known.ports(name),
        Host::Address(address) => {
            let literals = known
                .literals()
                .iter()
                .filter(|door| IpAddr::V4(*door.ip()) == *address);
            literals.map(|door| door.port()).collect()
        }
    };
    if ports.contains(&target.port) {
        Way::Open
    } else if ports.is_empty() {
        Way::Unknown
    } else {
        Way::OtherPort
    }
}

/// Replaces the address in `target` by the name that has it, if it is one of `names`.
pub(crate) fn named(names: Option<&Names>, target: Target) -> Target {
    let name = match (&target.host, names) {
        (Host::Address(address), Some(names)) => names.name(*address),
        (Host::Address(_) | Host::Name(_), _) => None,
    };
    match name {
        Some(name) => Target {
            host: Host::Name(name),
            port: target.port,
        },
        None => target,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io;
    use std::net::{SocketAddrV4, TcpListener};
    use std::sync::Arc;

    use openshell_policy::network::host::HostName;
    use parking_lot::Mutex;
    use tokio::sync::mpsc;

    use super::{Doors, Found, Limits, NameAddresses, Names, OpenError, UnknownNames};
    use crate::decide::store::PolicyStore;
    use crate::testing;

    /// Doors without a firewall; ports from 60000 on are forbidden.
    #[derive(Clone, Debug, Default)]
    struct Open(Arc<Mutex<BTreeSet<SocketAddrV4>>>);

    impl Doors for Open {
        fn change(&self, opened: &[SocketAddrV4], closed: &[SocketAddrV4]) -> io::Result<()> {
            let mut open = self.0.lock();
            open.retain(|door| !closed.contains(door));
            open.extend(opened);
            Ok(())
        }

        fn listen(&self, ports: &[u16]) -> io::Result<Vec<io::Result<TcpListener>>> {
            let listen = |port: &u16| match port {
                60_000.. => Err(io::ErrorKind::PermissionDenied.into()),
                _ => TcpListener::bind("127.0.0.1:0"),
            };
            Ok(ports.iter().map(listen).collect())
        }
    }

    struct Tested {
        names: Names,
        policy: Arc<PolicyStore>,
        open: Open,
        listeners: mpsc::Receiver<TcpListener>,
    }

    fn tested(endpoints: &str) -> Tested {
        tested_with(endpoints, UnknownNames::Refused, NameAddresses::default())
    }

    fn tested_with(endpoints: &str, unknown: UnknownNames, addresses: NameAddresses) -> Tested {
        let policy = Arc::new(PolicyStore::new(testing::snapshot(1, endpoints)));
        let open = Open::default();
        let (sender, listeners) = mpsc::channel(Limits::DOOR_PORTS);
        let search = vec![name("search.test")];
        let names = Names::new(
            Arc::clone(&policy),
            Box::new(open.clone()),
            search,
            unknown,
            addresses,
            sender,
        );
        Tested {
            names,
            policy,
            open,
            listeners,
        }
    }

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    impl Tested {
        fn doors(&self) -> Vec<String> {
            self.open.0.lock().iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn a_name_has_the_doors_of_the_policy_in_force_once_somebody_asks_for_it() {
        let mut tested = tested("{host: a.test, ports: [80, 443]}, {host: '*.b.test', port: 443}");
        assert_eq!(tested.names.find(&name("a.test")), Found::Closed);
        assert_eq!(tested.names.find(&name("b.test")), Found::Unknown);
        assert_eq!(
            tested.names.find(&name("a.test.search.test")),
            Found::UnknownWithDomain
        );
        let address = tested.names.open(&name("a.test"), None).unwrap();
        assert_eq!(tested.names.find(&name("a.test")), Found::At(address));
        assert_eq!(tested.doors(), ["198.18.0.1:80", "198.18.0.1:443"]);
        tested.names.open(&name("x.b.test"), None).unwrap();
        assert!(matches!(
            tested.names.open(&name("b.test"), None),
            Err(OpenError::Unknown)
        ));
        let of = |door: &str| {
            tested
                .names
                .target(door.parse().unwrap())
                .map(|target| target.to_string())
        };
        assert_eq!(of("198.18.0.2:443").as_deref(), Some("x.b.test:443"));
        assert_eq!((of("198.18.0.9:443"), of("10.99.0.1:443")), (None, None));
        let ports = std::iter::from_fn(|| tested.listeners.try_recv().ok()).count();
        assert_eq!(ports, 2, "one listener a port");

        tested.policy.replace(testing::snapshot(
            2,
            "{host: '*.b.test', ports: [443, 8443]}, {host: 9.9.9.9, port: 53}",
        ));
        assert_eq!(tested.names.find(&name("a.test")), Found::Unknown);
        assert_eq!(
            tested.names.find(&name("x.b.test")),
            Found::Closed,
            "it has another port"
        );
        tested.names.refresh().unwrap();
        assert_eq!(
            tested.doors(),
            ["9.9.9.9:53", "198.18.0.2:443", "198.18.0.2:8443"]
        );
        tested.policy.replace(testing::snapshot(
            3,
            "{host: a.test, port: 80}, {host: c.test, port: 1}",
        ));
        tested.names.refresh().unwrap();
        assert_eq!(tested.doors(), Vec::<String>::new());
        tested.names.open(&name("c.test"), None).unwrap();
        tested.names.open(&name("a.test"), None).unwrap();
        assert_eq!(
            tested.doors(),
            ["198.18.0.1:80", "198.18.0.3:1"],
            "an address stays its name's"
        );
    }

    #[test]
    fn a_name_with_its_real_address_has_its_doors_there_and_only_written_out_names_have() {
        let endpoints = "{host: a.test, port: 443}, {host: b.test, port: 80}, {host: '*.c.test', \
                         port: 443}, {host: 11.8.8.8, port: 22}";
        let tested = tested_with(endpoints, UnknownNames::Refused, NameAddresses::Real);
        let needing = ["a.test", "x.c.test", "inference.local", "other.test"]
            .map(|text| tested.names.needs_real(&name(text)));
        assert_eq!(needing, [true, false, false, false]);
        let open = |text: &str, real: [u8; 4]| {
            tested
                .names
                .open(&name(text), Some(real.into()))
                .unwrap()
                .to_string()
        };
        assert_eq!(open("a.test", [11, 7, 7, 7]), "11.7.7.7");
        assert_eq!(
            open("b.test", [11, 7, 7, 7]),
            "198.18.0.1",
            "another name has it"
        );
        assert_eq!(
            open("inference.local", [11, 8, 8, 8]),
            "198.18.0.2",
            "the policy lists it as a host"
        );
        assert!(!tested.names.needs_real(&name("a.test")), "it has one");
        assert_eq!(
            tested.doors(),
            ["11.7.7.7:443", "198.18.0.1:80", "198.18.0.2:443"]
        );
        let of = |door: &str| {
            tested
                .names
                .target(door.parse().unwrap())
                .map(|target| target.to_string())
        };
        assert_eq!(of("11.7.7.7:443").as_deref(), Some("a.test:443"));

        // A later policy that names the address itself decides.
        let named = || {
            tested
                .names
                .name("11.7.7.7".parse().unwrap())
                .map(|name| name.to_string())
        };
        assert_eq!(named().as_deref(), Some("a.test"));
        tested.policy.replace(testing::snapshot(
            2,
            "{host: 11.7.7.7, ports: [22, 443]}, {host: b.test, port: 80}",
        ));
        tested.names.refresh().unwrap();
        assert_eq!(
            tested.doors(),
            [
                "11.7.7.7:22",
                "11.7.7.7:443",
                "198.18.0.1:80",
                "198.18.0.2:443"
            ]
        );
        assert_eq!(
            (of("11.7.7.7:443").as_deref(), named()),
            (Some("11.7.7.7:443"), None)
        );
        tested.policy.replace(testing::snapshot(
            3,
            "{host: a.test, port: 443}, {host: b.test, port: 80}",
        ));
        tested.names.refresh().unwrap();
        tested.names.open(&name("a.test"), None).unwrap();
        assert_eq!(
            tested.doors(),
            ["11.7.7.7:443", "198.18.0.1:80", "198.18.0.2:443"]
        );
        tested.policy.replace(testing::snapshot(
            4,
            "{allowed_ips: [11.7.0.0/16], port: 443}",
        ));
        assert_eq!(named(), None, "it is permitted without a host");
    }

    #[test]
    fn names_of_wildcards_are_bounded_and_those_that_are_written_out_are_not() {
        let tested = tested("{host: '*.b.test', port: 443}, {host: a.test, port: 80}");
        let opened = (0..300)
            .filter(|n| {
                tested
                    .names
                    .open(&name(&format!("n{n}.b.test")), None)
                    .is_ok()
            })
            .count();
        assert_eq!(opened, 256);
        tested.names.open(&name("n7.b.test"), None).unwrap();
        tested.names.open(&name("a.test"), None).unwrap();
    }

    #[test]
    fn a_door_that_cannot_be_opened_keeps_no_other_from_it_nor_from_its_end() {
        let tested =
            tested("{host: a.test, ports: [80, 60001]}, {host: 9.9.9.9, ports: [53, 60001]}");
        assert!(matches!(tested.names.refresh(), Err(OpenError::Door(_))));
        assert_eq!(tested.doors(), ["9.9.9.9:53"]);
        tested.names.open(&name("a.test"), None).unwrap();
        assert_eq!(tested.doors(), ["9.9.9.9:53", "198.18.0.1:80"]);
        tested
            .policy
            .replace(testing::snapshot(2, "{host: b.test, port: 60001}"));
        tested.names.refresh().unwrap();
        assert_eq!(tested.doors(), Vec::<String>::new());
        assert!(matches!(
            tested.names.open(&name("b.test"), None),
            Err(OpenError::Door(_))
        ));
    }

    #[test]
    fn an_observed_run_knows_every_name_and_opens_doors_of_those_that_were_asked_for() {
        let addresses = NameAddresses::default();
        let tested = tested_with("", UnknownNames::Observed, addresses);
        assert_eq!(tested.names.find(&name("any.test")), Found::Closed);
        assert!(
            !tested
                .names
                .open_on_demand("198.18.0.1:80".parse().unwrap()),
            "nobody has asked for it"
        );
        tested.names.open(&name("any.test"), None).unwrap();
        assert!(
            tested
                .names
                .open_on_demand("198.18.0.1:80".parse().unwrap())
        );
        assert!(
            !tested
                .names
                .open_on_demand("198.18.0.2:80".parse().unwrap())
        );
        assert_eq!(tested.doors(), ["198.18.0.1:80"]);
    }

    #[test]
    fn names_that_a_person_is_asked_about_have_addresses_and_leave_room_for_those_of_the_policy() {
        let addresses = NameAddresses::default();
        let endpoints = "{host: a.test, port: 443}, {host: '*.b.test', port: 443}";
        let tested = tested_with(endpoints, UnknownNames::Asked, addresses);
        let names = &tested.names;
        assert_eq!(names.find(&name("any.test")), Found::Asked);
        for (text, found) in [
            ("single", Found::Unknown),
            ("any.test.search.test", Found::Unknown),
            ("a.test.search.test", Found::UnknownWithDomain),
            ("a.test", Found::Closed),
        ] {
            assert_eq!(names.find(&name(text)), found, "{text}");
        }
        let open = |text: &str| names.open(&name(text), None);
        for number in 0..256 {
            open(&format!("n{number}.test")).unwrap();
        }
        assert!(matches!(open("more.test"), Err(OpenError::Unknown)));
        assert!(matches!(open("single"), Err(OpenError::Unknown)));
        open("n7.test").unwrap();
        let a = open("a.test").unwrap();
        open("x.b.test").unwrap();
        // Doors open when a program connects to them.
        let first = names.open(&name("n0.test"), None).unwrap();
        for port in 1..=16 {
            assert!(names.open_on_demand(SocketAddrV4::new(first, port)));
        }
        assert!(!names.open_on_demand(SocketAddrV4::new(first, 17)));
        assert!(
            names.open_on_demand(SocketAddrV4::new(a, 80)),
            "another port"
        );
        // A reload keeps them.
        tested.policy.replace(testing::snapshot(2, endpoints));
        names.refresh().unwrap();
        assert_eq!(names.find(&name("n0.test")), Found::At(first));
        assert_eq!(tested.doors().len(), 16 + 2 + 1);
    }
}
