//! Log events for a gateway: the line, and its facts as fields.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::Duration;

use openshell_events::event::{Decided, Ends, Event, Lineage, RequestDecided, Way};
use openshell_events::lines::{Line, LineQueue};
use openshell_events::words::{Action, Decision, Engine};
use tracing::Level;

use super::queue;
use super::shorthand::Content;
use super::sink::{LogEvent, Sink};

/// Parts whose lines are about sending lines, and would never end.
const OWN: &[&str] = &["openshell_gateway", "h2", "hyper", "tonic", "tower"];

/// The queue of lines for the gateway.
pub(super) struct PushSink {
    level: Level,
    queue: Arc<dyn LineQueue>,
}

impl PushSink {
    /// Puts lines up to `level` into `queue`.
    pub(super) fn new(level: Level, queue: Arc<dyn LineQueue>) -> Self {
        Self { level, queue }
    }
}

impl Sink for PushSink {
    fn max_level(&self) -> Level {
        self.level
    }

    fn take(&self, event: &LogEvent<'_>) {
        let is_own = |target: &str| OWN.iter().any(|own| target.starts_with(own));
        let is_left_out =
            matches!(event.content(), Content::Diagnostic { target, .. } if is_own(target));
        if event.attention_level() > self.level || is_left_out {
            return;
        }
        // Without room nothing is written.
        if !self.queue.has_room() {
            queue::count_left_out();
            return;
        }
        let (target, fields) = match event.content() {
            Content::Diagnostic { target, .. } => (
                target.rsplit("::").next().unwrap_or(target),
                Fields::default(),
            ),
            Content::Audit(event) => ("audit", fields(event)),
        };
        let mut fields = fields.sorted();
        fields.extend(
            event
                .identity()
                .labels()
                .iter()
                .map(|label| (label.key.as_str(), label.value.as_str())),
        );
        fields.sort_by_key(|(name, _)| *name);
        let time = event.made().unix_timestamp_nanos() / 1_000_000;
        let line = Line {
            time_ms: i64::try_from(time).unwrap_or_default(),
            level: event.attention_level().as_str(),
            target,
            message: &event.message(),
            fields: &fields,
        };
        if !self.queue.push(line) {
            queue::count_left_out();
        }
    }

    fn flush(&self, _: Duration) {}
}

/// Longest value of a field, in characters: the workload chooses some of them.
const FIELD_CHARS: usize = 1_024;

/// Names and values of fields. All values are in one text.
#[derive(Default)]
struct Fields {
    text: String,
    /// Each name, and the end of its value.
    ends: Vec<(&'static str, usize)>,
}

impl Fields {
    /// Adds a field, unless its value is empty.
    fn put(&mut self, name: &'static str, value: impl Display) {
        let start = self.text.len();
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
        let written = self.text.get(start..).unwrap_or_default();
        if written.len() > FIELD_CHARS
            && let Some((end, _)) = written.char_indices().nth(FIELD_CHARS)
        {
            self.text.truncate(start + end);
        }
        if self.text.len() > start {
            self.ends.push((name, self.text.len()));
        }
    }

    /// The fields in the order of their names.
    fn sorted(&self) -> Vec<(&str, &str)> {
        let mut start = 0;
        let value = |(name, end): &(&'static str, usize)| {
            let value = self
                .text
                .get(std::mem::replace(&mut start, *end)..*end)
                .unwrap_or_default();
            (*name, value)
        };
        let mut fields: Vec<_> = self.ends.iter().map(value).collect();
        fields.sort_unstable_by_key(|(name, _)| *name);
        fields
    }

    fn ends(&mut self, ends: &Ends<'_>) {
        self.put("binary", ends.binary.unwrap_or_default());
        if let Some(pid) = ends.pid {
            self.put("binary_pid", pid);
        }
        self.put("dst_host", ends.host.unwrap_or_default());
        if let Some(port) = ends.port {
            self.put("dst_port", port);
        }
    }

    fn way(&mut self, way: &Way) {
        if let Some(door) = way.door {
            self.put("door", door.as_str());
        }
        if let Some(source) = way.source {
            self.put("src_addr", source.ip());
            self.put("src_port", source.port());
        }
        if let Some(dialed) = way.dialed {
            self.put("dst_ip", dialed.ip());
        }
    }

    fn lineage(&mut self, lineage: &Lineage<'_>) {
        self.put("ancestors", lineage.ancestors.join(" "));
        self.put("cmdline", lineage.cmdline_paths.join(" "));
    }

    fn request(&mut self, event: &RequestDecided<'_>) {
        self.ends(&event.ends);
        self.way(&event.way);
        self.lineage(&event.lineage);
        self.decided(&event.decided);
        self.put("l7_protocol", event.scheme);
        self.put("l7_action", event.method);
        self.put("l7_target", event.path);
        let decision = match event.decided.decision {
            Decision::Allow | Decision::AllowUpgrade => "allow",
            Decision::Audit => "audit",
            Decision::Deny | Decision::None => "deny",
        };
        self.put("l7_decision", decision);
        if decision != "allow" {
            self.put("l7_deny_reason", event.decided.reason);
        }
    }

    fn decided(&mut self, decided: &Decided<'_>) {
        self.put("action", action(decided.action));
        self.put("engine", decided.engine.map_or("", Engine::as_str));
        self.put("policy", decided.policy.unwrap_or_default());
        self.put("reason", decided.reason);
        if let Some(code) = decided.code {
            self.put("reason_code", code.as_str());
        }
    }
}

fn action(action: Action) -> &'static str {
    match action {
        Action::Allowed | Action::Other => "allow",
        Action::Denied => "deny",
    }
}

/// The facts of an event.
fn fields(event: &Event<'_>) -> Fields {
    let mut fields = Fields::default();
    match event {
        Event::Connection(event) => {
            fields.ends(&event.ends);
            fields.way(&event.way);
            fields.lineage(&event.lineage);
            fields.decided(&event.decided);
        }
        Event::Request(event) => fields.request(event),
        Event::Closed(event) => {
            fields.ends(&event.ends);
            fields.way(&event.way);
            fields.put("policy", event.policy.unwrap_or_default());
            fields.put("reason", event.reason);
            if let Some(code) = event.code {
                fields.put("reason_code", code.as_str());
            }
            fields.put("bytes_in", event.received);
            fields.put("bytes_out", event.sent);
            fields.put("duration_ms", event.milliseconds);
        }
        Event::Bypass(event) => {
            fields.ends(&event.ends);
            fields.lineage(&event.lineage);
            fields.decided(&event.decided);
        }
        Event::Name(event) => {
            fields.put("dst_host", event.name);
            fields.put("action", action(event.action));
            fields.put("reason", event.reason);
            if let Some(code) = event.code {
                fields.put("reason_code", code.as_str());
            }
        }
        Event::Published(event) => {
            fields.put("src_addr", event.client.ip());
            fields.put("src_port", event.client.port());
            fields.put("dst_port", event.port);
            fields.put("action", action(event.action));
            fields.put("reason", event.reason);
        }
        Event::File(event) => {
            fields.put("binary", event.binary.unwrap_or_default());
            fields.put("binary_pid", event.pid.unwrap_or_default());
            fields.put("action", action(Action::Denied));
            fields.put("reason", event.reason);
        }
        Event::Process(event) => {
            fields.put("binary", event.name);
            fields.put("binary_pid", event.pid);
            fields.put("cmdline", event.command.unwrap_or_default());
        }
        Event::Ssh(event) => {
            fields.put("src_addr", event.client);
            fields.put("action", action(event.action));
            fields.put("cmdline", event.command.unwrap_or_default());
            fields.put("dst_host", event.target.unwrap_or_default());
            fields.put("reason", event.reason);
        }
        Event::Configuration(event) => {
            if let Some(policy) = event.policy {
                fields.put("version", policy.number);
                fields.put("policy_hash", policy.hash);
            }
        }
        Event::Finding(_) | Event::Lifecycle(_) => {}
    }
    fields
}
