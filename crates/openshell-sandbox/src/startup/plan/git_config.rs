//! The hint at the first refused change of a repository's configuration. Git writes `config.lock`
//! and renames it to `config`. Inside, that is a mount point, so git fails and removes the lock
//! again.

use std::io;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::time::Duration;

use openshell_events::words::{ConfigState, Severity};
use openshell_telemetry::logging;
use rustix::fs::inotify::{self, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::time::sleep;

use openshell_sources::watch::instance;

/// The age of a sandbox at which the watch begins. Ending a watch takes the kernel some 15 ms,
/// which must not prolong a short run.
const BEGIN: Duration = Duration::from_millis(500);

/// The most repositories that are watched.
const REPOSITORIES: usize = 16;

/// Waits until a change of the configuration in one of `repositories` is refused, and says once how
/// to permit it. Never returns.
pub(crate) async fn say_how_to_write(repositories: Vec<PathBuf>) {
    sleep(BEGIN).await;
    match refused_change(repositories).await {
        Ok(()) => {
            let message = "git's configuration is read-only to the command, because it can name \
                           programs to run; `git config`, `git remote add`, `git branch -m` and \
                           `git push -u` fail in part; --git-config rw permits them";
            logging::config_event(ConfigState::Validated, Severity::Medium, message);
        }
        Err(error) => tracing::debug!("changes of git's configuration cannot be watched: {error}"),
    }
    std::future::pending().await
}

/// Returns when a change in one of `repositories` was refused.
///
/// # Errors
/// Fails if the system has no more inotify instances or watches (inotify(7)).
async fn refused_change(repositories: Vec<PathBuf>) -> io::Result<()> {
    let events = instance()?;
    for repository in repositories.iter().take(REPOSITORIES) {
        inotify::add_watch(
            events.get_ref(),
            repository,
            WatchFlags::DELETE | WatchFlags::ONLYDIR,
        )?;
    }
    let mut space = [MaybeUninit::uninit(); 4096];
    loop {
        let mut ready = events.readable().await?;
        let mut reader = Reader::new(events.get_ref(), &mut space);
        loop {
            match reader.next() {
                Ok(event) if event.file_name() == Some(c"config.lock") => return Ok(()),
                Ok(_) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        ready.clear_ready();
    }
}
