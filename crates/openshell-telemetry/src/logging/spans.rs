//! The spans of an event, which are the context at the beginning of a line below `info`.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::word::FieldValue;

/// The fields of a span as text, `id=7 host=a.test`; they are kept with the span.
#[derive(Default)]
pub(super) struct SpanFields(String);

impl SpanFields {
    pub(super) fn of(attributes: &Attributes<'_>) -> Self {
        let mut fields = Self::default();
        attributes.record(&mut fields);
        fields
    }

    /// Adds fields that become known after the span has begun.
    pub(super) fn add(&mut self, values: &Record<'_>) {
        values.record(self);
    }
}

impl Visit for SpanFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let separator = if self.0.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{separator}{}={}", field.name(), FieldValue(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Returns the spans around `event`, the outermost first: `connection{id=7}:request{n=2}: `. Empty
/// without spans.
pub(super) fn prefix<S>(event: &Event<'_>, context: &Context<'_, S>) -> String
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    let mut prefix = String::new();
    for span in context
        .event_scope(event)
        .into_iter()
        .flat_map(|scope| scope.from_root())
    {
        prefix.push_str(span.name());
        if let Some(SpanFields(fields)) = span.extensions().get::<SpanFields>()
            && !fields.is_empty()
        {
            prefix.push('{');
            prefix.push_str(fields);
            prefix.push('}');
        }
        prefix.push(':');
    }
    if !prefix.is_empty() {
        prefix.push(' ');
    }
    prefix
}
