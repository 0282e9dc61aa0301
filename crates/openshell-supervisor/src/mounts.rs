//! Bind mounts by descriptor.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
    /// The same with the mounts in it, where the kernel has mount_setattr(2); else those as they are.
    ReadOnlyWithin,
    /// The file or folder, with nothing to be executed in it; the mounts in it as for [`Self::ReadOnlyWithin`].
    NoExecWithin,
}

impl Shown {
    /// The attribute for mount_setattr(2) and the flag for mount(2), if it has one.
    fn flags(self) -> Option<(u64, MountFlags)> {
        match self {
            Self::AsItIs => None,
            Self::ReadOnly | Self::ReadOnlyWithin => Some((libc::MOUNT_ATTR_RDONLY, MountFlags::RDONLY)),
            Self::NoExecWithin => Some((libc::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC)),
        }
    }
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
    let changed = place.and_then(|(place, shown)| Some((place, shown, shown.flags()?)));
    // Paths in /proc, which mount(2) needs, take several times as long to look up. In a user namespace mounts of the outer one
    // can be cloned only together with those in them (mount_namespaces(7)).
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let moved = rustix::mount::open_tree(source, "", flags).map_err(io::Error::from).and_then(|tree| {
        if let Some((_, shown, (attribute, _))) = changed {
            sys::add_mount_attributes(&tree, attribute, shown != Shown::ReadOnly)?;
        }
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(rustix::mount::move_mount(tree, "", target, "", flags)?)
    });
    match moved {
        // A container's filter may know the older call alone.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            rustix::mount::mount_bind_recursive(by_descriptor(source), by_descriptor(target))?;
            changed.map_or(Ok(()), |(place, _, (_, flag))| remount(place, flag))
        }
        result => result,
    }
}

/// Adds `flag` to the options of the mount at `place`.
fn remount(place: &Path, flag: MountFlags) -> io::Result<()> {
    let mount = open(place, OFlags::PATH)?;
    let set = rustix::fs::fstatvfs(&mount)?.f_flag;
    let kept = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::from_bits_retain(libc::ST_NODEV), MountFlags::NODEV),
        (StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC), MountFlags::NOEXEC),
        (StatVfsMountFlags::from_bits_retain(libc::ST_NOATIME), MountFlags::NOATIME),
    ];
    let flags = kept.into_iter().filter(|(known, _)| set.contains(*known)).fold(flag, |all, (_, flag)| all | flag);
    Ok(rustix::mount::mount_remount(by_descriptor(&mount), MountFlags::BIND | flags, c"")?)
}

/// Path of `fd` in /proc, which names the open file, even if its path leads elsewhere by now.
pub(crate) fn by_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A mount, as the table of a process shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    /// Device, as two numbers.
    pub(crate) device: Vec<u8>,
    /// The folder or file of the file system that is mounted.
    pub(crate) root: PathBuf,
    /// The mount point.
    pub(crate) place: PathBuf,
}

/// Size of an ordinary table of mounts, in bytes.
const TABLE_BYTES: usize = 16 * 1024;

/// Reads a table of mounts (proc_pid_mountinfo(5)), the first mounts first.
///
/// # Errors
/// The table cannot be read.
pub(crate) fn mount_table(path: &str) -> io::Result<Vec<TableEntry>> {
    // The kernel gives a page at a time, and takes some 2 µs a mount.
    read_mount_table(&mut File::open(path)?)
}

/// Reads a table of mounts that is open, from its beginning.
///
/// # Errors
/// The table cannot be read.
pub(crate) fn read_mount_table(file: &mut File) -> io::Result<Vec<TableEntry>> {
    let mut table = Vec::with_capacity(TABLE_BYTES);
    file.rewind()?;
    file.read_to_end(&mut table)?;
    let entry = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let (device, root, place) = (fields.next()?.to_owned(), fields.next()?, fields.next()?);
        let [root, place] = [root, place].map(|field| PathBuf::from(OsString::from_vec(unescaped(field))));
        Some(TableEntry { device, root, place })
    };
    Ok(table.split(|byte| *byte == b'\n').filter_map(entry).collect())
}

/// Replaces each backslash with three octal digits by the byte that they stand for.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}
