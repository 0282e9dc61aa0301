//! Watches the input files: a change of one, by writing, by renaming, or by the swap of a symlink on its way, has them read again.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Quiet after which a burst of changes is over.
const QUIET: Duration = Duration::from_millis(200);

/// Longest wait for that.
const BURST: Duration = Duration::from_secs(2);

/// Pause before a folder that is missing is looked for again.
const MISSING: Duration = Duration::from_secs(1);

/// Device and inode.
type Identity = (u64, u64);

/// The state of a file that its readers would notice; `None` if there is none.
type Fingerprint = Option<(Identity, u64, i64, i64)>;

/// A watch over files.
pub(crate) struct Watch {
    files: Vec<PathBuf>,
    events: AsyncFd<OwnedFd>,
    /// The folders of the files and of their targets, as they were when their watch began.
    folders: BTreeMap<PathBuf, Identity>,
    seen: Vec<Fingerprint>,
}

impl Watch {
    /// Watches `files`, which were read after `begun`. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// The system has no more inotify instances (inotify(7)).
    pub(crate) fn new(files: Vec<PathBuf>, begun: SystemTime) -> io::Result<Self> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does not"
        )]
        let events = AsyncFd::with_interest(events, Interest::READABLE)?;
        let begun = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let begun = (i64::try_from(begun.as_secs()).unwrap_or(i64::MAX), i64::from(begun.subsec_nanos()));
        // What has changed since then may have been read before.
        let known =
            |file: &PathBuf| fingerprint(file).filter(|(.., seconds, nanoseconds)| (*seconds, *nanoseconds) < begun);
        let seen = files.iter().map(known).collect();
        Ok(Self { files, events, folders: BTreeMap::new(), seen })
    }

    /// Notifies `wanted` of every change, for as long as it is polled.
    pub(crate) async fn run(mut self, wanted: Arc<Notify>) {
        loop {
            let is_whole = self.follow_folders();
            let now: Vec<_> = self.files.iter().map(|file| fingerprint(file)).collect();
            if now != self.seen {
                self.seen = now;
                wanted.notify_one();
            }
            if is_whole {
                self.changed().await;
                self.settle().await;
            } else {
                // Whatever comes first.
                let _ = timeout(MISSING, self.changed()).await;
            }
        }
    }

    /// Waits for a change in a folder, and takes all that there are.
    async fn changed(&self) {
        match self.events.readable().await {
            Ok(mut ready) => {
                let mut space = [MaybeUninit::uninit(); 4096];
                while matches!(rustix::io::read(self.events.get_ref(), &mut space), Ok((taken, _)) if !taken.is_empty())
                {
                }
                ready.clear_ready();
            }
            Err(error) => {
                tracing::error!("changes of the input files cannot be watched: {error}");
                sleep(MISSING).await;
            }
        }
    }

    /// Waits until there are no more changes for a while.
    async fn settle(&self) {
        let end = Instant::now() + BURST;
        while Instant::now() < end && timeout_at(end.min(Instant::now() + QUIET), self.changed()).await.is_ok() {}
    }

    /// Watches the folders that the files and the symlinks on their way are in; returns false if one is missing.
    fn follow_folders(&mut self) -> bool {
        let mut is_whole = true;
        for folder in self.files.iter().flat_map(|file| folders(file)) {
            let Some(identity) = identity(&folder) else {
                is_whole = false;
                continue;
            };
            if self.folders.get(&folder) == Some(&identity) {
                continue;
            }
            let flags = WatchFlags::CLOSE_WRITE
                | WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR;
            match inotify::add_watch(self.events.get_ref(), &folder, flags) {
                Ok(_) => drop(self.folders.insert(folder, identity)),
                Err(Errno::NOENT) => is_whole = false,
                Err(error) => {
                    tracing::warn!(
                        "changes in {} cannot be watched ({error}); it is looked at each second",
                        folder.display()
                    );
                    is_whole = false;
                }
            }
        }
        is_whole
    }
}

/// The folder of a file, and those of its targets, if it is a symlink or its folder is.
fn folders(file: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut path = file.to_owned();
    // As many as a look-up follows (path_resolution(7)).
    for _ in 0..40 {
        let Some(folder) = path.parent() else { break };
        found.push(folder.to_owned());
        // A ConfigMap's file is a symlink to ..data/FILE, and ..data, beside it, the symlink that is swapped.
        match std::fs::read_link(&path) {
            Ok(target) => path = folder.join(target),
            Err(_) => break,
        }
    }
    found
}

fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

fn fingerprint(file: &Path) -> Fingerprint {
    let data = std::fs::metadata(file).ok()?;
    Some(((data.dev(), data.ino()), data.size(), data.ctime(), data.ctime_nsec()))
}
