//! The files that the supervisor makes for a sandbox (certificates, resolver files, covers), on a
//! separate file system.
//!
//! Init makes a tmpfs that is not mounted anywhere. The supervisor writes into it by a descriptor,
//! and init mounts it over the run directory. So the files never reach a disk, and they disappear
//! with the sandbox.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};

use crate::paths::mounts::by_descriptor;
use crate::paths::trusted_symlinks::open;
use crate::runs::run_dir::RunDir;

/// Options of the file system. Its size is several times that of the largest certificate bundles
/// that are read.
const OPTIONS: [(&str, &str); 4] = [
    ("source", "openshell"),
    ("mode", "711"),
    ("size", "128m"),
    ("nr_inodes", "64"),
];

/// A file or folder that the supervisor makes for the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFile {
    outside: PathBuf,
    inside: PathBuf,
    is_in_memory: bool,
}

impl SandboxFile {
    /// Returns the folder that holds all of these files; init sees it at the path of `run_dir`.
    /// `file_system` is the tmpfs that init made. Without one, the files are in the run directory
    /// itself, which this process reaches by a descriptor.
    #[must_use]
    pub fn root(file_system: Option<&OwnedFd>, run_dir: &RunDir) -> Self {
        let outside = file_system.map_or_else(
            || run_dir.reached().to_owned(),
            |root| by_descriptor(root).into(),
        );
        Self {
            outside,
            inside: run_dir.path().to_owned(),
            is_in_memory: file_system.is_some(),
        }
    }

    /// Returns the file or folder `name` in this folder.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        Self {
            outside: self.outside.join(name),
            inside: self.inside.join(name),
            is_in_memory: self.is_in_memory,
        }
    }

    /// Returns the path for the supervisor, valid as long as it has the file system open.
    #[must_use]
    pub fn outside(&self) -> &Path {
        &self.outside
    }

    /// Returns the path for init.
    #[must_use]
    pub fn inside(&self) -> &Path {
        &self.inside
    }
}

/// Shows the path that init uses, for messages.
impl fmt::Display for SandboxFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_in_memory {
            " (in memory)"
        } else {
            ""
        };
        write!(formatter, "{}{place}", self.inside.display())
    }
}

/// The flags that make move_mount(2) take both ends only by their descriptors.
const BY_DESCRIPTORS: MoveMountFlags =
    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// Creates the file system without mounting it.
///
/// # Errors
/// Fails if the kernel or a container's seccomp profile does not permit all calls that this
/// function and [`attach`] need.
pub(crate) fn create() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in OPTIONS {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // This only tests whether a filter permits the call. `context` is not a mount, so a permitted
    // call fails with another error.
    match rustix::mount::move_mount(&context, "", &root, "", BY_DESCRIPTORS) {
        Err(errno @ (Errno::NOSYS | Errno::PERM | Errno::ACCESS)) => Err(errno.into()),
        _ => Ok(root),
    }
}

/// Mounts the file system whose root folder is `root` on `folder`.
///
/// # Errors
/// Fails if `folder` does not exist, or if the kernel refuses the mount.
pub(crate) fn attach(root: &OwnedFd, folder: &Path) -> io::Result<()> {
    let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok(rustix::mount::move_mount(
        root,
        "",
        &folder,
        "",
        BY_DESCRIPTORS,
    )?)
}
