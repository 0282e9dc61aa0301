//! A layer that passes diagnostics from `tracing` to the sinks.

use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::fields::Fields;
use super::identity::RunIdentity;
use super::shorthand::Content;
use super::sink::{LogEvent, Sink};
use super::spans::{self, SpanFields};

/// Hands every diagnostic to every sink. Spans are enabled only if a sink takes events below
/// `info`, because only their lines show spans.
pub(super) struct LogLayer {
    sinks: Vec<Arc<dyn Sink>>,
    /// The most verbose level of events that a sink may take.
    max_level: Level,
    /// The end of every line.
    identity: RunIdentity,
}

impl LogLayer {
    pub(super) fn new(sinks: Vec<Arc<dyn Sink>>, identity: RunIdentity) -> Self {
        let max_level = sinks
            .iter()
            .map(|sink| sink.max_level())
            .max()
            .unwrap_or(Level::ERROR);
        Self {
            sinks,
            max_level,
            identity,
        }
    }
}

/// Returns the most verbose level of `target` that is logged. Dependencies log warnings. h2 logs
/// only errors, because its warnings report client behaviour, which is audited.
fn max_level_of(target: &str) -> Level {
    if target.starts_with("openshell") {
        Level::TRACE
    } else if target.starts_with("h2::") {
        Level::ERROR
    } else {
        Level::WARN
    }
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let is_shown = *metadata.level() <= self.max_level.min(max_level_of(metadata.target()));
        is_shown && (metadata.is_event() || self.max_level > Level::INFO)
    }

    /// Returns a level that lets `tracing` skip more verbose callsites without asking the layer.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.max_level))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanFields::of(attributes));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<SpanFields>()
        {
            fields.add(values);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let level = *event.metadata().level();
        let target = event.metadata().target();
        let fields = Fields::of(event);
        // Only readers who look for a fault need the context.
        let (spans, others) = if level > Level::INFO {
            (spans::prefix(event, &context), fields.others.as_str())
        } else {
            (String::new(), "")
        };
        let content = Content::Diagnostic {
            level,
            target,
            spans: &spans,
            message: &fields.message,
            fields: others,
        };
        let event = LogEvent::new(content, &self.identity);
        for sink in &self.sinks {
            sink.take(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use tracing::Level;
    use tracing::field::Empty;
    use tracing_subscriber::layer::SubscriberExt;

    use super::LogLayer;
    use crate::logging::sink::{LogEvent, Sink};
    use crate::logging::{Form, RunIdentity};

    /// Collects the lines of events up to a level, without their time.
    struct Lines {
        level: Level,
        lines: Mutex<Vec<String>>,
    }

    impl Sink for Lines {
        fn max_level(&self) -> Level {
            self.level
        }

        fn take(&self, event: &LogEvent<'_>) {
            let text = event.line(Form::Text).text;
            self.lines
                .lock()
                .push(text.split_once(' ').unwrap().1.to_owned());
        }

        fn flush(&self, _: Duration) {}
    }

    /// Returns the lines that the last sink gets from `trace`, if there are sinks of `levels`.
    fn lines(levels: &[Level], trace: impl FnOnce()) -> Vec<String> {
        let sinks: Vec<_> = levels
            .iter()
            .map(|level| {
                Arc::new(Lines {
                    level: *level,
                    lines: Mutex::default(),
                })
            })
            .collect();
        let layer = LogLayer::new(
            sinks.iter().map(|sink| Arc::clone(sink) as _).collect(),
            RunIdentity::new("box-1".to_owned(), Vec::new()),
        );
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), trace);
        sinks.last().unwrap().lines.lock().clone()
    }

    const TARGET: &str = "openshell_proxy::test";

    #[test]
    fn a_line_below_info_shows_its_spans_and_fields_and_one_above_does_not() {
        let lines = lines(&[Level::INFO, Level::DEBUG], || {
            let connection =
                tracing::debug_span!(target: TARGET, "connection", id = 7, host = Empty).entered();
            connection.record("host", "a b.test");
            let _request = tracing::debug_span!(target: TARGET, "request", n = 2).entered();
            let _bare = tracing::debug_span!(target: TARGET, "send").entered();
            tracing::debug!(target: TARGET, elapsed_ms = 1.5, host = "a\nb\"", "answered");
            tracing::info!(target: TARGET, elapsed_ms = 1.5, "told");
            tracing::trace!(target: TARGET, "too verbose");
        });
        let expected = [
            r#"DEBUG openshell_proxy::test: connection{id=7 host="a b.test"}:request{n=2}:send: answered elapsed_ms=1.5 host=a\u{a}b\u{22} sandbox=box-1"#,
            "INFO openshell_proxy::test: told sandbox=box-1",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn without_debug_lines_spans_are_disabled_and_their_fields_not_computed() {
        let computed = Cell::new(0);
        let compute = || computed.replace(computed.get() + 1);
        let trace = || {
            let debug = tracing::debug_span!(target: TARGET, "connection", id = compute());
            let info = tracing::info_span!(target: TARGET, "connection", id = compute());
            assert!(debug.is_disabled() && info.is_disabled());
            tracing::debug!(target: TARGET, id = compute(), "decided");
        };
        assert_eq!(lines(&[Level::INFO], trace), Vec::<String>::new());
        assert_eq!(computed.get(), 0);
    }

    #[test]
    fn dependencies_have_no_spans_and_log_warnings() {
        let lines = lines(&[Level::TRACE], || {
            assert!(tracing::warn_span!(target: "h2::codec", "poll").is_disabled());
            assert!(tracing::debug_span!(target: "hickory", "lookup").is_disabled());
            tracing::debug!(target: "hickory", "detail");
            tracing::warn!(target: "hickory", "problem");
        });
        assert_eq!(lines, ["WARN hickory: problem sandbox=box-1"]);
    }
}
