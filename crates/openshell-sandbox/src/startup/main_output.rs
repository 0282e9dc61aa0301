//! The output of a gateway's main process: kept for clients that come later.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use openshell_supervisor::launch::{LaunchError, Launcher};
use openshell_supervisor::pty::Size;
use openshell_supervisor::streams::Streams;
use openshell_supervisor::streams::retained::{Retained, Tap};
use tokio::sync::oneshot;

use crate::config::Config;

/// Keeps what the main process writes, if the caller's terminal does not show it.
pub(super) fn tap(config: &Config) -> Option<Tap> {
    let retained: Mutex<Retained> = Mutex::default();
    let append = move |output, bytes: &[u8]| {
        // Appending cannot panic half-way.
        retained.lock().unwrap_or_else(PoisonError::into_inner).append(output, bytes);
    };
    (config.is_launched && !config.is_interactive()).then(|| -> Tap { Arc::new(append) })
}

/// Opens a terminal of the command's own, whose output goes to `output` and `tap`.
///
/// # Errors
/// The sandbox has no terminals, or its init is gone.
pub(super) async fn on_own_terminal(launcher: &Launcher, output: BorrowedFd<'_>, tap: Tap) -> anyhow::Result<Streams> {
    let (opened, terminal) = oneshot::channel();
    let listener = Box::new(move |terminal| drop(opened.send(terminal)));
    launcher.open_terminal(Size::DEFAULT, listener)?;
    let terminal = terminal.await.map_err(|_| LaunchError::Gone)??;
    Ok(Streams::on_terminal(terminal, output, tap)?)
}
