//! What a run has used, where it is observed instead of refused.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use openshell_policy::address::AddressClass;

use crate::context::Limits;
use crate::intake::Target;
use crate::resolve::guard::Destination;

/// Endpoints that are kept; a run that uses more is no run to make a policy of.
const ENDPOINTS: usize = 10_000;

/// Where each program went.
#[derive(Debug, Default)]
pub struct Observations(Mutex<Observed>);

#[derive(Debug, Default)]
struct Observed {
    programs: BTreeMap<String, BTreeMap<(String, u16), BTreeSet<IpAddr>>>,
    endpoints: usize,
    is_incomplete: bool,
}

/// One program's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The program.
    pub program: String,
    /// Where it went.
    pub host: String,
    /// At which port.
    pub port: u16,
    /// All addresses of the host, where one of them is internal.
    pub internal: Vec<IpAddr>,
}

impl Observations {
    /// Notes that `program` went to `target`, which is at `destination`.
    pub fn add(&self, program: &str, target: &Target, destination: &Destination) {
        let addresses: BTreeSet<_> = destination.addresses().iter().map(|address| address.ip()).collect();
        let is_internal = addresses.iter().any(|address| AddressClass::of(*address).is_internal());
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Observed { programs, endpoints, is_incomplete } = &mut *observed;
        let key = (target.host.to_string(), target.port);
        let is_new = programs.get(program).is_none_or(|known| !known.contains_key(&key));
        if is_new && *endpoints == ENDPOINTS {
            *is_incomplete = true;
            return;
        }
        *endpoints += usize::from(is_new);
        let known = programs.entry(program.to_owned()).or_default().entry(key).or_default();
        // A name server may give other ones each time it is asked.
        let room = Limits::ADDRESSES.saturating_sub(known.len());
        known.extend(addresses.into_iter().filter(|_| is_internal).take(room));
    }

    /// What there was, by program; and whether that is all of it.
    #[must_use]
    pub fn all(&self) -> (Vec<Observation>, bool) {
        let observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |program: &String, ((host, port), internal): (&(String, u16), &BTreeSet<IpAddr>)| Observation {
            program: program.clone(),
            host: host.clone(),
            port: *port,
            internal: internal.iter().copied().collect(),
        };
        let all = observed
            .programs
            .iter()
            .flat_map(|(program, targets)| targets.iter().map(move |target| of(program, target)));
        (all.collect(), !observed.is_incomplete)
    }
}
