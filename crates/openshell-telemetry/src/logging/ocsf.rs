//! Events as records of the Open Cybersecurity Schema Framework (OCSF 1.8), one JSON object each.

use std::net::IpAddr;

use openshell_events::event::{
    BypassAttempt, Configuration, ConnectionClosed, ConnectionDecided, Decided, Ends, Event,
    FileRefused, Finding, Lifecycle, Lineage, NameLookedUp, Process, PublishedConnection,
    RequestDecided, Ssh, Way,
};
use openshell_events::words::{
    Action, Activity, FileAccess, FindingActivity, LifecycleActivity, ProcessActivity, Severity,
    SshActivity,
};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::identity::{Label, RunIdentity};

/// Classes of records (OCSF 1.8 "Classes").
#[derive(Clone, Copy)]
enum Class {
    FileSystemActivity = 1001,
    NetworkActivity = 4001,
    HttpActivity = 4002,
    DnsActivity = 4003,
    SshActivity = 4007,
    ProcessActivity = 1007,
    DetectionFinding = 2004,
    DeviceConfigStateChange = 5019,
    ApplicationLifecycle = 6002,
}

/// The activity of none of a class's own.
const OTHER: u32 = 99;

/// Returns the record of `event`, made at `now`, whose line is `message`.
pub(super) fn record(
    now: OffsetDateTime,
    event: &Event<'_>,
    message: &str,
    identity: &RunIdentity,
) -> String {
    let mut record = match event {
        Event::Connection(event) => connection(event),
        Event::Closed(event) => closed(event),
        Event::Bypass(event) => bypass(event),
        Event::Request(event) => request(event),
        Event::Name(event) => name(event),
        Event::Published(event) => published(event),
        Event::Process(event) => process(event),
        Event::Ssh(event) => ssh(event),
        Event::File(event) => file(event),
        Event::Finding(event) => finding(event),
        Event::Configuration(event) => configuration(event),
        Event::Lifecycle(event) => lifecycle(event),
    };
    record.put(
        "time",
        i64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or_default(),
    );
    record.put("message", message);
    record.unmapped("sandbox", identity.sandbox());
    let product = json!({ "name": "openshell-sandbox", "vendor_name": "OpenShell", "version": env!("CARGO_PKG_VERSION") });
    let labels: Vec<_> = identity
        .labels()
        .iter()
        .map(|Label { key, value }| format!("{key}={value}"))
        .collect();
    let mut metadata = json!({ "version": "1.8.0", "product": product, "uid": identity.sandbox() });
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    record.put("metadata", metadata);
    record.finish()
}

/// A record on its way.
struct Record {
    fields: Map<String, Value>,
    unmapped: Map<String, Value>,
}

impl Record {
    /// Begins a record: class, activity and severity.
    fn new(class: Class, activity: u32, activity_name: &str, severity: Severity) -> Self {
        let class_uid = class as u32;
        let mut record = Self {
            fields: Map::new(),
            unmapped: Map::new(),
        };
        record.put("category_uid", class_uid / 1000);
        record.put("class_uid", class_uid);
        record.put("activity_id", activity);
        record.put("activity_name", activity_name);
        record.put("type_uid", class_uid * 100 + activity);
        let (number, name) = match severity {
            Severity::Info => (1, "Informational"),
            Severity::Low => (2, "Low"),
            Severity::Medium => (3, "Medium"),
            Severity::High => (4, "High"),
            Severity::Critical => (5, "Critical"),
        };
        record.put("severity_id", number);
        record.put("severity", name);
        record
    }

    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.fields.insert(key.to_owned(), value.into());
    }

    /// Adds what the framework has no place for.
    fn unmapped(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        if value != Value::Null && value != "" {
            self.unmapped.insert(key.to_owned(), value);
        }
    }

    fn action(&mut self, action: Action) {
        let (number, name, disposition) = match action {
            Action::Allowed => (1, "Allowed", 1),
            Action::Denied => (2, "Denied", 2),
            Action::Other => (99, "Other", 99),
        };
        self.put("action_id", number);
        self.put("action", name);
        self.put("disposition_id", disposition);
        self.put("status_id", if action == Action::Denied { 2 } else { 1 });
    }

    fn decided(&mut self, decided: &Decided<'_>) {
        self.action(decided.action);
        if let Some(policy) = decided.policy {
            self.put("firewall_rule", json!({ "name": policy }));
        }
        self.unmapped(
            "engine",
            decided.engine.map(openshell_events::words::Engine::as_str),
        );
        self.unmapped("decision", decided.decision.as_str());
        self.unmapped("reason", decided.reason);
        self.unmapped(
            "reason_code",
            decided
                .code
                .map(openshell_events::reason::ReasonCode::as_str),
        );
    }

    fn actor(&mut self, binary: Option<&str>, pid: Option<i32>) {
        if binary.is_some() || pid.is_some() {
            let file = binary.map(file_object);
            let name = file.as_ref().map(|file| &file["name"]);
            self.put(
                "actor",
                json!({ "process": { "pid": pid, "name": name, "file": file } }),
            );
        }
    }

    fn ends(&mut self, ends: &Ends<'_>, dialed: Option<IpAddr>) {
        self.actor(ends.binary, ends.pid);
        let literal = ends
            .host
            .and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
        let ip = dialed.or(literal).map(|ip| ip.to_string());
        self.put(
            "dst_endpoint",
            json!({ "hostname": ends.host, "port": ends.port, "ip": ip }),
        );
    }

    fn way(&mut self, way: &Way) {
        if let Some(source) = way.source {
            self.put(
                "src_endpoint",
                json!({ "ip": source.ip().to_string(), "port": source.port() }),
            );
        }
        self.unmapped("door", way.door.map(openshell_events::words::Door::as_str));
        self.put(
            "connection_info",
            json!({ "direction_id": 2, "direction": "Outbound", "protocol_name": "tcp" }),
        );
    }

    fn lineage(&mut self, lineage: &Lineage<'_>) {
        self.unmapped("ancestors", lineage.ancestors);
        self.unmapped("cmdline_paths", lineage.cmdline_paths);
    }

    fn finish(mut self) -> String {
        self.fields
            .insert("unmapped".to_owned(), Value::Object(self.unmapped));
        Value::Object(self.fields).to_string()
    }
}

/// A regular file.
fn file_object(path: &str) -> Value {
    json!({ "path": path, "name": path.rsplit('/').next().unwrap_or(path), "type_id": 1 })
}

fn connection(event: &ConnectionDecided<'_>) -> Record {
    let (number, name) = match event.activity {
        Activity::Open => (1, "Open"),
        Activity::Close => (2, "Close"),
        Activity::Fail => (4, "Fail"),
        Activity::Refuse => (5, "Refuse"),
    };
    let mut record = Record::new(Class::NetworkActivity, number, name, event.decided.severity);
    record.decided(&event.decided);
    record.ends(&event.ends, event.way.dialed.map(|dialed| dialed.ip()));
    record.way(&event.way);
    record.lineage(&event.lineage);
    record
}

fn closed(event: &ConnectionClosed<'_>) -> Record {
    let mut record = Record::new(Class::NetworkActivity, 2, "Close", event.severity);
    record.ends(&event.ends, event.way.dialed.map(|dialed| dialed.ip()));
    record.way(&event.way);
    record.put(
        "traffic",
        json!({ "bytes_in": event.received, "bytes_out": event.sent }),
    );
    record.put("duration", event.milliseconds);
    record.unmapped("policy", event.policy);
    record.unmapped("ended_by", event.by.as_str());
    record.unmapped("reason", event.reason);
    record.unmapped(
        "reason_code",
        event.code.map(openshell_events::reason::ReasonCode::as_str),
    );
    record
}

fn bypass(event: &BypassAttempt<'_>) -> Record {
    let mut record = Record::new(Class::NetworkActivity, 5, "Refuse", event.decided.severity);
    record.decided(&event.decided);
    record.ends(&event.ends, None);
    record.lineage(&event.lineage);
    record.put(
        "connection_info",
        json!({ "direction_id": 2, "direction": "Outbound", "protocol_name": event.protocol }),
    );
    record
}

fn request(event: &RequestDecided<'_>) -> Record {
    let (number, name) = match event.method {
        "CONNECT" => (1, "Connect"),
        "DELETE" => (2, "Delete"),
        "GET" => (3, "Get"),
        "HEAD" => (4, "Head"),
        "OPTIONS" => (5, "Options"),
        "POST" => (6, "Post"),
        "PUT" => (7, "Put"),
        "TRACE" => (8, "Trace"),
        _ => (OTHER, "Other"),
    };
    let mut record = Record::new(Class::HttpActivity, number, name, event.decided.severity);
    record.decided(&event.decided);
    record.ends(&event.ends, event.way.dialed.map(|dialed| dialed.ip()));
    if event.number.is_none() {
        record.way(&event.way);
        record.lineage(&event.lineage);
    }
    let hostname = event.ends.host;
    let port = event.ends.port;
    let url =
        json!({ "scheme": event.scheme, "hostname": hostname, "port": port, "path": event.path });
    record.put(
        "http_request",
        json!({ "http_method": event.method, "url": url }),
    );
    record.unmapped("request", event.number);
    record.unmapped("credentials", event.credentials);
    if let Some(model) = &event.model {
        record.unmapped("route", model.route);
        record.unmapped("input_tokens", model.usage.input);
        record.unmapped("output_tokens", model.usage.output);
    }
    record
}

fn name(event: &NameLookedUp<'_>) -> Record {
    let mut record = Record::new(Class::DnsActivity, 1, "Query", event.severity);
    record.action(event.action);
    record.put(
        "query",
        json!({ "hostname": event.name, "type": event.kind }),
    );
    record.unmapped("repeated", event.repeated);
    record.unmapped("reason", event.reason);
    record.unmapped(
        "reason_code",
        event.code.map(openshell_events::reason::ReasonCode::as_str),
    );
    record
}

fn published(event: &PublishedConnection<'_>) -> Record {
    let mut record = Record::new(Class::NetworkActivity, 1, "Open", event.severity);
    record.action(event.action);
    record.put(
        "src_endpoint",
        json!({ "ip": event.client.ip().to_string(), "port": event.client.port() }),
    );
    record.put(
        "dst_endpoint",
        json!({ "ip": "127.0.0.1", "port": event.port }),
    );
    record.put(
        "connection_info",
        json!({ "direction_id": 1, "direction": "Inbound", "protocol_name": "tcp" }),
    );
    record.unmapped("published_at", event.address.to_string());
    record.unmapped("reason", event.reason);
    record
}

fn process(event: &Process<'_>) -> Record {
    let (number, name) = match event.activity {
        ProcessActivity::Launch => (1, "Launch"),
        ProcessActivity::Terminate => (2, "Terminate"),
    };
    let mut record = Record::new(Class::ProcessActivity, number, name, event.severity);
    record.put(
        "process",
        json!({ "pid": event.pid, "name": event.name, "cmd_line": event.command }),
    );
    if let Some(exit) = event.exit {
        record.put("exit_code", exit);
    }
    record.unmapped("reason", event.reason);
    record
}

fn ssh(event: &Ssh<'_>) -> Record {
    let (number, name) = match event.activity {
        SshActivity::Open => (1, "Open"),
        SshActivity::Close => (2, "Close"),
        SshActivity::Auth | SshActivity::Exec | SshActivity::Forward => {
            (OTHER, event.activity.as_str())
        }
    };
    let mut record = Record::new(Class::SshActivity, number, name, event.severity);
    record.action(event.action);
    record.put("src_endpoint", json!({ "name": event.client }));
    record.put(
        "connection_info",
        json!({ "direction_id": 1, "direction": "Inbound" }),
    );
    record.unmapped("door", event.door.as_str());
    record.unmapped("authentication", event.authentication);
    record.unmapped("command", event.command);
    record.unmapped("target", event.target);
    record.unmapped("exit_code", event.exit);
    record.unmapped("bytes_in", event.transferred.map(|(received, _)| received));
    record.unmapped("bytes_out", event.transferred.map(|(_, sent)| sent));
    record.unmapped("reason", event.reason);
    record
}

fn file(event: &FileRefused<'_>) -> Record {
    let (number, name) = match event.access {
        FileAccess::Read | FileAccess::List => (2, "Read"),
        FileAccess::Write => (3, "Update"),
        FileAccess::Execute => (OTHER, "Execute"),
    };
    let mut record = Record::new(Class::FileSystemActivity, number, name, event.severity);
    record.action(Action::Denied);
    record.actor(event.binary, event.pid);
    record.put("file", file_object(event.path));
    record.unmapped("reason", event.reason);
    record
}

fn finding(event: &Finding<'_>) -> Record {
    let mut record = Record::new(Class::DetectionFinding, 1, "Create", event.severity);
    record.put(
        "finding_info",
        json!({ "title": event.title, "desc": event.message }),
    );
    record.put("confidence", event.confidence.as_str());
    record.put(
        "disposition_id",
        if event.activity == FindingActivity::Blocked {
            2
        } else {
            15
        },
    );
    record
}

fn configuration(event: &Configuration<'_>) -> Record {
    let mut record = Record::new(Class::DeviceConfigStateChange, 1, "Log", event.severity);
    record.unmapped("state", event.state.as_str());
    record
}

fn lifecycle(event: &Lifecycle<'_>) -> Record {
    let (number, name) = match event.activity {
        LifecycleActivity::Start => (3, "Start"),
        LifecycleActivity::End => (4, "Stop"),
    };
    let mut record = Record::new(Class::ApplicationLifecycle, number, name, event.severity);
    record.put(
        "app",
        json!({ "name": "openshell-sandbox", "version": env!("CARGO_PKG_VERSION") }),
    );
    record
}

#[cfg(test)]
mod tests {
    use openshell_events::event::{Configuration, Event};
    use openshell_events::words::{ConfigState, Severity};
    use time::macros::datetime;

    use super::super::identity::{Label, RunIdentity};
    use super::record;

    #[test]
    fn a_record_is_one_line_of_json_whatever_its_message() {
        let message = "loaded \"x\"\n\u{1b}[1m";
        let event = Event::Configuration(Configuration {
            state: ConfigState::Loaded,
            severity: Severity::Low,
            message,
            policy: None,
        });
        let label = Label {
            key: "tenant".to_owned(),
            value: "acme".to_owned(),
        };
        let identity = RunIdentity::new("box-1".to_owned(), vec![label]);
        let text = record(
            datetime!(2026-01-02 03:04:05.006 UTC),
            &event,
            message,
            &identity,
        );
        assert!(!text.contains('\n') && !text.contains('\u{1b}'), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["type_uid"], 501_901);
        assert_eq!(
            (&value["metadata"]["labels"][0], &value["metadata"]["uid"]),
            (&"tenant=acme".into(), &"box-1".into())
        );
        assert_eq!(value["time"], 1_767_323_045_006_i64);
        assert_eq!(
            (&value["severity_id"], &value["unmapped"]["state"]),
            (&2.into(), &"LOADED".into())
        );
    }
}
