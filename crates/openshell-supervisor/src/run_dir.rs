//! The sandbox's own folder on the host, gone when the sandbox is.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

/// Where sandboxes have their folders unless told otherwise.
pub const DEFAULT: &str = "/run/openshell";

/// Where they have them if that cannot be made.
pub const FALLBACK: &str = "/tmp";

/// What the folders' names begin with; 16 hexadecimal digits follow.
const PREFIX: &str = "openshell-";

/// What a name ends with until the folder is locked.
const UNFINISHED: &str = ".new";

/// The file in each folder whose lock its owner holds.
const LOCK: &str = "lock";

/// Why there is no folder.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum RunDirError {
    #[error("cannot make a run directory in {path}; name another place with --run-dir")]
    Make { path: PathBuf, source: io::Error },
    #[error("{0} is not a directory that only root may write to; name another place with --run-dir")]
    NotPrivate(PathBuf),
}

/// A folder that exists while this value does. The lock on a file in it tells it from what a killed supervisor left.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes a folder in `parent`, or in the first of the defaults where one can be made, and removes the folders there
    /// that supervisors left when they were killed.
    ///
    /// # Errors
    /// No folder can be made, or others than root may write to its place.
    pub fn create(parent: Option<&Path>) -> Result<Self, RunDirError> {
        let cannot_be_made = |source: &io::Error| {
            use io::ErrorKind as K;
            matches!(source.kind(), K::NotFound | K::PermissionDenied | K::ReadOnlyFilesystem)
        };
        match parent {
            Some(parent) => Self::create_in_private(parent),
            None => match Self::create_in_private(Path::new(DEFAULT)) {
                Err(RunDirError::Make { source, .. }) if cannot_be_made(&source) => {
                    let fallback = Path::new(FALLBACK);
                    Self::create_in(fallback).map_err(|source| RunDirError::Make { path: fallback.to_owned(), source })
                }
                result => result,
            },
        }
    }

    fn create_in_private(parent: &Path) -> Result<Self, RunDirError> {
        let failed = |source| RunDirError::Make { path: parent.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        let parent = std::fs::canonicalize(parent).map_err(failed)?;
        let data = std::fs::metadata(&parent).map_err(failed)?;
        // Others may make files in a sticky folder, but not put theirs in the place of ours.
        let is_safe = data.mode() & 0o022 == 0 || data.mode() & 0o1000 != 0;
        if !data.is_dir() || data.uid() != rustix::process::geteuid().as_raw() || !is_safe {
            return Err(RunDirError::NotPrivate(parent));
        }
        remove_orphans(&parent).map_err(failed)?;
        Self::create_in(&parent).map_err(failed)
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        let mut unique = [0; 8];
        rustix::rand::getrandom(&mut unique, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(unique));
        // Locked before it has a name that another start would take for an orphan's.
        let making = parent.join(format!("{name}{UNFINISHED}"));
        std::fs::DirBuilder::new().mode(0o700).create(&making)?;
        let lock = File::create_new(making.join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let path = parent.join(name);
        std::fs::rename(&making, &path)?;
        Ok(Self { path, _lock: lock })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // What is left is removed by the next start.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn remove_orphans(parent: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(parent)? {
        let path = entry?.path();
        if is_orphan(&path) {
            // Another start may be removing it too; what cannot be removed is no reason not to start.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
    Ok(())
}

/// Whether a sandbox made this folder and nobody holds it any more. Whatever is not surely so is left alone.
fn is_orphan(path: &Path) -> bool {
    let digits = path.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX));
    // One that was killed while it was made is left too, but one that is being made has no lock for a moment.
    let unfinished = digits.and_then(|digits| digits.strip_suffix(UNFINISHED)).filter(|_| is_old(path));
    let digits = unfinished.or(digits);
    let is_named =
        digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let own = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path, is_kind: fn(&std::fs::Metadata) -> bool| {
        std::fs::symlink_metadata(path).is_ok_and(|data| is_kind(&data) && data.uid() == own)
    };
    let lock = path.join(LOCK);
    let is_ours = is_named && is_own(path, std::fs::Metadata::is_dir) && is_own(&lock, std::fs::Metadata::is_file);
    is_ours
        && File::open(lock).is_ok_and(|lock| rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Whether nothing has changed in a folder for a minute.
fn is_old(path: &Path) -> bool {
    let modified = std::fs::symlink_metadata(path).and_then(|data| data.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > Duration::from_secs(60)))
}

#[cfg(test)]
mod tests {
    use super::{RunDir, RunDirError};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn private() -> tempfile::TempDir {
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o700)).tempdir().unwrap()
    }

    fn made_in(parent: &Path) -> RunDir {
        RunDir::create(Some(parent)).unwrap()
    }

    #[test]
    fn a_folder_ends_with_its_owner_and_leaves_others_alone() {
        let parent = private();
        let (one, other) = (made_in(parent.path()), made_in(parent.path()));
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
        let live = made_in(parent.path());
        assert!(!copy.exists(), "nobody holds its lock");
        assert!(path.exists() && live.path().exists(), "somebody holds theirs");
    }

    #[test]
    fn nothing_that_no_sandbox_made_is_ever_removed() {
        let parent = private();
        for name in ["data", "openshell-0123456789abcdef", "openshell-0123456789abcdeg", "openshell-x"] {
            std::fs::create_dir_all(parent.path().join(name).join("inside")).unwrap();
        }
        std::fs::write(parent.path().join("data/lock"), "").unwrap();
        std::fs::write(parent.path().join("openshell-0123456789abcdeg/lock"), "").unwrap();
        std::os::unix::fs::symlink("data", parent.path().join("openshell-aaaaaaaaaaaaaaaa")).unwrap();
        drop(made_in(parent.path()));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 5);
        assert!(parent.path().join("data/inside").exists());
    }

    #[test]
    fn a_place_that_others_may_write_to_is_refused() {
        let parent = private();
        std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(RunDir::create(Some(parent.path())), Err(RunDirError::NotPrivate(_))));
    }
}
