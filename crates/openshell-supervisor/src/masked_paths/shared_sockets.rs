//! Sockets in folders that are granted and writable by everyone, such as /tmp: the services of other users there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, OFlags};

use crate::trusted_symlinks::open;

/// Entries of shared folders that are examined down to [`SHARED_DEPTH`], where programs keep their sockets. More of them are
/// reported as a problem.
pub(super) const SHARED_ENTRIES: usize = 50_000;
const SHARED_DEPTH: usize = 3;

/// Entries that are examined below [`SHARED_DEPTH`], breadth first. Trees of files are common there, so more of them are no
/// problem.
pub(super) const DEEP_ENTRIES: usize = 2_000;

/// The sockets to be masked in shared folders.
#[derive(Debug, Default)]
pub(super) struct SharedSockets {
    /// Bound in the host's network namespace, by another user than the workload's.
    pub(super) services: BTreeSet<PathBuf>,
    /// All others; any user may have left them.
    pub(super) others: BTreeSet<PathBuf>,
    /// Reason why there may be more.
    pub(super) incomplete: Option<io::Error>,
}

/// Finds the sockets in the sticky, world-writable folders of `visible` that the policy does not list by themselves or with
/// a folder of theirs, and those bound in folders of `without_services`; `uid` is the workload's user.
pub(super) fn find(visible: &BTreeSet<PathBuf>, without_services: &BTreeSet<PathBuf>, uid: u32) -> SharedSockets {
    let is_shared = |folder: &Path| {
        std::fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir() && data.mode() & 0o1002 == 0o1002)
    };
    let shared: BTreeSet<_> = visible.iter().filter(|path| is_shared(path)).collect();
    let closed = shared.iter().copied().chain(without_services).collect();
    let (bound, unknown) = match bound_sockets(visible, &closed) {
        Ok(bound) => (bound, None),
        Err(error) => (BTreeSet::new(), Some(error)),
    };
    let (found, unseen) = Search::new(visible).run(&shared);
    let is_foreign = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|data| data.uid() != uid);
    let (services, own): (BTreeSet<_>, BTreeSet<_>) = bound.into_iter().partition(is_foreign);
    let others = found.into_iter().chain(own).filter(|path| !services.contains(path)).collect();
    SharedSockets { services, others, incomplete: unseen.or(unknown) }
}

/// The sockets that are bound in the host's network namespace beneath one of the `closed` folders.
fn bound_sockets(visible: &BTreeSet<PathBuf>, closed: &BTreeSet<&PathBuf>) -> io::Result<BTreeSet<PathBuf>> {
    // The path follows the seventh field, which may be padded (proc_pid_net(5)), and may hold any byte.
    let table = std::fs::read("/proc/self/net/unix")?;
    let bound = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let rest = line.splitn(7, |byte| *byte == b' ').nth(6)?.trim_ascii_start();
        rest.splitn(2, |byte| *byte == b' ').nth(1)
    });
    let bound = bound.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    // The nearest grant decides: the policy may list a folder inside the shared one, or the socket itself.
    let granted_by = |path: &Path| path.ancestors().find_map(|ancestor| visible.get(ancestor));
    let is_masked = |path: &PathBuf| granted_by(path).is_some_and(|by| by != path && closed.contains(by));
    let is_socket = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    Ok(bound.filter(is_masked).filter(is_socket).collect())
}

/// A bounded breadth-first search for sockets.
struct Search<'v> {
    visible: &'v BTreeSet<PathBuf>,
    /// Entries that may still be examined.
    left: usize,
    sockets: BTreeSet<PathBuf>,
    /// Folders of the next level.
    next: Vec<PathBuf>,
}

impl<'v> Search<'v> {
    fn new(visible: &'v BTreeSet<PathBuf>) -> Self {
        Self { visible, left: SHARED_ENTRIES, sockets: BTreeSet::new(), next: Vec::new() }
    }

    /// Returns the sockets beneath `shared`, and an error if the upper levels hold too many entries.
    fn run(mut self, shared: &BTreeSet<&PathBuf>) -> (BTreeSet<PathBuf>, Option<io::Error>) {
        let mut level: Vec<PathBuf> = shared.iter().map(|folder| folder.to_path_buf()).collect();
        for depth in 1.. {
            if depth == SHARED_DEPTH + 1 {
                self.left = DEEP_ENTRIES;
            }
            level.iter().for_each(|folder| self.examine(folder));
            if self.left == 0 && depth <= SHARED_DEPTH {
                let error = io::Error::other(format!("more than {SHARED_ENTRIES} entries in them"));
                return (self.sockets, Some(error));
            }
            if self.left == 0 || self.next.is_empty() {
                break;
            }
            level = std::mem::take(&mut self.next);
        }
        (self.sockets, None)
    }

    /// Collects the sockets and folders in `folder` that are not listed by themselves.
    fn examine(&mut self, folder: &Path) {
        if self.left == 0 {
            return;
        }
        // A folder that root cannot read is a user's own file system, out of reach of other users.
        let Ok(entries) = open(folder, OFlags::RDONLY | OFlags::DIRECTORY).and_then(Dir::new) else { return };
        for entry in entries.filter_map(Result::ok) {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            let path = folder.join(OsStr::from_bytes(entry.file_name().to_bytes()));
            if matches!(entry.file_name().to_bytes(), b"." | b"..") || self.visible.contains(&path) {
                continue;
            }
            match entry.file_type() {
                FileType::Socket => {
                    self.sockets.insert(path);
                }
                FileType::Directory => self.next.push(path),
                _ => {}
            }
        }
    }
}
