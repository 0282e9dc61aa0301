//! Handles signals to the supervisor: the action that each signal causes.

use std::io;
use std::os::fd::OwnedFd;

/// The action that a signal causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalAction {
    /// Forward the signal, and kill everything after the grace period.
    Terminate,
    /// Forward the signal to the command.
    Forward,
    /// Reload the policy.
    Reload,
}

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The signal's number.
    pub number: i32,
    /// True if the kernel sent it because the terminal hung up, false if a process sent it.
    pub is_hang_up: bool,
}

/// Signals that the supervisor handles in addition to SIGCHLD and SIGHUP. All others keep their
/// default action.
pub const HANDLED: &[i32] = &[
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// Installs a handler for SIGHUP. Returns a non-blocking pipe that receives one byte per signal: 1
/// if a terminal hung up, 0 if a process sent the signal.
///
/// # Errors
/// Fails if no descriptor is left, or the handler cannot be installed.
pub fn hang_ups() -> io::Result<OwnedFd> {
    crate::sys::hang_ups()
}

/// Makes the calling process's writes beyond the limit of file sizes fail, so that they do not end
/// the process (setrlimit(2), RLIMIT_FSIZE).
///
/// # Errors
/// Fails if the kernel refuses.
pub fn survive_file_size_limit() -> io::Result<()> {
    crate::sys::ignore_signal(libc::SIGXFSZ)
}

impl Received {
    /// Returns the SIGHUP that a byte from the pipe of [`hang_ups`] stands for.
    #[must_use]
    pub fn hang_up(byte: u8) -> Self {
        Self {
            number: libc::SIGHUP,
            is_hang_up: byte != 0,
        }
    }
}

/// Returns the action for `signal`. A terminal's hang-up is forwarded to an `interactive` command,
/// which has the terminal. Any other SIGHUP reloads the policy.
#[must_use]
pub fn action(signal: Received, interactive: bool) -> SignalAction {
    match signal.number {
        libc::SIGTERM | libc::SIGINT | libc::SIGQUIT => SignalAction::Terminate,
        libc::SIGHUP if !(interactive && signal.is_hang_up) => SignalAction::Reload,
        _ => SignalAction::Forward,
    }
}

/// Ignores SIGTTIN and SIGTTOU, which would stop this process when it uses its terminal from the
/// background. A read in the background then fails instead (EIO).
///
/// # Errors
/// No failure is known.
pub fn ignore_terminal_stops() -> io::Result<()> {
    crate::sys::ignore_signal(libc::SIGTTIN)?;
    crate::sys::ignore_signal(libc::SIGTTOU)
}

/// Returns true if this process ignores `signal`: its caller did too, unless the process has
/// changed that since.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    crate::sys::is_signal_ignored(signal)
}
