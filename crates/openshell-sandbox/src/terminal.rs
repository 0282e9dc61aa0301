//! The command's terminal in interactive mode: lent, given to the caller's shell at a stop, and taken back.

use std::io;

use openshell_supervisor::job::Job;
use openshell_supervisor::launch::Running;
use openshell_supervisor::signals;
use rustix::process::{Pid, Signal};
use rustix::termios::{Action, OptionalActions, Termios};

use crate::logging;
use crate::signals::forward;

/// Handles a stop of the command: from its terminal, or for using it in the background. By the time that the supervisor hears
/// of the latter, the caller's shell may have brought both to the foreground.
///
/// # Errors
/// The terminal cannot be handed over.
pub(crate) fn stopped(running: &Running, signal: i32) -> anyhow::Result<()> {
    let wanted_terminal = [Signal::TTIN, Signal::TTOU].iter().any(|wanted| wanted.as_raw() == signal);
    let has_terminal = foreground().is_some_and(|group| Some(group) == own_group() || Some(group) == group_of(running));
    if wanted_terminal && has_terminal { resume(running) } else { suspend(running) }
}

/// Takes back the terminal, if the command had it, and stops the supervisor too, with the rest of its job as a terminal
/// would, so that the caller's shell takes over.
fn suspend(running: &Running) -> anyhow::Result<()> {
    if !has_shell() {
        return resume(running);
    }
    if foreground().is_some_and(|group| Some(group) == group_of(running)) {
        take_foreground()?;
    }
    // The caller's SIGCONT ends the stop; it arrives as a signal too and resumes the command, once.
    rustix::process::kill_current_process_group(Signal::STOP)?;
    Ok(())
}

/// Returns true if a shell could continue the supervisor: its process group is not an orphaned one (POSIX.1-2024, XBD
/// 3.241), which a terminal never stops, and which must not stop itself. That shell is the first ancestor in another group;
/// a shell without job control keeps its commands in its own. A group from outside of this PID namespace is not known to
/// have one.
fn has_shell() -> bool {
    let Ok(Job { group: Some(group), session }) = Job::own() else { return false };
    let ancestors = std::iter::successors(rustix::process::getppid(), |pid| parent_of(*pid));
    let mut others = ancestors.map_while(|pid| Job::of(pid).ok());
    others.find(|other| other.group != Some(group)).is_some_and(|other| other.session == session)
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc_pid_stat(5): the name, in parentheses, holds anything.
    Pid::from_raw(stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

/// Gives the command the terminal again, if the caller's shell has given it to the supervisor, and continues it.
///
/// # Errors
/// The terminal cannot be handed over.
pub(crate) fn resume(running: &Running) -> anyhow::Result<()> {
    if let Some(group) = group_of(running).filter(|_| has_foreground()) {
        set_foreground(group)?;
    }
    forward(running, Signal::CONT.as_raw());
    Ok(())
}

/// The terminal while the command has it; lines of the supervisor are held back. Dropping it takes the terminal back, with the
/// modes of before.
pub(crate) struct Terminal {
    modes: Option<Termios>,
}

impl Terminal {
    pub(crate) fn lend() -> anyhow::Result<Self> {
        signals::ignore_terminal_output_stop()?;
        logging::hold();
        Ok(Self { modes: rustix::termios::tcgetattr(io::stdin()).ok() })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The command's group is gone by now. If another group has the foreground, the caller's shell has given it away.
        let is_free = foreground().is_some_and(|group| rustix::process::test_kill_process_group(group).is_err());
        if is_free && let Err(error) = take_foreground() {
            tracing::warn!("the terminal could not be taken back: {error}");
        }
        // The command may have left output stopped, and echo and line editing off. The terminal of another job is left alone.
        if has_foreground() {
            let _ = rustix::termios::tcflow(io::stdin(), Action::OOn);
            if let Some(modes) = &self.modes {
                let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, modes);
            }
        }
        logging::release();
    }
}

/// Returns true if standard input is a terminal and this process in its foreground.
pub(crate) fn has_foreground() -> bool {
    foreground().is_some() && foreground() == own_group()
}

/// Returns the group of this process, if it has a number in this PID namespace.
fn own_group() -> Option<Pid> {
    Job::own().ok()?.group
}

/// Returns the group in the terminal's foreground.
fn foreground() -> Option<Pid> {
    rustix::termios::tcgetpgrp(io::stdin()).ok()
}

/// Returns the command's process group in the supervisor's PID namespace; `None` once it has ended.
fn group_of(running: &Running) -> Option<Pid> {
    running.outer_pid().ok().and_then(Pid::from_raw)
}

/// Takes the foreground. A group without a number in this PID namespace gets it from the caller's shell, when its job has ended.
fn take_foreground() -> anyhow::Result<()> {
    own_group().map_or(Ok(()), set_foreground)
}

fn set_foreground(group: Pid) -> anyhow::Result<()> {
    match rustix::termios::tcsetpgrp(io::stdin(), group) {
        // The terminal or the group is gone, so nothing is left to hand over.
        Ok(()) | Err(rustix::io::Errno::NOTTY | rustix::io::Errno::PERM | rustix::io::Errno::IO) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
