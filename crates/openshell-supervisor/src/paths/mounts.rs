//! Bind mounts that are made on descriptors, and the tables of mounts.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};

use crate::paths::trusted_symlinks::open;
use crate::sys;

/// What a bind mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The file or folder, as it is.
    AsItIs,
    /// An empty file or folder, read-only, without the mask that may be mounted on it.
    Cover,
    /// The file or folder, read-only; the mounts in it keep their options.
    ReadOnly,
    /// The file or folder with the mounts in it, all read-only. Without mount_setattr(2) in the
    /// kernel, the mounts in it keep their options.
    ReadOnlyWithin,
    /// The file or folder, in which nothing can be executed; the mounts in it as for
    /// [`Self::ReadOnlyWithin`].
    NoExecWithin,
}

impl Shown {
    /// Returns the attribute for mount_setattr(2) and the flag for mount(2), if there are any.
    fn flags(self) -> Option<(u64, MountFlags)> {
        match self {
            Self::AsItIs => None,
            Self::Cover | Self::ReadOnly | Self::ReadOnlyWithin => {
                Some((libc::MOUNT_ATTR_RDONLY, MountFlags::RDONLY))
            }
            Self::NoExecWithin => Some((libc::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC)),
        }
    }

    /// Returns true if the mounts within get the attribute too.
    fn is_recursive(self) -> bool {
        matches!(self, Self::ReadOnlyWithin | Self::NoExecWithin)
    }
}

/// A file or folder, and the place where it was found. By now, another file may be in that place.
#[derive(Debug)]
pub(crate) struct Spot {
    folder: OwnedFd,
    name: OsString,
    /// The file or folder itself.
    pub(crate) file: OwnedFd,
}

impl Spot {
    /// Finds `name` in `folder`. A symlink is not followed. If something is mounted on the file,
    /// the result is what is mounted.
    ///
    /// # Errors
    /// Fails if `name` does not exist, or if the folder cannot be searched.
    pub(crate) fn find(folder: OwnedFd, name: &OsStr) -> rustix::io::Result<Self> {
        let file = open_in(&folder, name)?;
        Ok(Self {
            folder,
            name: name.to_owned(),
            file,
        })
    }

    /// Finds `path`, without following symlinks.
    ///
    /// # Errors
    /// Fails if `path` does not exist, or if a folder on the way to it is a symlink or cannot be
    /// searched.
    pub(crate) fn at(path: &Path) -> rustix::io::Result<Self> {
        match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) => {
                Self::find(open(folder, OFlags::PATH | OFlags::DIRECTORY)?, name)
            }
            _ => Self::find(
                open(path, OFlags::PATH | OFlags::DIRECTORY)?,
                OsStr::new("."),
            ),
        }
    }

    /// Opens what is in its place now.
    ///
    /// # Errors
    /// Fails if the place is empty by now.
    pub(crate) fn reopen(&self) -> rustix::io::Result<OwnedFd> {
        open_in(&self.folder, &self.name)
    }
}

/// Opens `name`, which may be a path, in `folder`. No symlink is followed; if the last part is one,
/// the symlink itself is opened.
pub(crate) fn open_in(folder: impl AsFd, name: impl AsRef<Path>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(folder, name.as_ref(), flags, Mode::empty(), resolve)
}

/// Returns the number of the mount in which `file` was opened, as the table of mounts shows it
/// (statx(2), Linux 5.8).
///
/// # Errors
/// Fails if the kernel does not tell the number.
pub(crate) fn mount_id(file: impl AsFd) -> io::Result<u64> {
    let data = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if data.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(data.stx_mnt_id)
}

/// Mounts `source`, with the mounts in it, on `place`.
///
/// # Errors
/// Fails if `place` does not exist, if a symlink is on the way to it, or if the kernel refuses the
/// mount.
pub(crate) fn bind_at(source: &OwnedFd, place: &Path, shown: Shown) -> io::Result<()> {
    bind(source, &Spot::at(place)?, shown).map(drop)
}

/// Mounts `source`, with the mounts in it, on what was found at `spot`. Returns the root of the new
/// mount.
///
/// # Errors
/// Fails if the kernel refuses the mount.
pub(crate) fn bind(source: &OwnedFd, spot: &Spot, shown: Shown) -> io::Result<OwnedFd> {
    bind_to(source, &spot.file, Some((spot, shown)))?.map_or_else(|| Ok(spot.reopen()?), Ok)
}

/// Mounts the file `source` read-only over the file `place`. If `place` is a symlink, the symlink
/// itself is covered, wherever it leads. If `place` does not exist, an empty file is created there.
/// It is never removed, because another sandbox may also have covered it.
///
/// # Errors
/// Fails if the file cannot be created, or if the kernel refuses the mount.
pub(crate) fn cover(source: &OwnedFd, place: &Path) -> io::Result<()> {
    let spot = match Spot::at(place) {
        Err(Errno::NOENT) => {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(place)?;
            Spot::at(place)?
        }
        spot => spot?,
    };
    bind(source, &spot, Shown::ReadOnly).map(drop)
}

/// Shows the files of the folder `top` together with those of the folder `place`, read-only. If
/// both have a file of the same name, that of `top` is shown.
///
/// # Errors
/// Fails if `place` does not exist, if something is mounted in it (an overlay would not show that),
/// or if the kernel refuses the mount. Kernels older than Linux 5.11 refuse it in user namespaces.
pub(crate) fn merge(top: &OwnedFd, place: &Path) -> io::Result<()> {
    let spot = Spot::at(place)?;
    let is_within = |entry: &TableEntry| entry.place.starts_with(place) && entry.place != place;
    if let Some(within) = mount_table("/proc/self/mountinfo")?
        .iter()
        .find(|entry| is_within(entry))
    {
        return Err(io::Error::other(format!(
            "{} is mounted in it",
            within.place.display()
        )));
    }
    let options = format!(
        "lowerdir={}:{}",
        by_descriptor(top),
        by_descriptor(&spot.file)
    );
    let options = CString::new(options)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount(
        "overlay",
        by_descriptor(&spot.file),
        "overlay",
        flags,
        Some(options.as_c_str()),
    )?)
}

/// Mounts `source`, with the mounts in it and their options, on `target`.
pub(crate) fn bind_as_it_is(source: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    bind_to(source, target, None).map(drop)
}

/// Mounts `source` on `target`. Returns the root of the new mount, or `None` if the mount was made
/// by mount(2) and without `spot`.
fn bind_to(
    source: &OwnedFd,
    target: &OwnedFd,
    spot: Option<(&Spot, Shown)>,
) -> io::Result<Option<OwnedFd>> {
    let changed = spot.and_then(|(spot, shown)| Some((spot, shown, shown.flags()?)));
    // open_tree(2) comes first: mount(2) needs paths in /proc, which take several times as long to
    // look up. In a user namespace, mounts of the outer one can be cloned only together with the
    // mounts in them (mount_namespaces(7)).
    let is_cover = spot.is_some_and(|(_, shown)| shown == Shown::Cover);
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    flags.set(OpenTreeFlags::AT_RECURSIVE, !is_cover);
    let moved = rustix::mount::open_tree(source, "", flags)
        .map_err(io::Error::from)
        .and_then(|tree| {
            if let Some((_, shown, (attribute, _))) = changed {
                sys::add_mount_attributes(&tree, attribute, shown.is_recursive())?;
            }
            let flags =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            rustix::mount::move_mount(&tree, "", target, "", flags)?;
            Ok(tree)
        });
    match moved {
        // A container's filter may permit only the older call.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            let before = mount_id(target)?;
            if is_cover {
                rustix::mount::mount_bind(by_descriptor(source), by_descriptor(target))?;
            } else {
                rustix::mount::mount_bind_recursive(by_descriptor(source), by_descriptor(target))?;
            }
            let Some((spot, _)) = spot else {
                return Ok(None);
            };
            let root = spot.reopen()?;
            // This is the root of the new mount, unless something else was put in its place.
            if mount_id(&root)? == before {
                return Err(Errno::STALE.into());
            }
            if let Some((_, _, (_, flag))) = changed {
                remount(&root, flag)?;
            }
            Ok(Some(root))
        }
        result => result.map(Some),
    }
}

/// Adds `flag` to the options of `mount`.
fn remount(mount: &OwnedFd, flag: MountFlags) -> io::Result<()> {
    let set = rustix::fs::fstatvfs(mount)?.f_flag;
    let kept = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (
            StatVfsMountFlags::from_bits_retain(libc::ST_NODEV),
            MountFlags::NODEV,
        ),
        (
            StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC),
            MountFlags::NOEXEC,
        ),
        (
            StatVfsMountFlags::from_bits_retain(libc::ST_NOATIME),
            MountFlags::NOATIME,
        ),
    ];
    let flags = kept
        .into_iter()
        .filter(|(known, _)| set.contains(*known))
        .fold(flag, |all, (_, flag)| all | flag);
    Ok(rustix::mount::mount_remount(
        by_descriptor(mount),
        MountFlags::BIND | flags,
        c"",
    )?)
}

/// Returns the path of `fd` in /proc. It always means the open file, even if the file's own path
/// leads elsewhere by now.
pub(crate) fn by_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A mount, as the mount table of a process shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    /// The number of the mount.
    pub(crate) id: u64,
    /// The device, as two numbers.
    pub(crate) device: Vec<u8>,
    /// The folder or file of the file system that is mounted.
    pub(crate) root: PathBuf,
    /// The mount point.
    pub(crate) place: PathBuf,
    /// The options of the mount, separated by commas.
    pub(crate) options: Vec<u8>,
}

impl TableEntry {
    /// Returns true if the mount has the option `name`.
    pub(crate) fn has_option(&self, name: &[u8]) -> bool {
        self.options
            .split(|byte| *byte == b',')
            .any(|option| option == name)
    }
}

/// The size of an ordinary table of mounts, in bytes.
const TABLE_BYTES: usize = 16 * 1024;

/// Reads a table of mounts (proc_pid_mountinfo(5)), in its order: the oldest mounts come first.
///
/// # Errors
/// Fails if the table cannot be read.
pub(crate) fn mount_table(path: &str) -> io::Result<Vec<TableEntry>> {
    // The kernel returns one page at a time, and takes about 2 µs per mount.
    read_mount_table(&mut File::open(path)?)
}

/// Reads an open table of mounts from its beginning.
///
/// # Errors
/// Fails if the table cannot be read.
pub(crate) fn read_mount_table(file: &mut File) -> io::Result<Vec<TableEntry>> {
    let mut table = Vec::with_capacity(TABLE_BYTES);
    file.rewind()?;
    file.read_to_end(&mut table)?;
    let entry = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let mut fields = fields.skip(1);
        let device = fields.next()?.to_owned();
        let root = fields.next()?;
        let place = fields.next()?;
        let options = fields.next()?.to_owned();
        let [root, place] =
            [root, place].map(|field| PathBuf::from(OsString::from_vec(unescaped(field))));
        Some(TableEntry {
            id,
            device,
            root,
            place,
            options,
        })
    };
    Ok(table
        .split(|byte| *byte == b'\n')
        .filter_map(entry)
        .collect())
}

/// Replaces each backslash and its three octal digits by the byte that they stand for.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
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
