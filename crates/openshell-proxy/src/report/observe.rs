//! The endpoints that a run has used. Kept for runs that only observe the policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use openshell_events::denial::UnmatchedRequest;
use openshell_policy::address::AddressClass;
use openshell_policy::network::rule::Glob;
use openshell_policy::proposal::has_encoded_slash;
use parking_lot::Mutex;

use crate::decide::message::rpc::observed::ObservedMessages;
use crate::ground::limits::Limits;
use crate::ground::target::Target;

/// The number of endpoints that are kept. A run with more cannot be the source of a policy.
const ENDPOINTS: usize = 10_000;

/// The observed endpoints of each program.
#[derive(Debug, Default)]
pub struct Observations(Mutex<Observed>);

#[derive(Debug, Default)]
struct Observed {
    programs: BTreeMap<String, BTreeMap<(String, u16), Use>>,
    endpoints: usize,
    is_incomplete: bool,
}

/// How one program has used an endpoint.
#[derive(Debug, Default)]
struct Use {
    /// All addresses of the host, up to [`Limits::ADDRESSES`], if one of them is internal.
    internal: BTreeSet<IpAddr>,
    /// The methods of its requests, and the first paths.
    methods: BTreeSet<String>,
    paths: BTreeSet<String>,
    /// The messages in its requests.
    messages: BTreeSet<UnmatchedRequest>,
    /// True if there were more messages than are kept.
    is_cut: bool,
    /// True if a path held an escaped slash.
    has_encoded_slash: bool,
    /// True if bytes were relayed that no rule for requests could judge, or if it has more distinct
    /// methods than are kept.
    is_opaque: bool,
    /// True if such bytes were inside TLS.
    is_in_tls: bool,
}

/// The numbers of distinct methods, paths and messages that are kept for an endpoint.
const METHODS: usize = 32;
const PATHS: usize = 20;
const MESSAGES: usize = 200;

/// An endpoint that one program has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The executable of the program.
    pub program: String,
    /// The host of the endpoint.
    pub host: String,
    /// The port of the endpoint.
    pub port: u16,
    /// All addresses of the host, if one of them is internal.
    pub internal: Vec<IpAddr>,
    /// True if bytes were relayed uninspected, or if it has more distinct methods than are kept. It has
    /// neither methods nor messages then.
    pub is_opaque: bool,
    /// The methods of its requests, without those that held messages.
    pub methods: BTreeSet<String>,
    /// The first paths of its requests.
    pub paths: Vec<String>,
    /// The messages in requests, for which the rules of endpoints with their paths are made.
    pub messages: BTreeSet<UnmatchedRequest>,
    /// True if a path held an escaped slash.
    pub has_encoded_slash: bool,
    /// True if bytes of it were relayed, and none of its connections was seen to be HTTP or TLS.
    pub is_tcp: bool,
}

impl Use {
    /// Returns true if no rule for requests or messages describes it.
    fn is_opaque(&self) -> bool {
        let has_none = self.methods.is_empty() && self.messages.is_empty();
        self.is_opaque || has_none && !self.is_cut
    }

    /// Returns true if requests for `path` held messages.
    fn has_messages_at(&self, path: &str) -> bool {
        let path = Glob::literal(path);
        let mut paths = self.messages.iter();
        paths.any(|message| message.endpoint_path.as_ref() == Some(&path))
    }
}

impl Observations {
    /// Notes a connection of `program` to `target`, which has these `addresses`.
    pub fn add(&self, program: &str, target: &Target, addresses: impl Iterator<Item = IpAddr>) {
        let addresses: BTreeSet<_> = addresses.collect();
        let is_internal = addresses
            .iter()
            .any(|address| AddressClass::of(*address).is_internal());
        let mut observed = self.0.lock();
        let Observed {
            programs,
            endpoints,
            is_incomplete,
        } = &mut *observed;
        let key = (target.host.to_string(), target.port);
        let is_new = programs
            .get(program)
            .is_none_or(|known| !known.contains_key(&key));
        if is_new && *endpoints == ENDPOINTS {
            *is_incomplete = true;
            return;
        }
        *endpoints += usize::from(is_new);
        let known = &mut programs
            .entry(program.to_owned())
            .or_default()
            .entry(key)
            .or_default()
            .internal;
        // A name server may return different addresses to each query.
        let room = Limits::ADDRESSES.saturating_sub(known.len());
        known.extend(addresses.into_iter().filter(|_| is_internal).take(room));
    }

    /// Notes a request of `program` with this method for this path of `target`, which may hold
    /// `messages`. The stream of a server's messages, and the end of a session, count as messages.
    pub fn add_request(
        &self,
        program: &str,
        target: &Target,
        (method, path): (&str, &str),
        messages: Option<ObservedMessages>,
    ) {
        self.update(program, target, |used| {
            if let Some(messages) = messages {
                used.is_cut |= messages.is_cut;
                for message in messages.requests {
                    let is_full = used.messages.len() == MESSAGES;
                    if is_full && !used.messages.contains(&message) {
                        used.is_cut = true;
                    } else {
                        used.messages.insert(message);
                    }
                }
                return;
            }
            if ["GET", "DELETE"].contains(&method) && used.has_messages_at(path) {
                return;
            }
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

    /// Notes that bytes of `program` to `target` were relayed uninspected, outside of TLS if they
    /// are `raw`.
    pub fn add_opaque(&self, program: &str, target: &Target, raw: bool) {
        self.update(program, target, |used| {
            used.is_opaque = true;
            used.is_in_tls |= !raw;
        });
    }

    /// Applies `note` to the use of an endpoint, if the endpoint has been added.
    fn update(&self, program: &str, target: &Target, note: impl FnOnce(&mut Use)) {
        let mut observed = self.0.lock();
        let key = (target.host.to_string(), target.port);
        if let Some(used) = observed
            .programs
            .get_mut(program)
            .and_then(|targets| targets.get_mut(&key))
        {
            note(used);
        }
    }

    /// Returns all observations by program, and true if none was left out.
    #[must_use]
    pub fn all(&self) -> (Vec<Observation>, bool) {
        let observed = self.0.lock();
        let of = |program: &String, ((host, port), used): (&(String, u16), &Use)| Observation {
            program: program.clone(),
            host: host.clone(),
            port: *port,
            is_opaque: used.is_opaque(),
            internal: used.internal.iter().copied().collect(),
            methods: if used.is_opaque() {
                BTreeSet::new()
            } else {
                used.methods.clone()
            },
            paths: used.paths.iter().cloned().collect(),
            messages: if used.is_opaque() {
                BTreeSet::new()
            } else {
                used.messages.clone()
            },
            has_encoded_slash: used.has_encoded_slash,
            is_tcp: used.is_opaque
                && !used.is_in_tls
                && used.methods.is_empty()
                && used.messages.is_empty(),
        };
        let all = observed
            .programs
            .iter()
            .flat_map(|(program, targets)| targets.iter().map(move |target| of(program, target)));
        let mut uses = observed.programs.values().flat_map(BTreeMap::values);
        let is_cut = observed.is_incomplete || uses.any(|used| used.is_cut);
        (all.collect(), !is_cut)
    }
}
