//! The endpoints of a connection that count for a request, by its path.

use std::collections::BTreeSet;

use openshell_policy::network::endpoint::{Endpoint, Enforcement, Protocol, UpgradeProtocol};
use openshell_policy::network::rpc::{Revision, RpcRules};
use openshell_policy::network::rule::{CompiledGlob, Glob, Specificity};

use crate::decide::message::http::readings;
use crate::decide::rego_data::readable;
use crate::denial::judged::At;
use crate::wire::http::target::{RequestTarget, without_case};

/// The endpoints of a connection that judge messages.
#[derive(Debug)]
pub(super) struct Paths {
    endpoints: Vec<PathEndpoint>,
    /// True if an endpoint has a path.
    differ: bool,
}

/// An endpoint, and the requests for which it counts.
#[derive(Debug)]
struct PathEndpoint {
    endpoint: Endpoint,
    specificity: Specificity,
    /// `None` if it counts for every path.
    path: Option<PathMatcher>,
}

/// The compiled path of an endpoint.
#[derive(Debug)]
struct PathMatcher {
    canonical: CompiledGlob,
    /// The same for readings without letter case.
    caseless: CompiledGlob,
}

/// The endpoints that count for one request.
#[derive(Debug)]
pub(super) struct Counting<'p> {
    /// Those whose path matches.
    matching: Vec<&'p PathEndpoint>,
    /// Those whose path matches in one of the ways in which servers may read the request's.
    read: Vec<&'p PathEndpoint>,
}

/// The error of a request that may be one for several endpoints.
#[derive(Debug)]
pub(super) enum Ambiguous {
    /// A server may read its path as one for another endpoint, which has this path if it has one.
    Path(Option<String>),
    /// The endpoints of its path, which is this if they have one, have several protocols.
    Protocols(Option<String>),
}

impl Paths {
    /// Compiles the paths of `endpoints`.
    pub(super) fn new(endpoints: Vec<Endpoint>) -> Self {
        let differ = endpoints.iter().any(|endpoint| endpoint.path().is_some());
        let endpoints = endpoints.into_iter().map(PathEndpoint::new).collect();
        Self { endpoints, differ }
    }

    /// Returns the endpoints that count for a request for `target`.
    ///
    /// # Errors
    /// Fails if servers may read the path in a way for which other endpoints allow requests.
    pub(super) fn counting(&self, target: &RequestTarget) -> Result<Counting<'_>, Ambiguous> {
        if !self.differ {
            let all: Vec<_> = self.endpoints.iter().collect();
            return of_one_protocol(Counting {
                matching: all.clone(),
                read: all,
            });
        }
        let path = target.path();
        let matching = self.matching(|matcher| matcher.canonical.is_match(path));
        let highest = matching.iter().map(|endpoint| endpoint.specificity).max();
        let allows = |endpoint: &PathEndpoint| {
            highest.is_some_and(|highest| endpoint.specificity >= highest)
        };
        let mut read = matching.clone();
        let written = [Some(path), target.without_parameters()];
        for reading in written.into_iter().flatten().flat_map(readings) {
            let others = self.matching(|matcher| matcher.is_read(&reading));
            let is_new = |other: &&PathEndpoint| !matching.iter().any(|known| known.is(other));
            if let Some(other) = others.iter().find(|other| is_new(other) && allows(other)) {
                let path = other.endpoint.path();
                return Err(Ambiguous::Path(path.map(|path| path.as_str().to_owned())));
            }
            // A server that decodes a slash sees other segments.
            if segments(&reading) != segments(path) && !others.iter().any(|other| allows(other)) {
                let other = others.iter().find_map(|other| other.endpoint.path());
                return Err(Ambiguous::Path(other.map(|path| path.as_str().to_owned())));
            }
            for other in others {
                if !read.iter().any(|known| known.is(other)) {
                    read.push(other);
                }
            }
        }
        of_one_protocol(Counting { matching, read })
    }

    /// Returns the endpoints.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().map(|endpoint| &endpoint.endpoint)
    }

    /// Returns the endpoints whose path matches by `is_match`, and those without a path.
    fn matching(&self, is_match: impl Fn(&PathMatcher) -> bool) -> Vec<&PathEndpoint> {
        self.endpoints
            .iter()
            .filter(|endpoint| endpoint.path.as_ref().is_none_or(&is_match))
            .collect()
    }
}

/// Returns `counting`, if the endpoints that could allow the request have one protocol.
fn of_one_protocol(counting: Counting<'_>) -> Result<Counting<'_>, Ambiguous> {
    let protocol = counting.protocol();
    let is_of_another = |endpoint: &PathEndpoint| endpoint.protocol() != protocol;
    if !counting.allowing().any(is_of_another) {
        return Ok(counting);
    }
    let path = counting
        .allowing()
        .find_map(|endpoint| endpoint.endpoint.path());
    Err(Ambiguous::Protocols(
        path.map(|path| path.as_str().to_owned()),
    ))
}

/// Returns the number of segments of `path`, in which a slash at the end begins none.
fn segments(path: &str) -> usize {
    path.trim_end_matches('/').matches('/').count()
}

impl PathEndpoint {
    fn new(endpoint: Endpoint) -> Self {
        let path = endpoint.path();
        Self {
            specificity: path.map_or(Specificity::Any, Glob::specificity),
            path: path.map(PathMatcher::new),
            endpoint,
        }
    }

    fn protocol(&self) -> Option<Protocol> {
        self.endpoint.l7().map(|l7| l7.protocol)
    }

    fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl PathMatcher {
    /// Returns true if the path matches this `reading` of a request's, in any letter case.
    fn is_read(&self, reading: &str) -> bool {
        self.canonical.is_match(reading) || self.caseless.is_match(&without_case(reading))
    }

    fn new(path: &Glob) -> Self {
        // A class of letters may not have a form without letter case. Then each reading may be meant.
        let caseless = Glob::parse(&without_case(&readable(path.as_str())));
        Self {
            canonical: path.compiled(),
            caseless: caseless.unwrap_or_else(|_| Glob::everything()).compiled(),
        }
    }
}

impl<'p> Counting<'p> {
    /// Returns the endpoints whose rules could allow the request: the most specific ones.
    fn allowing(&self) -> impl Iterator<Item = &'p PathEndpoint> {
        let highest = self
            .matching
            .iter()
            .map(|endpoint| endpoint.specificity)
            .max();
        let matching = self.matching.iter().copied();
        matching.filter(move |endpoint| Some(endpoint.specificity) == highest)
    }

    /// Returns the protocol in which the request is judged; `None` if no endpoint counts.
    pub(super) fn protocol(&self) -> Option<Protocol> {
        self.allowing().find_map(PathEndpoint::protocol)
    }

    /// Returns the rules for messages that could allow the request.
    pub(super) fn rpc(&self) -> impl Iterator<Item = &'p RpcRules> {
        let l7 = self
            .allowing()
            .filter_map(|endpoint| endpoint.endpoint.l7());
        l7.filter_map(|l7| l7.rpc.as_ref())
    }

    /// Returns the revisions of MCP that may be spoken.
    pub(super) fn versions(&self) -> BTreeSet<Revision> {
        let mcp = self.rpc().filter_map(|rules| rules.mcp.as_ref());
        mcp.flat_map(|mcp| &mcp.versions).copied().collect()
    }

    /// Returns true if no endpoint counts.
    pub(super) fn is_empty(&self) -> bool {
        self.matching.is_empty()
    }

    /// Returns the endpoints whose rules could allow the request: the most specific ones.
    pub(super) fn at(&self) -> At {
        match self.allowing().next().map(|most| most.endpoint.path()) {
            None => At::Nowhere,
            Some(None) => At::Any,
            Some(Some(path)) => At::Path(path.as_str().to_owned()),
        }
    }

    /// Returns true if messages that no rule allows are refused.
    pub(super) fn is_enforced(&self) -> bool {
        let enforces = |endpoint: &&PathEndpoint| {
            let l7 = endpoint.endpoint.l7();
            l7.is_some_and(|l7| l7.enforcement == Enforcement::Enforce)
        };
        self.is_empty() || self.read.iter().any(enforces)
    }

    /// Returns true if a message may switch to `upgrade`, besides WebSocket.
    pub(super) fn permits(&self, upgrade: &UpgradeProtocol) -> bool {
        let permits = |endpoint: &&PathEndpoint| endpoint.endpoint.upgrades().contains(upgrade);
        !self.is_empty() && self.read.iter().all(permits)
    }
}
