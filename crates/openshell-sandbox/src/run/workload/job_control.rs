//! The command as a part of the caller's job, stopped and continued together with it.

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
    /// True if the terminal asked for another stop, and this process learned of it before the last
    /// stop had ended.
    is_to_stop: bool,
    /// True if the caller ignores stops by its terminal.
    ignores_stops: bool,
}

/// State of the sandbox in the caller's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// Init is stopping everything inside.
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

    /// Hangs up the command's terminal if the caller's has hung up; returns true if it has.
    pub(super) fn hang_up(&self) -> bool {
        self.console
            .as_ref()
            .is_some_and(|console| console.hang_up())
    }

    /// Handles a signal that concerns the caller's terminal or job, once the command runs. Returns
    /// false for other signals.
    ///
    /// # Errors
    /// Fails if the terminal is gone.
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

    /// Stops the job because the caller's terminal asks for it. A command that has that terminal's
    /// keyboard is asked to stop itself, because it may have to restore the screen.
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

    /// Handles a stop of the command. If it was stopped for using the terminal, and is now allowed
    /// to, it goes on; otherwise the caller's job stops with it.
    ///
    /// # Errors
    /// Fails if the terminal or init is gone.
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

    /// Stops everything inside, and then the caller's job. If no shell could continue the job, the
    /// command goes on instead.
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

    /// Stops the caller's job, now that everything inside is stopped. Returns when the job is
    /// continued.
    ///
    /// # Errors
    /// No failure is known.
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

    /// Continues what was stopped. The command gets the terminal if it needs it and this process is
    /// in the terminal's foreground.
    ///
    /// # Errors
    /// Fails if the terminal or init is gone.
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
