//! Run directories: each sandbox has one on the host. It is removed with the sandbox or, after a
//! kill, by the next start.

pub mod created_dirs;
pub(crate) mod lock;
pub mod names;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::paths::own_folder::OwnFolder;
use rustix::fs::FlockOperation;

use lock::{LOCK, is_ours, is_shared, open_regular, remove};
pub use lock::{RunDir, control_socket};

/// The default parent of run directories.
const DEFAULT: &str = "/run/openshell";

/// The parents that are tried if the default cannot be created. Every user may write to them. The
/// second one also exists in a container with a read-only root.
const FALLBACKS: [&str; 2] = ["/tmp", "/dev/shm"];

/// A failure to create a run directory.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum RunDirError {
    #[error("cannot make a run directory in {path}; name another place with --run-dir")]
    Make { path: PathBuf, source: io::Error },
    #[error(
        "{0} is not a directory that only this user may write to; name another place with --run-dir"
    )]
    NotPrivate(PathBuf),
}

impl RunDirError {
    /// Returns true if it makes sense to try another default.
    fn has_alternative(&self) -> bool {
        use io::ErrorKind as K;
        match self {
            Self::Make { source, .. } => {
                matches!(
                    source.kind(),
                    K::NotFound | K::PermissionDenied | K::ReadOnlyFilesystem | K::NotADirectory
                )
            }
            // For root this is final; other users may not be able to own the default.
            Self::NotPrivate(_) => !rustix::process::geteuid().is_root(),
        }
    }
}

impl RunDir {
    /// Creates a run directory in `parent`, or in the first usable default, and removes orphans
    /// there. The defaults are, in this order: /run/openshell, a folder in the user's own
    /// `runtime_dir` (the XDG Base Directory Specification's `XDG_RUNTIME_DIR`), /tmp and /dev/shm.
    ///
    /// # Errors
    /// Fails if the directory cannot be created, or if other users may write to its parent.
    pub fn create(parent: Option<&Path>, runtime_dir: Option<&Path>) -> Result<Self, RunDirError> {
        if let Some(parent) = parent {
            return Self::create_in_private(parent);
        }
        let mut failed = None;
        for parent in private_defaults(runtime_dir) {
            match Self::create_in_private(&parent) {
                Err(error) if error.has_alternative() => failed = Some(error),
                result => return result,
            }
        }
        for parent in FALLBACKS.map(PathBuf::from) {
            let opened = OwnFolder::open(&parent).map_err(|source| RunDirError::Make {
                path: parent,
                source,
            });
            match opened.and_then(|parent| Self::create_in(&parent)) {
                Err(error) if error.has_alternative() => {}
                result => return result,
            }
        }
        Err(failed.unwrap_or(RunDirError::NotPrivate(PathBuf::from(DEFAULT))))
    }

    fn create_in_private(parent: &Path) -> Result<Self, RunDirError> {
        let failed = |source| RunDirError::Make {
            path: parent.to_owned(),
            source,
        };
        let parent = OwnFolder::make(parent, 0o711).map_err(failed)?;
        let data = std::fs::metadata(parent.reached()).map_err(failed)?;
        // In a sticky folder, other users may create files, but they cannot replace the files of
        // this user.
        let is_safe = data.mode() & 0o022 == 0 || data.mode() & 0o1000 != 0;
        if !data.is_dir() || data.uid() != rustix::process::geteuid().as_raw() || !is_safe {
            return Err(RunDirError::NotPrivate(parent.path().to_owned()));
        }
        Self::create_in(&parent)
    }

    fn create_in(parent: &OwnFolder) -> Result<Self, RunDirError> {
        let failed = |source| RunDirError::Make {
            path: parent.path().to_owned(),
            source,
        };
        let reached = parent.reached();
        if !is_shared(&reached) {
            remove_orphans(&reached).map_err(failed)?;
        }
        loop {
            // Another start may mistake the directory for an orphan until it is locked. The next
            // attempt then creates another one.
            match Self::make(parent) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::WouldBlock
                    ) =>
                {
                    // If the parent was removed or replaced by a rename, nothing can be created in
                    // it any more.
                    if std::fs::metadata(&reached).map_err(failed)?.nlink() == 0 {
                        return Err(failed(error));
                    }
                }
                made => return made.map_err(failed),
            }
        }
    }
}

/// Returns the default parents that belong to only one user.
fn private_defaults(runtime_dir: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let users = runtime_dir
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("openshell"));
    [PathBuf::from(DEFAULT)].into_iter().chain(users)
}

/// The number of live run directories that a start looks at before it stops searching. Orphans that
/// it does not reach are left to later starts.
const LOOKED_AT: usize = 32;

/// Removes the orphans among the run directories in `parent`.
fn remove_orphans(parent: &Path) -> io::Result<()> {
    let mut found = std::fs::read_dir(parent)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    // Each start begins at a random place, so that every directory has its turn.
    let mut place = [0; 8];
    rustix::rand::getrandom(&mut place, rustix::rand::GetRandomFlags::empty())?;
    let count = found.len().max(1);
    found.rotate_left(usize::from_ne_bytes(place) % count);
    // Another start may be removing the same orphan. If an orphan cannot be removed, the start goes
    // on.
    let is_live = |path: &PathBuf| remove_orphan(path).is_err();
    let _ = found
        .iter()
        .filter(|path| is_ours(path))
        .filter(|path| is_live(path))
        .take(LOOKED_AT)
        .count();
    Ok(())
}

/// Removes a run directory unless its lock is held.
fn remove_orphan(path: &Path) -> io::Result<()> {
    match open_regular(&path.join(LOCK), File::options().read(true)) {
        Ok(lock) => {
            // The lock is held until the directory is gone, so that no other start removes it too.
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            // Created directories that are not empty remain.
            let _ = created_dirs::remove_recorded(path);
            remove(path)
        }
        // A supervisor that was killed before it made the lock leaves an empty directory. A
        // directory that has no lock but is not empty is not a run directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::remove_dir(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{OwnFolder, RunDir, RunDirError};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn private() -> tempfile::TempDir {
        tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .unwrap()
    }

    fn made_in(parent: &Path) -> RunDir {
        RunDir::create(Some(parent), None).unwrap()
    }

    #[test]
    fn a_parent_that_is_removed_meanwhile_is_an_error_and_no_endless_attempt() {
        let place = private();
        let folder = OwnFolder::make(&place.path().join("parent"), 0o711).unwrap();
        std::fs::remove_dir(folder.path()).unwrap();
        assert!(matches!(
            RunDir::create_in(&folder),
            Err(RunDirError::Make { .. })
        ));
    }

    #[test]
    fn a_folder_ends_with_its_owner_and_leaves_others_alone() {
        let parent = private();
        let one = made_in(parent.path());
        let other = made_in(parent.path());
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }

    #[test]
    fn what_a_killed_supervisor_left_is_removed_by_the_next_start() {
        let parent = private();
        let held = made_in(parent.path());
        let path = held.path().to_owned();
        std::fs::create_dir(path.join("inside")).unwrap();
        let copy = parent.path().join("openshell-0123456789abcdef");
        std::fs::create_dir(&copy).unwrap();
        std::fs::write(copy.join("lock"), "").unwrap();
        // Killed before there was a lock.
        let empty = parent.path().join("openshell-0123456789abcdee");
        std::fs::create_dir(&empty).unwrap();
        let live = made_in(parent.path());
        assert!(
            !copy.exists() && !empty.exists(),
            "nobody holds their locks"
        );
        assert!(
            path.exists() && live.path().exists(),
            "somebody holds theirs"
        );
    }

    #[test]
    fn orphans_among_many_sandboxes_are_removed_by_one_of_the_next_starts() {
        let parent = private();
        let orphan = parent.path().join("openshell-0123456789abcdef");
        let _others: Vec<_> = (0..3 * super::LOOKED_AT)
            .map(|_| made_in(parent.path()))
            .collect();
        std::fs::create_dir(&orphan).unwrap();
        std::fs::write(orphan.join("lock"), "").unwrap();
        // A start has a chance of one in three.
        let starts = (0..1000)
            .take_while(|_| orphan.exists())
            .map(|_| drop(made_in(parent.path())))
            .count();
        assert!(!orphan.exists(), "after {starts} starts");
    }

    #[test]
    fn many_starts_at_once_get_a_folder_each() {
        let parent = private();
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| made_in(parent.path())))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(
            made.iter()
                .all(|folder| folder.path().join("lock").exists())
        );
    }

    #[test]
    fn nothing_that_no_sandbox_made_is_ever_removed() {
        let parent = private();
        for name in [
            "data",
            "openshell-0123456789abcdef",
            "openshell-0123456789abcdeg",
            "openshell-x",
        ] {
            std::fs::create_dir_all(parent.path().join(name).join("inside")).unwrap();
        }
        std::fs::write(parent.path().join("data/lock"), "").unwrap();
        std::fs::write(parent.path().join("openshell-0123456789abcdeg/lock"), "").unwrap();
        std::os::unix::fs::symlink("data", parent.path().join("openshell-aaaaaaaaaaaaaaaa"))
            .unwrap();
        drop(made_in(parent.path()));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 5);
        assert!(parent.path().join("data/inside").exists());
    }

    #[test]
    fn a_place_that_others_may_write_to_is_refused() {
        let parent = private();
        std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            RunDir::create(Some(parent.path()), None),
            Err(RunDirError::NotPrivate(_))
        ));
    }
}
