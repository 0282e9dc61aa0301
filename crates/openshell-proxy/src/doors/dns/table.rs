//! The names in use, with their addresses and doors.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use openshell_policy::network::host::HostName;

use super::known::{Known, Ports};
use super::pool::Pool;
use super::unknown::AskedNames;
use crate::ground::limits::Limits;

/// An error of opening doors.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum OpenError {
    #[error("the policy does not know the name")]
    Unknown,
    #[error("no address is left for names; set a larger range with --name-addresses")]
    NoAddress,
    #[error(
        "at most {} new names of wildcards may be used in a minute",
        Limits::WILDCARD_NAMES
    )]
    TooManyNew,
    #[error(
        "at most {} names and {} of their ports may be in use at once",
        Limits::NAMES,
        Limits::DOORS
    )]
    TooManyInUse,
    #[error(
        "at most {} different ports of names may be in use at once",
        Limits::DOOR_PORTS
    )]
    TooManyPorts,
    #[error("cannot open a port: {0}")]
    Door(#[from] io::Error),
}

/// The names in use, under one generation of the policy.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The policy generation of [`Self::known`].
    pub(super) generation: u64,
    pub(super) known: Known,
    pub(super) pool: Pool,
    pub(super) in_use: HashMap<HostName, InUse>,
    /// Addresses that the policy names as hosts, and whose doors are open.
    pub(super) literals: BTreeSet<SocketAddrV4>,
}

/// A name that has doors.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) address: Ipv4Addr,
    /// The policy generation of [`Self::ports`].
    pub(super) generation: u64,
    pub(super) ports: Ports,
    /// False if the policy does not know it.
    pub(super) is_known: bool,
    pub(super) asked: Instant,
}

impl Table {
    /// Takes an address for `name` that the policy does not name or permit itself.
    pub(super) fn take_address(
        &mut self,
        name: &HostName,
        real: Option<Ipv4Addr>,
    ) -> Option<Ipv4Addr> {
        let Self { known, pool, .. } = self;
        pool.take(name, real, |address| !known.is_listed(address))
    }

    /// Makes room for `name`, which the policy does not know, beside those that are `asked` about. If
    /// there are too many, this removes those that nobody has looked up lately, and adds their doors
    /// to `closed`.
    pub(super) fn make_room_for_asked(
        &mut self,
        name: &HostName,
        asked: &mut AskedNames,
        closed: &mut Vec<SocketAddrV4>,
    ) -> Result<(), OpenError> {
        let most = self.pool.spare();
        let others = |table: &Self| {
            let mut in_use = table.in_use.iter();
            let is_other = |(other, used): &(&HostName, &InUse)| *other != name && !used.is_known;
            in_use.by_ref().filter(is_other).count()
        };
        if asked.admit(name, others(self), most) {
            return Ok(());
        }
        self.remove_unasked(|other, used| other != name && !used.is_known, closed);
        if asked.admit(name, others(self), most) {
            Ok(())
        } else {
            Err(OpenError::Unknown)
        }
    }

    /// Makes room for `name` with `ports`. If a limit is reached, this removes all names that
    /// nobody has asked for lately, and adds their doors to `closed`.
    pub(super) fn make_room(
        &mut self,
        name: &HostName,
        ports: usize,
        closed: &mut Vec<SocketAddrV4>,
    ) -> Result<(), OpenError> {
        let doors = |table: &Self| -> usize {
            let others = table.in_use.iter().filter(|(other, _)| *other != name);
            others.map(|(_, used)| used.ports.len()).sum()
        };
        if self.in_use.len() < Limits::NAMES && doors(self) + ports <= Limits::DOORS {
            return Ok(());
        }
        self.remove_unasked(|other, _| other != name, closed);
        if self.in_use.len() < Limits::NAMES && doors(self) + ports <= Limits::DOORS {
            Ok(())
        } else {
            Err(OpenError::TooManyInUse)
        }
    }

    /// Removes the names for which `is_meant` returns true and that nobody has looked up lately, and
    /// adds their doors to `closed`.
    fn remove_unasked(
        &mut self,
        is_meant: impl Fn(&HostName, &InUse) -> bool,
        closed: &mut Vec<SocketAddrV4>,
    ) {
        let now = Instant::now();
        let is_unasked = |used: &InUse| now.duration_since(used.asked) >= Limits::NAME_UNASKED;
        let unasked = self
            .in_use
            .extract_if(|other, used| is_meant(other, used) && is_unasked(used));
        for (_, used) in unasked {
            let doors = used.ports.iter();
            closed.extend(doors.map(|port| SocketAddrV4::new(used.address, *port)));
        }
    }
}
