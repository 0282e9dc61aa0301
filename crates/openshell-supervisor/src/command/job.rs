//! Reads the process group and session of a process (credentials(7)).

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::process::{Pid, RawPid};

/// The job of a process, in the sense of a shell's job control. `None` stands for a group or
/// session whose leader is outside this PID namespace and therefore has no number in it
/// (pid_namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The process group.
    pub group: Option<Pid>,
    /// The session.
    pub session: Option<Pid>,
}

impl Job {
    /// Returns the job of the calling process.
    ///
    /// # Errors
    /// No failure is known.
    pub fn own() -> io::Result<Self> {
        Self::of_number(0)
    }

    /// Returns the job of process `pid`.
    ///
    /// # Errors
    /// Fails if there is no such process.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Self::of_number(pid.as_raw_nonzero().get())
    }

    fn of_number(pid: RawPid) -> io::Result<Self> {
        let [group, session] =
            [crate::sys::process_group(pid)?, crate::sys::session(pid)?].map(Pid::from_raw);
        Ok(Self { group, session })
    }
}

/// Returns true if `terminal` is the controlling terminal of the calling process, and the process
/// is in its foreground.
#[must_use]
pub fn is_in_foreground(terminal: BorrowedFd<'_>) -> bool {
    let Ok(Job { group, .. }) = Job::own() else {
        return false;
    };
    match rustix::termios::tcgetpgrp(terminal) {
        Ok(foreground) => group == Some(foreground),
        // The foreground group is from outside of this PID namespace, and so must be the own one.
        Err(Errno::OPNOTSUPP) => group.is_none(),
        Err(_) => false,
    }
}

/// Returns true if `terminal` is the controlling terminal of the calling process.
#[must_use]
pub fn is_controlling(terminal: BorrowedFd<'_>) -> bool {
    matches!(
        rustix::termios::tcgetpgrp(terminal),
        Ok(_) | Err(Errno::OPNOTSUPP)
    )
}
