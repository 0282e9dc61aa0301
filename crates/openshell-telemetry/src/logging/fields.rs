//! The fields of a diagnostic, as text.

use std::fmt::{self, Write};

use tracing::Event;
use tracing::field::{Field, Visit};

use super::word::FieldValue;

/// The message, and the other fields as ` id=7 host=a.test`; values that contain spaces are in
/// quotes.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) message: String,
    pub(super) others: String,
}

impl Fields {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => self.message.write_str(value),
            name => write!(self.others, " {name}={}", FieldValue(value)),
        };
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
