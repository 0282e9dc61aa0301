//! The fields of an event, as text.

use std::fmt::{self, Write};
use std::ops::Range;

use tracing::Event;
use tracing::field::{Field, Visit};

use super::queue::Priority;

/// An event's fields as text, the message among them: one behind the other, each with its name and its end.
pub(super) struct Fields {
    text: String,
    ends: Vec<(&'static str, usize)>,
}

impl Default for Fields {
    /// Reserves room for the fields of a request.
    fn default() -> Self {
        Self { text: String::with_capacity(512), ends: Vec::with_capacity(24) }
    }
}

impl Fields {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    /// Returns the field called `name`; an absent field is empty.
    pub(super) fn get(&self, name: &str) -> &str {
        let field = self.places().find(|(known, _)| *known == name);
        field.and_then(|(_, place)| self.text.get(place)).unwrap_or_default()
    }

    /// Returns the fields in their order, each with its name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.places().map(|(name, place)| (name, self.text.get(place).unwrap_or_default()))
    }

    fn places(&self) -> impl Iterator<Item = (&'static str, Range<usize>)> {
        let begins = [0].into_iter().chain(self.ends.iter().map(|(_, end)| *end));
        begins.zip(&self.ends).map(|(begin, (name, end))| (*name, begin..*end))
    }

    /// Returns true for an event about the sandbox itself that an operator must look at.
    pub(super) fn needs_attention(&self) -> bool {
        self.get("class") == "CONFIG" && !matches!(self.get("severity"), "INFO" | "LOW")
    }

    /// Returns the bounds of the log file that apply to the event.
    pub(super) fn priority(&self) -> Priority {
        match self.get("class") {
            "CONFIG" | "LIFECYCLE" | "PROC" => Priority::State,
            "FINDING" => Priority::Security,
            _ if self.get("action") == "DENIED" => Priority::Security,
            _ => Priority::Ordinary,
        }
    }

    /// Adds a field.
    pub(super) fn push(&mut self, name: &'static str, value: &str) {
        self.text.push_str(value);
        self.ends.push((name, self.text.len()));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{value:?}");
        self.ends.push((field.name(), self.text.len()));
    }
}
