//! Events as records of the Open Cybersecurity Schema Framework (OCSF 1.8), one JSON object each.

use std::net::{IpAddr, SocketAddr};

use openshell_events::event::Event;
use openshell_events::facts::{Facts, Value as Fact};
use openshell_events::words::{
    Action, Activity, Class, FileAccess, FindingActivity, Key, LifecycleActivity, ProcessActivity,
    Severity, SshActivity,
};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::identity::{Label, RunIdentity};

/// Returns the record of `event`, which was made at `now` and whose line is `message`.
pub(super) fn record(
    now: OffsetDateTime,
    event: &Event<'_>,
    message: &str,
    identity: &RunIdentity,
) -> String {
    let facts = event.facts();
    let mut record = Record::default();
    let (number, name) = activity(event);
    record.kind(class_uid(facts.class), number, name);
    record.severity(facts.severity);
    if let Some(action) = facts.action {
        record.action(action);
    }
    for (key, value) in facts.iter() {
        record.fact(facts.class, key, value);
    }
    record.additions(event, &facts);
    let time = i64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    record.put(&["time"], time);
    record.put(&["message"], message);
    record.put(&["unmapped", "sandbox"], identity.sandbox());
    record.put(&["metadata"], metadata(identity));
    Value::Object(record.0).to_string()
}

/// Returns the number of the class (OCSF 1.8 "Classes").
fn class_uid(class: Class) -> u32 {
    match class {
        Class::File => 1001,
        Class::Process => 1007,
        Class::Finding => 2004,
        Class::Connection | Class::Closed | Class::Bypass | Class::Published => 4001,
        Class::Request | Class::Mcp | Class::Rpc => 4002,
        Class::Name => 4003,
        Class::Ssh => 4007,
        Class::Configuration | Class::Approval => 5019,
        Class::Lifecycle => 6002,
    }
}

/// The number of an activity for which a class has no number.
const OTHER: u32 = 99;

/// Returns the number and name of what happened; each class has its own numbers.
fn activity(event: &Event<'_>) -> (u32, &'static str) {
    match event {
        Event::Connection(event) => match event.activity {
            Activity::Open => (1, "Open"),
            Activity::Close => (2, "Close"),
            Activity::Fail => (4, "Fail"),
            Activity::Refuse => (5, "Refuse"),
        },
        Event::Closed(_) => (2, "Close"),
        Event::Bypass(_) => (5, "Refuse"),
        Event::Published(_) => (1, "Open"),
        Event::Request(event) => match event.method {
            "CONNECT" => (1, "Connect"),
            "DELETE" => (2, "Delete"),
            "GET" => (3, "Get"),
            "HEAD" => (4, "Head"),
            "OPTIONS" => (5, "Options"),
            "POST" => (6, "Post"),
            "PUT" => (7, "Put"),
            "TRACE" => (8, "Trace"),
            _ => (OTHER, "Other"),
        },
        Event::Name(_) => (1, "Query"),
        Event::File(event) => match event.access {
            FileAccess::Read | FileAccess::List => (2, "Read"),
            FileAccess::Write => (3, "Update"),
            FileAccess::Execute => (OTHER, "Execute"),
        },
        Event::Finding(_) => (1, "Create"),
        Event::Configuration(_) | Event::Approval(_) => (1, "Log"),
        Event::Lifecycle(event) => match event.activity {
            LifecycleActivity::Start => (3, "Start"),
            LifecycleActivity::End => (4, "Stop"),
        },
        Event::Process(event) => match event.activity {
            ProcessActivity::Launch => (1, "Launch"),
            ProcessActivity::Terminate => (2, "Terminate"),
        },
        Event::Ssh(event) => match event.activity {
            SshActivity::Open => (1, "Open"),
            SshActivity::Close => (2, "Close"),
            SshActivity::Auth | SshActivity::Exec | SshActivity::Forward => {
                (OTHER, event.activity.as_str())
            }
        },
    }
}

/// Returns the place of a fact in a record; `None` if the framework has no place for it.
fn place(class: Class, key: Key) -> Option<&'static [&'static str]> {
    let place: &[&str] = match (key, class) {
        (Key::Pid, Class::Process) => &["process", "pid"],
        (Key::Pid, _) => &["actor", "process", "pid"],
        (Key::Binary, Class::Process) => &["process", "name"],
        (Key::Command, Class::Process) => &["process", "cmd_line"],
        (Key::Exit, Class::Process) => &["exit_code"],
        (Key::Host, Class::Name) => &["query", "hostname"],
        (Key::RecordType, _) => &["query", "type"],
        (Key::Host, _) => &["dst_endpoint", "hostname"],
        (Key::Port, _) => &["dst_endpoint", "port"],
        (Key::Client, _) => &["src_endpoint", "name"],
        (
            Key::Policy,
            Class::Connection | Class::Bypass | Class::Request | Class::Mcp | Class::Rpc,
        ) => &["firewall_rule", "name"],
        (Key::Protocol, _) => &["connection_info", "protocol_name"],
        (Key::BytesIn, Class::Closed) => &["traffic", "bytes_in"],
        (Key::BytesOut, Class::Closed) => &["traffic", "bytes_out"],
        (Key::Milliseconds, _) => &["duration"],
        (Key::Method, _) => &["http_request", "http_method"],
        (Key::Scheme, _) => &["http_request", "url", "scheme"],
        (Key::Path, Class::Request | Class::Mcp | Class::Rpc) => &["http_request", "url", "path"],
        (Key::Title, _) => &["finding_info", "title"],
        (Key::Message, Class::Finding) => &["finding_info", "desc"],
        (Key::Confidence, _) => &["confidence"],
        _ => return None,
    };
    Some(place)
}

/// A record that is being built.
#[derive(Default)]
struct Record(Map<String, Value>);

impl Record {
    /// Puts `value` at `place`, which has the names of nested objects and then that of the field.
    fn put(&mut self, place: &[&str], value: impl Into<Value>) {
        let Some((field, objects)) = place.split_last() else {
            return;
        };
        let mut object = &mut self.0;
        for name in objects {
            let inner = object
                .entry(*name)
                .or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else {
                return;
            };
            object = inner;
        }
        object.insert((*field).to_owned(), value.into());
    }

    fn kind(&mut self, class: u32, activity: u32, name: &str) {
        self.put(&["category_uid"], class / 1000);
        self.put(&["class_uid"], class);
        self.put(&["activity_id"], activity);
        self.put(&["activity_name"], name);
        self.put(&["type_uid"], class * 100 + activity);
    }

    fn severity(&mut self, severity: Severity) {
        let (number, name) = match severity {
            Severity::Info => (1, "Informational"),
            Severity::Low => (2, "Low"),
            Severity::Medium => (3, "Medium"),
            Severity::High => (4, "High"),
            Severity::Critical => (5, "Critical"),
        };
        self.put(&["severity_id"], number);
        self.put(&["severity"], name);
    }

    fn action(&mut self, action: Action) {
        let (number, name, disposition) = match action {
            Action::Allowed => (1, "Allowed", 1),
            Action::Denied => (2, "Denied", 2),
            Action::Other => (OTHER, "Other", OTHER),
        };
        self.put(&["action_id"], number);
        self.put(&["action"], name);
        self.put(&["disposition_id"], disposition);
        self.put(&["status_id"], if action == Action::Denied { 2 } else { 1 });
    }

    fn fact(&mut self, class: Class, key: Key, fact: Fact<'_>) {
        match (key, fact) {
            (Key::Source, Fact::Address(source)) => self.endpoint("src_endpoint", source),
            (Key::Dialed, Fact::Address(dialed)) => {
                self.put(&["dst_endpoint", "ip"], dialed.ip().to_string());
            }
            (Key::Binary, Fact::Text(path)) if class != Class::Process => {
                let file = file_object(path);
                self.put(&["actor", "process", "name"], file["name"].clone());
                self.put(&["actor", "process", "file"], file);
            }
            (Key::Path, Fact::Text(path)) if class == Class::File => {
                self.put(&["file"], file_object(path));
            }
            // The activity's number already tells the access, and each record has a message field.
            (Key::Access, _) => {}
            (Key::Message, _) if class != Class::Finding => {}
            _ => match place(class, key) {
                Some(place) => self.put(place, json_of(fact)),
                None => self.put(&["unmapped", key.as_str()], json_of(fact)),
            },
        }
    }

    fn endpoint(&mut self, name: &str, address: SocketAddr) {
        self.put(&[name, "ip"], address.ip().to_string());
        self.put(&[name, "port"], address.port());
    }

    /// Adds what follows from the class, or from several facts together.
    fn additions(&mut self, event: &Event<'_>, facts: &Facts<'_>) {
        match facts.class {
            Class::Connection | Class::Closed | Class::Bypass => self.destination(facts),
            Class::Request | Class::Mcp | Class::Rpc => {
                self.destination(facts);
                for (key, name) in [(Key::Host, "hostname"), (Key::Port, "port")] {
                    if let Some(fact) = facts.get(key) {
                        self.put(&["http_request", "url", name], json_of(fact));
                    }
                }
            }
            Class::Published => {
                self.put(&["dst_endpoint", "ip"], "127.0.0.1");
                self.put(&["connection_info", "protocol_name"], "tcp");
                self.inbound();
            }
            Class::Ssh => self.inbound(),
            Class::Lifecycle => {
                self.put(&["app", "name"], "openshell-sandbox");
                self.put(&["app", "version"], env!("CARGO_PKG_VERSION"));
            }
            Class::Name
            | Class::File
            | Class::Finding
            | Class::Configuration
            | Class::Approval
            | Class::Process => {}
        }
        if let Event::Finding(finding) = event {
            let is_blocked = finding.activity == FindingActivity::Blocked;
            self.put(&["disposition_id"], if is_blocked { 2 } else { 15 });
        }
    }

    /// Adds what is known of a target outside of the sandbox.
    fn destination(&mut self, facts: &Facts<'_>) {
        self.put(&["connection_info", "direction_id"], 2);
        self.put(&["connection_info", "direction"], "Outbound");
        if facts.get(Key::Protocol).is_none() {
            self.put(&["connection_info", "protocol_name"], "tcp");
        }
        let host = facts.text(Key::Host).trim_matches(['[', ']']);
        if facts.get(Key::Dialed).is_none()
            && let Ok(ip) = host.parse::<IpAddr>()
        {
            self.put(&["dst_endpoint", "ip"], ip.to_string());
        }
    }

    fn inbound(&mut self) {
        self.put(&["connection_info", "direction_id"], 1);
        self.put(&["connection_info", "direction"], "Inbound");
    }
}

fn json_of(fact: Fact<'_>) -> Value {
    match fact {
        Fact::Text(text) => text.into(),
        Fact::Texts(texts) => texts.into(),
        Fact::Number(number) => number.into(),
        Fact::Address(address) => address.to_string().into(),
    }
}

/// Returns the object for a regular file.
fn file_object(path: &str) -> Value {
    json!({ "path": path, "name": path.rsplit('/').next().unwrap_or(path), "type_id": 1 })
}

fn metadata(identity: &RunIdentity) -> Value {
    let product = json!({
        "name": "openshell-sandbox",
        "vendor_name": "OpenShell",
        "version": env!("CARGO_PKG_VERSION"),
    });
    let mut metadata = json!({ "version": "1.8.0", "product": product, "uid": identity.sandbox() });
    let labels: Vec<_> = identity
        .labels()
        .iter()
        .map(|Label { key, value }| format!("{key}={value}"))
        .collect();
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    metadata
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
            line: None,
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
