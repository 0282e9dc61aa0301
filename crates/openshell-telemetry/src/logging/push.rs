//! Log events for a gateway: each has its line, and its facts as fields.

use std::fmt::{Display, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use openshell_events::event::Event;
use openshell_events::facts::Value;
use openshell_events::lines::{Line, LineQueue};
use openshell_events::words::{Action, Class, Key};
use tracing::Level;

use super::queue;
use super::shorthand::Content;
use super::sink::{LogEvent, Sink};

/// Parts that send the lines. A line about that would lead to another one, without end.
const OWN: &[&str] = &["openshell_gateway", "h2", "hyper", "tonic", "tower"];

/// The queue of lines for the gateway.
pub(super) struct PushSink {
    level: Level,
    queue: Arc<dyn LineQueue>,
}

impl PushSink {
    /// Creates a sink that puts lines up to `level` into `queue`.
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
        // If there is no room, the line is not even composed.
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

/// Maximum characters of a field's value, because the workload chooses some of the values.
const FIELD_CHARS: usize = 1_024;

/// The names and values of fields. One text holds all values.
#[derive(Default)]
pub(super) struct Fields {
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

    /// Returns the fields, sorted by name.
    pub(super) fn sorted(&self) -> Vec<(&str, &str)> {
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
}

/// Returns the facts of an event under the names that a gateway knows.
pub(super) fn fields(event: &Event<'_>) -> Fields {
    let facts = event.facts();
    let mut fields = Fields::default();
    for (key, value) in facts.iter() {
        if let Value::Address(address) = value {
            put_address(&mut fields, key, address);
        } else if let Some(name) = name(facts.class, key) {
            fields.put(name, value);
        }
    }
    if let Some(action) = facts.action {
        fields.put("action", verdict(action));
    }
    if matches!(facts.class, Class::Request | Class::Mcp | Class::Rpc) {
        let decision = match facts.text(Key::Decision) {
            "allow" | "allow_upgrade" => "allow",
            "audit" => "audit",
            _ => "deny",
        };
        fields.put("l7_decision", decision);
        if decision != "allow" {
            fields.put("l7_deny_reason", facts.text(Key::Reason));
        }
    }
    fields
}

fn put_address(fields: &mut Fields, key: Key, address: SocketAddr) {
    match key {
        Key::Source => {
            fields.put("src_addr", address.ip());
            fields.put("src_port", address.port());
        }
        Key::Dialed => fields.put("dst_ip", address.ip()),
        _ => {}
    }
}

/// Returns the name of a fact; `None` if a gateway gets it only as part of the line.
fn name(class: Class, key: Key) -> Option<&'static str> {
    let name = match key {
        Key::Ancestors => "ancestors",
        Key::Binary => "binary",
        Key::BytesIn => "bytes_in",
        Key::BytesOut => "bytes_out",
        Key::Client => "src_addr",
        Key::CmdlinePaths | Key::Command => "cmdline",
        Key::Code => "reason_code",
        Key::Door => "door",
        Key::Engine => "engine",
        Key::Host | Key::Target => "dst_host",
        Key::RpcMethod => "l7_action",
        Key::RpcTarget => "l7_target",
        Key::Method if class == Class::Request => "l7_action",
        Key::Milliseconds => "duration_ms",
        Key::Path if class == Class::Request => "l7_target",
        Key::Pid => "binary_pid",
        Key::Policy => "policy",
        Key::PolicyHash => "policy_hash",
        Key::PolicyVersion => "version",
        Key::Port => "dst_port",
        Key::Reason => "reason",
        Key::Scheme => "l7_protocol",
        _ => return None,
    };
    Some(name)
}

fn verdict(action: Action) -> &'static str {
    match action {
        Action::Allowed | Action::Other => "allow",
        Action::Denied => "deny",
    }
}
