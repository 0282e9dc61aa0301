//! The receiving half of a copy.
//!
//! Everything is created relative to an open folder, one component at a time, and no symlink on the
//! way is followed. Whatever is in the place of an entry is replaced, never written through.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use openshell_supervisor::files::filesystem::NewFolder;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawMode, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::outcome::{DEPTH, LeftOut, TransferError};

/// Permission bits that are kept; set-user-id, set-group-id and sticky are not.
const PERMISSIONS: u32 = 0o777;

/// Which symlinks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Only those that lead to a place within the copied tree, whatever exists there.
    Within,
    /// All.
    All,
}

/// What a receiver accepts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which symlinks are taken.
    pub links: Links,
    /// True if hooks of git repositories, which git would run, are taken too.
    pub git_hooks: bool,
    /// True if the path to the destination may contain symlinks.
    pub follows_links: bool,
}

/// Writes the file or tree of `input` into the folder `destination` under `name`, or as
/// `destination` if there is no such folder. The name that the stream gives to the tree is ignored.
///
/// # Errors
/// Fails if `destination` cannot be written to, or if `input` is not such a stream.
pub fn unpack(
    input: impl Read,
    destination: &Path,
    name: &OsStr,
    options: Options,
) -> Result<LeftOut, TransferError> {
    let (base, name) = place(destination, name, options)?;
    if components(Path::new(&name)).is_none_or(|names| names.len() != 1) {
        return Err(TransferError::NoName(PathBuf::from(name)));
    }
    let mut unpacker = Unpacker {
        base,
        name,
        root: None,
        options,
        open: Vec::new(),
        left_out: LeftOut::default(),
    };
    // The format does not bound the length of names.
    let budget = Cell::new(HEAD_BYTES);
    let mut archive = Archive::new(Metered {
        input,
        left: &budget,
    });
    let stream = |source| TransferError::Stream { source };
    let mut is_empty = true;
    for entry in archive.entries().map_err(stream)? {
        is_empty = false;
        let mut entry = entry.map_err(stream)?;
        budget.set(u64::MAX);
        unpacker.take(&mut entry)?;
        // If the entry was left out, its content is still in the stream.
        io::copy(&mut entry, &mut io::sink()).map_err(stream)?;
        budget.set(HEAD_BYTES);
    }
    unpacker.close_to(0);
    // The other half has said why it sent nothing.
    if is_empty {
        Err(stream(io::ErrorKind::UnexpectedEof.into()))
    } else {
        Ok(unpacker.left_out)
    }
}

/// Opens the folder into which a tree is written; returns it together with the tree's name in it.
fn place(
    destination: &Path,
    name: &OsStr,
    options: Options,
) -> Result<(OwnedFd, OsString), TransferError> {
    let open = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = if options.follows_links {
            ResolveFlags::empty()
        } else {
            ResolveFlags::NO_SYMLINKS
        };
        rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
    };
    match open(destination) {
        Ok(folder) => Ok((folder, name.to_owned())),
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let name = destination
                .file_name()
                .ok_or_else(|| TransferError::NoName(destination.to_owned()))?;
            let parent = destination
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let folder = open(parent.unwrap_or(Path::new(".")));
            let folder = folder.map_err(|errno| not_opened(destination, errno))?;
            Ok((folder, name.to_owned()))
        }
        Err(errno) => Err(not_opened(destination, errno)),
    }
}

/// Returns the error for a `destination` that cannot be opened because of `errno`.
fn not_opened(destination: &Path, errno: Errno) -> TransferError {
    let path = destination.to_owned();
    // There is a symlink on the way, which a command may have made.
    if errno == Errno::LOOP {
        let target = std::fs::canonicalize(destination).unwrap_or_else(|_| path.clone());
        return TransferError::Symlink { path, target };
    }
    TransferError::Write {
        path,
        source: errno.into(),
    }
}

/// Most bytes of a stream between the contents of two files: headers, long names, padding.
const HEAD_BYTES: u64 = 256 * 1024;

/// A stream from which only a bounded number of bytes may be read.
struct Metered<'m, R> {
    input: R,
    left: &'m Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        match self.left.get().checked_sub(count as u64) {
            Some(left) => self.left.set(left),
            None => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the name of a file is too long",
                ));
            }
        }
        Ok(count)
    }
}

/// An open folder, into which entries are written.
struct Folder {
    name: OsString,
    fd: OwnedFd,
    /// Permissions and modification time to set when it is closed, if it is new.
    at_end: Option<(u32, u64)>,
}

struct Unpacker {
    base: OwnedFd,
    /// The name that the tree gets.
    name: OsString,
    /// The tree's name in the stream, once there was an entry.
    root: Option<OsString>,
    options: Options,
    /// The open folders on the way to the last entry.
    open: Vec<Folder>,
    left_out: LeftOut,
}

impl Unpacker {
    /// Takes an entry; leaves it out if it cannot be written.
    ///
    /// # Errors
    /// Fails if the stream breaks off.
    fn take(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), TransferError> {
        let path = entry
            .path()
            .map(|path| path.into_owned())
            .unwrap_or_default();
        let Some(mut names) = components(&path) else {
            self.left_out.fail(&path, "its path leads out of the copy");
            return Ok(());
        };
        if let Some(first) = names.first_mut() {
            if *self.root.get_or_insert_with(|| first.clone()) != *first {
                self.left_out.fail(&path, "it is not part of the tree");
                return Ok(());
            }
            first.clone_from(&self.name);
        }
        if names.len() > DEPTH {
            self.left_out.fail(&path, "it is too deep");
            return Ok(());
        }
        let kind = entry.header().entry_type();
        if !self.options.git_hooks
            && let Some(reason) = self.would_git_run(&names, kind)
        {
            // The folder itself does no harm, so it is not reported.
            if kind != EntryType::Directory {
                self.left_out
                    .add(&path, format_args!("{reason}; copy it with --git-hooks"));
            }
            return Ok(());
        }
        match self.write(&names, entry) {
            Ok(()) => Ok(()),
            Err(Failed::Stream(source)) => Err(TransferError::Stream { source }),
            Err(Failed::LeftOut(reason)) => {
                self.left_out.add(&path, reason);
                Ok(())
            }
            Err(Failed::Write(error)) => {
                self.left_out.fail(&path, error);
                Ok(())
            }
        }
    }

    fn write(
        &mut self,
        names: &[OsString],
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), Failed> {
        let Some((name, folders)) = names.split_last() else {
            return Ok(());
        };
        let mode = entry.header().mode().unwrap_or(0o600) & PERMISSIONS;
        let time = entry.header().mtime().unwrap_or_default();
        self.enter(folders)?;
        match entry.header().entry_type() {
            EntryType::Directory => self.push(name, Some((mode, time))),
            EntryType::Regular => write_file(self.folder(), name, entry, mode, time),
            EntryType::Symlink => {
                let target = entry
                    .link_name()
                    .ok()
                    .flatten()
                    .ok_or(Failed::LeftOut("a link without a target"))?;
                // The root of the copied tree is the first component.
                let depth = folders.len().saturating_sub(1);
                if self.options.links == Links::Within
                    && (folders.is_empty() || !stays_within(&target, depth))
                {
                    return Err(Failed::LeftOut("the link leads out of the copy"));
                }
                replace(self.folder(), name, |temporary| {
                    rustix::fs::symlinkat(&*target, self.folder(), temporary)
                })
            }
            _ => Err(Failed::LeftOut(
                "it is neither a file nor a folder nor a symlink",
            )),
        }
    }

    /// Returns the reason if git would run what is at `names`, or would follow it to something that
    /// it runs: hooks of a repository, and a symlink or file in the place of a `.git`
    /// (gitrepository-layout(5)). Letter case is ignored because some file systems ignore it.
    fn would_git_run(&self, names: &[OsString], kind: EntryType) -> Option<&'static str> {
        let is = |name: &OsString, what: &str| name.eq_ignore_ascii_case(what);
        let mut in_git = false;
        for (depth, name) in names.iter().enumerate() {
            let folder = || names.iter().take(depth).collect::<PathBuf>();
            if is(name, "hooks") && (in_git || self.is_repository(&folder())) {
                return Some("git would run it");
            }
            in_git |= is(name, ".git");
        }
        let (name, folders) = names.split_last()?;
        if is(name, ".git") && kind != EntryType::Directory {
            return Some("git would run what it leads to");
        }
        // The stream decides the order: hooks may come before the entry that makes their folder a
        // repository.
        let folder: PathBuf = folders.iter().collect();
        let completes = is(name, "HEAD")
            || is(name, "objects") && self.has(&folder, "refs")
            || is(name, "refs") && self.has(&folder, "objects");
        let brings_hooks = completes && !in_git && self.has(&folder, "hooks");
        brings_hooks.then_some("git would run the hooks beside it")
    }

    /// Returns true if hooks in `folder` below the base could belong to a repository. A `HEAD` is
    /// not required, because hooks of linked worktrees have none beside them.
    fn is_repository(&self, folder: &Path) -> bool {
        self.has(folder, "HEAD") || self.has(folder, "objects") && self.has(folder, "refs")
    }

    /// Returns false only if `folder` below the base certainly has no `name`.
    fn has(&self, folder: &Path, name: &str) -> bool {
        let path = Path::new(".").join(folder).join(name);
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat2(&self.base, &path, flags, Mode::empty(), resolve);
        !matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
    }

    /// Returns the folder for the next entry.
    fn folder(&self) -> BorrowedFd<'_> {
        self.open
            .last()
            .map_or(self.base.as_fd(), |folder| folder.fd.as_fd())
    }

    /// Opens the folders `names`, and closes all others.
    fn enter(&mut self, names: &[OsString]) -> Result<(), Failed> {
        let shared = self
            .open
            .iter()
            .zip(names)
            .take_while(|(folder, name)| folder.name == **name)
            .count();
        self.close_to(shared);
        names
            .iter()
            .skip(shared)
            .try_for_each(|name| self.push(name, None))
    }

    /// Opens a folder in the last one; creates it if it does not exist.
    fn push(&mut self, name: &OsStr, at_end: Option<(u32, u64)>) -> Result<(), Failed> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (fd, made) = match NewFolder::make(self.folder(), name, Mode::RWXU.bits()) {
            Ok(fd) => (fd, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match rustix::fs::openat(self.folder(), name, flags, Mode::empty()) {
                    Ok(fd) => (fd, false),
                    Err(Errno::LOOP | Errno::NOTDIR) => {
                        return Err(Failed::Write(io::Error::other(
                            "something other than a folder is in its place",
                        )));
                    }
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(error) => return Err(Failed::Write(error)),
        };
        // A new folder without an entry of its own gets the usual permissions.
        let at_end = made.then(|| at_end.unwrap_or((0o755, 0)));
        self.open.push(Folder {
            name: name.to_owned(),
            fd,
            at_end,
        });
        Ok(())
    }

    /// Closes all folders except the first `count`.
    fn close_to(&mut self, count: usize) {
        while self.open.len() > count {
            let Some(Folder { name, fd, at_end }) = self.open.pop() else {
                return;
            };
            let Some((mode, time)) = at_end else { continue };
            let done =
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode as RawMode)).and_then(|()| {
                    // If the entry has no time, the folder keeps the current one.
                    if time == 0 {
                        Ok(())
                    } else {
                        rustix::fs::futimens(&fd, &times(time))
                    }
                });
            if let Err(errno) = done {
                self.left_out.fail(Path::new(&name), io::Error::from(errno));
            }
        }
    }
}

enum Failed {
    /// The entry was not taken, for this reason.
    LeftOut(&'static str),
    Write(io::Error),
    Stream(io::Error),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Write(errno.into())
    }
}

/// Writes a file under a temporary name, and then moves it to its place.
fn write_file(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    content: &mut Entry<'_, impl Read>,
    mode: u32,
    time: u64,
) -> Result<(), Failed> {
    let mut broken = None;
    let size = content.size();
    let written = replace(folder, name, |temporary| {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(
            folder,
            temporary,
            flags,
            Mode::RUSR | Mode::WUSR,
        )?);
        if let Err(error) = copy(content, size, &mut file) {
            return match error {
                Copying::Read(error) => {
                    broken = Some(error);
                    Err(Errno::IO)
                }
                Copying::Write(errno) => Err(errno),
            };
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode as RawMode))?;
        rustix::fs::futimens(&file, &times(time))
    });
    match broken {
        Some(error) => Err(Failed::Stream(error)),
        None => written,
    }
}

enum Copying {
    Read(io::Error),
    Write(Errno),
}

/// Copies `left` bytes; errors tell which side failed.
fn copy(from: &mut impl Read, mut left: u64, to: &mut File) -> Result<(), Copying> {
    let mut buffer = vec![0; 256 * 1024];
    while left > 0 {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Err(Copying::Read(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Copying::Read(error)),
        };
        let written = io::Write::write_all(to, buffer.get(..count).unwrap_or_default());
        written
            .map_err(|error| Copying::Write(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}

/// Lets `make` create an entry in `folder` under a temporary name, and moves it to `name`.
fn replace(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    make: impl FnOnce(&str) -> rustix::io::Result<()>,
) -> Result<(), Failed> {
    let mut unique = [0; 8];
    rustix::rand::getrandom(&mut unique, rustix::rand::GetRandomFlags::empty())?;
    let temporary = format!(".openshell-{:016x}", u64::from_ne_bytes(unique));
    let made =
        make(&temporary).and_then(|()| rustix::fs::renameat(folder, &*temporary, folder, name));
    if made.is_err() {
        let _ = rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
    }
    Ok(made?)
}

fn times(seconds: u64) -> Timestamps {
    let time = Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or_default(),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Returns the components of `path`; `None` if it is empty, or if any of them is not a plain name.
fn components(path: &Path) -> Option<Vec<OsString>> {
    let names = path.components().map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::CurDir | Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
            None
        }
    });
    names
        .collect::<Option<Vec<_>>>()
        .filter(|names| !names.is_empty())
}

/// Returns true if a symlink to `target`, `depth` folders below the root of the tree, leads to a
/// place within the tree. No `..` may follow a name, because the name may itself be a symlink.
fn stays_within(target: &Path, depth: usize) -> bool {
    let mut components = target
        .components()
        .filter(|component| *component != Component::CurDir)
        .peekable();
    let mut up = 0;
    while components.next_if_eq(&Component::ParentDir).is_some() {
        up += 1;
    }
    up <= depth && components.all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
pub(super) fn is_within(target: &str, depth: usize) -> bool {
    stays_within(Path::new(target), depth)
}
