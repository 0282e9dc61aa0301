//! Finds where a path is in the sandbox, which has its own mounts.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::paths::mounts::by_descriptor;
use crate::sys::notify;

/// The greatest length of a path in bytes, with its NUL (PATH_MAX).
const PATH_BYTES: usize = 4096;

/// The largest number of symlinks that are followed one by one.
const LINKS: usize = 8;

/// The largest number of attempts to open a path with `..` in it.
const ATTEMPTS: usize = 16;

/// The smallest size of a page. A path is read page by page, because the next page may not exist.
const PAGE_BYTES: u64 = 4096;

/// Reads the path at `address` in the memory of `thread`.
pub(super) fn read_path(thread: i32, address: u64) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut at = address;
    while bytes.len() < PATH_BYTES {
        let left = usize::try_from(PAGE_BYTES - at % PAGE_BYTES).ok()?;
        let mut page = [0; PATH_BYTES];
        let page = page.get_mut(..left)?;
        let filled = notify::read_memory(thread, at, page).ok()?;
        let page = page.get(..filled)?;
        if let Some(end) = page.iter().position(|byte| *byte == 0) {
            bytes.extend(page.get(..end)?);
            return Some(PathBuf::from(OsStr::from_bytes(&bytes)))
                .filter(|path| !path.as_os_str().is_empty());
        }
        bytes.extend(page);
        at = at.checked_add(filled as u64).filter(|_| filled > 0)?;
    }
    None
}

/// Returns `path` as an absolute path. A relative path starts in the thread's working directory, or
/// in its open `folder`.
pub(super) fn absolute(thread: i32, folder: i32, path: PathBuf) -> Option<PathBuf> {
    // These names in /proc stand for the same tree.
    let by_root = ["/proc/self/root", "/proc/thread-self/root"]
        .iter()
        .find_map(|root| path.strip_prefix(root).ok());
    if let Some(rest) = by_root {
        return Some(Path::new("/").join(rest));
    }
    let by_cwd = path.strip_prefix("/proc/self/cwd").ok().map(Path::to_owned);
    if path.is_absolute() && by_cwd.is_none() {
        return Some(path);
    }
    let (folder, path) = match by_cwd {
        Some(rest) => (libc::AT_FDCWD, rest),
        None => (folder, path),
    };
    let base = match folder {
        libc::AT_FDCWD => format!("/proc/{thread}/cwd"),
        folder => format!("/proc/{thread}/fd/{folder}"),
    };
    let base = rustix::fs::readlink(base, Vec::new()).ok()?;
    Some(PathBuf::from(OsString::from_vec(base.into_bytes())).join(path))
        .filter(|path| path.is_absolute())
}

/// Returns `path` without `..`, as if no part of it were a symlink.
pub(super) fn normalized(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normalized.push(name),
            Component::ParentDir => drop(normalized.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normalized
}

/// The sandbox's root. All of its processes share it, because none may change it.
#[derive(Debug, Default)]
pub(super) struct Root(OnceLock<OwnedFd>);

/// A file or folder of the sandbox.
pub(super) struct Found {
    pub(super) fd: OwnedFd,
    /// The path in the sandbox, without symlinks.
    pub(super) path: PathBuf,
    /// The symlink that led to the file, if the last part of the name is one.
    pub(super) link: Option<PathBuf>,
}

impl Root {
    /// Returns the root that `thread` has.
    fn of(&self, thread: i32) -> rustix::io::Result<&OwnedFd> {
        if let Some(root) = self.0.get() {
            return Ok(root);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{thread}/root"), flags, Mode::empty())?;
        Ok(self.0.get_or_init(|| root))
    }

    /// Opens `path` as `thread` sees it, only to look at it.
    ///
    /// # Errors
    /// Fails if the file does not exist, or cannot be reached.
    pub(super) fn find(
        &self,
        thread: i32,
        path: &Path,
        is_followed: bool,
    ) -> rustix::io::Result<Found> {
        let root = self.of(thread)?;
        // If no symlink is on the way, the path is the real one already.
        match open_in(root, path, OFlags::NOFOLLOW, ResolveFlags::NO_SYMLINKS) {
            Ok(fd) if !is_followed || kind(&fd)? != FileType::Symlink => {
                return Ok(Found {
                    fd,
                    path: normalized(path),
                    link: None,
                });
            }
            Ok(_) | Err(Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
        let flags = if is_followed {
            OFlags::empty()
        } else {
            OFlags::NOFOLLOW
        };
        let fd = open_in(root, path, flags, ResolveFlags::empty())?;
        let real = rustix::fs::readlink(by_descriptor(&fd), Vec::new())?;
        let real = PathBuf::from(OsString::from_vec(real.into_bytes()));
        if !real.is_absolute() {
            return Err(Errno::NOENT);
        }
        let folder = path
            .parent()
            .and_then(|folder| self.find(thread, folder, true).ok());
        let link = folder
            .zip(path.file_name())
            .map(|(folder, name)| folder.path.join(name));
        Ok(Found {
            fd,
            link: link.filter(|link| *link != real),
            path: real,
        })
    }

    /// Returns the place that `path`, which `thread` does not see, would have in a stand-in folder;
    /// `None` if it would be in none. Does not look at the host, because that could mount what the
    /// workload names.
    pub(super) fn masked(
        &self,
        thread: i32,
        path: &Path,
        is_followed: bool,
        is_stand_in: impl Fn(&OwnedFd) -> bool,
    ) -> Option<PathBuf> {
        let mut path = path.to_owned();
        for _ in 0..LINKS {
            let existing = path
                .ancestors()
                .skip(1)
                .find_map(|folder| Some((folder, self.find(thread, folder, true).ok()?)));
            let (folder, found) = existing?;
            let place = found.path.join(path.strip_prefix(folder).ok()?);
            if is_stand_in(&found.fd) {
                return Some(normalized(&place));
            }
            // A symlink may lead to a stand-in.
            let link = self
                .find(thread, &path, false)
                .ok()
                .filter(|_| is_followed)?;
            let target = rustix::fs::readlinkat(&link.fd, "", Vec::new()).ok()?;
            path = link
                .path
                .parent()?
                .join(OsStr::from_bytes(target.to_bytes()));
        }
        None
    }
}

/// Opens `path` below `root` only to look at it.
fn open_in(
    root: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | resolve;
    let open = || rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve);
    for _ in 0..ATTEMPTS {
        // A `..` fails like this while something is renamed or mounted anywhere (openat2(2)).
        match open() {
            Err(Errno::AGAIN) => {}
            opened => return opened,
        }
    }
    open()
}

/// The number of bytes of a program in which the kernel looks for an interpreter (BINPRM_BUF_SIZE).
const FIRST_BYTES: usize = 256;

/// Returns the interpreter that a script names in its first line (execve(2)).
pub(super) fn interpreter(program: &OwnedFd) -> Option<PathBuf> {
    if kind(program) != Ok(FileType::RegularFile) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(by_descriptor(program), flags, Mode::empty()).ok()?;
    let mut bytes = [0; FIRST_BYTES];
    let filled = rustix::io::read(&file, &mut bytes).ok()?;
    let line = bytes
        .get(..filled)?
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let path = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    Some(PathBuf::from(OsStr::from_bytes(path))).filter(|path| path.is_absolute())
}

/// Returns the kind of an open file.
pub(super) fn kind(fd: &OwnedFd) -> rustix::io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}
