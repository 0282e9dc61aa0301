//! Stopping everything in the sandbox with the caller's job, and continuing it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// Looks at the processes until no running one is found. A process that is stopped starts no other,
/// so that few are needed.
const PASSES: usize = 100;

/// Wait for a table of processes that cannot be read now, as the machine has too many open files.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Processes that were stopped, parents before their children.
#[derive(Debug, Default)]
pub(super) struct Suspended(Vec<Pid>);

impl Suspended {
    /// Stops all descendants of the calling process that are not stopped already, those of earlier
    /// calls included.
    pub(super) fn stop_all(&mut self) {
        let mut known: HashSet<Pid> = self.0.iter().copied().collect();
        for _ in 0..PASSES {
            let Ok(found) = descendants() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let running: Vec<_> = found.into_iter().filter(|pid| known.insert(*pid)).collect();
            if running.is_empty() {
                return;
            }
            for pid in running {
                // It may have ended.
                if rustix::process::kill_process(pid, Signal::STOP).is_ok() {
                    self.0.push(pid);
                }
            }
        }
    }

    /// Continues what was stopped, children before their parents, which so hear of no stop.
    pub(super) fn continue_all(&mut self) {
        for pid in self.0.drain(..).rev() {
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }
}

/// Returns the descendants of the calling process that are neither stopped nor dead, parents before
/// their children. A process that somebody put into the namespace from outside is none.
///
/// # Errors
/// As for [`processes`].
fn descendants() -> io::Result<Vec<Pid>> {
    let mut children: HashMap<i32, Vec<(i32, u8)>> = HashMap::new();
    for (pid, parent, state) in processes()? {
        children.entry(parent).or_default().push((pid, state));
    }
    let mut found = Vec::new();
    let mut level = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while !level.is_empty() {
        let below: Vec<_> = level
            .iter()
            .filter_map(|pid| children.remove(pid))
            .flatten()
            .collect();
        level = below.iter().map(|(pid, _)| *pid).collect();
        let running = below
            .into_iter()
            .filter(|(_, state)| !b"TtZX".contains(state));
        found.extend(running.filter_map(|(pid, _)| Pid::from_raw(pid)));
    }
    Ok(found)
}

/// Returns number, parent and state of each process (proc_pid_stat(5)).
///
/// # Errors
/// The table of processes cannot be read.
pub(super) fn processes() -> io::Result<Vec<(i32, i32, u8)>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => processes
                .extend(parent_and_state(&stat).map(|(parent, state)| (pid, parent, state))),
            // It has just ended.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(processes)
}

fn parent_and_state(stat: &[u8]) -> Option<(i32, u8)> {
    // The name, in parentheses, holds any bytes.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after_name..)?)
        .ok()?
        .split_ascii_whitespace();
    let state = fields.next()?.bytes().next()?;
    Some((fields.next()?.parse().ok()?, state))
}
