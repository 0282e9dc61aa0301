//! Routes, with their keys and what is used of them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::header::{HeaderValue, InvalidHeaderValue};
use openshell_policy::inference::interface::Interface;
use openshell_policy::inference::{Backend, Budget, Provider, RouteSpec, SYSTEM_ROUTE};
use openshell_policy::secret::Secret;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::credentials::vault::Credential;
use crate::limits::Limits;

/// Bytes of the shortest key that is a secret. Backends that want none are given one such as `none` or `x`, which stands in any answer.
const SECRET_BYTES: usize = 8;

/// How long a backend may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Until it is connected.
    pub connect: Duration,
    /// From then until its answer begins.
    pub first_byte: Duration,
    /// Between parts of its answer.
    pub idle: Duration,
}

/// Where requests for some interfaces go.
pub struct Route {
    /// Its name.
    pub name: String,
    /// Where it leads.
    pub backend: Backend,
    /// The model that is asked there.
    pub model: String,
    /// How the backend wants its key.
    pub provider: Provider,
    /// What it serves.
    pub interfaces: BTreeSet<Interface>,
    /// How long the backend may take.
    pub timeouts: Timeouts,
    /// The header value that holds the key.
    key: Option<HeaderValue>,
    /// The same, to know it again in an answer, if it is long enough to be a secret.
    credential: Option<Arc<Credential>>,
    budget: Budget,
    requests: AtomicU64,
    tokens: AtomicU64,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Route {
    /// The route of `spec`, with its `key`.
    ///
    /// # Errors
    /// The key holds what no header may.
    pub fn new(spec: RouteSpec, key: Option<Secret>) -> Result<Self, InvalidHeaderValue> {
        let scheme: &[u8] = match spec.provider {
            Provider::Bearer => b"Bearer ",
            Provider::Anthropic => b"",
        };
        let written = key.as_ref().map(|key| Zeroizing::new([scheme, key.expose()].concat()));
        let value = written.map(|written| HeaderValue::from_bytes(&written)).transpose()?;
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

    /// The value of the header that holds the key.
    #[must_use]
    pub fn key(&self) -> Option<&HeaderValue> {
        self.key.as_ref()
    }

    /// The key, to know it again in an answer, if it is long enough to be a secret.
    #[must_use]
    pub fn credential(&self) -> Option<&Arc<Credential>> {
        self.credential.as_ref()
    }

    /// Counts a request, if the budget has room for it, and `cost`, the tokens that it is taken to have: its backend works on it even if
    /// its client does not wait for the answer.
    ///
    /// # Errors
    /// What is used up.
    pub fn spend(&self, cost: u64) -> Result<(), &'static str> {
        if self.budget.max_tokens.is_some_and(|most| self.tokens.load(Ordering::Relaxed) >= most.get()) {
            return Err("max_tokens");
        }
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        if self.budget.max_requests.is_some_and(|most| before >= most.get()) {
            self.requests.fetch_sub(1, Ordering::Relaxed);
            return Err("max_requests");
        }
        self.add_tokens(cost);
        Ok(())
    }

    /// Takes back a request of `cost` that was not sent.
    pub fn refund(&self, cost: u64) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.take_tokens(cost);
    }

    /// Counts the `tokens` of a request that has ended in place of its `cost`.
    pub fn spent(&self, cost: u64, tokens: u64) {
        self.add_tokens(tokens);
        self.take_tokens(cost);
    }

    fn add_tokens(&self, tokens: u64) {
        let add = |before: u64| Some(before.saturating_add(tokens));
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn take_tokens(&self, tokens: u64) {
        let take = |before: u64| Some(before.saturating_sub(tokens));
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    }
}

/// All routes of one moment, in their order.
#[derive(Debug)]
pub struct RouteTable {
    routes: Vec<Arc<Route>>,
    /// Bytes of the largest request.
    pub max_request_bytes: usize,
}

impl RouteTable {
    /// Of these routes; what is the system's own is left out.
    #[must_use]
    pub fn new(routes: impl IntoIterator<Item = Route>, max_request_bytes: usize) -> Self {
        let routes = routes.into_iter().filter(|route| route.name != SYSTEM_ROUTE).map(Arc::new).collect();
        Self { routes, max_request_bytes }
    }

    /// Whether nobody is served.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// The first.
    #[must_use]
    pub fn first(&self) -> Option<&Arc<Route>> {
        self.routes.first()
    }

    /// Those that serve `interface`, in their order.
    pub fn serving(&self, interface: Interface) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter().filter(move |route| route.interfaces.contains(&interface))
    }
}

/// The routes in force.
#[derive(Debug)]
pub struct Inference {
    table: ArcSwap<RouteTable>,
    /// KiB of requests that are held at once.
    pub memory: Arc<Semaphore>,
}

impl Inference {
    /// With `table` in force.
    #[must_use]
    pub fn new(table: RouteTable) -> Self {
        Self { table: ArcSwap::from_pointee(table), memory: Arc::new(Semaphore::new(Limits::INFERENCE_KIB)) }
    }

    /// The routes of this moment.
    #[must_use]
    pub fn table(&self) -> Arc<RouteTable> {
        self.table.load_full()
    }

    /// Puts other routes in force; what is under way goes on as it began. Who was there before has spent what it had.
    pub fn replace(&self, table: RouteTable) {
        let before = self.table();
        for route in &table.routes {
            if let Some(same) = before.routes.iter().find(|known| known.name == route.name) {
                route.requests.store(same.requests.load(Ordering::Relaxed), Ordering::Relaxed);
                route.tokens.store(same.tokens.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.table.store(Arc::new(table));
    }
}
