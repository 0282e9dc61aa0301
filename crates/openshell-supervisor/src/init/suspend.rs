//! Stops everything in the sandbox together with the caller's job, and continues it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// The largest number of looks at the processes until none is found running. A stopped process
/// starts no others, so few are needed.
const PASSES: usize = 100;

/// The wait before the table of processes is read again, if the machine has too many open files to
/// read it now.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// The processes that were stopped, parents before their children.
#[derive(Debug, Default)]
pub(super) struct Suspended(Vec<Pid>);

impl Suspended {
    /// Stops all descendants of the calling process that are not stopped already, and adds them to
    /// those of earlier calls.
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
                // The process may have ended.
                if rustix::process::kill_process(pid, Signal::STOP).is_ok() {
                    self.0.push(pid);
                }
            }
        }
    }

    /// Continues what was stopped. Children come before their parents, so parents do not see them
    /// stopped.
    pub(super) fn continue_all(&mut self) {
        for pid in self.0.drain(..).rev() {
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }
}

/// Returns the descendants of the calling process that are neither stopped nor dead, parents before
/// their children. A process that was put into the namespace from outside is not a descendant.
///
/// # Errors
/// Fails like [`processes`].
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

/// Returns the PID, the parent's PID and the state of each process (proc_pid_stat(5)).
///
/// # Errors
/// Fails if the table of processes cannot be read.
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
            // The process has ended meanwhile.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(processes)
}

fn parent_and_state(stat: &[u8]) -> Option<(i32, u8)> {
    // The name, in parentheses, may hold any bytes.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after_name..)?)
        .ok()?
        .split_ascii_whitespace();
    let state = fields.next()?.bytes().next()?;
    Some((fields.next()?.parse().ok()?, state))
}
