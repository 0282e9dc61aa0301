//! The session with the gateway, and what is logged about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openshell_events::words::{ConfigState, Severity};
use openshell_gateway::client::Gateway;
use openshell_gateway::session::{Change, Inside, Sessions};

use openshell_events::text::printable;
use openshell_telemetry::logging;

/// Returns the sessions with `gateway`, whose relays end `inside`. Logs each change of a session.
pub(super) fn sessions(gateway: Gateway, instance: String, inside: Arc<dyn Inside>) -> Sessions {
    // A gateway that stays away is logged only once.
    let is_lost = AtomicBool::new(false);
    let changed = move |change: Change<'_>| {
        let (state, severity, message) = match change {
            Change::Accepted => {
                is_lost.store(false, Ordering::Relaxed);
                (
                    ConfigState::Enabled,
                    Severity::Info,
                    "session with the gateway accepted".to_owned(),
                )
            }
            Change::Lost(reason) => {
                if is_lost.swap(true, Ordering::Relaxed) {
                    return;
                }
                (
                    ConfigState::Degraded,
                    Severity::Low,
                    format!("there is no session with the gateway: {reason}"),
                )
            }
            Change::Rejected(reason) => (
                ConfigState::Failed,
                Severity::Medium,
                format!("the gateway rejects the session: {reason}"),
            ),
            Change::Unknown => return,
            Change::Relay(Ok(target)) => (
                ConfigState::Enabled,
                Severity::Info,
                format!("relay of the gateway to {target}"),
            ),
            Change::Relay(Err(reason)) => (
                ConfigState::Disabled,
                Severity::Low,
                format!("relay of the gateway refused: {reason}"),
            ),
        };
        logging::config_event(state, severity, &printable(&message));
    };
    Sessions::new(gateway, instance, inside, Box::new(changed))
}
