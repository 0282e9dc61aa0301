//! A watch over the carve-outs: what is replaced outside while the sandbox runs is no longer kept from the command.

use std::future::pending;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::carve_outs::{CarveOut, Enforced, Restriction};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::cli::CarveOutLost;
use crate::logging;
use crate::tasks::Tasks;

/// What happens to a file or folder itself that takes a mount over it away.
const CHANGES: WatchFlags =
    WatchFlags::MOVE_SELF.union(WatchFlags::DELETE_SELF).union(WatchFlags::ATTRIB).union(WatchFlags::DONT_FOLLOW);

/// Least time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Watches the mounts of `carve_outs`. When one is lost the sandbox ends, or a line says it.
///
/// # Errors
/// The mounts cannot be watched.
pub(crate) fn watch(mut carve_outs: Enforced, act: Option<CarveOutLost>, tasks: &mut Tasks) -> anyhow::Result<()> {
    if carve_outs.is_empty() {
        return Ok(());
    }
    let failed = "cannot watch the paths that are taken out of what the policy grants";
    let table = register(carve_outs.mounts().context(failed)?.into(), Interest::PRIORITY).context(failed)?;
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context(failed)?;
    // One that this process may not read is one that it cannot watch; the mount table tells of its removal.
    let unwatched = carve_outs.places().filter(|place| inotify::add_watch(&events, *place, CHANGES).is_err()).count();
    if unwatched > 0 {
        tracing::info!("{unwatched} paths of carve-outs cannot be watched, and renaming one outside goes unnoticed");
    }
    let events = register(events, Interest::READABLE).context(failed)?;
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
            // What is found in a burst of changes is found once.
            tokio::time::sleep(INTERVAL).await;
            tokio::select! {
                ready = table.ready(Interest::PRIORITY) => if let Ok(mut ready) = ready { ready.clear_ready() },
                ready = events.readable() => if let Ok(mut ready) = ready {
                    let mut space = [MaybeUninit::uninit(); 4096];
                    while rustix::io::read(events.get_ref(), &mut space).is_ok_and(|(taken, _)| !taken.is_empty()) {}
                    ready.clear_ready();
                },
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

fn register(file: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(deprecated, reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does not")]
    AsyncFd::with_interest(file, interest)
}
