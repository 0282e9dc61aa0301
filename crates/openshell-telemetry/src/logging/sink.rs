//! Destinations of log events.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::time::Duration;

use openshell_events::event::{Configuration, Event, Finding};
use openshell_events::text::printable;
use openshell_events::words::{Action, Severity};
use time::OffsetDateTime;
use tracing::Level;

use super::form::{Form, diagnostic};
use super::identity::RunIdentity;
use super::ocsf;
use super::queue::{Line, Priority};
use super::shorthand::{self, Content};
use super::tone::Tone;

/// A destination of log events, such as a file.
pub(super) trait Sink: Send + Sync {
    /// Returns the most verbose level of events that the sink may take.
    fn max_level(&self) -> Level;

    /// Takes `event`, or ignores it if it is too verbose. Never waits for a slow reader.
    fn take(&self, event: &LogEvent<'_>);

    /// Waits until everything that was taken is written, for `patience` at most.
    fn flush(&self, patience: Duration);
}

/// An event as sinks get it.
pub(super) struct LogEvent<'e> {
    made: OffsetDateTime,
    content: Content<'e>,
    identity: &'e RunIdentity,
    /// The line in shorthand, made for the first sink that wants it.
    text: OnceCell<String>,
    /// The line in JSON, made for the first sink that wants it.
    json: OnceCell<String>,
}

impl<'e> LogEvent<'e> {
    /// Creates an event that happens now; `identity` ends its line.
    pub(super) fn new(content: Content<'e>, identity: &'e RunIdentity) -> Self {
        Self {
            made: OffsetDateTime::now_utc(),
            content,
            identity,
            text: OnceCell::new(),
            json: OnceCell::new(),
        }
    }

    /// Returns the level of the event. Audit events have `info`.
    pub(super) fn level(&self) -> Level {
        match self.content {
            Content::Diagnostic { level, .. } => level,
            Content::Audit(_) => Level::INFO,
        }
    }

    /// Returns the level of the event for a reader who follows the run: an audit event that an
    /// operator must look at is a warning.
    pub(super) fn attention_level(&self) -> Level {
        let is_warning = match self.content {
            Content::Audit(Event::Configuration(Configuration { severity, .. })) => {
                matches!(
                    severity,
                    Severity::Medium | Severity::High | Severity::Critical
                )
            }
            Content::Audit(Event::Finding(Finding { severity, .. })) => {
                matches!(severity, Severity::High | Severity::Critical)
            }
            Content::Audit(_) | Content::Diagnostic { .. } => return self.level(),
        };
        if is_warning { Level::WARN } else { Level::INFO }
    }

    /// Returns its tone for a reader on a terminal.
    pub(super) fn tone(&self) -> Tone {
        let is_refusal = match self.content {
            Content::Audit(event) => event
                .denial()
                .is_some_and(|denial| denial.code.is_policy_denial()),
            Content::Diagnostic { .. } => false,
        };
        match self.attention_level() {
            _ if is_refusal => Tone::Refusal,
            Level::ERROR => Tone::Refusal,
            Level::WARN => Tone::Warning,
            _ => Tone::Plain,
        }
    }

    /// Returns its content.
    pub(super) fn content(&self) -> Content<'e> {
        self.content
    }

    /// Returns the identity of the run: the sandbox and its labels.
    pub(super) fn identity(&self) -> &'e RunIdentity {
        self.identity
    }

    /// Returns its time.
    pub(super) fn made(&self) -> OffsetDateTime {
        self.made
    }

    /// Returns the line without its time, its prefix and its end.
    pub(super) fn message(&self) -> Cow<'_, str> {
        if let Content::Diagnostic {
            spans,
            message,
            fields,
            ..
        } = self.content
        {
            return Cow::Owned(printable(&format!("{spans}{message}{fields}")).into_owned());
        }
        let line = self.text();
        let message = line.split_once(' ').map_or(line, |(_, message)| message);
        let message = message.strip_prefix("OCSF ").unwrap_or(message);
        Cow::Borrowed(message.strip_suffix(self.identity.end()).unwrap_or(message))
    }

    /// Returns the event as a message for people.
    pub(super) fn for_people(&self) -> String {
        let text = match self.content {
            Content::Diagnostic { message, .. } => printable(message),
            Content::Audit(Event::Configuration(Configuration { message, .. })) => {
                printable(message)
            }
            Content::Audit(Event::Finding(Finding { title, message, .. })) => {
                Cow::Owned(printable(&format!("{title}: {message}")).into_owned())
            }
            Content::Audit(_) => self.message(),
        };
        format!("openshell-sandbox: {text}")
    }

    fn text(&self) -> &str {
        self.text
            .get_or_init(|| shorthand::line(self.made, self.content, self.identity.end()))
    }

    /// Returns the event as a line.
    pub(super) fn line(&self, form: Form) -> Line {
        let text = match form {
            Form::Text => self.text().to_owned(),
            Form::Json => self.json().to_owned(),
        };
        Line {
            made: self.made,
            priority: self.priority(),
            text,
        }
    }

    fn json(&self) -> &str {
        self.json.get_or_init(|| match self.content {
            Content::Audit(event) => ocsf::record(self.made, event, &self.message(), self.identity),
            Content::Diagnostic { level, target, .. } => diagnostic(
                self.made,
                level.as_str(),
                target,
                &self.message(),
                Some(self.identity),
            ),
        })
    }

    /// Returns the priority of the event's line.
    fn priority(&self) -> Priority {
        let decided = match self.content {
            Content::Diagnostic { .. } => return Priority::Ordinary,
            Content::Audit(Event::Configuration(_) | Event::Lifecycle(_) | Event::Process(_)) => {
                return Priority::State;
            }
            Content::Audit(Event::Finding(_) | Event::File(_) | Event::Approval(_)) => {
                return Priority::Security;
            }
            // Clients outside can cause any number of these, and a name that gets no address gives
            // access to nothing.
            Content::Audit(Event::Published(_) | Event::Name(_) | Event::Ssh(_)) => {
                return Priority::Ordinary;
            }
            Content::Audit(Event::Closed(event)) => {
                return if event.code.is_some() {
                    Priority::Security
                } else {
                    Priority::Ordinary
                };
            }
            Content::Audit(Event::Connection(event)) => event.decided,
            Content::Audit(Event::Request(event)) => event.decided,
            Content::Audit(Event::Bypass(event)) => event.decided,
        };
        match decided.action {
            Action::Denied => Priority::Security,
            Action::Allowed | Action::Other => Priority::Ordinary,
        }
    }
}
