//! The report of the end of a permitted connection.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use openshell_events::denial::Denial;
use openshell_events::event::{Audit, ConnectionClosed, Ends, Event, Way};
use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_events::words::{Door, EndedBy, Severity};
use parking_lot::Mutex;

use crate::denial::refusal::Refusal;
use crate::ground::peer::Caller;
use crate::ground::target::Target;
use crate::wire::io::metered::{Meter, Side};

/// A permitted connection, whose end is reported once, when this is dropped.
pub struct Closing {
    audit: Arc<dyn Audit>,
    caller: Option<Caller>,
    target: Target,
    policy: Option<String>,
    way: Way,
    began: Instant,
    meter: Arc<Meter>,
    /// The bytes sent and received that were counted before the connection.
    before: (u64, u64),
    end: Mutex<End>,
}

/// The cause of the end, as far as it is known.
#[derive(Default)]
struct End {
    by: Option<EndedBy>,
    reason: String,
    refusal: Option<(Refusal, Option<Denial>)>,
    /// True if the relay has ended by itself.
    is_over: bool,
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closing")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl Closing {
    /// Begins the report of a connection of `caller` to `target` that `policy` permits.
    #[must_use]
    pub fn new(
        audit: &Arc<dyn Audit>,
        caller: Option<Caller>,
        target: Target,
        policy: Option<&str>,
        way: Way,
    ) -> Self {
        let policy = policy.map(str::to_owned);
        let meter = Arc::default();
        let before = (0, 0);
        let end = Mutex::default();
        Self {
            audit: Arc::clone(audit),
            caller,
            target,
            policy,
            way,
            began: Instant::now(),
            meter,
            before,
            end,
        }
    }

    /// Takes the bytes from `meter`, which counts those of the client. Those that it has counted so
    /// far do not belong to the connection.
    #[must_use]
    pub fn counted_by(mut self, meter: &Arc<Meter>) -> Self {
        (self.meter, self.before) = (Arc::clone(meter), meter.bytes());
        self
    }

    /// Returns the host and port of the upstream.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the door by which the client came.
    #[must_use]
    pub fn door(&self) -> Option<Door> {
        self.way.door
    }

    /// Returns the meter that counts the connection's bytes.
    #[must_use]
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Notes that a limit has ended the connection.
    pub fn limited(&self, reason: &str) {
        let mut end = self.end.lock();
        (end.by, end.reason) = (Some(EndedBy::Limit), reason.to_owned());
    }

    /// Notes that `refusal`, which has an event of its own, has ended the connection.
    pub fn stopped(&self, refusal: &Refusal) {
        let mut end = self.end.lock();
        (end.by, end.reason) = (Some(cause(refusal)), refusal.reason().to_owned());
    }

    /// Notes that `refusal` has ended the connection, and the denial to count for it.
    pub fn refused(&self, refusal: &Refusal, denial: Option<Denial>) {
        let mut end = self.end.lock();
        (end.by, end.refusal) = (Some(cause(refusal)), Some((refusal.clone(), denial)));
    }

    /// Reports the end of a connection that its client has left for another one.
    pub fn left(self) {
        self.end.lock().by = Some(EndedBy::Client);
    }

    /// Reports the end of a connection that has ended by itself, or for the cause that was noted.
    pub fn finish(self) {
        self.end.lock().is_over = true;
    }
}

/// Returns who has ended a connection that was refused.
fn cause(refusal: &Refusal) -> EndedBy {
    match (refusal.code(), refusal.code().stage()) {
        (ReasonCode::ClientTlsFailed, _) => EndedBy::Client,
        (ReasonCode::UpstreamTlsInvalid, _) | (_, DenialStage::Upstream) => EndedBy::Upstream,
        (_, DenialStage::Limit) => EndedBy::Limit,
        _ => EndedBy::Policy,
    }
}

impl Drop for Closing {
    /// Reports the end. If no cause is known and [`Self::finish`] was not called, the sandbox has
    /// ended the connection.
    fn drop(&mut self) {
        let end = self.end.get_mut();
        let of_side = |side| match side {
            Side::Client => EndedBy::Client,
            Side::Upstream => EndedBy::Upstream,
        };
        let by = match (end.by, end.is_over) {
            (Some(by), _) => by,
            // The meter may not see that an upstream closes, so without a note it was the upstream.
            (None, true) => of_side(self.meter.ended().unwrap_or(Side::Upstream)),
            (None, false) => EndedBy::Sandbox,
        };
        let host = self.target.host.to_string();
        let (sent, received) = self.meter.bytes();
        let sent = sent.saturating_sub(self.before.0);
        let received = received.saturating_sub(self.before.1);
        let refusal = end.refusal.as_ref();
        let severity = match by {
            EndedBy::Policy => refusal.map_or(Severity::Medium, |(refusal, _)| {
                refusal.code().stage().severity_of_closing()
            }),
            EndedBy::Limit => Severity::Medium,
            EndedBy::Client | EndedBy::Upstream | EndedBy::Sandbox => Severity::Info,
        };
        self.audit.event(&Event::Closed(ConnectionClosed {
            severity,
            ends: Ends {
                binary: self
                    .caller
                    .as_ref()
                    .map(|caller| caller.program.executable.as_str()),
                pid: self.caller.as_ref().map(|caller| caller.pid),
                host: Some(&host),
                port: Some(self.target.port),
            },
            policy: self.policy.as_deref(),
            way: self.way,
            received,
            sent,
            milliseconds: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            by,
            reason: refusal.map_or(end.reason.as_str(), |(refusal, _)| refusal.reason()),
            code: refusal.map(|(refusal, _)| refusal.code()),
            denial: refusal.and_then(|(_, denial)| denial.as_ref()),
        }));
    }
}
