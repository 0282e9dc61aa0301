//! Watches the input files. A change of one causes them to be read again: by writing, by renaming,
//! or by swapping a symlink on its path.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// A burst of changes is over when nothing has changed for this long.
const QUIET: Duration = Duration::from_millis(200);

/// The longest wait for the end of a burst.
const BURST: Duration = Duration::from_secs(2);

/// How often the files are checked if a part of their paths cannot be watched.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most symlinks on a file's path, the same as the kernel's limit (path_resolution(7)).
const LINKS: usize = 40;

/// Changes of a folder or a file that may concern a reader.
const CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// The state of a file that its readers would notice: device, inode, size, and time of the last
/// change.
type State = (u64, u64, u64, (i64, i64));

/// The state of a file; `None` if there is none.
type Fingerprint = Option<State>;

/// The last write of this process to a file that is watched, which is no change.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites(Arc<Mutex<Fingerprint>>);

impl OwnWrites {
    /// Notes the file that `write` puts in its place. No watch looks meanwhile.
    pub(crate) fn note(
        &self,
        write: impl FnOnce() -> io::Result<Metadata>,
    ) -> io::Result<Metadata> {
        let mut last = self.0.lock();
        let written = write()?;
        *last = Some(of(&written));
        Ok(written)
    }

    fn is(&self, found: Fingerprint) -> bool {
        found.is_some() && *self.0.lock() == found
    }
}

/// A watch over files.
pub struct Watch {
    files: Vec<PathBuf>,
    events: AsyncFd<OwnedFd>,
    seen: Vec<Fingerprint>,
    own: OwnWrites,
    /// True while a part cannot be watched; this is logged once.
    is_partial: bool,
}

impl Watch {
    /// Watches `files`, which were read after `begun`, for the changes of others than `own`. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if the system has no more inotify instances (inotify(7)).
    pub fn new(files: Vec<PathBuf>, begun: SystemTime, own: OwnWrites) -> io::Result<Self> {
        let begun = begun
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let begun = (
            i64::try_from(begun.as_secs()).unwrap_or(i64::MAX),
            i64::from(begun.subsec_nanos()),
        );
        // A file that has changed since then may have been read before the change.
        let known = |file: &PathBuf| fingerprint(file).filter(|(.., changed)| *changed < begun);
        let seen = files.iter().map(known).collect();
        Ok(Self {
            files,
            events: instance()?,
            seen,
            own,
            is_partial: false,
        })
    }

    /// Notifies `wanted` of every change, for as long as the future is polled.
    pub async fn run(mut self, wanted: Arc<Notify>) {
        loop {
            // Done before looking at the files, so that no change between the two is missed.
            let is_whole = self.renew();
            let now: Vec<_> = self.files.iter().map(|file| fingerprint(file)).collect();
            let mut files = now.iter().zip(&self.seen);
            let is_changed = files.any(|(now, seen)| now != seen && !self.own.is(*now));
            self.seen = now;
            if is_changed {
                wanted.notify_one();
            }
            if is_whole {
                self.changed().await;
            } else {
                // Waits for a change or the interval, whichever comes first.
                let _ = timeout(INTERVAL, self.changed()).await;
            }
            self.settle().await;
        }
    }

    /// Waits for a change, and takes all that have arrived.
    async fn changed(&self) {
        match self.events.readable().await {
            Ok(mut ready) => {
                let mut space = [MaybeUninit::uninit(); 4096];
                let mut taken = || {
                    rustix::io::read(self.events.get_ref(), &mut space)
                        .is_ok_and(|(taken, _)| !taken.is_empty())
                };
                while taken() {}
                ready.clear_ready();
            }
            Err(error) => {
                tracing::error!("cannot watch the input files for changes: {error}");
                sleep(INTERVAL).await;
            }
        }
    }

    /// Waits until nothing has changed for [`QUIET`], but at most [`BURST`].
    async fn settle(&self) {
        let end = Instant::now() + BURST;
        while Instant::now() < end
            && timeout_at(end.min(Instant::now() + QUIET), self.changed())
                .await
                .is_ok()
        {}
    }

    /// Watches everything on the paths of the files as they are now, and nothing from before.
    /// Returns false if a part cannot be watched.
    fn renew(&mut self) -> bool {
        let renewed = instance().and_then(|events| {
            let places: BTreeSet<_> = self.files.iter().flat_map(|file| places(file)).collect();
            let added = places.iter().try_for_each(|place| {
                match inotify::add_watch(events.get_ref(), place, CHANGES) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(io::Error::other(format!("{}: {error}", place.display()))),
                }
            });
            self.events = events;
            added
        });
        match &renewed {
            Err(error) if !self.is_partial => {
                tracing::info!(
                    "the sandbox looks at the input files once a second, because it cannot watch a \
                     part of their paths: {error}"
                );
            }
            Ok(()) | Err(_) => {}
        }
        self.is_partial = renewed.is_err();
        !self.is_partial
    }
}

/// Makes an inotify instance. Must be called inside a tokio runtime.
///
/// # Errors
/// Fails if the system has no more of them (inotify(7)).
pub fn instance() -> io::Result<AsyncFd<OwnedFd>> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    #[expect(
        deprecated,
        reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does not"
    )]
    AsyncFd::with_interest(events, Interest::READABLE)
}

/// Returns every place whose change may change what is read at `file`, an absolute path: the
/// folders of the symlinks on its path, its own folder, and the file.
fn places(file: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut path = file.to_owned();
    'links: for _ in 0..LINKS {
        let mut walked = PathBuf::new();
        let mut parts = path.components();
        while let Some(part) = parts.next() {
            if part == Component::ParentDir {
                walked.pop();
                continue;
            }
            walked.push(part);
            let Ok(target) = std::fs::read_link(&walked) else {
                continue;
            };
            walked.pop();
            found.push(walked.clone());
            // The rest of the path continues at the target.
            path = walked.join(target).join(parts.as_path());
            continue 'links;
        }
        found.extend(walked.parent().map(Path::to_owned));
        found.push(walked);
        break;
    }
    found
}

fn fingerprint(file: &Path) -> Fingerprint {
    std::fs::metadata(file).ok().as_ref().map(of)
}

fn of(data: &Metadata) -> State {
    let changed = (data.ctime(), data.ctime_nsec());
    (data.dev(), data.ino(), data.size(), changed)
}
