//! Covers what no rule grants, in the sandbox's own mount namespace.
//!
//! Landlock speaks of opening, making and removing files. What it is silent about would stay within reach of whom file
//! modes allow it: sockets by path (before its ABI 9: a container engine's, the message bus, a name service), modes,
//! times and attributes of files, watches on folders. So every folder and socket that is neither granted nor on the way
//! to something granted is covered by an empty one that nobody may enter, and files that the workload could change. Granted
//! folders stay in the mounts that they are in, so that files move between them as before; of their sockets those are
//! covered that are there already in folders like /tmp, which everybody may write to: granting such a folder says
//! nothing about the services of others in it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::MountFlags;

/// Covers of one sandbox. A project in a home beside a few hundred other folders needs some hundreds; every one costs some
/// 20 us at start.
const MAX_MASKS: usize = 1024;

/// File systems of the kernel's own: no socket can be made there, and covering their hundreds of folders gains nothing.
/// proc, sysfs, cgroup, cgroup2, devpts, debugfs, tracefs, securityfs, bpf.
pub(crate) const KERNEL_FILE_SYSTEMS: &[u64] =
    &[0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x1cd1, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0xcafe_4a11];

/// Covers everything but `visible`, what lies beneath it, and the way there, from the user `uid`. To be called in a mount
/// namespace of its own, in the network namespace of the host's services. Returns what could not be covered, in words.
pub(crate) fn mask_all_but(visible: impl IntoIterator<Item = PathBuf>, uid: u32) -> Vec<String> {
    // Covers are laid by descriptor, which takes /proc.
    let visible: BTreeSet<_> = visible.into_iter().chain([PathBuf::from("/proc")]).collect();
    let mut unmasked = Vec::new();
    let mut found = Vec::new();
    for folder in ancestors_of(&visible) {
        match siblings(folder, &visible, uid) {
            Ok(entries) => found.extend(entries),
            Err(error) => unmasked.push(format!("{}: {error}", folder.display())),
        }
    }
    let (sockets, problem) = sockets_of_others(&visible, uid);
    found.extend(sockets);
    unmasked.extend(problem.map(|error| format!("sockets in shared folders: {error}")));
    // Where not all can be covered, what workloads can make comes last, so that none can use up the covers of what the host
    // has; among the rest sockets lead furthest.
    found.sort_by_key(|entry| {
        let rank = match entry.kind {
            FileType::Socket => 0,
            FileType::Directory => 1,
            _ => 2,
        };
        (entry.origin, rank)
    });
    // The first folder to be covered is where the empty one is mounted; the others show the same.
    if let Some(first) = found.iter().position(|entry| entry.kind == FileType::Directory) {
        found.swap(0, first);
    }
    let mut placeholders = None;
    for (index, Candidate { path, kind, .. }) in found.iter().enumerate() {
        if index == MAX_MASKS {
            let count = found.len() - MAX_MASKS;
            unmasked.push(format!("{count} more, from {} on: no more than {MAX_MASKS} are covered", path.display()));
            break;
        }
        if let Err(error) = mask_one(path, *kind, &mut placeholders) {
            unmasked.push(format!("{}: {error}", path.display()));
        }
    }
    unmasked
}

/// Makers of an entry, the more trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The host: no workload could have put it there.
    Host,
    /// A service that listens in the host's network, and belongs to another user.
    Service,
    /// Any user, workloads included.
    AnyUser,
}

/// An entry that has to be covered.
#[derive(Clone, Debug)]
struct Candidate {
    path: PathBuf,
    kind: FileType,
    origin: Origin,
}

/// Entries of shared folders that are looked at, and how deep: where programs keep their sockets. More of them is a problem.
const SHARED_ENTRIES: usize = 50_000;
const SHARED_DEPTH: usize = 3;

/// Entries that are looked at further down, the nearer first. Trees of files there are common, so more of them is no problem.
const DEEP_ENTRIES: usize = 2_000;

/// Sockets in folders that are granted and that everybody may write to: those that the host's network namespace knows of, and
/// those that are found there; with why there may be more of the latter.
fn sockets_of_others(visible: &BTreeSet<PathBuf>, uid: u32) -> (Vec<Candidate>, Option<io::Error>) {
    let is_shared = |folder: &Path| {
        std::fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir() && data.mode() & 0o1002 == 0o1002)
    };
    let shared: BTreeSet<_> = visible.iter().filter(|path| is_shared(path)).collect();
    let (bound, unknown) = match bound_sockets(visible, &shared) {
        Ok(bound) => (bound, None),
        Err(error) => (BTreeSet::new(), Some(error)),
    };
    let (mut all, unseen) = find_sockets(&shared, visible);
    let problem = unseen.or(unknown);
    let is_foreign = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|data| data.uid() != uid);
    let services: BTreeSet<_> = bound.iter().filter(|path| is_foreign(path)).cloned().collect();
    all.extend(bound);
    let found = |path: PathBuf| {
        let origin = if services.contains(&path) { Origin::Service } else { Origin::AnyUser };
        Candidate { path, kind: FileType::Socket, origin }
    };
    (all.into_iter().map(found).collect(), problem)
}

/// The sockets that are bound in the host's network namespace in one of the `shared` folders.
fn bound_sockets(visible: &BTreeSet<PathBuf>, shared: &BTreeSet<&PathBuf>) -> io::Result<BTreeSet<PathBuf>> {
    // Whatever follows the seventh field, which may be padded (unix(7)): a path may hold anything.
    let table = std::fs::read("/proc/self/net/unix")?;
    let bound = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let rest = line.splitn(7, |byte| *byte == b' ').nth(6)?.trim_ascii_start();
        rest.splitn(2, |byte| *byte == b' ').nth(1)
    });
    let bound = bound.map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path)));
    // The nearest that is granted says what the folder is: a folder inside may be listed, or the socket itself.
    let granted_by = |path: &Path| path.ancestors().find_map(|ancestor| visible.get(ancestor));
    let is_masked = |path: &PathBuf| granted_by(path).is_some_and(|by| by != path && shared.contains(by));
    let is_socket = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    Ok(bound.filter(is_masked).filter(is_socket).collect())
}

/// The sockets beneath the `shared` folders that are not listed by themselves or with their folder; with why there may be more.
fn find_sockets(shared: &BTreeSet<&PathBuf>, visible: &BTreeSet<PathBuf>) -> (BTreeSet<PathBuf>, Option<io::Error>) {
    let mut found = BTreeSet::new();
    let mut level: Vec<PathBuf> = shared.iter().map(|folder| folder.to_path_buf()).collect();
    let mut left = SHARED_ENTRIES;
    for depth in 1.. {
        if depth == SHARED_DEPTH + 1 {
            left = DEEP_ENTRIES;
        }
        let mut next = Vec::new();
        level.iter().for_each(|folder| find_in(folder, visible, &mut left, (&mut found, &mut next)));
        if left == 0 && depth <= SHARED_DEPTH {
            return (found, Some(io::Error::other(format!("more than {SHARED_ENTRIES} entries in them"))));
        }
        if left == 0 || next.is_empty() {
            break;
        }
        level = next;
    }
    (found, None)
}

/// Adds the sockets and the folders in `folder` that are not listed, of as many entries as are `left`.
fn find_in(
    folder: &Path,
    visible: &BTreeSet<PathBuf>,
    left: &mut usize,
    (sockets, folders): (&mut BTreeSet<PathBuf>, &mut Vec<PathBuf>),
) {
    if *left == 0 {
        return;
    }
    // What cannot be read by root is somebody's own file system, and out of reach to others.
    let Ok(entries) = open(folder, OFlags::RDONLY | OFlags::DIRECTORY).and_then(|folder| Dir::read_from(&folder))
    else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let path = folder.join(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
        if matches!(entry.file_name().to_bytes(), b"." | b"..") || visible.contains(&path) {
            continue;
        }
        match entry.file_type() {
            FileType::Socket => {
                sockets.insert(path);
            }
            FileType::Directory => folders.push(path),
            _ => {}
        }
    }
}

/// The folders that hold something visible and are not visible themselves.
fn ancestors_of(visible: &BTreeSet<PathBuf>) -> BTreeSet<&Path> {
    let is_visible = |path: &Path| path.ancestors().any(|ancestor| visible.contains(ancestor));
    let folders = visible.iter().flat_map(|path| path.ancestors().skip(1));
    folders.filter(|folder| !is_visible(folder)).collect()
}

/// What lies in `folder`, neither is visible nor leads there, and has to be covered.
fn siblings(folder: &Path, visible: &BTreeSet<PathBuf>, uid: u32) -> io::Result<Vec<Candidate>> {
    let opened = open(folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
    if KERNEL_FILE_SYSTEMS.contains(&rustix::fs::fstatfs(&opened)?.f_type.cast_unsigned()) {
        return Ok(Vec::new());
    }
    let data = rustix::fs::fstat(&opened)?;
    let origin = if data.st_uid == uid || data.st_mode & 0o002 != 0 { Origin::AnyUser } else { Origin::Host };
    let mut found = Vec::new();
    for entry in Dir::read_from(&opened)? {
        let entry = entry?;
        let name = entry.file_name();
        let path = folder.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        if matches!(name.to_bytes(), b"." | b"..") || visible.iter().any(|seen| seen.starts_with(&path)) {
            continue;
        }
        let (kind, is_changeable) = match rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(data) => {
                let is_changeable = data.st_uid == uid || data.st_mode & 0o002 != 0;
                (FileType::from_raw_mode(data.st_mode), is_changeable)
            }
            // It was removed meanwhile.
            Err(rustix::io::Errno::NOENT) => continue,
            // Somebody's own file system, say, which root may not look into: covered as what it may be.
            Err(_) => match entry.file_type() {
                FileType::Unknown => (FileType::Directory, true),
                kind => (kind, true),
            },
        };
        if matches!(kind, FileType::Directory | FileType::Socket) || (kind == FileType::RegularFile && is_changeable) {
            found.push(Candidate { path, kind, origin });
        }
    }
    Ok(found)
}

/// A folder and a file, empty and nobody's, to be seen in place of others.
struct PlaceholderMounts {
    folder: OwnedFd,
    file: OwnedFd,
}

fn mask_one(path: &Path, kind: FileType, placeholders: &mut Option<PlaceholderMounts>) -> io::Result<()> {
    let target = match open(path, OFlags::PATH) {
        // It was removed meanwhile.
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    match (placeholders, kind) {
        (Some(placeholders), FileType::Directory) => {
            rustix::mount::mount_bind(by_descriptor(&placeholders.folder), by_descriptor(&target))?
        }
        (Some(placeholders), _) => {
            rustix::mount::mount_bind(by_descriptor(&placeholders.file), by_descriptor(&target))?
        }
        (placeholders @ None, _) => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount(
                "openshell",
                by_descriptor(&target),
                "tmpfs",
                flags,
                Some(c"mode=000,size=4k,nr_inodes=4"),
            )?;
            let folder = open(path, OFlags::PATH | OFlags::DIRECTORY)?;
            let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, "covered", flags, Mode::empty())?;
            *placeholders = Some(PlaceholderMounts { folder, file });
        }
    }
    Ok(())
}

/// Opens without following a symlink, also on the way: who owns a folder could have put one there meanwhile.
fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn by_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use rustix::mount::{MountFlags, MountPropagationFlags};
    use rustix::process::{Gid, Uid};
    use rustix::thread::UnshareFlags;

    use super::mask_all_but;

    const UID: u32 = 61184;

    /// Runs `work` on a thread with mounts of its own, as a user who owns nothing, after `prepare` as root.
    fn apart<T: Send>(prepare: impl FnOnce() + Send, work: impl FnOnce() -> T + Send) -> T {
        let work = || {
            #[expect(deprecated, reason = "the objection is to a split descriptor table, which stays whole here")]
            rustix::thread::unshare(UnshareFlags::NEWNS).unwrap();
            let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
            rustix::mount::mount_change("/", private).unwrap();
            prepare();
            rustix::thread::set_thread_groups(&[]).unwrap();
            let nobody = (Uid::from_raw(UID), Gid::from_raw(UID));
            rustix::thread::set_thread_res_gid(nobody.1, nobody.1, nobody.1).unwrap();
            rustix::thread::set_thread_res_uid(nobody.0, nobody.0, nobody.0).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    fn open_to_all(path: &Path) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }

    /// A folder with `seen/file`, `hidden/socket`, and `socket`, all of them everybody's.
    fn tree() -> (tempfile::TempDir, [UnixListener; 2]) {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["seen", "hidden"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            open_to_all(&folder.path().join(name));
        }
        std::fs::write(folder.path().join("seen/file"), "x").unwrap();
        let sockets = ["hidden/socket", "socket"].map(|name| {
            let listener = UnixListener::bind(folder.path().join(name)).unwrap();
            open_to_all(&folder.path().join(name));
            listener
        });
        open_to_all(folder.path());
        (folder, sockets)
    }

    fn reached(folder: &Path) -> [bool; 3] {
        let connects = |name| UnixStream::connect(folder.join(name)).is_ok();
        [folder.join("seen/file").exists(), connects("hidden/socket"), connects("socket")]
    }

    #[test]
    fn what_is_not_granted_is_out_of_reach_and_the_rest_as_it_was() {
        let (folder, _sockets) = tree();
        let path = folder.path();
        let own = path.join("own");
        std::fs::write(&own, "").unwrap();
        std::os::unix::fs::chown(&own, Some(UID), None).unwrap();
        let touches = || std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600)).is_ok();
        assert_eq!(apart(|| (), || reached(path)), [true, true, true], "the twin without covers");
        assert!(apart(|| (), touches), "the twin without covers");
        let mask = |seen: &Path| assert_eq!(mask_all_but([seen.to_owned()], UID), Vec::<String>::new());
        assert!(!apart(|| mask(&path.join("seen")), touches));
        assert_eq!(apart(|| mask(&path.join("seen")), || reached(path)), [true, false, false]);
        assert_eq!(apart(|| mask(path), || reached(path)), [true, true, true], "beneath what is granted");
        assert_eq!(apart(|| mask(Path::new("/")), || reached(path)), [true, true, true]);
    }

    #[test]
    fn of_a_folder_that_everybody_may_write_to_the_sockets_of_others_are_covered() {
        let (folder, _sockets) = tree();
        let path = folder.path();
        let mask = |seen: &[&Path]| {
            let seen = seen.iter().map(|path| path.to_path_buf());
            assert_eq!(mask_all_but(seen, UID), Vec::<String>::new());
        };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(apart(|| mask(&[path]), || reached(path)), [true, false, false]);
        let listed = [path, &path.join("socket")];
        assert_eq!(apart(|| mask(&listed), || reached(path)), [true, false, true], "listed by itself");
        let listed = [path, &path.join("hidden")];
        assert_eq!(apart(|| mask(&listed), || reached(path)), [true, true, false], "with its folder");
    }

    #[test]
    fn what_workloads_left_takes_no_cover_from_what_the_host_has() {
        let (folder, _sockets) = tree();
        // The host's: no other user may make entries in it.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let shared = folder.path().join("seen/shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
        // Left by an earlier run: socket files without a listener.
        for n in 0..super::MAX_MASKS + 100 {
            drop(UnixListener::bind(shared.join(n.to_string())).unwrap());
        }
        let service = UnixListener::bind(shared.join("zzz-service")).unwrap();
        open_to_all(&shared.join("zzz-service"));
        let own_room = || rustix::mount::mount("test", "/mnt", "tmpfs", MountFlags::empty(), None).unwrap();
        let masked = || {
            own_room();
            let unmasked = mask_all_but([folder.path().join("seen"), shared.clone()], UID);
            assert_eq!(unmasked.len(), 1, "{unmasked:?}");
            assert!(unmasked[0].contains("no more than 1024"), "{unmasked:?}");
        };
        let path = folder.path();
        assert_eq!(apart(masked, || reached(path)), [true, false, false], "the host's folder and socket");
        let reaches = || UnixStream::connect(shared.join("zzz-service")).is_ok();
        assert!(apart(|| (), reaches), "the twin without covers");
        assert!(!apart(masked, reaches), "a service that listens comes before what was left");
        drop(service);
    }

    #[test]
    fn many_files_in_a_shared_folder_keep_no_service_there_uncovered() {
        let (folder, _sockets) = tree();
        let shared = folder.path().join("seen/shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
        for n in 0..super::SHARED_ENTRIES + 10 {
            std::fs::File::create(shared.join(n.to_string())).unwrap();
        }
        let _service = UnixListener::bind(shared.join("service")).unwrap();
        open_to_all(&shared.join("service"));
        let masked = || {
            let unmasked = mask_all_but([folder.path().join("seen"), shared.clone()], UID);
            assert!(unmasked.iter().any(|problem| problem.contains("more than 50000 entries")), "{unmasked:?}");
        };
        let reaches = || UnixStream::connect(shared.join("service")).is_ok();
        assert!(apart(|| (), reaches), "the twin without covers");
        assert!(!apart(masked, reaches));
    }

    #[test]
    fn a_socket_of_another_network_namespace_is_found_deep_in_a_shared_folder() {
        let (folder, _sockets) = tree();
        let shared = folder.path().join("seen/shared");
        let deep = shared.join("1/2/3/4/5");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let socket = deep.join("socket");
        let bind = || {
            #[expect(deprecated, reason = "the objection is to a split descriptor table, which stays whole here")]
            rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
            UnixListener::bind(&socket).unwrap()
        };
        let _service = std::thread::scope(|scope| scope.spawn(bind).join().unwrap());
        open_to_all(&socket);
        let masked =
            || assert_eq!(mask_all_but([folder.path().join("seen"), shared.clone()], UID), Vec::<String>::new());
        let reaches = || UnixStream::connect(&socket).is_ok();
        // Before anything connects from here: the kernel's table would then name the socket.
        assert!(!apart(masked, reaches));
        assert!(apart(|| (), reaches), "the twin without covers");
        // Many files, deeper still, are no reason not to start.
        for n in 0..super::DEEP_ENTRIES {
            std::fs::File::create(deep.join(n.to_string())).unwrap();
        }
        apart(masked, || ());
    }

    #[test]
    fn what_cannot_be_covered_is_named() {
        let (folder, _sockets) = tree();
        let path = folder.path();
        let many = path.join("many");
        for n in 0..super::MAX_MASKS + 10 {
            std::fs::create_dir_all(many.join(n.to_string())).unwrap();
        }
        let masked = || {
            // Room of its own, so that no folder of the machine counts.
            rustix::mount::mount("test", "/mnt", "tmpfs", MountFlags::empty(), None).unwrap();
            let unmasked = mask_all_but([many.join("0")], UID);
            assert_eq!(unmasked.len(), 1, "{unmasked:?}");
            assert!(unmasked[0].contains("no more than 1024"), "{unmasked:?}");
        };
        apart(masked, || ());
    }
}
