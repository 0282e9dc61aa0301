//! Durations for debug events. Without debug logging, each costs one comparison.

use std::time::Instant;

use tracing::{Level, enabled};

/// A stopwatch that measures a step for a debug event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Option<Instant>);

impl Stopwatch {
    /// Starts the stopwatch, if debug events are on.
    pub(crate) fn start() -> Self {
        Self(enabled!(Level::DEBUG).then(Instant::now))
    }

    /// Returns the microseconds since the start; 0 if debug events are off.
    pub(crate) fn micros(self) -> u64 {
        self.0.map_or(0, |start| {
            u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
        })
    }
}
