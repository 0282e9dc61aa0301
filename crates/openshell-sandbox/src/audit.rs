//! Receivers of events.

use std::sync::Arc;

use openshell_policy::event::{Audit, Event};

use crate::logging::AuditLog;
use crate::refusals::Refusals;

/// All receivers of events: the log, and the count of refusals.
pub(crate) fn receivers(refusals: &Arc<Refusals>) -> Arc<dyn Audit> {
    Arc::new(FanOut(vec![Arc::new(AuditLog), Arc::clone(refusals) as _]))
}

/// Hands every event to every receiver.
#[derive(Debug)]
struct FanOut(Vec<Arc<dyn Audit>>);

impl Audit for FanOut {
    fn event(&self, event: &Event<'_>) {
        self.0.iter().for_each(|receiver| receiver.event(event));
    }
}
