//! An event as a list of facts. Every format of the log shows these facts, each in its own words.

use std::fmt;
use std::net::SocketAddr;

use crate::event::{
    Approval, BypassAttempt, ConnectionClosed, ConnectionDecided, Decided, Ends, Event,
    FileRefused, Finding, Lineage, NameLookedUp, Process, PublishedConnection, RequestDecided, Ssh,
    Way,
};
use crate::words::{Action, Activity, Class, Key, Severity};

/// A value of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'e> {
    /// A word or a sentence.
    Text(&'e str),
    /// Several words or sentences.
    Texts(&'e [String]),
    /// A number.
    Number(i64),
    /// An address with its port.
    Address(SocketAddr),
}

/// Everything that is known of an event.
#[derive(Clone, Debug)]
pub struct Facts<'e> {
    /// What it is about.
    pub class: Class,
    /// The word for what happened.
    pub activity: &'e str,
    /// How urgent it is.
    pub severity: Severity,
    /// The effect, if the event has one.
    pub action: Option<Action>,
    known: Vec<(Key, Value<'e>)>,
}

impl<'e> Facts<'e> {
    /// Returns the value of `key`, if it is known.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<Value<'e>> {
        self.known
            .iter()
            .find(|(other, _)| *other == key)
            .map(|(_, value)| *value)
    }

    /// Returns the text of `key`; empty if it is not known or is not a text.
    #[must_use]
    pub fn text(&self, key: Key) -> &'e str {
        match self.get(key) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Iterates over all known facts.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Value<'e>)> {
        self.known.iter().copied()
    }

    fn new(class: Class, activity: &'e str, severity: Severity) -> Self {
        Self {
            class,
            activity,
            severity,
            action: None,
            known: Vec::with_capacity(24),
        }
    }

    /// Adds a fact, unless it is empty.
    fn put(&mut self, key: Key, value: impl Into<Value<'e>>) {
        let value = value.into();
        if value != Value::Text("") && value != Value::Texts(&[]) {
            self.known.push((key, value));
        }
    }

    /// Adds a fact that may be unknown.
    fn put_known(&mut self, key: Key, value: Option<impl Into<Value<'e>>>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }

    fn ends(&mut self, ends: &Ends<'e>) {
        self.put_known(Key::Binary, ends.binary);
        self.put_known(Key::Pid, ends.pid);
        self.put_known(Key::Host, ends.host);
        self.put_known(Key::Port, ends.port);
    }

    fn way(&mut self, way: &Way) {
        self.put_known(Key::Door, way.door.map(|door| door.as_str()));
        self.put_known(Key::Source, way.source);
        self.put_known(Key::Dialed, way.dialed);
    }

    fn lineage(&mut self, lineage: &Lineage<'e>) {
        self.put(Key::Ancestors, Value::Texts(lineage.ancestors));
        self.put(Key::CmdlinePaths, Value::Texts(lineage.cmdline_paths));
    }

    fn decided(&mut self, decided: &Decided<'e>) {
        self.action = Some(decided.action);
        self.put_known(Key::Policy, decided.policy);
        self.put_known(Key::Engine, decided.engine.map(|engine| engine.as_str()));
        self.put(Key::Decision, decided.decision.as_str());
        self.put(Key::Reason, decided.reason);
        self.put_known(Key::Code, decided.code.map(|code| code.as_str()));
        self.put_known(Key::Approval, decided.approval);
    }
}

impl<'e> Event<'e> {
    /// Returns what is known of the event.
    #[must_use]
    pub fn facts(&self) -> Facts<'e> {
        match self {
            Self::Connection(event) => connection(event),
            Self::Request(event) => request(event),
            Self::Closed(event) => closed(event),
            Self::Bypass(event) => bypass(event),
            Self::Name(event) => name(event),
            Self::Published(event) => published(event),
            Self::File(event) => file(event),
            Self::Finding(event) => finding(event),
            Self::Configuration(event) => {
                let state = event.state.as_str();
                let mut facts = Facts::new(Class::Configuration, state, event.severity);
                facts.put(Key::State, state);
                facts.put(Key::Message, event.message);
                if let Some(policy) = event.policy {
                    facts.put(Key::PolicyVersion, policy.number);
                    facts.put(Key::PolicyHash, policy.hash);
                }
                facts.put_known(Key::Policy, event.line);
                facts
            }
            Self::Lifecycle(event) => {
                let activity = event.activity.as_str();
                let mut facts = Facts::new(Class::Lifecycle, activity, event.severity);
                facts.put(Key::Message, event.message);
                facts
            }
            Self::Process(event) => process(event),
            Self::Ssh(event) => ssh(event),
            Self::Approval(event) => approval(event),
        }
    }
}

fn connection<'e>(event: &ConnectionDecided<'e>) -> Facts<'e> {
    let activity = event.activity.as_str();
    let mut facts = Facts::new(Class::Connection, activity, event.decided.severity);
    facts.ends(&event.ends);
    facts.way(&event.way);
    facts.lineage(&event.lineage);
    facts.decided(&event.decided);
    facts
}

fn request<'e>(event: &RequestDecided<'e>) -> Facts<'e> {
    let (class, activity) = match &event.message {
        None => (Class::Request, event.method),
        Some(message) if message.is_mcp => (Class::Mcp, message.label),
        Some(message) => (Class::Rpc, message.label),
    };
    let mut facts = Facts::new(class, activity, event.decided.severity);
    if let Some(message) = &event.message {
        facts.put(Key::RpcMethod, message.method);
        facts.put(Key::RpcTarget, message.about);
        facts.put(Key::Id, message.id);
    }
    facts.put(Key::Method, event.method);
    facts.put(Key::Scheme, event.scheme);
    facts.put(Key::Path, event.path);
    facts.put_known(Key::Number, event.number);
    facts.ends(&event.ends);
    facts.way(&event.way);
    facts.lineage(&event.lineage);
    facts.decided(&event.decided);
    facts.put(Key::Credentials, event.credentials);
    if let Some(model) = &event.model {
        facts.put(Key::Route, model.route);
        facts.put_known(Key::InputTokens, model.usage.input);
        facts.put_known(Key::OutputTokens, model.usage.output);
    }
    facts
}

fn closed<'e>(event: &ConnectionClosed<'e>) -> Facts<'e> {
    let activity = Activity::Close.as_str();
    let mut facts = Facts::new(Class::Closed, activity, event.severity);
    facts.ends(&event.ends);
    facts.way(&event.way);
    facts.put_known(Key::Policy, event.policy);
    facts.put(Key::BytesIn, event.received);
    facts.put(Key::BytesOut, event.sent);
    facts.put(Key::Milliseconds, event.milliseconds);
    facts.put(Key::EndedBy, event.by.as_str());
    facts.put(Key::Reason, event.reason);
    facts.put_known(Key::Code, event.code.map(|code| code.as_str()));
    facts
}

fn bypass<'e>(event: &BypassAttempt<'e>) -> Facts<'e> {
    let activity = Activity::Refuse.as_str();
    let mut facts = Facts::new(Class::Bypass, activity, event.decided.severity);
    facts.ends(&event.ends);
    facts.lineage(&event.lineage);
    facts.decided(&event.decided);
    facts.put(Key::Protocol, event.protocol);
    facts
}

fn name<'e>(event: &NameLookedUp<'e>) -> Facts<'e> {
    let mut facts = Facts::new(Class::Name, "RESOLVE", event.severity);
    facts.action = Some(event.action);
    facts.put(Key::Host, event.name);
    facts.put_known(Key::RecordType, event.kind);
    if let Some((addresses, ttl)) = event.found {
        facts.put(Key::Addresses, u64::try_from(addresses).unwrap_or(u64::MAX));
        facts.put(Key::Ttl, ttl);
    }
    if event.repeated > 0 {
        facts.put(Key::Repeated, event.repeated);
    }
    facts.put(Key::Reason, event.reason);
    facts.put_known(Key::Code, event.code.map(|code| code.as_str()));
    facts
}

fn published<'e>(event: &PublishedConnection<'e>) -> Facts<'e> {
    let mut facts = Facts::new(Class::Published, "PUBLISH", event.severity);
    facts.action = Some(event.action);
    facts.put(Key::Source, event.client);
    facts.put(Key::Port, event.port);
    facts.put(Key::PublishedAt, event.address);
    facts.put(Key::Reason, event.reason);
    facts
}

fn file<'e>(event: &FileRefused<'e>) -> Facts<'e> {
    let mut facts = Facts::new(Class::File, Activity::Refuse.as_str(), event.severity);
    facts.action = Some(Action::Denied);
    facts.put_known(Key::Binary, event.binary);
    facts.put_known(Key::Pid, event.pid);
    facts.put(Key::Access, event.access.as_str());
    facts.put(Key::Path, event.path);
    facts.put(Key::Reason, event.reason);
    facts
}

fn finding<'e>(event: &Finding<'e>) -> Facts<'e> {
    let mut facts = Facts::new(Class::Finding, event.activity.as_str(), event.severity);
    facts.put(Key::Title, event.title);
    facts.put(Key::Confidence, event.confidence.as_str());
    facts.put(Key::Message, event.message);
    facts
}

fn process<'e>(event: &Process<'e>) -> Facts<'e> {
    let mut facts = Facts::new(Class::Process, event.activity.as_str(), event.severity);
    facts.put(Key::Binary, event.name);
    facts.put(Key::Pid, event.pid);
    facts.put_known(Key::Exit, event.exit);
    facts.put_known(Key::Command, event.command);
    facts.put_known(Key::Reason, event.reason);
    facts
}

fn ssh<'e>(event: &Ssh<'e>) -> Facts<'e> {
    let mut facts = Facts::new(Class::Ssh, event.activity.as_str(), event.severity);
    facts.action = Some(event.action);
    facts.put(Key::Client, event.client);
    facts.put(Key::Door, event.door.as_str());
    facts.put_known(Key::Authentication, event.authentication);
    facts.put_known(Key::Command, event.command);
    facts.put_known(Key::Target, event.target);
    facts.put_known(Key::Exit, event.exit);
    if let Some((received, sent)) = event.transferred {
        facts.put(Key::BytesIn, received);
        facts.put(Key::BytesOut, sent);
    }
    facts.put(Key::Reason, event.reason);
    facts
}

fn approval<'e>(event: &Approval<'e>) -> Facts<'e> {
    let activity = event.activity.as_str();
    let mut facts = Facts::new(Class::Approval, activity, event.severity);
    facts.ends(&event.ends);
    facts.put(Key::Id, event.id);
    facts.put_known(Key::AnsweredBy, event.by);
    facts.put_known(Key::Uid, event.uid.map(u64::from));
    facts.put_known(Key::Scope, event.scope);
    facts.put_known(Key::Grant, event.grant);
    facts.put_known(Key::Policy, event.line);
    facts.put(Key::Reason, event.reason);
    facts
}

impl fmt::Display for Value<'_> {
    /// Writes the value; several texts are separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Texts(texts) => f.write_str(&texts.join(" ")),
            Self::Number(number) => number.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl<'e> From<&'e str> for Value<'e> {
    fn from(text: &'e str) -> Self {
        Self::Text(text)
    }
}

impl From<SocketAddr> for Value<'_> {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl From<i32> for Value<'_> {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for Value<'_> {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}
