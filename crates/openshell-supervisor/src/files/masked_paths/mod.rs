//! Masked paths: hides what no rule grants, in the sandbox's own mount namespace.
//!
//! Landlock restricts opening, creating and removing files. It does not restrict connecting to
//! sockets by path before its ABI 9 (those of a container engine, the message bus, a name service).
//! It also does not restrict changes to the modes, times and attributes of files, or watches on
//! folders. So every folder and socket beside a granted path or its ancestors is masked, and so is
//! every file there that the workload could change. A folder is masked by an empty read-only
//! folder, in which a name is missing as in any empty folder; the rest by an empty file that nobody
//! may open. Granted folders stay in their mounts, so that files can still be moved between them.
//! Within them, only sockets that already exist in shared folders such as /tmp are masked, because
//! granting such a folder does not grant the services of other users in it.

mod shared_sockets;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::paths::mounts::{Spot, bind_as_it_is, by_descriptor, mount_id, open_in};
use crate::paths::trusted_symlinks::open;
use shared_sockets::SharedSockets;

/// The largest number of masks per sandbox. A project in a home directory with a few hundred other
/// folders needs a few hundred; each costs about 20 µs at start.
const MAX_MASKS: usize = 1024;

/// The magic numbers (statfs(2)) of the kernel's file systems, which are not masked: no socket can
/// be created there, and they have many folders. They are proc, sysfs, cgroup, cgroup2, devpts,
/// debugfs, tracefs, securityfs, bpf.
pub(crate) const KERNEL_FILE_SYSTEMS: &[u64] = &[
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x1cd1,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
];

/// The magic number (statfs(2)) of tmpfs.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The mode of what is mounted in place of a folder: everybody may list it, and find that a name is
/// missing.
const EMPTY_MODE: Mode = Mode::from_raw_mode(0o555);

/// How often folders that others may change are searched, to find entries that were absent for a
/// moment.
const SEARCHES: usize = 3;

/// The outcome of masking.
#[derive(Debug, Default)]
pub(crate) struct Masked {
    /// Descriptions of the paths that could not be masked.
    pub(crate) unmasked: Vec<String>,
    /// The folder that is mounted in place of each masked folder; `None` if no folder is masked.
    pub(crate) folder: Option<OwnedFd>,
}

/// Returns what is to be masked of what shared folders hold.
fn candidates(sockets: SharedSockets) -> impl Iterator<Item = Candidate> {
    let candidate = |kind, origin| {
        move |path| Candidate {
            folder: None,
            path,
            kind,
            origin,
        }
    };
    let services = sockets.services.into_iter();
    let others = sockets.others.into_iter();
    let closed = sockets.closed.into_iter();
    services
        .map(candidate(FileType::Socket, Origin::Service))
        .chain(others.map(candidate(FileType::Socket, Origin::AnyUser)))
        .chain(closed.map(candidate(FileType::Directory, Origin::AnyUser)))
}

/// Masks everything except the paths of `visible`, their contents and their ancestors. In the
/// visible folders of `without_services`, the sockets of services are masked too. `uid` is the
/// workload's user. Call this in a private mount namespace, and in the network namespace of the
/// host's services.
pub(crate) fn mask_all_but(
    visible: impl IntoIterator<Item = PathBuf>,
    without_services: &BTreeSet<PathBuf>,
    uid: u32,
) -> Masked {
    // The first mount, and in some containers every mount, is made through /proc/self/fd.
    let visible: BTreeSet<_> = visible
        .into_iter()
        .chain([PathBuf::from("/proc")])
        .collect();
    let prefixes: BTreeSet<_> = visible.iter().map(|path| prefix(path)).collect();
    let mut masks = Masks::default();
    let mut found = Vec::new();
    let mut changeable = Vec::new();
    for folder in ancestors_of(&visible) {
        match siblings(folder, &prefixes, uid) {
            Ok((origin, entries)) => {
                found.extend(entries);
                if origin == Origin::AnyUser {
                    changeable.push(folder);
                }
            }
            Err(error) => masks.report(folder, &error),
        }
    }
    let mut sockets = shared_sockets::find(&visible, without_services, uid);
    if let Some(error) = sockets.incomplete.take() {
        let what = format!("sockets in shared folders: {error}");
        masks.unmasked.push(what);
    }
    found.extend(candidates(sockets));
    masks.add(found);
    for _ in 1..SEARCHES {
        let mut found = Vec::new();
        for folder in &changeable {
            match siblings(folder, &prefixes, uid) {
                Ok((_, entries)) => found.extend(entries),
                Err(error) => masks.report(folder, &error),
            }
        }
        found.retain(|entry| !masks.known.contains(&entry.path));
        if found.is_empty() {
            break;
        }
        masks.add(found);
    }
    Masked {
        unmasked: masks.unmasked,
        folder: masks.placeholders.map(|placeholders| placeholders.folder),
    }
}

/// The masks that were made.
#[derive(Debug, Default)]
struct Masks {
    placeholders: Option<PlaceholderMounts>,
    /// The paths that are masked, or reported as not masked.
    known: BTreeSet<PathBuf>,
    /// Descriptions of what could not be masked.
    unmasked: Vec<String>,
}

impl Masks {
    /// Masks what was `found`, up to the limit.
    fn add(&mut self, mut found: Vec<Candidate>) {
        // The number of masks is limited. Entries that workloads can create come last, so that they
        // cannot use up the masks for the host's entries. Among the rest sockets come first,
        // because they lead furthest.
        found.sort_by_key(|entry| {
            let rank = match entry.kind {
                FileType::Socket => 0,
                FileType::Directory => 1,
                _ => 2,
            };
            (entry.origin, rank)
        });
        // The placeholders are mounted on the first masked folder, and bind-mounted from there on
        // all other paths.
        if let Some(first) = found
            .iter()
            .position(|entry| entry.kind == FileType::Directory)
        {
            found.swap(0, first);
        }
        for (index, candidate) in found.iter().enumerate() {
            let path = &candidate.path;
            if self.known.len() >= MAX_MASKS {
                let count = found.len() - index;
                let message = format!(
                    "{count} more, from {} on: no more than {MAX_MASKS} are covered",
                    path.display()
                );
                self.unmasked.push(message);
                self.known
                    .extend(found.iter().map(|entry| entry.path.clone()));
                return;
            }
            match mask_one(candidate, &mut self.placeholders) {
                Ok(()) => {
                    self.known.insert(path.clone());
                }
                Err(error) => self.report(path, &error),
            }
        }
    }

    /// Records what could not be masked. Folders of other users come and go, and one that is gone
    /// needs no mask.
    fn report(&mut self, path: &Path, error: &io::Error) {
        let is_gone = error.kind() == io::ErrorKind::NotFound
            || path
                .symlink_metadata()
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if !is_gone && self.known.insert(path.to_owned()) {
            self.unmasked.push(format!("{}: {error}", path.display()));
        }
    }
}

/// The creator of an entry, the most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The host: no workload can create entries there.
    Host,
    /// A service of another user that listens in the host's network namespace.
    Service,
    /// Any user, workloads included.
    AnyUser,
}

/// An entry to be masked.
#[derive(Clone, Debug)]
struct Candidate {
    /// The open folder in which it was found, if there is one.
    folder: Option<Rc<OwnedFd>>,
    path: PathBuf,
    kind: FileType,
    origin: Origin,
}

/// Returns the folders that hold visible paths and are not visible themselves.
fn ancestors_of(visible: &BTreeSet<PathBuf>) -> BTreeSet<&Path> {
    let is_visible = |path: &Path| path.ancestors().any(|ancestor| visible.contains(ancestor));
    let folders = visible.iter().flat_map(|path| path.ancestors().skip(1));
    folders.filter(|folder| !is_visible(folder)).collect()
}

/// Returns the entries of `folder`, an ancestor of visible paths, that have to be masked and are
/// neither visible nor ancestors; also returns who may create entries there.
fn siblings(
    folder: &Path,
    visible: &BTreeSet<Vec<u8>>,
    uid: u32,
) -> io::Result<(Origin, Vec<Candidate>)> {
    let opened = open(folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
    if KERNEL_FILE_SYSTEMS.contains(&rustix::fs::fstatfs(&opened)?.f_type.cast_unsigned()) {
        return Ok((Origin::Host, Vec::new()));
    }
    let data = rustix::fs::fstat(&opened)?;
    let origin = if data.st_uid == uid || data.st_mode & 0o002 != 0 {
        Origin::AnyUser
    } else {
        Origin::Host
    };
    let mut found = Vec::new();
    let parent = Rc::new(opened);
    let mut entries = Dir::read_from(&parent)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        let path = folder.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        if matches!(name.to_bytes(), b"." | b"..") || leads_to_visible(&path, visible) {
            continue;
        }
        let (kind, is_changeable) = match entry.file_type() {
            kind @ (FileType::Directory | FileType::Socket) => (kind, false),
            kind @ (FileType::RegularFile | FileType::Unknown) => {
                match rustix::fs::statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(data) => {
                        let is_changeable = data.st_uid == uid || data.st_mode & 0o002 != 0;
                        (FileType::from_raw_mode(data.st_mode), is_changeable)
                    }
                    // The entry was removed meanwhile.
                    Err(Errno::NOENT) => continue,
                    // The entry is closed even to root, as a user's FUSE mount is.
                    Err(_) if kind == FileType::Unknown => (FileType::Directory, true),
                    Err(_) => (kind, true),
                }
            }
            _ => continue,
        };
        if matches!(kind, FileType::Directory | FileType::Socket)
            || (kind == FileType::RegularFile && is_changeable)
        {
            found.push(Candidate {
                folder: Some(Rc::clone(&parent)),
                path,
                kind,
                origin,
            });
        }
    }
    Ok((origin, found))
}

/// Returns the bytes with which `path` and everything beneath it begin, if a slash is appended to
/// each. Comparing paths by their components would take longer.
fn prefix(path: &Path) -> Vec<u8> {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    if !bytes.ends_with(b"/") {
        bytes.push(b'/');
    }
    bytes
}

/// Returns true if `path` is visible or an ancestor of a visible path; `visible` has the [`prefix`]
/// of each visible path.
fn leads_to_visible(path: &Path, visible: &BTreeSet<Vec<u8>>) -> bool {
    let prefix = prefix(path);
    visible
        .range(prefix.clone()..)
        .next()
        .is_some_and(|next| next.starts_with(&prefix))
}

/// The file and the folder that are mounted in place of masked paths, on a tmpfs.
#[derive(Debug)]
struct PlaceholderMounts {
    /// An empty folder that everybody may list.
    folder: OwnedFd,
    /// An empty file of mode 000.
    file: OwnedFd,
}

impl PlaceholderMounts {
    /// Creates both, and mounts the folder at `spot`. The file lies beside the folder on the tmpfs,
    /// where nobody inside can reach it.
    fn make(spot: &Spot) -> io::Result<Self> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let options = Some(c"mode=000,size=4k,nr_inodes=4");
        let below = mount_id(&spot.file)?;
        rustix::mount::mount(
            "openshell",
            by_descriptor(&spot.file),
            "tmpfs",
            flags,
            options,
        )?;
        let root = spot.reopen()?;
        // Something else may have been put in its place; nothing must be created there.
        if mount_id(&root)? == below || rustix::fs::fstatfs(&root)?.f_type != TMPFS_MAGIC {
            return Err(Errno::STALE.into());
        }
        let create = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&root, "file", create, Mode::empty())?;
        rustix::fs::mkdirat(&root, "folder", Mode::empty())?;
        let folder = rustix::fs::openat(
            &root,
            "folder",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // The mode must not depend on the caller's umask.
        rustix::fs::fchmod(&folder, EMPTY_MODE)?;
        // In a user namespace the caller owns them and could change their modes.
        rustix::mount::mount_remount(
            by_descriptor(&root),
            flags | MountFlags::RDONLY | MountFlags::BIND,
            c"",
        )?;
        bind_as_it_is(&folder, &root)?;
        Ok(Self { folder, file })
    }
}

/// Masks a path. The first call, which must be for a folder, creates the placeholders.
fn mask_one(candidate: &Candidate, placeholders: &mut Option<PlaceholderMounts>) -> io::Result<()> {
    let Candidate {
        folder, path, kind, ..
    } = candidate;
    let Some(placeholders) = placeholders else {
        *placeholders = Some(PlaceholderMounts::make(&Spot::at(path)?)?);
        return Ok(());
    };
    let target = match (folder, path.file_name()) {
        (Some(folder), Some(name)) => open_in(folder, name)?,
        _ => open(path, OFlags::PATH)?,
    };
    let cover = if *kind == FileType::Directory {
        &placeholders.folder
    } else {
        &placeholders.file
    };
    bind_as_it_is(cover, &target)
}

#[cfg(test)]
mod tests;
