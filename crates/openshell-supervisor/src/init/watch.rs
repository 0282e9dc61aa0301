//! Init's watch over what mounts protect from the workload. It goes on while the supervisor is
//! stopped.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use super::ipc::Loss;
use crate::paths::mounts::read_mount_table;
use crate::paths::pins::{Kept, Mounted};

/// The table of init's own mounts.
const TABLE: &str = "/proc/self/mountinfo";

/// The time between two looks. The table of mounts reports a removal at once, but not a rename.
const INTERVAL: Duration = Duration::from_secs(1);

/// The least time between two looks, whatever changes.
const PAUSE: Duration = Duration::from_millis(100);

/// The watched mounts. The kernel removes a mount whose file is replaced outside, and moves a mount
/// whose file is renamed.
#[derive(Debug)]
pub(super) struct Watch {
    table: File,
    kept: Vec<Kept>,
    last: Instant,
}

impl Watch {
    /// Opens the table of mounts. Call this before calls about files start to wait for the
    /// supervisor.
    ///
    /// # Errors
    /// Fails if the table cannot be opened.
    pub(super) fn open_table() -> io::Result<File> {
        File::open(TABLE)
    }

    /// Starts to watch `kept` in `table`; returns `None` if there is nothing to watch.
    pub(super) fn new(table: File, mut kept: Vec<Kept>) -> Option<Self> {
        kept.retain(|kept| !kept.places.0.is_empty());
        (!kept.is_empty()).then(|| Self {
            table,
            kept,
            last: Instant::now(),
        })
    }

    /// Returns the table of mounts. It has an exceptional condition after each change
    /// (proc_pid_mounts(5)).
    pub(super) fn table(&self) -> &File {
        &self.table
    }

    /// Returns the time until the next look; `is_changed` says that the table has changed since the
    /// last one.
    pub(super) fn due_in(&self, is_changed: bool) -> Duration {
        let wait = if is_changed { PAUSE } else { INTERVAL };
        (self.last + wait).saturating_duration_since(Instant::now())
    }

    /// Returns what is lost, and stops watching it.
    ///
    /// # Errors
    /// Fails if the table cannot be read.
    pub(super) fn look(&mut self) -> io::Result<Loss> {
        self.last = Instant::now();
        let table = read_mount_table(&mut self.table)?;
        let mounted = Mounted::of(&table);
        let mut loss = Loss::default();
        self.kept.retain(|kept| {
            let is_kept = kept.places.0.iter().all(|point| mounted.has(point));
            if !is_kept {
                loss.paths.push(kept.path.clone());
                loss.is_end |= kept.is_end;
            }
            is_kept
        });
        Ok(loss)
    }
}
