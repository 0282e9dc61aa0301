//! The home of an observed run. It shows the user's files. What the command writes there stays in
//! the sandbox and ends with it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, StatVfsMountFlags, Uid};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::paths::mounts::{Shown, Spot, bind, by_descriptor, mount_id, mount_table, open_in};
use crate::paths::pins::{find_in, unmount};

/// Mounts an overlay that takes at most `bytes` over `home`. The `kept` paths in it stay the
/// host's; other file systems that are mounted in the home may only be read.
///
/// # Errors
/// Fails if the home cannot be opened, or if the kernel refuses a mount: the home's file system may
/// not support being a lower layer.
pub(crate) fn mount(
    home: &Path,
    kept: impl Iterator<Item = PathBuf>,
    bytes: u64,
) -> io::Result<()> {
    let spot = Spot::at(home)?;
    let kept = kept_paths(home, &spot.file, kept)?;
    let lower = &spot.file;
    let is_noexec = rustix::fs::fstatvfs(lower)?
        .f_flag
        .contains(StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC));
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let flags = if is_noexec {
        flags | MountFlags::NOEXEC
    } else {
        flags
    };
    let size = CString::new(format!("mode=700,size={bytes},nr_inodes=1m"))?;
    let before = mount_id(lower)?;
    rustix::mount::mount(
        "openshell",
        by_descriptor(lower),
        "tmpfs",
        flags,
        Some(size.as_c_str()),
    )?;
    let mounted = overlay(&spot, flags).and_then(|root| {
        kept.iter()
            .try_for_each(|(rest, fd, shown)| bind(fd, &find_in(&root, rest)?, *shown).map(drop))
    });
    mounted.inspect_err(|_| {
        // Unmounts everything, so that the host's home is visible again.
        while let Ok(top) = spot.reopen()
            && mount_id(&top).is_ok_and(|id| id != before)
            && unmount(&top).is_ok()
        {}
    })
}

/// Mounts the overlay on the tmpfs at `spot`, which holds its upper layer. Returns the root of the
/// overlay.
fn overlay(spot: &Spot, flags: MountFlags) -> io::Result<OwnedFd> {
    let lower = &spot.file;
    let data = rustix::fs::fstat(lower)?;
    let store = above(spot, lower)?;
    let make = |name: &str| {
        rustix::fs::mkdirat(&store, name, Mode::from_raw_mode(data.st_mode & 0o7777))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&store, name, flags, Mode::empty())
    };
    let upper = make("upper")?;
    let work = make("work")?;
    // The root of an overlay takes its owner and mode from the upper layer.
    rustix::fs::fchmod(&upper, Mode::from_raw_mode(data.st_mode & 0o7777))?;
    rustix::fs::fchown(
        &upper,
        Some(Uid::from_raw(data.st_uid)),
        Some(Gid::from_raw(data.st_gid)),
    )?;
    let [lower, upper, work] =
        [lower, &upper, &work].map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let mount = |options: String| -> io::Result<()> {
        let options = CString::new(options)?;
        Ok(rustix::mount::mount(
            "overlay",
            by_descriptor(&store),
            "overlay",
            flags,
            Some(options.as_c_str()),
        )?)
    };
    // In a user namespace, only `user.` attributes may be set. Before Linux 5.11 this option is
    // unknown.
    match mount(format!("{layers},userxattr")) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => mount(layers)?,
        mounted => mounted?,
    }
    above(spot, &store)
}

/// Opens the root of the new mount on `below` at `spot`.
fn above(spot: &Spot, below: &OwnedFd) -> io::Result<OwnedFd> {
    let root = spot.reopen()?;
    // If the mount is the same, another folder is in its place by now.
    if mount_id(&root)? == mount_id(below)? {
        Err(Errno::STALE.into())
    } else {
        Ok(root)
    }
}

/// Opens the `kept` paths in `home`, which is open as `opened`, and the mount points there, each
/// with what is mounted beneath it. Returns each path relative to the home, its descriptor, and how
/// to show it.
fn kept_paths(
    home: &Path,
    opened: &OwnedFd,
    kept: impl Iterator<Item = PathBuf>,
) -> io::Result<Vec<(PathBuf, OwnedFd, Shown)>> {
    let mounted = mount_table("/proc/self/mountinfo")?
        .into_iter()
        .map(|entry| (entry.place, Shown::ReadOnlyWithin));
    // A kept path counts as kept even if it is a mount point. Paths above come first.
    let all = mounted.chain(kept.map(|path| (path, Shown::AsItIs)));
    let places: BTreeMap<_, _> = all
        .filter(|(path, _)| path.starts_with(home) && path != home)
        .collect();
    let is_within = |path: &Path, shown: Shown| {
        let above = path.ancestors().skip(1).find_map(|above| places.get(above));
        above.is_some_and(|above| *above == shown)
    };
    let wanted = places
        .iter()
        .filter(|(path, shown)| !is_within(path, **shown));
    let mut found = Vec::new();
    for (path, shown) in wanted {
        let Ok(rest) = path.strip_prefix(home) else {
            continue;
        };
        match open_in(opened, rest) {
            Err(Errno::NOENT) => {}
            file => found.push((rest.to_owned(), file?, *shown)),
        }
    }
    Ok(found)
}
