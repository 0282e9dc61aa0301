//! The session with the gateway: what is logged of it, and the way of its relays into the sandbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openshell_gateway::client::Gateway;
use openshell_gateway::session::{Change, Dialing, Inside, Sessions};
use openshell_policy::words::{ConfigState, Severity};
use openshell_proxy::publish::{self, OpenInside};

use crate::logging;
use crate::text::printable;

/// The network inside.
struct Workload(OpenInside);

impl Inside for Workload {
    fn dial(&self, port: u16) -> Dialing {
        let open = Arc::clone(&self.0);
        Box::pin(async move { publish::dial(&open, port).await })
    }
}

/// Sessions with `gateway`, each change of which is logged.
pub(super) fn sessions(gateway: Gateway, instance: String, open: OpenInside) -> Sessions {
    // A gateway that stays away is one line.
    let is_lost = AtomicBool::new(false);
    let changed = move |change: Change<'_>| {
        let (state, severity, message) = match change {
            Change::Accepted => {
                is_lost.store(false, Ordering::Relaxed);
                (ConfigState::Enabled, Severity::Info, "session with the gateway accepted".to_owned())
            }
            Change::Lost(reason) => {
                if is_lost.swap(true, Ordering::Relaxed) {
                    return;
                }
                (ConfigState::Degraded, Severity::Low, format!("no session with the gateway: {reason}"))
            }
            Change::Rejected(reason) => {
                (ConfigState::Failed, Severity::Medium, format!("the gateway rejects the session: {reason}"))
            }
            Change::Unknown => return,
            Change::Relay(Ok(port)) => {
                (ConfigState::Enabled, Severity::Info, format!("relay of the gateway to 127.0.0.1:{port} inside"))
            }
            Change::Relay(Err(reason)) => {
                (ConfigState::Disabled, Severity::Low, format!("relay of the gateway refused: {reason}"))
            }
        };
        logging::config_event(state, severity, &printable(&message));
    };
    Sessions::new(gateway, instance, Arc::new(Workload(open)), Box::new(changed))
}
