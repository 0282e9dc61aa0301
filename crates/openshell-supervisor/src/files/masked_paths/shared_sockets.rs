//! Sockets in granted folders that everybody may write to, such as /tmp: the services of other
//! users listen there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, OFlags};

use crate::paths::missing::is_missing;
use crate::paths::trusted_symlinks::open;

/// The number of entries of shared folders that are examined down to [`SHARED_DEPTH`], where
/// programs keep their sockets. More entries are reported as a problem.
pub(super) const SHARED_ENTRIES: usize = 50_000;
const SHARED_DEPTH: usize = 3;

/// The number of entries that are examined below [`SHARED_DEPTH`], breadth first. Large trees of
/// files are common there, so more entries are not a problem.
pub(super) const DEEP_ENTRIES: usize = 2_000;

/// The sockets to be masked in shared folders.
#[derive(Debug, Default)]
pub(super) struct SharedSockets {
    /// Sockets that another user than the workload's has bound in the host's network namespace.
    pub(super) services: BTreeSet<PathBuf>,
    /// All other sockets; any user may have left them.
    pub(super) others: BTreeSet<PathBuf>,
    /// The folders that cannot be searched now, and that the workload may open again.
    pub(super) closed: BTreeSet<PathBuf>,
    /// The reason why there may be more sockets, if there may.
    pub(super) incomplete: Option<io::Error>,
}

/// Finds the sockets in the sticky, world-writable folders of `visible`, unless the policy lists
/// the socket itself or a nearer folder above it; also the bound sockets in folders of
/// `without_services`. `uid` is the workload's user.
pub(super) fn find(
    visible: &BTreeSet<PathBuf>,
    without_services: &BTreeSet<PathBuf>,
    uid: u32,
) -> SharedSockets {
    let mut search = Search::new(visible, uid);
    let mut shared = BTreeSet::new();
    for folder in visible {
        match std::fs::symlink_metadata(folder) {
            Ok(data) if data.is_dir() && data.mode() & 0o1002 == 0o1002 => {
                shared.insert(folder);
            }
            Ok(_) => {}
            Err(error) if is_missing(&error) => {}
            Err(error) => search.fail(folder, &error),
        }
    }
    let unsearched = shared.iter().copied().chain(without_services).collect();
    let bound = bound_sockets(visible, &unsearched).unwrap_or_else(|error| {
        search.incomplete.get_or_insert(error);
        BTreeSet::new()
    });
    search.run(&shared);
    let is_foreign =
        |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|data| data.uid() != uid);
    let (services, own): (BTreeSet<_>, BTreeSet<_>) = bound.into_iter().partition(is_foreign);
    let Search {
        sockets,
        closed,
        incomplete,
        ..
    } = search;
    let others = sockets
        .into_iter()
        .chain(own)
        .filter(|path| !services.contains(path))
        .collect();
    SharedSockets {
        services,
        others,
        closed,
        incomplete,
    }
}

/// Returns the sockets that are bound in the host's network namespace beneath one of the `closed`
/// folders.
fn bound_sockets(
    visible: &BTreeSet<PathBuf>,
    closed: &BTreeSet<&PathBuf>,
) -> io::Result<BTreeSet<PathBuf>> {
    // The path follows the seventh field, which may be padded (proc_pid_net(5)), and may hold any
    // byte.
    let table = std::fs::read("/proc/self/net/unix")?;
    let bound = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let rest = line
            .splitn(7, |byte| *byte == b' ')
            .nth(6)?
            .trim_ascii_start();
        rest.splitn(2, |byte| *byte == b' ').nth(1)
    });
    let bound = bound.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    // The nearest grant decides: the policy may list a folder inside the shared one, or the socket
    // itself.
    let granted_by = |path: &Path| path.ancestors().find_map(|ancestor| visible.get(ancestor));
    let is_masked =
        |path: &PathBuf| granted_by(path).is_some_and(|by| by != path && closed.contains(by));
    // A path that cannot be inspected may be a socket.
    let is_socket = |path: &PathBuf| match std::fs::symlink_metadata(path) {
        Ok(data) => data.file_type().is_socket(),
        Err(error) => !is_missing(&error),
    };
    Ok(bound.filter(is_masked).filter(is_socket).collect())
}

/// A bounded breadth-first search for sockets.
struct Search<'v> {
    visible: &'v BTreeSet<PathBuf>,
    /// The workload's user.
    uid: u32,
    /// The number of entries that may still be examined.
    left: usize,
    sockets: BTreeSet<PathBuf>,
    closed: BTreeSet<PathBuf>,
    /// The folders of the next level.
    next: Vec<PathBuf>,
    /// The first reason why there may be more sockets.
    incomplete: Option<io::Error>,
}

impl<'v> Search<'v> {
    fn new(visible: &'v BTreeSet<PathBuf>, uid: u32) -> Self {
        Self {
            visible,
            uid,
            left: SHARED_ENTRIES,
            sockets: BTreeSet::new(),
            closed: BTreeSet::new(),
            next: Vec::new(),
            incomplete: None,
        }
    }

    /// Finds the sockets beneath `shared`. Too many entries in the upper levels are an error.
    fn run(&mut self, shared: &BTreeSet<&PathBuf>) {
        let mut level: Vec<PathBuf> = shared.iter().map(|folder| folder.to_path_buf()).collect();
        for depth in 1.. {
            if depth == SHARED_DEPTH + 1 {
                self.left = DEEP_ENTRIES;
            }
            for folder in level.iter() {
                self.examine(folder);
            }
            if self.left == 0 && depth <= SHARED_DEPTH {
                let error = io::Error::other(format!("more than {SHARED_ENTRIES} entries in them"));
                self.incomplete.get_or_insert(error);
            }
            if self.left == 0 || self.next.is_empty() {
                return;
            }
            level = std::mem::take(&mut self.next);
        }
    }

    /// Collects the sockets and folders in `folder` that are not listed themselves.
    fn examine(&mut self, folder: &Path) {
        if self.left == 0 {
            return;
        }
        let mut entries = match open(folder, OFlags::RDONLY | OFlags::DIRECTORY).and_then(Dir::new)
        {
            Ok(entries) => entries,
            Err(errno) => return self.close(folder, &errno.into()),
        };
        while self.left > 0
            && let Some(entry) = entries.read()
        {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) => return self.fail(folder, &errno.into()),
            };
            self.left -= 1;
            let path = folder.join(OsStr::from_bytes(entry.file_name().to_bytes()));
            if matches!(entry.file_name().to_bytes(), b"." | b"..") || self.visible.contains(&path)
            {
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

    /// Records a folder that cannot be searched. The folders of other users stay closed to the
    /// workload. Its own folders it may open again, and a file system of its user (FUSE) is closed
    /// only to root.
    fn close(&mut self, folder: &Path, error: &io::Error) {
        let is_others = std::fs::symlink_metadata(folder).is_ok_and(|data| data.uid() != self.uid);
        if is_missing(error) || is_others {
            return;
        }
        let holds_listed = self
            .visible
            .range(folder.to_owned()..)
            .next()
            .is_some_and(|path| path.starts_with(folder));
        if holds_listed {
            self.fail(folder, error);
        } else {
            self.closed.insert(folder.to_owned());
        }
    }

    /// Records a folder in which there may be more sockets.
    fn fail(&mut self, folder: &Path, error: &io::Error) {
        let error = io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        self.incomplete.get_or_insert(error);
    }
}
