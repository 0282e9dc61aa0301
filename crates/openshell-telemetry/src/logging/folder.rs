//! The folder of the log files.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder that is open, so that it is the same one wherever its path leads later.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    opened: Arc<OwnedFd>,
}

impl Folder {
    /// Names the folder that `opened` is; `path` was its path then.
    #[must_use]
    pub fn new(path: PathBuf, opened: OwnedFd) -> Self {
        Self {
            path,
            opened: Arc::new(opened),
        }
    }

    /// Its path at the time at which it was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path by which this process reaches it (proc(5), "/proc/PID/fd").
    pub(super) fn reached(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.as_raw_fd()).into()
    }
}
