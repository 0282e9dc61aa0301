//! Distribution of events to everything that takes them.

use std::sync::Arc;

use openshell_policy::event::{Audit, Event};

/// Hands every event to every receiver.
#[derive(Debug)]
pub(crate) struct FanOut(pub(crate) Vec<Arc<dyn Audit>>);

impl Audit for FanOut {
    fn event(&self, event: &Event<'_>) {
        self.0.iter().for_each(|receiver| receiver.event(event));
    }
}
