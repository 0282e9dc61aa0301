//! What a signal to the supervisor means for the workload.

use std::io;
use std::os::fd::OwnedFd;

/// What is done about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalAction {
    /// The command gets it, and after the grace time everything is killed.
    Terminate,
    /// The command gets it.
    Forward,
    /// The policy is read again.
    Reload,
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub number: i32,
    /// Whether a terminal's hang-up sent it and not a process.
    pub is_hang_up: bool,
}

/// Signals that the supervisor takes, but for SIGCHLD and SIGHUP; whatever else arrives does what it does to any process.
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

/// Takes SIGHUP: a non-blocking pipe that gets one byte for each, 1 for a terminal's hang-up and 0 where a process sent it.
///
/// # Errors
/// No descriptor is left.
pub fn hang_ups() -> io::Result<OwnedFd> {
    crate::sys::hang_ups()
}

impl Received {
    /// A SIGHUP, as a byte of [`hang_ups`] says.
    #[must_use]
    pub fn hang_up(byte: u8) -> Self {
        Self { number: libc::SIGHUP, is_hang_up: byte != 0 }
    }
}

/// SignalAction of a signal. A terminal's hang-up is passed on to a command that has the terminal; a SIGHUP from a process reloads
/// the policy.
#[must_use]
pub fn action(signal: Received, interactive: bool) -> SignalAction {
    match signal.number {
        libc::SIGTERM | libc::SIGINT | libc::SIGQUIT => SignalAction::Terminate,
        libc::SIGHUP if !(interactive && signal.is_hang_up) => SignalAction::Reload,
        _ => SignalAction::Forward,
    }
}

/// Lets the supervisor hand the terminal over and take it back while it is in the background itself, for which SIGTTOU
/// would stop it.
///
/// # Errors
/// None that is known.
pub fn ignore_terminal_output_stop() -> io::Result<()> {
    crate::sys::ignore_signal(libc::SIGTTOU)
}
