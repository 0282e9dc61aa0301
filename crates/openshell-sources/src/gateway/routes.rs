//! A gateway's routes to models.

use std::time::Duration;

use openshell_events::text::{self, printable};
use openshell_events::words::{ConfigState, Severity};
use openshell_gateway::client::Gateway;
use openshell_gateway::convert::routes::Bundle;
use openshell_policy::inference::{DEFAULT_REQUEST_BYTES, KeySource, RouteSpec, SYSTEM_ROUTE};
use openshell_telemetry::logging;

use crate::secrets::route_file::{KeyedRoute, RouteReport, RouteSet};
use crate::update::{Answer, Source, Update};

/// A gateway that is asked for routes at intervals.
pub struct RouteSource {
    gateway: Gateway,
    every: Duration,
    /// The revision of the routes in force.
    revision: Option<String>,
    /// True if the loss of the routes was logged. Each loss is logged once.
    is_lost: bool,
}

impl RouteSource {
    /// Asks for the routes that a sandbox starts with. There are none if the gateway has none or
    /// does not answer.
    pub(super) async fn open(gateway: Gateway, every: Duration) -> (Self, RouteSet) {
        let mut source = Self {
            gateway,
            every,
            revision: None,
            is_lost: false,
        };
        let routes = source.poll().await.unwrap_or_else(|| {
            routes(Bundle {
                revision: String::new(),
                routes: Vec::new(),
                left_out: Vec::new(),
            })
        });
        (source, routes)
    }

    /// Returns the routes, if they have changed.
    async fn poll(&mut self) -> Option<RouteSet> {
        match self.gateway.routes().await {
            Ok(bundle) => {
                if std::mem::take(&mut self.is_lost) {
                    logging::config_event(
                        ConfigState::Enabled,
                        Severity::Info,
                        "the gateway gives routes to models again",
                    );
                }
                if self.revision.as_ref() == Some(&bundle.revision) {
                    return None;
                }
                self.revision = Some(bundle.revision.clone());
                Some(routes(bundle))
            }
            Err(error) if error.is_refused() => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    let message = format!("the gateway has no models for this sandbox: {error}");
                    logging::config_event(ConfigState::Disabled, Severity::Low, &message);
                }
                // If there were routes before, an empty set replaces them.
                self.revision.take().map(|_| {
                    routes(Bundle {
                        revision: String::new(),
                        routes: Vec::new(),
                        left_out: Vec::new(),
                    })
                })
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    let message = format!(
                        "cannot ask the gateway for routes to models; those in force stay: {error}"
                    );
                    logging::config_event(ConfigState::Degraded, Severity::Low, &message);
                }
                None
            }
        }
    }
}

impl Source for RouteSource {
    async fn next(&mut self) -> Update {
        loop {
            tokio::time::sleep(self.every).await;
            if let Some(routes) = self.poll().await {
                return Update {
                    routes: Some(routes),
                    ..Update::default()
                };
            }
        }
    }

    fn answered(&mut self, _: Answer) {}
}

/// Returns the routes of `bundle` that serve workloads.
fn routes(bundle: Bundle) -> RouteSet {
    let mut routes = Vec::new();
    let mut left_out = bundle.left_out;
    for mut spec in bundle
        .routes
        .into_iter()
        .filter(|spec: &RouteSpec| spec.name != SYSTEM_ROUTE)
    {
        let name = spec.name.clone();
        let key = match std::mem::replace(&mut spec.key, KeySource::None) {
            KeySource::Value(secret) => Some(secret),
            KeySource::None | KeySource::Variable(_) | KeySource::File(_) => None,
        };
        match KeyedRoute::new(spec, key) {
            Ok(route) => routes.push(route),
            Err(error) => left_out.push(format!("{name}: {error}")),
        }
    }
    for route in &left_out {
        let message = format!("a route of the gateway is left out: {}", printable(route));
        logging::config_event(ConfigState::Validated, Severity::Medium, &message);
    }
    let count = text::counted(routes.len() as u64, "route", "routes");
    let report = RouteReport {
        summary: format!("inference routes loaded from the gateway: {count}"),
    };
    RouteSet {
        routes,
        max_request_bytes: DEFAULT_REQUEST_BYTES,
        variables: Vec::new(),
        files: Vec::new(),
        report,
        may_come_later: true,
    }
}
