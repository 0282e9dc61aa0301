//! Carries the command's events from the thread that receives them to the task that supervises the
//! command.

use std::collections::VecDeque;

use openshell_supervisor::init::launch::Event;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// A queue of events that keeps their order. Only a stop that follows an unread stop is dropped,
/// because it carries no information.
#[derive(Default)]
pub(super) struct EventQueue {
    events: Mutex<VecDeque<Event>>,
    arrived: Notify,
}

impl EventQueue {
    pub(super) fn push(&self, event: Event) {
        let mut events = self.lock();
        if !matches!(
            (events.back(), &event),
            (Some(Event::Stopped(_)), Event::Stopped(_))
        ) {
            events.push_back(event);
        }
        self.arrived.notify_one();
    }

    /// Waits for the next event.
    pub(super) async fn next(&self) -> Event {
        loop {
            if let Some(event) = self.lock().pop_front() {
                return event;
            }
            self.arrived.notified().await;
        }
    }

    /// Locks the events. A panic elsewhere cannot leave them half changed.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock()
    }
}
