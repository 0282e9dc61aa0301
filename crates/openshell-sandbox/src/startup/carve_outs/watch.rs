//! A watch over the carve-outs: what is replaced outside while the sandbox runs is no longer kept from the command.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::carve_outs::{CarveOut, Enforced, Restriction};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};

use crate::cli::CarveOutLost;
use crate::logging;
use crate::tasks::Tasks;

/// Time between two looks. The table of mounts tells at once of a removal, and of a renaming it does not; inotify would, and takes tens of
/// milliseconds to close.
const INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two looks, whatever changes.
const PAUSE: Duration = Duration::from_millis(100);

/// Watches the mounts of `carve_outs`. When one is lost the sandbox ends, or a line says it.
///
/// # Errors
/// The mounts cannot be watched.
pub(crate) fn watch(mut carve_outs: Enforced, act: Option<CarveOutLost>, tasks: &mut Tasks) -> anyhow::Result<()> {
    if carve_outs.is_empty() {
        return Ok(());
    }
    let failed = "cannot watch the paths that are taken out of what the policy grants";
    let table = OwnedFd::from(carve_outs.mounts().context(failed)?);
    #[expect(deprecated, reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does not")]
    let table = AsyncFd::with_interest(table, Interest::PRIORITY).context(failed)?;
    tasks.spawn_watch("watch over carve-outs", async move {
        loop {
            match carve_outs.take_lost() {
                // Init has ended.
                Err(error)
                    if [Errno::NOENT, Errno::SRCH].contains(&Errno::from_io_error(&error).unwrap_or(Errno::IO)) =>
                {
                    return pending().await;
                }
                Err(error) => return format!("the mounts of the sandbox cannot be looked at: {error}"),
                Ok(lost) => {
                    // Each is said, also beside one that ends the sandbox.
                    let ends: Vec<_> = lost.iter().filter_map(|carve_out| report(carve_out, act)).collect();
                    if let Some(reason) = ends.into_iter().next() {
                        return reason;
                    }
                }
            }
            sleep(PAUSE).await;
            if let Ok(Ok(mut ready)) = timeout(INTERVAL, table.ready(Interest::PRIORITY)).await {
                ready.clear_ready();
            }
        }
    });
    Ok(())
}

/// Says that a carve-out is lost; returns the message if that ends the sandbox.
fn report(carve_out: &CarveOut, act: Option<CarveOutLost>) -> Option<String> {
    let is_end = match act {
        Some(act) => act == CarveOutLost::End,
        None => carve_out.restriction == Restriction::Hidden,
    };
    let (key, path) = (carve_out.restriction.as_str(), carve_out.path.display());
    let message = format!(
        "filesystem_policy.{key}: {path}, or a folder above it, was replaced or renamed outside, so the command has access to what is \
         there now (--carve-out-lost)"
    );
    let state = if is_end { ConfigState::Failed } else { ConfigState::Degraded };
    logging::config_event(state, Severity::High, &message);
    is_end.then_some(message)
}
