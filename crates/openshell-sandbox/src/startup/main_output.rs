//! The output of a gateway's main process: kept for clients that come later.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use openshell_ssh::main_process::MainProcess;
use openshell_supervisor::launch::{LaunchError, Launcher};
use openshell_supervisor::pty::Size;
use openshell_supervisor::streams::Streams;
use openshell_supervisor::streams::retained::{Output, Tap};
use tokio::sync::oneshot;

use crate::config::Config;

/// Returns the main process as clients see it, if the caller's terminal does not show its output.
pub(super) fn main_process(config: &Config) -> Option<Arc<MainProcess>> {
    (config.is_launched && !config.is_interactive()).then(Arc::default)
}

/// Returns the receiver of what the main process writes.
pub(super) fn tap(process: &Arc<MainProcess>) -> Tap {
    let process = Arc::clone(process);
    Arc::new(move |output: Output, bytes: &[u8]| process.append(output, bytes))
}

/// Opens a terminal of the command's own, whose output goes to `output` and to `process`, which gets its keyboard.
///
/// # Errors
/// The sandbox has no terminals, or its init is gone.
pub(super) async fn on_own_terminal(
    launcher: &Launcher,
    output: BorrowedFd<'_>,
    process: &Arc<MainProcess>,
) -> anyhow::Result<Streams> {
    let (opened, terminal) = oneshot::channel();
    let listener = Box::new(move |terminal| drop(opened.send(terminal)));
    launcher.open_terminal(Size::DEFAULT, listener)?;
    let terminal = terminal.await.map_err(|_| LaunchError::Gone)??;
    process.set_terminal(terminal.master()?);
    Ok(Streams::on_terminal(terminal, output, tap(process))?)
}
