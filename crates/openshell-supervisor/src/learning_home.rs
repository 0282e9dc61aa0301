//! The home of an observed run: it shows the user's files, and what the command writes there stays in the sandbox and ends with it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, StatVfsMountFlags, Uid};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::mounts::{Shown, bind_at, by_descriptor, mount_table};
use crate::trusted_symlinks::open;

/// Mounts an overlay of at most `bytes` over `home`. The `kept` paths in it stay the host's, and what is mounted there may only be read.
///
/// # Errors
/// The home cannot be opened, or the kernel refuses a mount: its file system may not serve as a lower layer.
pub(crate) fn mount(home: &Path, kept: impl Iterator<Item = PathBuf>, bytes: u64) -> io::Result<()> {
    let lower = open(home, OFlags::PATH | OFlags::DIRECTORY)?;
    let kept = kept_paths(home, kept)?;
    let is_noexec = rustix::fs::fstatvfs(&lower)?.f_flag.contains(StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC));
    let data = rustix::fs::fstat(&lower)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let flags = if is_noexec { flags | MountFlags::NOEXEC } else { flags };
    let size = CString::new(format!("mode=700,size={bytes},nr_inodes=1m"))?;
    rustix::mount::mount("openshell", by_descriptor(&lower), "tmpfs", flags, Some(size.as_c_str()))?;
    let mounted = overlay(home, &lower, &data, flags);
    let mounted = mounted.and_then(|()| kept.iter().try_for_each(|(path, fd, shown)| bind_at(fd, path, *shown)));
    mounted.inspect_err(|_| {
        // The host's home is in sight again.
        while open(home, OFlags::PATH).is_ok_and(|top| !is_same(&top, &lower))
            && rustix::mount::unmount(home, rustix::mount::UnmountFlags::DETACH).is_ok()
        {}
    })
}

/// Mounts the overlay on the tmpfs that holds its upper layer.
fn overlay(home: &Path, lower: &OwnedFd, data: &rustix::fs::Stat, flags: MountFlags) -> io::Result<()> {
    let store = open(home, OFlags::PATH | OFlags::DIRECTORY)?;
    let make = |name: &str| {
        rustix::fs::mkdirat(&store, name, Mode::from_raw_mode(data.st_mode & 0o7777))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&store, name, flags, Mode::empty())
    };
    let (upper, work) = (make("upper")?, make("work")?);
    // The root of an overlay has the owner and mode of its upper layer.
    rustix::fs::fchmod(&upper, Mode::from_raw_mode(data.st_mode & 0o7777))?;
    rustix::fs::fchown(&upper, Some(Uid::from_raw(data.st_uid)), Some(Gid::from_raw(data.st_gid)))?;
    let [lower, upper, work] = [lower, &upper, &work].map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let mount = |options: String| -> io::Result<()> {
        let options = CString::new(options)?;
        Ok(rustix::mount::mount("overlay", by_descriptor(&store), "overlay", flags, Some(options.as_c_str()))?)
    };
    // In a user namespace no other attributes may be set; before Linux 5.11 the option is unknown.
    match mount(format!("{layers},userxattr")) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => mount(layers),
        mounted => mounted,
    }
}

/// Opens the `kept` paths in `home` and the mount points there, each with what is mounted beneath it, and tells how to show them.
fn kept_paths(home: &Path, kept: impl Iterator<Item = PathBuf>) -> io::Result<Vec<(PathBuf, OwnedFd, Shown)>> {
    let mounted = mount_table("/proc/self/mountinfo")?.into_iter().map(|entry| (entry.place, Shown::ReadOnlyWithin));
    // A kept path counts as such, whether it is a mount point or not; those above come first.
    let all = mounted.chain(kept.map(|path| (path, Shown::AsItIs)));
    let places: BTreeMap<_, _> = all.filter(|(path, _)| path.starts_with(home) && path != home).collect();
    let is_within = |path: &Path, shown: Shown| {
        let above = path.ancestors().skip(1).find_map(|above| places.get(above));
        above.is_some_and(|above| *above == shown)
    };
    let wanted = places.iter().filter(|(path, shown)| !is_within(path, **shown));
    let opened = wanted.map(|(path, shown)| (path, open(path, OFlags::PATH), *shown));
    let opened = opened.filter(|(_, opened, _)| !matches!(opened, Err(Errno::NOENT)));
    opened.map(|(path, opened, shown)| Ok((path.clone(), opened?, shown))).collect()
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let number = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|data| (data.st_dev, data.st_ino)).ok();
    number(one) == number(other)
}
