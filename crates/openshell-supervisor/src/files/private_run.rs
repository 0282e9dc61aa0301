//! The sandbox's private /run and homes, mounted in place of the host's.
//!
//! Services create their sockets in /run at any time. If only the sockets that exist at the start
//! were masked, the workload could reach later ones. Paths beneath /run that the policy grants are
//! bind-mounted into the new /run.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::host::privilege::is_root_mapped;
use crate::identity::run_as::ProcessIdentity;
use crate::paths::missing::is_missing;
use crate::paths::mounts::{Shown, bind_at, by_descriptor, mount_id, open_in};
use crate::paths::trusted_symlinks::open;

/// The directory that is replaced.
const RUN: &str = "/run";

/// The sandbox's private directory in it.
const OWN_DIR: &str = "/run/openshell";

/// A file that only root may write to and that no rule grants, for the proof of Landlock.
pub const PROOF: &str = "/run/openshell/proof";

/// The mount point of a private home.
pub const HOME: &str = "/run/openshell/home";

/// Returns true if /run is a directory and no path of `visible` contains the sandbox's private
/// directory.
pub(crate) fn is_replaceable(visible: impl IntoIterator<Item = PathBuf>) -> bool {
    // A /run that cannot be inspected counts as a directory. Replacing it then fails, which stops
    // the start.
    let is_directory = match std::fs::symlink_metadata(RUN) {
        Ok(data) => data.is_dir(),
        Err(error) => !is_missing(&error),
    };
    is_directory
        && !visible
            .into_iter()
            .any(|path| Path::new(OWN_DIR).starts_with(path))
}

/// An entry of the host's /run that stays visible.
struct KeptEntry {
    path: PathBuf,
    fd: OwnedFd,
    kind: FileType,
    /// The folders above it, with their owner and mode: these still decide who may enter.
    parents: Vec<(PathBuf, Stat)>,
}

/// Replaces /run by a tmpfs that shows only [`PROOF`] and the `visible` paths beneath /run.
///
/// # Errors
/// Fails if a mount fails, or if a visible path cannot be opened.
pub(crate) fn replace(visible: &BTreeSet<PathBuf>) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // There are inodes for as many entries as a policy may list, with a few parents each.
    replace_folder(
        Path::new(RUN),
        visible,
        flags,
        c"mode=755,size=1m,nr_inodes=64k",
    )?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(OWN_DIR)?;
    // The mode must not depend on the caller's umask.
    std::fs::set_permissions(OWN_DIR, PermissionsExt::from_mode(0o755))?;
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(PROOF)?;
    std::fs::create_dir(HOME)?;
    Ok(())
}

/// Replaces `folder` by a tmpfs with `flags` and `options` that shows only the `visible` paths
/// beneath it. Returns the root of the tmpfs.
///
/// # Errors
/// Fails if a mount fails, or if a visible path cannot be opened.
pub(crate) fn replace_folder(
    folder: &Path,
    visible: &BTreeSet<PathBuf>,
    flags: MountFlags,
    options: &CStr,
) -> io::Result<OwnedFd> {
    let beneath = |path: &&PathBuf| path.starts_with(folder) && path.as_path() != folder;
    let is_inside_another = |path: &Path| {
        path.ancestors()
            .skip(1)
            .any(|above| above != folder && visible.contains(above))
    };
    let wanted = visible
        .iter()
        .filter(beneath)
        .filter(|path| !is_inside_another(path));
    // The visible paths are opened before the mount hides them.
    let top = open(folder, OFlags::PATH | OFlags::DIRECTORY)?;
    let kept: Vec<_> = wanted
        .filter_map(|path| open_entry(&top, folder, path).transpose())
        .collect::<io::Result<_>>()?;
    let below = mount_id(&top)?;
    rustix::mount::mount(
        "openshell",
        by_descriptor(&top),
        "tmpfs",
        flags,
        Some(options),
    )?;
    let root = open(folder, OFlags::PATH | OFlags::DIRECTORY)?;
    // If the mount is the same, something else was put in its place.
    if mount_id(&root)? == below {
        return Err(Errno::STALE.into());
    }
    kept.iter().try_for_each(restore)?;
    Ok(root)
}

/// Replaces a home by a read-only folder that shows only the `visible` paths beneath it. Names that
/// are not granted are missing there, and the user's settings are not visible. Returns the root of
/// the folder, or `None` if the sandbox has no such folder.
///
/// # Errors
/// Fails if a mount fails, or if a visible path cannot be opened.
pub(crate) fn replace_home(
    home: &Path,
    visible: &BTreeSet<PathBuf>,
) -> io::Result<Option<OwnedFd>> {
    let data = match open(home, OFlags::PATH | OFlags::DIRECTORY) {
        // The home is in a private folder (/tmp, /run) and is not visible there.
        Err(Errno::NOENT) => return Ok(None),
        opened => rustix::fs::fstat(opened?)?,
    };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let root = replace_folder(home, visible, flags, c"mode=755")?;
    take_over(&root, &data)?;
    rustix::mount::mount_remount(
        by_descriptor(&root),
        flags | MountFlags::RDONLY | MountFlags::BIND,
        c"",
    )?;
    Ok(Some(root))
}

/// Gives the owner and mode in `data` to the folder `made`, which nobody else can have reached yet.
fn take_over(made: &OwnedFd, data: &Stat) -> io::Result<()> {
    let path = by_descriptor(made);
    match std::os::unix::fs::chown(&path, Some(data.st_uid), Some(data.st_gid)) {
        // If the owner has no mapping, the folder stays the caller's.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && !is_root_mapped() => {}
        result => result?,
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(data.st_mode & 0o7777))
}

/// Opens `path` below the folder `top`, which is open as `opened`, without following symlinks.
/// Returns `None` if the path does not exist.
fn open_entry(opened: &OwnedFd, top: &Path, path: &Path) -> io::Result<Option<KeptEntry>> {
    let Ok(rest) = path.strip_prefix(top) else {
        return Ok(None);
    };
    let mut parents = Vec::new();
    let mut fd = opened.try_clone()?;
    let mut reached = top.to_owned();
    for part in rest {
        if reached != top {
            parents.push((reached.clone(), rustix::fs::fstat(&fd)?));
        }
        reached.push(part);
        fd = match open_in(&fd, part) {
            // A path that goes through a symlink, or that the caller cannot reach, grants nothing,
            // so there is nothing to show.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
            found => found?,
        };
    }
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    Ok(Some(KeptEntry {
        path: path.to_owned(),
        fd,
        kind,
        parents,
    }))
}

/// Restores the entry in the new file system, in which nobody else can create anything yet.
fn restore(
    KeptEntry {
        path,
        fd,
        kind,
        parents,
    }: &KeptEntry,
) -> io::Result<()> {
    for (folder, data) in parents {
        if !folder.exists() {
            std::fs::create_dir(folder)?;
            take_over(&open(folder, OFlags::PATH | OFlags::DIRECTORY)?, data)?;
        }
    }
    match kind {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(fd, "", Vec::new())?;
            return std::os::unix::fs::symlink(
                std::ffi::OsStr::from_bytes(target.as_bytes()),
                path,
            );
        }
        FileType::Directory => std::fs::create_dir(path)?,
        _ => drop(std::fs::File::create_new(path)?),
    }
    bind_at(fd, path, Shown::AsItIs)
}

/// Mounts an empty tmpfs as home on the folder `place`. No other sandbox sees it, and it ends with
/// this one. Like /dev/shm, it is limited by the kernel to half of the machine's memory.
///
/// # Errors
/// Fails if the mount fails.
pub(crate) fn mount_home(place: &OwnedFd, owner: &ProcessIdentity) -> io::Result<()> {
    let options = format!("mode=700,uid={},gid={}", owner.uid, owner.gid);
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount(
        "openshell-home",
        by_descriptor(place),
        "tmpfs",
        flags,
        Some(options.as_c_str()),
    )?)
}
