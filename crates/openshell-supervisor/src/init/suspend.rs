//! Stopping everything in the sandbox with the caller's job, and continuing it.

use std::collections::{HashMap, HashSet};

use rustix::process::{Pid, Signal};

/// Looks at the processes until no running one is found. A process that is stopped starts no other, so that few are needed.
const PASSES: usize = 100;

/// Processes that were stopped, parents before their children.
#[derive(Debug, Default)]
pub(super) struct Suspended(Vec<Pid>);

impl Suspended {
    /// Stops all descendants of the calling process that are not stopped already, those of earlier calls included.
    pub(super) fn stop_all(&mut self) {
        let mut known: HashSet<Pid> = self.0.iter().copied().collect();
        for _ in 0..PASSES {
            let running: Vec<_> = descendants().into_iter().filter(|pid| known.insert(*pid)).collect();
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

/// Returns the descendants of the calling process that are neither stopped nor dead, parents before their children. A process
/// that somebody put into the namespace from outside is none.
fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<(i32, u8)>> = HashMap::new();
    for (pid, parent, state) in processes() {
        children.entry(parent).or_default().push((pid, state));
    }
    let mut found = Vec::new();
    let mut level = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while !level.is_empty() {
        let below: Vec<_> = level.iter().filter_map(|pid| children.remove(pid)).flatten().collect();
        level = below.iter().map(|(pid, _)| *pid).collect();
        let running = below.into_iter().filter(|(_, state)| !b"TtZX".contains(state));
        found.extend(running.filter_map(|(pid, _)| Pid::from_raw(pid)));
    }
    found
}

/// Returns number, parent and state of each process (proc_pid_stat(5)).
pub(super) fn processes() -> Vec<(i32, i32, u8)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    // One that has just ended is left out.
    numbers.filter_map(|pid| stat(pid).map(|(parent, state)| (pid, parent, state))).collect()
}

fn stat(pid: i32) -> Option<(i32, u8)> {
    // The name, in parentheses, holds any bytes.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after_name..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?.bytes().next()?;
    Some((fields.next()?.parse().ok()?, state))
}
