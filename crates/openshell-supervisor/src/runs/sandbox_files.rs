//! The files that the supervisor makes for a sandbox (certificates, resolver files, covers), on a
//! file system of its own.
//!
//! Init makes a tmpfs that is mounted nowhere, and the supervisor writes into it by a descriptor,
//! while init sees it in place of the run directory. So the files are on no disk, and end with the
//! sandbox.

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

/// Options of the file system: room for the largest bundles of certificates that are read, several
/// times.
const OPTIONS: [(&str, &str); 4] = [
    ("source", "openshell"),
    ("mode", "711"),
    ("size", "128m"),
    ("nr_inodes", "64"),
];

/// A file or folder among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFile {
    outside: PathBuf,
    inside: PathBuf,
    is_in_memory: bool,
}

impl SandboxFile {
    /// Returns the folder of all, which init sees at the path of `run_dir`; `file_system` is the
    /// one that it made. Without one they are in the run directory itself, which this process
    /// reaches by a descriptor.
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

    /// Path for the supervisor, as long as it has the file system open.
    #[must_use]
    pub fn outside(&self) -> &Path {
        &self.outside
    }

    /// Path for init.
    #[must_use]
    pub fn inside(&self) -> &Path {
        &self.inside
    }
}

/// The path, for messages.
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

/// Flags by which move_mount(2) takes both ends by their descriptors alone.
const BY_DESCRIPTORS: MoveMountFlags =
    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// Makes the file system, mounted nowhere.
///
/// # Errors
/// The kernel, or a container's profile, does not permit all calls that this and [`attach`] take.
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
    // This is no mount, which is the error where a filter permits the call.
    match rustix::mount::move_mount(&context, "", &root, "", BY_DESCRIPTORS) {
        Err(errno @ (Errno::NOSYS | Errno::PERM | Errno::ACCESS)) => Err(errno.into()),
        _ => Ok(root),
    }
}

/// Mounts the file system with the folder `root` on `folder`.
///
/// # Errors
/// There is no such folder, or the kernel refuses the mount.
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
