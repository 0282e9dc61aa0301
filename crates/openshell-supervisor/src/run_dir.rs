//! The sandbox's own folder on the host, gone when the sandbox is.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

/// Where sandboxes have their folders unless told otherwise.
pub const DEFAULT: &str = "/run/openshell";

/// Where they have them if that cannot be made.
pub const FALLBACK: &str = "/tmp/openshell";

/// Why there is no folder.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum RunDirError {
    #[error("cannot make the run directory {path}; name another with --run-dir")]
    Make { path: PathBuf, source: io::Error },
    #[error(
        "run directory {0} is not a directory that belongs to root alone; remove it or name another with --run-dir"
    )]
    NotPrivate(PathBuf),
}

/// A folder that exists while this value does. A lock on it tells it from what a killed supervisor left.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: OwnedFd,
}

impl RunDir {
    /// Makes a folder beneath `parent`, or beneath the first of the defaults that can be used, and removes the folders
    /// of supervisors that were killed.
    ///
    /// # Errors
    /// The parent cannot be made, or others than root may write to it.
    pub fn create(parent: Option<&Path>) -> Result<Self, RunDirError> {
        match parent {
            Some(parent) => Self::create_in(parent),
            None => Self::create_in(Path::new(DEFAULT)).or_else(|_| Self::create_in(Path::new(FALLBACK))),
        }
    }

    fn create_in(parent: &Path) -> Result<Self, RunDirError> {
        let failed = |source| RunDirError::Make { path: parent.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        let data = std::fs::symlink_metadata(parent).map_err(failed)?;
        if !data.is_dir() || data.uid() != rustix::process::geteuid().as_raw() || data.mode() & 0o022 != 0 {
            return Err(RunDirError::NotPrivate(parent.to_owned()));
        }
        // Held until this sandbox's own lock is: nobody takes a folder that is just being made for an orphan.
        let _making = lock(parent, FlockOperation::LockExclusive).map_err(failed)?;
        remove_orphans(parent).map_err(failed)?;
        let mut unique = [0; 8];
        rustix::rand::getrandom(&mut unique, rustix::rand::GetRandomFlags::empty()).map_err(|e| failed(e.into()))?;
        let path = parent.join(format!("{:016x}", u64::from_ne_bytes(unique)));
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let lock = lock(&path, FlockOperation::LockExclusive).map_err(failed)?;
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

fn lock(path: &Path, operation: FlockOperation) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&folder, operation)?;
    Ok(folder)
}

fn remove_orphans(parent: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(parent)? {
        let path = entry?.path();
        // Whoever lives holds the lock; whatever cannot be locked otherwise is not ours to remove.
        if lock(&path, FlockOperation::NonBlockingLockExclusive).is_ok() {
            std::fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RunDir, RunDirError};
    use std::os::unix::fs::PermissionsExt;

    fn private() -> tempfile::TempDir {
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o700)).tempdir().unwrap()
    }

    #[test]
    fn a_folder_ends_with_its_owner_and_leaves_others_alone() {
        let parent = private();
        let one = RunDir::create(Some(parent.path())).unwrap();
        let other = RunDir::create(Some(parent.path())).unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }

    #[test]
    fn what_a_killed_supervisor_left_is_removed_by_the_next_start() {
        let parent = private();
        std::fs::create_dir_all(parent.path().join("orphan/inside")).unwrap();
        let live = RunDir::create(Some(parent.path())).unwrap();
        assert!(!parent.path().join("orphan").exists() && live.path().exists());
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let parent = private();
        std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(RunDir::create(Some(parent.path())), Err(RunDirError::NotPrivate(_))));
    }
}
