//! Lines of policy that hold for one connection or one request only.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::decide::line::Line;
use crate::decide::snapshot::Snapshot;

/// Lines that hold for one connection or one request, and until they expire.
#[derive(Clone, Debug, Default)]
pub struct OwnLines(Option<Arc<Own>>);

#[derive(Debug)]
struct Own {
    lines: Vec<Line>,
    until: Instant,
    /// The last generation together with the lines.
    known: Mutex<Option<Arc<Snapshot>>>,
}

impl OwnLines {
    /// Returns these lines and `line`, all of which expire with the first, `line` at `until`.
    #[must_use]
    pub fn and(&self, line: Line, until: Instant) -> Self {
        let until = self.until().map_or(until, |before| before.min(until));
        Self::of(self.lines().iter().cloned().chain([line]).collect(), until)
    }

    fn of(lines: Vec<Line>, until: Instant) -> Self {
        Self(Some(Arc::new(Own {
            lines,
            until,
            known: Mutex::default(),
        })))
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the lines.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        self.0.as_ref().map_or(&[], |own| &own.lines)
    }

    /// Returns when they expire; `None` if there are none.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        self.0.as_ref().map(|own| own.until)
    }

    /// Returns the generation `in_force` together with the lines; without, if they have expired, or
    /// if they do not fit beside it.
    #[must_use]
    pub fn over(&self, in_force: Arc<Snapshot>) -> Arc<Snapshot> {
        let Some(own) = &self.0 else {
            return in_force;
        };
        if Instant::now() >= own.until {
            return in_force;
        }
        let mut known = own.known.lock();
        if let Some(snapshot) = &*known
            && snapshot.generation() == in_force.generation()
        {
            return Arc::clone(snapshot);
        }
        let together = in_force.with_lines(in_force.generation(), &own.lines);
        let snapshot = together.map_or(in_force, Arc::new);
        *known = Some(Arc::clone(&snapshot));
        snapshot
    }
}
