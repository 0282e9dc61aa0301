//! The command in the caller's job: stopped with it, and continued.

use std::io;
use std::sync::Arc;

use openshell_supervisor::launch::{Launcher, Running};
use rustix::process::Signal;

use crate::signals::forward;
use crate::terminal::{self, Console};

/// Job control of the command.
pub(super) struct JobControl<'c> {
    launcher: &'c Launcher,
    /// The caller's terminal, if the command may read it.
    console: Option<&'c mut Console>,
    running: Option<Arc<Running>>,
    state: State,
}

/// State of the sandbox in the caller's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// Init stops everything inside.
    Stops,
    /// Everything inside is stopped.
    Stopped,
}

impl<'c> JobControl<'c> {
    pub(super) fn new(launcher: &'c Launcher, console: Option<&'c mut Console>) -> Self {
        Self { launcher, console, running: None, state: State::Runs }
    }

    pub(super) fn started(&mut self, running: Arc<Running>) {
        self.running = Some(running);
    }

    /// Returns true for signals that are handled here once the command runs.
    pub(super) fn takes(&self, signal: i32) -> bool {
        let is_of_terminal = signal == Signal::WINCH.as_raw() && self.console.is_some();
        let is_stop = signal == Signal::TSTP.as_raw() && self.console.is_none();
        self.running.is_some() && (is_of_terminal || is_stop || signal == Signal::CONT.as_raw())
    }

    /// Handles a signal that is [taken](Self::takes).
    ///
    /// # Errors
    /// The terminal is gone, or init is.
    pub(super) fn signal(&mut self, signal: i32) -> io::Result<()> {
        match (&self.console, Signal::from_named_raw(signal)) {
            (Some(console), Some(Signal::WINCH)) => {
                console.resize();
                Ok(())
            }
            // A command without a terminal is in no job that would be stopped.
            (None, Some(Signal::TSTP)) => self.suspend(),
            _ => self.resume(),
        }
    }

    /// Handles a stop of the command: it goes on where it was stopped for its use of the terminal and may have that; else the caller's
    /// job stops with it.
    ///
    /// # Errors
    /// The terminal is gone, or init is.
    pub(super) fn command_stopped(&mut self, signal: i32) -> io::Result<()> {
        let Some(console) = &mut self.console else { return Ok(()) };
        if terminal::is_for_use(signal) {
            console.want();
            if terminal::is_in_foreground() {
                return self.resume();
            }
        }
        self.suspend()
    }

    /// Stops everything inside, and then the caller's job. Without a shell that would continue it, the command goes on.
    fn suspend(&mut self) -> io::Result<()> {
        if !terminal::has_shell() {
            return self.resume();
        }
        let Some(running) = &self.running else { return Ok(()) };
        self.state = State::Stops;
        self.launcher.stop_all(running)
    }

    /// Takes that everything inside is stopped, and stops the job; returns once that is continued.
    ///
    /// # Errors
    /// None is known.
    pub(super) fn everything_stopped(&mut self) -> io::Result<()> {
        // The job may have been continued meanwhile.
        if self.state != State::Stops {
            return Ok(());
        }
        if let Some(console) = &mut self.console {
            console.detach();
        }
        self.state = State::Stopped;
        // The caller's SIGCONT ends the stop; it arrives as a signal too and resumes the command.
        terminal::stop_job()
    }

    /// Continues what was stopped, with the terminal if the command has a use for it and this process is in its foreground.
    ///
    /// # Errors
    /// The terminal is gone, or init is.
    pub(super) fn resume(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.state, State::Runs) != State::Runs {
            self.launcher.continue_all()?;
        }
        let Some(running) = &self.running else { return Ok(()) };
        match &mut self.console {
            Some(console) => {
                let is_foreground = console.attach()?;
                running.continue_in(is_foreground)
            }
            None => {
                forward(running, Signal::CONT.as_raw());
                Ok(())
            }
        }
    }
}
