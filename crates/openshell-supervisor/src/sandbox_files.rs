//! The files that the supervisor makes for a sandbox (certificates, resolver files, covers), on a file system of its own.
//!
//! Init makes a tmpfs that is mounted nowhere, and the supervisor writes into it by a descriptor, while init sees it in place
//! of the run directory. So the files are on no disk, nobody but the sandbox has them, and they end with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};

use crate::mounts::by_descriptor;
use crate::trusted_symlinks::open;

/// A folder of such files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFiles {
    written: PathBuf,
    found: PathBuf,
}

impl SandboxFiles {
    /// Returns the folder that init finds at `run_dir`; `tree` is the file system that it made. Without one the files are in the
    /// run directory itself.
    #[must_use]
    pub fn new(tree: Option<&OwnedFd>, run_dir: &Path) -> Self {
        Self {
            written: tree.map_or_else(|| run_dir.to_owned(), |tree| by_descriptor(tree).into()),
            found: run_dir.to_owned(),
        }
    }

    /// Returns the file or folder `name` in this folder.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        Self { written: self.written.join(name), found: self.found.join(name) }
    }

    /// Path under which the supervisor writes, as long as it has the file system open.
    #[must_use]
    pub fn written(&self) -> &Path {
        &self.written
    }

    /// Path under which init finds it.
    #[must_use]
    pub fn found(&self) -> &Path {
        &self.found
    }
}

/// Makes the file system, mounted nowhere.
///
/// # Errors
/// The kernel, or a container's filter, knows only the older mount(2).
pub(crate) fn create() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "openshell"), ("mode", "711")] {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Mounts the file system `tree` on `folder`.
///
/// # Errors
/// There is no such folder, or the kernel refuses the mount.
pub(crate) fn attach(tree: &OwnedFd, folder: &Path) -> io::Result<()> {
    let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", &folder, "", flags)?)
}
