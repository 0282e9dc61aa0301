//! The sandbox's private /run and home, mounted in place of the host's.
//!
//! Services create their sockets in /run at any time, so masking those that exist at the start would leave later ones
//! in reach. Paths beneath /run that the policy grants are bound into the new one.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::mounts::{Shown, bind_at};
use crate::privilege::is_root_mapped;
use crate::run_as::ProcessIdentity;
use crate::trusted_symlinks;

/// Directory to replace.
const RUN: &str = "/run";

/// The sandbox's own directory in it.
const OWN_DIR: &str = "/run/openshell";

/// File that only root may write to and that no rule grants, for the proof of Landlock.
pub const PROOF: &str = "/run/openshell/proof";

/// Mount point of a private home.
pub const HOME: &str = "/run/openshell/home";

/// Returns true if /run is a directory and no path of `visible` contains the sandbox's own directory.
pub(crate) fn is_replaceable(visible: impl IntoIterator<Item = PathBuf>) -> bool {
    let is_directory = std::fs::symlink_metadata(RUN).is_ok_and(|data| data.is_dir());
    is_directory && !visible.into_iter().any(|path| Path::new(OWN_DIR).starts_with(path))
}

/// An entry of the host's /run that stays visible.
struct KeptEntry {
    path: PathBuf,
    fd: OwnedFd,
    kind: FileType,
    /// Parents with their owner and mode, which keep deciding who may enter.
    parents: Vec<(PathBuf, std::fs::Metadata)>,
}

/// Replaces /run by a tmpfs that shows only [`PROOF`] and the `visible` paths beneath /run.
///
/// # Errors
/// A mount fails, or a visible path cannot be opened.
pub(crate) fn replace(visible: &BTreeSet<PathBuf>) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Inodes for as many entries as a policy may list, with a few parents each.
    replace_folder(Path::new(RUN), visible, flags, c"mode=755,size=1m,nr_inodes=64k")?;
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(OWN_DIR)?;
    // Independent of the caller's umask.
    std::fs::set_permissions(OWN_DIR, PermissionsExt::from_mode(0o755))?;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(PROOF)?;
    Ok(())
}

/// Replaces `folder` by a tmpfs with `flags` and `options` that shows only the `visible` paths beneath it.
///
/// # Errors
/// A mount fails, or a visible path cannot be opened.
pub(crate) fn replace_folder(
    folder: &Path,
    visible: &BTreeSet<PathBuf>,
    flags: MountFlags,
    options: &CStr,
) -> io::Result<()> {
    let beneath = |path: &&PathBuf| path.starts_with(folder) && path.as_path() != folder;
    let is_inside_another =
        |path: &Path| path.ancestors().skip(1).any(|above| above != folder && visible.contains(above));
    let wanted = visible.iter().filter(beneath).filter(|path| !is_inside_another(path));
    // Opened before the mount hides them.
    let kept: Vec<_> = wanted.filter_map(|path| open_entry(path, folder).transpose()).collect::<io::Result<_>>()?;
    rustix::mount::mount("openshell", folder, "tmpfs", flags, Some(options))?;
    kept.iter().try_for_each(restore)
}

/// Opens `path` without following symlinks; `None` if it does not exist.
fn open_entry(path: &Path, top: &Path) -> io::Result<Option<KeptEntry>> {
    let fd = match trusted_symlinks::open(path, OFlags::PATH) {
        // A path through an untrusted symlink, or out of the caller's reach, grants nothing, so there is nothing to show.
        Err(Errno::NOENT | Errno::LOOP | Errno::ACCESS) => return Ok(None),
        opened => opened?,
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    let above: Vec<_> = path.ancestors().skip(1).take_while(|folder| *folder != top).collect();
    let data = |folder: &&Path| Ok((folder.to_path_buf(), std::fs::symlink_metadata(folder)?));
    let parents = above.iter().rev().map(data).collect::<io::Result<_>>()?;
    Ok(Some(KeptEntry { path: path.to_owned(), fd, kind, parents }))
}

fn restore(KeptEntry { path, fd, kind, parents }: &KeptEntry) -> io::Result<()> {
    for (folder, data) in parents {
        if !folder.exists() {
            std::fs::create_dir(folder)?;
            match std::os::unix::fs::chown(folder, Some(data.uid()), Some(data.gid())) {
                // The owner has no mapping; then the folder is the caller's.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && !is_root_mapped() => {}
                result => result?,
            }
            std::fs::set_permissions(folder, PermissionsExt::from_mode(data.mode() & 0o7777))?;
        }
    }
    match kind {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(fd, "", Vec::new())?;
            return std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target.as_bytes()), path);
        }
        FileType::Directory => std::fs::create_dir(path)?,
        _ => drop(std::fs::File::create_new(path)?),
    }
    bind_at(fd, path, Shown::AsItIs)
}

/// Mounts an empty tmpfs as home at `place`. No other sandbox sees it, and it ends with this one. The kernel limits it
/// to half of the machine's memory, as /dev/shm.
///
/// # Errors
/// The mount point cannot be created, or the mount fails.
pub(crate) fn mount_home(place: &Path, owner: &ProcessIdentity) -> io::Result<()> {
    if !place.exists() {
        std::fs::create_dir(place)?;
    }
    let options = format!("mode=700,uid={},gid={}", owner.uid, owner.gid);
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount("openshell-home", place, "tmpfs", flags, Some(options.as_c_str()))?)
}
