//! Routes to models, with their keys, budgets and usage.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::header::{HeaderValue, InvalidHeaderValue};
use openshell_policy::inference::interface::Interface;
use openshell_policy::inference::{Backend, Budget, Provider, RouteSpec, SYSTEM_ROUTE, Tools};
use openshell_policy::secret::Secret;

use crate::ground::shares::Shares;
use zeroize::Zeroizing;

use crate::credentials::vault::Credential;
use crate::ground::limits::Limits;

/// Length in bytes of the shortest key that counts as a secret. Backends without keys get one such
/// as `none` or `x`, which occurs in any response.
const SECRET_BYTES: usize = 8;

/// The timeouts of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For connecting.
    pub connect: Duration,
    /// For the response to begin.
    pub first_byte: Duration,
    /// Between parts of the response.
    pub idle: Duration,
}

/// A route of requests to a backend.
pub struct Route {
    /// The name of the route.
    pub name: String,
    /// The destination of its requests.
    pub backend: Backend,
    /// The model of its requests.
    pub model: String,
    /// The form in which its key is sent.
    pub provider: Provider,
    /// The interfaces that it serves.
    pub interfaces: BTreeSet<Interface>,
    /// Who runs the tools of its requests.
    pub tools: Tools,
    /// The timeouts of its backend.
    pub timeouts: Timeouts,
    /// The header value that contains the key.
    key: Option<HeaderValue>,
    /// The key as a credential for which requests and responses are searched, if it is a secret.
    credential: Option<Arc<Credential>>,
    budget: Budget,
    requests: AtomicU64,
    tokens: AtomicU64,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Route {
    /// Creates the route of `spec`, with its `key`.
    ///
    /// # Errors
    /// Fails if the key is not valid in a header.
    pub fn new(spec: RouteSpec, key: Option<Secret>) -> Result<Self, InvalidHeaderValue> {
        let scheme: &[u8] = match spec.provider {
            Provider::Bearer => b"Bearer ",
            Provider::Anthropic => b"",
        };
        let written = key
            .as_ref()
            .map(|key| Zeroizing::new([scheme, key.expose()].concat()));
        let value = written
            .map(|written| HeaderValue::from_bytes(&written))
            .transpose()?;
        Ok(Self {
            key: value.map(|mut value| {
                value.set_sensitive(true);
                value
            }),
            credential: key
                .filter(|key| key.expose().len() >= SECRET_BYTES)
                .map(|key| Arc::new(Credential::of(format!("route {}", spec.name), key))),
            name: spec.name,
            backend: spec.backend,
            model: spec.model,
            provider: spec.provider,
            interfaces: spec.interfaces,
            tools: spec.tools,
            timeouts: Timeouts {
                connect: Duration::from_secs(spec.timeouts.connect),
                first_byte: Duration::from_secs(spec.timeouts.first_byte),
                idle: Duration::from_secs(spec.timeouts.idle),
            },
            budget: spec.budget,
            requests: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
        })
    }

    /// Returns the header value that contains the key.
    #[must_use]
    pub fn key(&self) -> Option<&HeaderValue> {
        self.key.as_ref()
    }

    /// Returns the key as a credential for which requests and responses are searched, if it is a
    /// secret.
    #[must_use]
    pub fn credential(&self) -> Option<&Arc<Credential>> {
        self.credential.as_ref()
    }

    /// Counts a request and its `cost`, its estimated tokens, if the budget allows. Both stay
    /// counted if the client leaves, because the backend still works on the request.
    ///
    /// # Errors
    /// Fails with the name of the exhausted limit.
    pub fn spend(&self, cost: u64) -> Result<(), &'static str> {
        if self
            .budget
            .max_tokens
            .is_some_and(|most| self.tokens.load(Ordering::Relaxed) >= most.get())
        {
            return Err("max_tokens");
        }
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        if self
            .budget
            .max_requests
            .is_some_and(|most| before >= most.get())
        {
            self.requests.fetch_sub(1, Ordering::Relaxed);
            return Err("max_requests");
        }
        self.add_tokens(cost);
        Ok(())
    }

    /// Uncounts a request of `cost` that was not sent.
    pub fn refund(&self, cost: u64) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.take_tokens(cost);
    }

    /// Replaces the `cost` of a completed request by the `tokens` that it used.
    pub fn settle(&self, cost: u64, tokens: u64) {
        self.add_tokens(tokens);
        self.take_tokens(cost);
    }

    fn add_tokens(&self, tokens: u64) {
        let add = |before: u64| Some(before.saturating_add(tokens));
        let _ = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn take_tokens(&self, tokens: u64) {
        let take = |before: u64| Some(before.saturating_sub(tokens));
        let _ = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    }
}

/// The table of routes, in their order.
#[derive(Debug)]
pub struct RouteTable {
    routes: Vec<Arc<Route>>,
    /// The largest number of bytes that a request may have.
    pub max_request_bytes: usize,
}

impl RouteTable {
    /// Creates a table of `routes`, except the system's own route.
    #[must_use]
    pub fn new(routes: impl IntoIterator<Item = Route>, max_request_bytes: usize) -> Self {
        let routes = routes
            .into_iter()
            .filter(|route| route.name != SYSTEM_ROUTE)
            .map(Arc::new)
            .collect();
        Self {
            routes,
            max_request_bytes,
        }
    }

    /// Returns true if there are no routes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Returns the first route.
    #[must_use]
    pub fn first(&self) -> Option<&Arc<Route>> {
        self.routes.first()
    }

    /// Returns the keys of all routes, if they are secrets.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Credential>> {
        self.routes.iter().filter_map(|route| route.credential())
    }

    /// Returns the routes that serve `interface`, in their order.
    pub fn serving(&self, interface: Interface) -> impl Iterator<Item = &Arc<Route>> {
        self.routes
            .iter()
            .filter(move |route| route.interfaces.contains(&interface))
    }
}

/// The holder of the routes in force.
#[derive(Debug)]
pub struct Inference {
    table: ArcSwap<RouteTable>,
    /// KiB of memory for the requests.
    pub(super) memory: Shares,
}

impl Inference {
    /// Creates a holder with `table` in force.
    #[must_use]
    pub fn new(table: RouteTable) -> Self {
        Self {
            table: ArcSwap::from_pointee(table),
            memory: Shares::new(Limits::INFERENCE_KIB),
        }
    }

    /// Returns the routes in force.
    #[must_use]
    pub fn table(&self) -> Arc<RouteTable> {
        self.table.load_full()
    }

    /// Puts `table` in force; requests under way keep their routes. A route keeps the usage of the
    /// earlier route with its name.
    pub fn replace(&self, table: RouteTable) {
        let before = self.table();
        for route in &table.routes {
            if let Some(same) = before.routes.iter().find(|known| known.name == route.name) {
                route
                    .requests
                    .store(same.requests.load(Ordering::Relaxed), Ordering::Relaxed);
                route
                    .tokens
                    .store(same.tokens.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.table.store(Arc::new(table));
    }
}
