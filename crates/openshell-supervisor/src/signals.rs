//! What a signal to the supervisor means for the workload.

/// What is done about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The command gets it, and after the grace time everything is killed.
    Terminate,
    /// The command gets it.
    Forward,
    /// The policy is read again.
    Reload,
}

/// Signals that the supervisor takes, but for SIGCHLD; whatever else arrives does what it does to any process.
pub const TAKEN: &[i32] = &[
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// What `signal`, one of [`TAKEN`], means. A terminal's hang-up is the command's where the command has the terminal,
/// and means a reload of the policy elsewhere.
#[must_use]
pub fn meaning(signal: i32, interactive: bool) -> Meaning {
    match signal {
        libc::SIGTERM | libc::SIGINT | libc::SIGQUIT => Meaning::Terminate,
        libc::SIGHUP if !interactive => Meaning::Reload,
        _ => Meaning::Forward,
    }
}

/// Lets the supervisor hand the terminal over and take it back while it is in the background itself, for which SIGTTOU
/// would stop it.
///
/// # Errors
/// None that is known.
pub fn ignore_terminal_output_stop() -> std::io::Result<()> {
    crate::sys::ignore_signal(libc::SIGTTOU)
}
