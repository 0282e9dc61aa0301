//! From `tracing` to the sinks.

use std::sync::Arc;

use openshell_proxy::record::AUDIT;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::fields::Fields;
use super::sink::{LogEvent, Sink};

/// Hands every event to every sink.
pub(super) struct LogLayer {
    sinks: Vec<Arc<dyn Sink>>,
    /// The most verbose level of which a sink may take events.
    max_level: Level,
    /// Ends every line.
    sandbox: String,
}

impl LogLayer {
    pub(super) fn new(sinks: Vec<Arc<dyn Sink>>, sandbox: String) -> Self {
        let max_level = sinks.iter().map(|sink| sink.max_level()).max().unwrap_or(Level::ERROR);
        Self { sinks, max_level, sandbox }
    }
}

/// Returns the most verbose level of `target` that is logged. Dependencies log warnings. h2 logs errors only: its warnings
/// report client behaviour, which is audited.
fn max_level_of(target: &str) -> Level {
    if target == AUDIT || target.starts_with("openshell") {
        Level::TRACE
    } else if target.starts_with("h2::") {
        Level::ERROR
    } else {
        Level::WARN
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.max_level.min(max_level_of(metadata.target()))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let fields = Fields::of(event);
        let event = LogEvent::new(*event.metadata().level(), event.metadata().target(), &fields, &self.sandbox);
        self.sinks.iter().for_each(|sink| sink.take(&event));
    }
}
