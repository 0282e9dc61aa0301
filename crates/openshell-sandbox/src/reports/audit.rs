//! Receivers of events.

use std::sync::Arc;

use openshell_events::event::{Audit, Event};
use openshell_proxy::policy_local::denials::RecentDenials;
use openshell_telemetry::logging::AuditLog;
use openshell_telemetry::metrics::Metrics;

use crate::reports::refusals::Refusals;

/// Returns all receivers of events: the log, the count of refusals, those that programs may read,
/// metrics, and reports to a gateway.
pub(crate) fn receivers(
    refusals: &Arc<Refusals>,
    denials: &Arc<RecentDenials>,
    metrics: Option<&Arc<Metrics>>,
    gateway: Option<Arc<dyn Audit>>,
) -> Arc<dyn Audit> {
    let own: [Arc<dyn Audit>; 3] = [
        Arc::new(AuditLog),
        Arc::clone(refusals) as _,
        Arc::clone(denials) as _,
    ];
    Arc::new(FanOut(
        own.into_iter()
            .chain(metrics.map(|metrics| Arc::clone(metrics) as _))
            .chain(gateway)
            .collect(),
    ))
}

/// Hands every event to every receiver.
#[derive(Debug)]
struct FanOut(Vec<Arc<dyn Audit>>);

impl Audit for FanOut {
    fn event(&self, event: &Event<'_>) {
        for receiver in &self.0 {
            receiver.event(event);
        }
    }
}
