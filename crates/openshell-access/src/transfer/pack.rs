//! The sending half of a copy.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::outcome::{DEPTH, LeftOut, TransferError};

/// Writes the file or tree at `path` to `output`. Symlinks are sent as symlinks; devices, sockets
/// and FIFOs are left out. Unless `follows_links`, no folder above may be a symlink.
///
/// # Errors
/// Fails if there is nothing at `path`, if a symlink leads to it that must not be followed, or if
/// `output` takes no more.
pub fn pack(
    path: &Path,
    follows_links: bool,
    output: impl Write,
) -> Result<LeftOut, TransferError> {
    let failed = |source| TransferError::Read {
        path: path.to_owned(),
        source,
    };
    // The last component is the name of the copy; for `.` and the like, the name of the real
    // directory.
    let path = &match path.file_name() {
        Some(_) => path.to_owned(),
        None => std::fs::canonicalize(path).map_err(failed)?,
    };
    let name = path
        .file_name()
        .ok_or_else(|| TransferError::NoName(path.clone()))?;
    let mut packer = Packer {
        builder: Builder::new(output),
        left_out: LeftOut::default(),
    };
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let resolve = if follows_links {
        ResolveFlags::empty()
    } else {
        ResolveFlags::NO_SYMLINKS
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat2(CWD, parent, flags, Mode::empty(), resolve).map_err(
        |errno| match errno {
            // There is a symlink on the way, which a command may have made.
            Errno::LOOP => {
                let target = std::fs::canonicalize(parent)
                    .unwrap_or_else(|_| parent.to_owned())
                    .join(name);
                TransferError::Symlink {
                    path: path.clone(),
                    target,
                }
            }
            errno => failed(errno.into()),
        },
    )?;
    let data = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| failed(errno.into()))?;
    let place = Place {
        folder: folder.as_fd(),
        name,
    };
    packer
        .entry(&place, Path::new(name), &data, 0)
        .map_err(|source| match source {
            // Without its first entry there is no copy.
            Failure::Entry(source) => failed(source),
            Failure::Output(source) => TransferError::Stream { source },
        })?;
    let finished = packer
        .builder
        .into_inner()
        .and_then(|mut output| output.flush());
    finished.map_err(|source| TransferError::Stream { source })?;
    Ok(packer.left_out)
}

/// A file, given by its folder and its name in that.
struct Place<'p> {
    folder: BorrowedFd<'p>,
    name: &'p OsStr,
}

enum Failure {
    /// The entry cannot be read.
    Entry(io::Error),
    Output(io::Error),
}

struct Packer<W: Write> {
    builder: Builder<W>,
    left_out: LeftOut,
}

impl<W: Write> Packer<W> {
    fn entry(
        &mut self,
        place: &Place<'_>,
        path: &Path,
        data: &Stat,
        depth: usize,
    ) -> Result<(), Failure> {
        let mut header = Header::new_gnu();
        header.set_mode(data.st_mode & 0o7777);
        header.set_mtime(u64::try_from(data.st_mtime).unwrap_or_default());
        header.set_size(0);
        match FileType::from_raw_mode(data.st_mode) {
            FileType::RegularFile => self.file(place, path, header),
            FileType::Directory => self.folder(place, path, header, depth),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(place.folder, place.name, Vec::new());
                let target = target.map_err(|errno| Failure::Entry(errno.into()))?;
                header.set_entry_type(EntryType::Symlink);
                let target = OsStr::from_bytes(target.as_bytes());
                self.builder
                    .append_link(&mut header, path, target)
                    .map_err(Failure::Output)
            }
            kind => {
                self.left_out
                    .add(path, format_args!("it is a {}", name_of(kind)));
                Ok(())
            }
        }
    }

    fn file(&mut self, place: &Place<'_>, path: &Path, mut header: Header) -> Result<(), Failure> {
        // What was a file a moment ago may be a FIFO now, which must not block.
        let file = File::from(open(place, OFlags::NONBLOCK)?);
        let data = file.metadata().map_err(Failure::Entry)?;
        if !data.is_file() {
            self.left_out.fail(path, "it changed meanwhile");
            return Ok(());
        }
        header.set_entry_type(EntryType::Regular);
        header.set_size(data.len());
        let mut exact = Exactly {
            file,
            left: data.len(),
        };
        self.builder
            .append_data(&mut header, path, &mut exact)
            .map_err(Failure::Output)
    }

    fn folder(
        &mut self,
        place: &Place<'_>,
        path: &Path,
        mut header: Header,
        depth: usize,
    ) -> Result<(), Failure> {
        let folder = open(place, OFlags::DIRECTORY)?;
        header.set_entry_type(EntryType::Directory);
        self.builder
            .append_data(&mut header, path, io::empty())
            .map_err(Failure::Output)?;
        if depth >= DEPTH {
            self.left_out.fail(path, "its content is too deep");
            return Ok(());
        }
        let names = match names(folder.as_fd()) {
            Ok(names) => names,
            Err(error) => {
                self.left_out.fail(path, error);
                return Ok(());
            }
        };
        for name in names {
            let path: PathBuf = path.join(OsStr::from_bytes(name.to_bytes()));
            let sent = match rustix::fs::statat(&folder, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(data) => {
                    let place = Place {
                        folder: folder.as_fd(),
                        name: OsStr::from_bytes(name.to_bytes()),
                    };
                    self.entry(&place, &path, &data, depth + 1)
                }
                Err(errno) => Err(Failure::Entry(errno.into())),
            };
            match sent {
                Err(Failure::Entry(error)) => self.left_out.fail(&path, error),
                sent => sent?,
            }
        }
        Ok(())
    }
}

fn open(place: &Place<'_>, flags: OFlags) -> Result<OwnedFd, Failure> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(place.folder, place.name, flags, Mode::empty())
        .map_err(|errno| Failure::Entry(errno.into()))
}

/// Returns the entries of a folder, sorted by name.
fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<Box<CStr>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().into());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::BlockDevice | FileType::CharacterDevice => "device",
        _ => "file of another kind",
    }
}

/// A file that has exactly the size in its header: if it shrinks meanwhile, zeros fill it up.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let Some(part) = buffer.get_mut(..most).filter(|part| !part.is_empty()) else {
            return Ok(0);
        };
        let count = match self.file.read(part)? {
            0 => {
                part.fill(0);
                part.len()
            }
            count => count,
        };
        self.left -= count as u64;
        Ok(count)
    }
}
