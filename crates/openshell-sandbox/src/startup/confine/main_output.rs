//! The output of a gateway's main process, which is kept for clients that come later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use openshell_access::control::console::{Console, Keyboard};
use openshell_access::main_process::MainProcess;
use openshell_supervisor::command::pty::{Size, Terminal};
use openshell_supervisor::command::streams::retained::{Output, Tap};
use openshell_supervisor::command::streams::{Streams, TerminalRelay};
use openshell_supervisor::init::launch::{LaunchError, Launcher};
use rustix::termios::isatty;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::process::terminal::HELD_LINES;

/// Returns the main process as clients see it, if the caller's terminal does not show its output.
pub(crate) fn main_process(config: &Config) -> Option<Arc<MainProcess>> {
    (config.is_launched && !config.is_interactive()).then(Arc::default)
}

/// Returns a tap that hands what the main process writes to `process`.
pub(crate) fn tap(process: &Arc<MainProcess>) -> Tap {
    let process = Arc::clone(process);
    Arc::new(move |output: Output, bytes: &[u8]| process.append(output, bytes))
}

/// Opens a terminal for the command only. Its output goes to `output` and to `process`, whose
/// clients type on it.
///
/// # Errors
/// Fails if the sandbox has no terminals, or its init is gone.
pub(crate) async fn on_own_terminal(
    launcher: &Launcher,
    output: BorrowedFd<'_>,
    process: &Arc<MainProcess>,
) -> anyhow::Result<Streams> {
    let terminal = open_terminal(launcher).await?;
    process.set_terminal(terminal.master()?);
    let mut streams = Streams::of_terminal();
    streams.relay_terminal(terminal, true, output, Some(tap(process)))?;
    Ok(streams)
}

/// Opens the terminal that `streams` need. It is shown on the first of the caller's output, errors
/// and input that is a terminal. Returns what shows it, and the caller's terminal.
///
/// # Errors
/// Fails if the sandbox has no terminals, or its init is gone.
pub(crate) async fn on_callers_terminal(
    launcher: &Launcher,
    streams: &mut Streams,
    keyboard: Keyboard,
    tap: Option<Tap>,
) -> anyhow::Result<(Arc<TerminalRelay>, Option<Console>)> {
    let terminal = open_terminal(launcher).await?;
    let input = io::stdin();
    let output = io::stdout();
    let errors = io::stderr();
    let shown_on = [output.as_fd(), errors.as_fd(), input.as_fd()]
        .into_iter()
        .find(|fd| isatty(fd));
    let shown_on = shown_on.unwrap_or(output.as_fd());
    let relay = streams.relay_terminal(terminal, keyboard != Keyboard::None, shown_on, tap)?;
    relay.imitate(shown_on);
    let console = match keyboard {
        Keyboard::None => None,
        keyboard => Some(Console::new(Arc::clone(&relay), keyboard, HELD_LINES)?),
    };
    Ok((relay, console))
}

async fn open_terminal(launcher: &Launcher) -> anyhow::Result<Terminal> {
    let (opened, terminal) = oneshot::channel();
    launcher.open_terminal(
        Size::DEFAULT,
        Box::new(move |terminal| drop(opened.send(terminal))),
    )?;
    Ok(terminal.await.map_err(|_| LaunchError::Gone)??)
}
