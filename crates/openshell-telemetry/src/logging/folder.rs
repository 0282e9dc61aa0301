//! The folder of the log files.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open folder. It stays the same one, wherever its path leads later.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    opened: Arc<OwnedFd>,
}

impl Folder {
    /// Creates the handle of the folder `opened`, whose path was `path` when it was opened.
    #[must_use]
    pub fn new(path: PathBuf, opened: OwnedFd) -> Self {
        Self {
            path,
            opened: Arc::new(opened),
        }
    }

    /// Returns its path at the time when it was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path by which this process reaches it (proc(5), "/proc/PID/fd").
    pub(super) fn reached(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.as_raw_fd()).into()
    }
}
