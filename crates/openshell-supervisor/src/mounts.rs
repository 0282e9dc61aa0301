//! Bind mounts by descriptor.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};

use crate::sys;
use crate::trusted_symlinks::open;

/// What a bind mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The file or folder, as it is.
    AsItIs,
    /// The file or folder, read-only, with the mounts in it as they are.
    ReadOnly,
}

/// Mounts `source`, with the mounts in it, on `place`.
///
/// # Errors
/// `place` does not exist or is reached by a symlink, or the kernel refuses the mount.
pub(crate) fn bind(source: &OwnedFd, place: &Path, shown: Shown) -> io::Result<()> {
    bind_to(source, &open(place, OFlags::PATH)?, Some((place, shown)))
}

/// Mounts the file `source` read-only over the file `place`, over a symlink itself, wherever it leads. A file that is missing is made,
/// empty, and stays: another sandbox may have it covered too.
///
/// # Errors
/// The file cannot be made, or the kernel refuses the mount.
pub(crate) fn cover(source: &OwnedFd, place: &Path) -> io::Result<()> {
    let open = || rustix::fs::open(place, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let target = match open() {
        Err(Errno::NOENT) => {
            OpenOptions::new().write(true).create_new(true).mode(0o644).open(place)?;
            open()?
        }
        target => target?,
    };
    bind_to(source, &target, Some((place, Shown::ReadOnly)))
}

/// Mounts `source`, with the mounts in it and their options, on `target`.
pub(crate) fn bind_as_it_is(source: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    bind_to(source, target, None)
}

fn bind_to(source: &OwnedFd, target: &OwnedFd, place: Option<(&Path, Shown)>) -> io::Result<()> {
    let read_only = place.filter(|(_, shown)| *shown == Shown::ReadOnly).map(|(place, _)| place);
    // Paths in /proc, which mount(2) needs, take several times as long to look up. In a user namespace mounts of the outer one
    // can be cloned only together with those in them (mount_namespaces(7)).
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let moved = rustix::mount::open_tree(source, "", flags).map_err(io::Error::from).and_then(|tree| {
        if read_only.is_some() {
            sys::set_mount_read_only(&tree)?;
        }
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(rustix::mount::move_mount(tree, "", target, "", flags)?)
    });
    match moved {
        // A container's filter may know the older call alone.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            rustix::mount::mount_bind_recursive(by_descriptor(source), by_descriptor(target))?;
            read_only.map_or(Ok(()), remount_read_only)
        }
        result => result,
    }
}

/// Makes the mount at `place` read-only, with its other options.
fn remount_read_only(place: &Path) -> io::Result<()> {
    let mount = open(place, OFlags::PATH)?;
    let set = rustix::fs::fstatvfs(&mount)?.f_flag;
    let kept = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::from_bits_retain(libc::ST_NODEV), MountFlags::NODEV),
        (StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC), MountFlags::NOEXEC),
        (StatVfsMountFlags::from_bits_retain(libc::ST_NOATIME), MountFlags::NOATIME),
    ];
    let flags = kept
        .into_iter()
        .filter(|(known, _)| set.contains(*known))
        .fold(MountFlags::RDONLY, |all, (_, flag)| all | flag);
    Ok(rustix::mount::mount_remount(by_descriptor(&mount), MountFlags::BIND | flags, c"")?)
}

/// Path of `fd` in /proc, which names the open file, even if its path leads elsewhere by now.
pub(crate) fn by_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
