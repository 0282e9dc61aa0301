//! Which process group and session a process belongs to, where either may lie outside of this PID namespace.

use std::io;

use rustix::process::{Pid, RawPid};

/// The job of a process, as a shell sees it. `None` stands for a group or session that has no number in this PID namespace
/// (pid_namespaces(7)): whoever began it came from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The process group.
    pub group: Option<Pid>,
    /// The session.
    pub session: Option<Pid>,
}

impl Job {
    /// The job of this process.
    ///
    /// # Errors
    /// None that is known.
    pub fn own() -> io::Result<Self> {
        Self::of_number(0)
    }

    /// The job of process `pid`.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Self::of_number(pid.as_raw_nonzero().get())
    }

    fn of_number(pid: RawPid) -> io::Result<Self> {
        let [group, session] = [crate::sys::process_group(pid)?, crate::sys::session(pid)?].map(Pid::from_raw);
        Ok(Self { group, session })
    }
}
