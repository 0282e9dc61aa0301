//! `--timings`: how long each stage of a start takes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use openshell_telemetry::logging;

/// The stages of a start that are over.
#[derive(Debug)]
pub(crate) struct Timings {
    is_wanted: bool,
    /// When the last stage ended.
    last: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Timings {
    /// Begins the first stage. `is_wanted` says whether the stages will be printed.
    pub(crate) fn begin(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            last: Instant::now(),
            stages: Vec::new(),
        }
    }

    /// Ends the stage `name`, and begins the next one.
    pub(crate) fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        self.stages.push((name, now - self.last));
        self.last = now;
    }

    /// Ends the last stage, `name`, and prints all stages with their times, if that is wanted.
    pub(crate) fn print_with(mut self, name: &'static str) {
        self.end(name);
        if self.is_wanted {
            logging::print_stderr(&self.text());
        }
    }

    fn text(&self) -> String {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1_000.0;
        let total = self.stages.iter().map(|(_, time)| *time).sum();
        let mut text = format!(
            "openshell-sandbox: the start took {:.2} ms",
            milliseconds(total)
        );
        for (name, time) in &self.stages {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  {name:<8}{:>9.2} ms", milliseconds(*time));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Timings;

    #[test]
    fn each_stage_has_a_line_and_their_sum_comes_first() {
        let mut timings = Timings::begin(true);
        timings.stages = vec![
            ("init", Duration::from_micros(1_500)),
            ("confine", Duration::from_micros(12_250)),
        ];
        assert_eq!(
            timings.text(),
            "openshell-sandbox: the start took 13.75 ms\n  init         1.50 ms\n  confine     12.25 ms"
        );
    }
}
