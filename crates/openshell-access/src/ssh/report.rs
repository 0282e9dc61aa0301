//! Events that the server reports.

use std::net::SocketAddr;
use std::sync::Arc;

use openshell_events::event::{Audit, Event, Finding, Ssh};
use openshell_events::words::{
    Action, Confidence, FindingActivity, Severity, SshActivity, SshDoor,
};

/// A client of the server.
#[derive(Clone, Debug)]
pub struct Client {
    /// The door through which it came.
    pub door: SshDoor,
    /// Its address, the name of its process, or the id of its relay.
    pub name: String,
    /// Its address and ours, if it came over TCP.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

/// The facts of an event; the defaults are those of a success.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts<'f> {
    pub(crate) authentication: Option<&'f str>,
    pub(crate) command: Option<&'f str>,
    pub(crate) target: Option<&'f str>,
    pub(crate) exit: Option<i32>,
    pub(crate) transferred: Option<(u64, u64)>,
    /// The reason for a refusal or an early end.
    pub(crate) reason: &'f str,
    pub(crate) is_refused: bool,
}

/// Reports the events of one client.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) client: Client,
    pub(crate) audit: Arc<dyn Audit>,
}

impl Reporter {
    /// Reports a step of the client's connection.
    pub(crate) fn report(&self, activity: SshActivity, facts: Facts<'_>) {
        let Facts {
            authentication,
            command,
            target,
            exit,
            transferred,
            reason,
            is_refused,
        } = facts;
        let (severity, action) = if is_refused {
            (Severity::Medium, Action::Denied)
        } else {
            (Severity::Info, Action::Allowed)
        };
        let Client { door, name, .. } = &self.client;
        self.audit.event(&Event::Ssh(Ssh {
            activity,
            severity,
            action,
            door: *door,
            client: name,
            authentication,
            command,
            target,
            exit,
            transferred,
            reason,
        }));
    }

    /// Reports a sign of misuse.
    pub(crate) fn finding(&self, severity: Severity, title: &str, message: &str) {
        let activity = FindingActivity::Blocked;
        let confidence = Confidence::High;
        self.audit.event(&Event::Finding(Finding {
            activity,
            severity,
            title,
            confidence,
            message,
        }));
    }
}
