//! Destinations of log events.

use std::cell::OnceCell;
use std::time::Duration;

use openshell_proxy::record::AUDIT;
use tracing::Level;

use super::fields::Fields;
use super::queue::{Line, Priority};
use super::shorthand::{self, Source};

/// A destination of log events, such as a file.
pub(super) trait Sink: Send + Sync {
    /// Returns the most verbose level of which the sink may take events.
    fn max_level(&self) -> Level;

    /// Takes `event`, or leaves it if it is too verbose. Never waits for a slow reader.
    fn take(&self, event: &LogEvent<'_>);

    /// Waits until everything taken is written, for `patience` at most.
    fn flush(&self, patience: Duration);
}

/// One event as sinks get it.
pub(super) struct LogEvent<'e> {
    source: Source<'e>,
    fields: &'e Fields,
    sandbox: &'e str,
    /// The line in shorthand, made for the first sink that wants it.
    text: OnceCell<String>,
}

impl<'e> LogEvent<'e> {
    /// Creates an event; `sandbox` ends its line.
    pub(super) fn new(source: Source<'e>, fields: &'e Fields, sandbox: &'e str) -> Self {
        Self { source, fields, sandbox, text: OnceCell::new() }
    }

    /// The level that the event was sent with.
    pub(super) fn level(&self) -> Level {
        self.source.level
    }

    /// The level of the event for a reader who follows the run: an audit event is informational, but one that an operator
    /// must look at is a warning.
    pub(super) fn attention_level(&self) -> Level {
        if self.is_audit() && self.fields.needs_attention() { Level::WARN } else { self.level() }
    }

    /// Returns the event as a line in shorthand.
    pub(super) fn line(&self) -> Line {
        let text = self.text.get_or_init(|| shorthand::line(&self.source, self.fields, self.sandbox)).clone();
        let priority = if self.is_audit() { self.fields.priority() } else { Priority::Ordinary };
        Line { made: self.source.made, priority, text }
    }

    fn is_audit(&self) -> bool {
        self.source.target == AUDIT
    }
}
