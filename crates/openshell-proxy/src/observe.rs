//! What a run has used, where it is observed instead of refused.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use openshell_policy::address::AddressClass;
use openshell_policy::proposal::has_encoded_slash;

use crate::limits::Limits;
use crate::target::Target;

/// Endpoints that are kept; a run that uses more is no run to make a policy of.
const ENDPOINTS: usize = 10_000;

/// Where each program went.
#[derive(Debug, Default)]
pub struct Observations(Mutex<Observed>);

#[derive(Debug, Default)]
struct Observed {
    programs: BTreeMap<String, BTreeMap<(String, u16), Used>>,
    endpoints: usize,
    is_incomplete: bool,
}

/// What a program used of an endpoint.
#[derive(Debug, Default)]
struct Used {
    /// All addresses, where one of them is internal.
    internal: BTreeSet<IpAddr>,
    /// The methods of its requests, and the first paths of them.
    methods: BTreeSet<String>,
    paths: BTreeSet<String>,
    /// Whether a path held an escaped slash.
    has_encoded_slash: bool,
    /// Whether there was something that no rule for requests could see.
    is_opaque: bool,
}

/// Different methods and paths of an endpoint that are kept.
const METHODS: usize = 32;
const PATHS: usize = 20;

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
    /// With which methods, where there was nothing but requests.
    pub methods: BTreeSet<String>,
    /// For which paths: the first of them.
    pub paths: Vec<String>,
    /// Whether any path held an escaped slash.
    pub has_encoded_slash: bool,
}

impl Observations {
    /// Notes that `program` went to `target`, which has these `addresses`.
    pub fn add(&self, program: &str, target: &Target, addresses: impl Iterator<Item = IpAddr>) {
        let addresses: BTreeSet<_> = addresses.collect();
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
        let known = &mut programs.entry(program.to_owned()).or_default().entry(key).or_default().internal;
        // A name server may give other ones each time it is asked.
        let room = Limits::ADDRESSES.saturating_sub(known.len());
        known.extend(addresses.into_iter().filter(|_| is_internal).take(room));
    }

    /// Notes that `program` sent a `method` request for `path` to `target`.
    pub fn add_request(&self, program: &str, target: &Target, method: &str, path: &str) {
        self.of(program, target, |used| {
            if used.methods.len() < METHODS {
                used.methods.insert(method.to_owned());
            } else {
                used.is_opaque |= !used.methods.contains(method);
            }
            used.has_encoded_slash |= has_encoded_slash(path);
            if used.paths.len() < PATHS {
                used.paths.insert(path.to_owned());
            }
        });
    }

    /// Notes that `program` had a connection to `target` in which no rule for requests would see anything.
    pub fn add_opaque(&self, program: &str, target: &Target) {
        self.of(program, target, |used| used.is_opaque = true);
    }

    /// What was noted of an endpoint before is noted further.
    fn of(&self, program: &str, target: &Target, note: impl FnOnce(&mut Used)) {
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (target.host.to_string(), target.port);
        if let Some(used) = observed.programs.get_mut(program).and_then(|targets| targets.get_mut(&key)) {
            note(used);
        }
    }

    /// What there was, by program; and whether that is all of it.
    #[must_use]
    pub fn all(&self) -> (Vec<Observation>, bool) {
        let observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |program: &String, ((host, port), used): (&(String, u16), &Used)| Observation {
            program: program.clone(),
            host: host.clone(),
            port: *port,
            internal: used.internal.iter().copied().collect(),
            methods: if used.is_opaque { BTreeSet::new() } else { used.methods.clone() },
            paths: used.paths.iter().cloned().collect(),
            has_encoded_slash: used.has_encoded_slash,
        };
        let all = observed
            .programs
            .iter()
            .flat_map(|(program, targets)| targets.iter().map(move |target| of(program, target)));
        (all.collect(), !observed.is_incomplete)
    }
}
