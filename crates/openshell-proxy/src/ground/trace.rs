//! Durations for debug events. Without debug logging each costs one comparison.

use std::time::Instant;

use tracing::{Level, enabled};

/// Measures a step for a debug event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Option<Instant>);

impl Stopwatch {
    /// Starts now, if debug events are on.
    pub(crate) fn start() -> Self {
        Self(enabled!(Level::DEBUG).then(Instant::now))
    }

    /// Microseconds since the start.
    pub(crate) fn micros(self) -> u64 {
        self.0.map_or(0, |start| {
            u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
        })
    }
}
