//! The client's terminal while a command has one of its own in a sandbox.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use openshell_supervisor::command::streams::TerminalRelay;
use rustix::termios::isatty;

use super::console::{self, Console, Keyboard, Lines};
use super::wire::TerminalKeyboard;

/// Longest wait for output after the command's end.
const FLUSH: Duration = Duration::from_secs(5);

/// A command's terminal, connected to the standard streams of this process.
pub(super) struct AttachedTerminal {
    relay: Arc<TerminalRelay>,
    /// This process's terminal, if the command may read what is typed there.
    console: Option<Console>,
}

impl AttachedTerminal {
    /// Begins to copy between the two terminals.
    ///
    /// # Errors
    /// Fails if threads or descriptors are exhausted.
    pub(super) fn start(
        master: OwnedFd,
        keyboard: TerminalKeyboard,
        lines: Lines,
    ) -> anyhow::Result<Self> {
        let input = io::stdin();
        let output = io::stdout();
        let errors = io::stderr();
        let input = input.as_fd();
        let output = output.as_fd();
        let errors = errors.as_fd();
        let shown_on = [output, errors, input]
            .into_iter()
            .find(|stream: &BorrowedFd<'_>| isatty(stream));
        let relay = Arc::new(TerminalRelay::start(master, shown_on.unwrap_or(output))?);
        relay.imitate(shown_on.unwrap_or(output));
        let is_typed = isatty(input);
        let keyboard = match keyboard {
            TerminalKeyboard::Later if is_typed => Keyboard::OnDemand,
            TerminalKeyboard::Now if is_typed => Keyboard::FromStart,
            TerminalKeyboard::Now => {
                relay.attach(input)?;
                Keyboard::None
            }
            TerminalKeyboard::None | TerminalKeyboard::Later => Keyboard::None,
        };
        let console = match keyboard {
            Keyboard::None => None,
            keyboard => Some(Console::new(Arc::clone(&relay), keyboard, lines)?),
        };
        let mut terminal = Self { relay, console };
        terminal.attach()?;
        Ok(terminal)
    }

    /// Returns true if the shell of the client stops and continues the command.
    pub(super) fn has_job_control(&self) -> bool {
        self.console.is_some()
    }

    /// Gives the command the keyboard, if it has a use for that and this process is in the
    /// foreground; returns true if it has the keyboard.
    ///
    /// # Errors
    /// Fails if the terminal is gone, or if threads or descriptors are exhausted.
    pub(super) fn attach(&mut self) -> io::Result<bool> {
        self.console.as_mut().map_or(Ok(false), Console::attach)
    }

    /// Handles a stop of the command. If the command goes on at once, returns whether it does so in
    /// the foreground. It goes on if it was stopped for its use of the terminal and may have that
    /// now, or if no shell would continue it. Otherwise this process stops too, together with its
    /// job.
    ///
    /// # Errors
    /// Fails if the terminal is gone, or if threads or descriptors are exhausted.
    pub(super) fn stopped(&mut self, signal: i32) -> io::Result<Option<bool>> {
        let Some(console) = &mut self.console else {
            return Ok(None);
        };
        let is_for_use = console::is_for_use(signal);
        if is_for_use {
            console.want();
        }
        if is_for_use && console::is_in_foreground() || !console::has_shell() {
            return console.attach().map(Some);
        }
        console.detach();
        console::stop_job()?;
        Ok(None)
    }

    /// Gives the command's terminal the size of the client's.
    pub(super) fn resize(&self) {
        self.relay.resize();
    }

    /// Copies what the command has written before its end, and gives the terminal back.
    pub(super) fn finish(self) {
        // What is not copied by then is lost with this process.
        let _ = self.relay.finish(FLUSH);
    }
}
