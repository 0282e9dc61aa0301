//! The command in the caller's job: stopped with it, and continued.

use std::io;
use std::sync::Arc;

use openshell_access::control::console::{self, Console};
use openshell_supervisor::init::launch::{Launcher, Running};
use rustix::process::Signal;

use crate::process::signals::forward;

/// Job control of the command.
pub(super) struct JobControl<'c> {
    launcher: &'c Launcher,
    /// The caller's terminal, if the command may read it.
    console: Option<&'c mut Console>,
    running: Option<Arc<Running>>,
    state: State,
    /// True if the terminal stops the job again, of which this process heard before the end of the
    /// last stop.
    is_to_stop: bool,
    /// True if the caller ignores the terminal's stops.
    ignores_stops: bool,
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
    pub(super) fn new(
        launcher: &'c Launcher,
        console: Option<&'c mut Console>,
        ignores_stops: bool,
    ) -> Self {
        Self {
            launcher,
            console,
            running: None,
            state: State::Runs,
            is_to_stop: false,
            ignores_stops,
        }
    }

    pub(super) fn started(&mut self, running: Arc<Running>) {
        self.running = Some(running);
    }

    /// Takes that the caller's terminal may be hung up; returns true if it is.
    pub(super) fn hang_up(&self) -> bool {
        self.console
            .as_ref()
            .is_some_and(|console| console.hang_up())
    }

    /// Handles a signal that is about the caller's terminal or job once the command runs; returns
    /// false for others.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn signal(&mut self, signal: i32) -> io::Result<bool> {
        if self.running.is_none() {
            return Ok(false);
        }
        match (Signal::from_named_raw(signal), &self.console) {
            (Some(Signal::WINCH), Some(console)) => console.resize(),
            (Some(Signal::TSTP), _) => self.stop_by_terminal()?,
            (Some(Signal::CONT), _) => {
                self.resume()?;
                if std::mem::take(&mut self.is_to_stop) {
                    self.stop_by_terminal()?;
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Stops the job as the caller's terminal asks for. A command that has that terminal's keyboard
    /// is asked itself: it may have to restore the screen.
    fn stop_by_terminal(&mut self) -> io::Result<()> {
        let is_attached = self
            .console
            .as_ref()
            .is_some_and(|console| console.is_attached());
        match self.state {
            _ if self.ignores_stops => Ok(()),
            State::Stopped => {
                self.is_to_stop = true;
                Ok(())
            }
            State::Runs if !is_attached => self.suspend(),
            State::Runs | State::Stops => {
                if let Some(running) = &self.running {
                    forward(running, Signal::TSTP.as_raw());
                }
                Ok(())
            }
        }
    }

    /// Handles a stop of the command: it goes on where it was stopped for its use of the terminal
    /// and may have that; else the caller's job stops with it.
    ///
    /// # Errors
    /// The terminal is gone, or init is.
    pub(super) fn command_stopped(&mut self, signal: i32) -> io::Result<()> {
        let Some(console) = &mut self.console else {
            return Ok(());
        };
        if console::is_for_use(signal) {
            console.want();
            if console::is_in_foreground() {
                return self.resume();
            }
        }
        self.suspend()
    }

    /// Stops everything inside, and then the caller's job. Without a shell that would continue it,
    /// the command goes on.
    fn suspend(&mut self) -> io::Result<()> {
        if !console::has_shell() {
            return self.resume();
        }
        let Some(running) = &self.running else {
            return Ok(());
        };
        self.state = State::Stops;
        self.launcher.stop_all(running);
        Ok(())
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
        console::stop_job()
    }

    /// Continues what was stopped, with the terminal if the command has a use for it and this
    /// process is in its foreground.
    ///
    /// # Errors
    /// The terminal is gone, or init is.
    pub(super) fn resume(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.state, State::Runs) != State::Runs {
            self.launcher.continue_all();
        }
        let Some(running) = &self.running else {
            return Ok(());
        };
        match &mut self.console {
            Some(console) => running.continue_in(console.attach()?),
            None => forward(running, Signal::CONT.as_raw()),
        }
        Ok(())
    }
}
