//! The endpoints of a connection that count for a request, by its path.

use openshell_policy::network::endpoint::{Endpoint, Enforcement, UpgradeProtocol};
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
pub(super) struct Counting<'p>(Vec<&'p Endpoint>);

/// The error of a path that a server may read as one for another endpoint, which has this path.
#[derive(Debug)]
pub(super) struct Ambiguous(pub(super) String);

impl Paths {
    /// Compiles the paths of `endpoints`.
    pub(super) fn new(endpoints: Vec<Endpoint>) -> Self {
        let differ = endpoints.iter().any(|endpoint| endpoint.path().is_some());
        let endpoints = endpoints.into_iter().map(PathEndpoint::new).collect();
        Self { endpoints, differ }
    }

    /// Returns the endpoints.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().map(|counting| &counting.endpoint)
    }

    /// Returns the endpoints that count for a request for `target`.
    ///
    /// # Errors
    /// Fails if servers may read the path in a way for which other endpoints allow requests.
    pub(super) fn counting(&self, target: &RequestTarget) -> Result<Counting<'_>, Ambiguous> {
        if !self.differ {
            return Ok(Counting(self.endpoints().collect()));
        }
        let path = target.path();
        let is_match = |matcher: &PathMatcher| matcher.canonical.is_match(path);
        let matching = self
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.path.as_ref().is_none_or(is_match));
        let matching: Vec<_> = matching.collect();
        let highest = matching.iter().map(|endpoint| endpoint.specificity).max();
        let other_readings = [Some(path), target.without_parameters()];
        for reading in other_readings.into_iter().flatten().flat_map(readings) {
            let caseless = without_case(&reading);
            let leads_elsewhere = |endpoint: &&PathEndpoint| {
                let is_read = |matcher: &PathMatcher| {
                    !matcher.canonical.is_match(path) && matcher.caseless.is_match(&caseless)
                };
                highest.is_some_and(|highest| endpoint.specificity >= highest)
                    && endpoint.path.as_ref().is_some_and(is_read)
            };
            let other = self.endpoints.iter().find(leads_elsewhere);
            if let Some(path) = other.and_then(|other| other.endpoint.path()) {
                return Err(Ambiguous(path.as_str().to_owned()));
            }
        }
        let endpoints = matching.into_iter().map(|matching| &matching.endpoint);
        Ok(Counting(endpoints.collect()))
    }
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
}

impl PathMatcher {
    fn new(path: &Glob) -> Self {
        // A class of letters may not have a form without letter case. Then each reading may be meant.
        let caseless = Glob::parse(&without_case(&readable(path.as_str())));
        Self {
            canonical: path.compiled(),
            caseless: caseless.unwrap_or_else(|_| Glob::everything()).compiled(),
        }
    }
}

impl Counting<'_> {
    /// Returns true if no endpoint counts.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the endpoints whose rules could allow the request: the most specific ones.
    pub(super) fn at(&self) -> At {
        let specificity = |endpoint: &&&Endpoint| endpoint.path().map(Glob::specificity);
        match self
            .0
            .iter()
            .max_by_key(specificity)
            .map(|most| most.path())
        {
            None => At::Nowhere,
            Some(None) => At::Any,
            Some(Some(path)) => At::Path(path.as_str().to_owned()),
        }
    }

    /// Returns true if messages that no rule allows are refused.
    pub(super) fn is_enforced(&self) -> bool {
        let enforces = |endpoint: &&Endpoint| {
            endpoint
                .l7()
                .is_some_and(|l7| l7.enforcement == Enforcement::Enforce)
        };
        self.is_empty() || self.0.iter().any(enforces)
    }

    /// Returns true if a message may switch to `upgrade`, besides WebSocket.
    pub(super) fn permits(&self, upgrade: &UpgradeProtocol) -> bool {
        let permits = |endpoint: &&Endpoint| endpoint.upgrades().contains(upgrade);
        !self.is_empty() && self.0.iter().all(permits)
    }
}
