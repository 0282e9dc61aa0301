//! The SFTP server. It runs as a confined command of its own, so that the kernel decides which
//! files it may touch.

mod attributes;
mod packet;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Gid, Mode, OFlags, RawMode, RenameFlags, Uid};
use rustix::io::Errno;

use attributes::{Found, Wanted};
use packet::{Fields, Reply, kind};

/// Size of a client's largest packet in bytes, the same as in OpenSSH; up to 1024 bytes more are
/// accepted.
const PACKET_BYTES: usize = 256 * 1024;

/// Most bytes of a file that are read or written by one request.
const PIECE_BYTES: usize = 255 * 1024;

/// Most files and directories that may be open.
const HANDLES: usize = 1024;

/// Most entries of a directory in one reply.
const ENTRIES: usize = 128;

/// Bytes of collected replies from which they are sent.
const OUTPUT_BYTES: usize = 64 * 1024;

/// Version of the protocol.
const VERSION: u32 = 3;

/// Extensions, with their versions (OpenSSH's PROTOCOL file, section 4).
const EXTENSIONS: &[(&str, &str)] = &[
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

/// Status codes.
const OK: u32 = 0;
const END: u32 = 1;
const NO_FILE: u32 = 2;
const DENIED: u32 = 3;
const FAILURE: u32 = 4;
const BAD_MESSAGE: u32 = 5;
const UNSUPPORTED: u32 = 8;

/// The reason why a request fails.
#[derive(Debug)]
enum Failed {
    System(Errno),
    /// A packet that is too short.
    Malformed,
    /// A request that is not known.
    Unknown,
    /// The end of a file or directory.
    End,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::System(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl Failed {
    fn status(&self) -> (u32, String) {
        match self {
            Self::End => (END, "end of file".to_owned()),
            Self::Malformed => (BAD_MESSAGE, "malformed request".to_owned()),
            Self::Unknown => (UNSUPPORTED, "unsupported request".to_owned()),
            Self::System(errno) => {
                let code = match *errno {
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::BADF => NO_FILE,
                    Errno::ACCESS | Errno::PERM | Errno::ROFS => DENIED,
                    Errno::NOSYS | Errno::OPNOTSUPP => UNSUPPORTED,
                    _ => FAILURE,
                };
                (code, io::Error::from(*errno).to_string())
            }
        }
    }
}

/// A file or directory that a client has opened.
#[derive(Debug)]
enum Handle {
    File { file: OwnedFd, is_append: bool },
    Directory(Dir),
}

/// Serves a client until the end of `input`.
///
/// # Errors
/// Fails if `input` is not SFTP, or if a stream fails.
pub fn serve(input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut input = BufReader::with_capacity(PACKET_BYTES, input);
    let mut server = Server {
        handles: HashMap::new(),
        next: 0,
        output: Vec::new(),
    };
    let mut packet = Vec::new();
    loop {
        // Requests that a client has sent ahead are answered together.
        if input.buffer().is_empty() || server.output.len() >= OUTPUT_BYTES {
            output.write_all(&server.output)?;
            server.output.clear();
        }
        if input.fill_buf()?.is_empty() {
            return output.flush();
        }
        let length = packet_length(&mut input)?;
        packet.resize(length, 0);
        if let Err(error) = input.read_exact(&mut packet) {
            output.write_all(&server.output)?;
            return Err(error);
        }
        server.answer(&packet)?;
    }
}

/// Reads the length of the next packet.
fn packet_length(input: &mut impl Read) -> io::Result<usize> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length == 0 || length > PACKET_BYTES + 1024 {
        let what = "a packet is too long, or empty";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(length)
}

struct Server {
    handles: HashMap<u32, Handle>,
    /// Number of the next handle.
    next: u32,
    /// Replies that have not been sent yet.
    output: Vec<u8>,
}

impl Server {
    /// Adds the reply to a packet.
    fn answer(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut fields = Fields(packet);
        let (Some(kind), Some(id)) = (fields.u8(), fields.u32()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if kind == kind::INIT {
            self.greet();
            return Ok(());
        }
        if let Err(failed) = self.serve(kind, id, fields) {
            let (code, message) = failed.status();
            self.status(id, code, &message);
        }
        Ok(())
    }

    fn greet(&mut self) {
        let mut reply = Reply::new(&mut self.output, kind::VERSION, VERSION);
        for (name, version) in EXTENSIONS {
            reply.bytes(name.as_bytes());
            reply.bytes(version.as_bytes());
        }
        reply.finish();
    }

    fn status(&mut self, id: u32, code: u32, message: &str) {
        let mut reply = Reply::new(&mut self.output, kind::STATUS, id);
        reply.u32(code);
        reply.bytes(message.as_bytes());
        reply.bytes(b"en");
        reply.finish();
    }

    fn serve(&mut self, kind: u8, id: u32, mut fields: Fields<'_>) -> Result<(), Failed> {
        let fields = &mut fields;
        match kind {
            kind::OPEN => return self.open(id, fields),
            kind::OPENDIR => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::open(path(fields)?, flags, Mode::empty())?;
                return self.enter(id, Handle::Directory(Dir::new(directory)?));
            }
            kind::READ => return self.read(id, fields),
            kind::READDIR => return self.list(id, fields),
            kind::STAT => {
                let found = Found::from(&std::fs::metadata(path(fields)?)?);
                return self.attributes(id, found);
            }
            kind::LSTAT => {
                let found = Found::from(&std::fs::symlink_metadata(path(fields)?)?);
                return self.attributes(id, found);
            }
            kind::FSTAT => {
                let found = match self.handle(fields)? {
                    Handle::File { file, .. } => Found::from(&rustix::fs::fstat(file)?),
                    Handle::Directory(directory) => Found::from(&directory.stat()?),
                };
                return self.attributes(id, found);
            }
            kind::REALPATH => {
                let path = real_path(path(fields)?)?;
                return self.name(id, &path);
            }
            kind::READLINK => {
                let target = std::fs::read_link(path(fields)?)?;
                return self.name(id, &target);
            }
            kind::EXTENDED => return self.extended(id, fields),
            kind::CLOSE => drop(self.handles.remove(&number(fields)?).ok_or(Errno::BADF)?),
            kind::WRITE => self.write(fields)?,
            kind::SETSTAT => {
                let path = path(fields)?;
                let wanted = Wanted::read(fields).ok_or(Failed::Malformed)?;
                set(path, &wanted, AtFlags::empty())?;
            }
            kind::FSETSTAT => {
                let number = number(fields)?;
                let wanted = Wanted::read(fields).ok_or(Failed::Malformed)?;
                set_open(self.file(number)?, &wanted)?;
            }
            kind::REMOVE => std::fs::remove_file(path(fields)?)?,
            kind::MKDIR => {
                let path = path(fields)?;
                let wanted = Wanted::read(fields).ok_or(Failed::Malformed)?;
                rustix::fs::mkdir(path, mode(wanted.permissions.unwrap_or(0o777) & 0o1777))?;
            }
            kind::RMDIR => std::fs::remove_dir(path(fields)?)?,
            kind::RENAME => rename(path(fields)?, path(fields)?)?,
            // OpenSSH takes the arguments in this order, so every client sends them like this.
            kind::SYMLINK => {
                let target = path(fields)?;
                let link = path(fields)?;
                std::os::unix::fs::symlink(target, link)?;
            }
            _ => return Err(Failed::Unknown),
        }
        self.status(id, OK, "");
        Ok(())
    }

    fn extended(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<(), Failed> {
        match fields.bytes().ok_or(Failed::Malformed)? {
            b"posix-rename@openssh.com" => std::fs::rename(path(fields)?, path(fields)?)?,
            b"hardlink@openssh.com" => std::fs::hard_link(path(fields)?, path(fields)?)?,
            b"fsync@openssh.com" => {
                let number = number(fields)?;
                rustix::fs::fsync(self.file(number)?)?;
            }
            b"lsetstat@openssh.com" => {
                let path = path(fields)?;
                let wanted = Wanted::read(fields).ok_or(Failed::Malformed)?;
                set(path, &wanted, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            b"statvfs@openssh.com" => return self.volume(id, &rustix::fs::statvfs(path(fields)?)?),
            b"fstatvfs@openssh.com" => {
                let number = number(fields)?;
                let volume = rustix::fs::fstatvfs(self.file(number)?)?;
                return self.volume(id, &volume);
            }
            b"expand-path@openssh.com" => {
                let path = real_path(&expand(path(fields)?))?;
                return self.name(id, &path);
            }
            b"limits@openssh.com" => {
                let mut reply = Reply::new(&mut self.output, kind::EXTENDED_REPLY, id);
                for limit in [PACKET_BYTES, PIECE_BYTES, PIECE_BYTES, HANDLES] {
                    reply.u64(limit as u64);
                }
                reply.finish();
                return Ok(());
            }
            _ => return Err(Failed::Unknown),
        }
        self.status(id, OK, "");
        Ok(())
    }

    fn open(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<(), Failed> {
        const APPEND: u32 = 4;
        let path = path(fields)?;
        let asked = fields.u32().ok_or(Failed::Malformed)?;
        let wanted = Wanted::read(fields).ok_or(Failed::Malformed)?;
        let access = match asked & 3 {
            1 => OFlags::RDONLY,
            2 => OFlags::WRONLY,
            3 => OFlags::RDWR,
            _ => return Err(Errno::INVAL.into()),
        };
        let further = [
            (APPEND, OFlags::APPEND),
            (8, OFlags::CREATE),
            (16, OFlags::TRUNC),
            (32, OFlags::EXCL),
        ];
        let further = further
            .into_iter()
            .filter(|(bit, _)| asked & bit != 0)
            .map(|(_, flag)| flag);
        let flags =
            further.fold(access, |flags, flag| flags | flag) | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = rustix::fs::open(
            path,
            flags,
            mode(wanted.permissions.unwrap_or(0o666) & 0o777),
        )?;
        self.enter(
            id,
            Handle::File {
                file,
                is_append: asked & APPEND != 0,
            },
        )
    }

    /// Replies with the number of a new handle.
    fn enter(&mut self, id: u32, handle: Handle) -> Result<(), Failed> {
        if self.handles.len() >= HANDLES {
            return Err(Errno::MFILE.into());
        }
        while self.handles.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.handles.insert(number, handle);
        let mut reply = Reply::new(&mut self.output, kind::HANDLE, id);
        reply.bytes(&number.to_be_bytes());
        reply.finish();
        Ok(())
    }

    fn handle(&mut self, fields: &mut Fields<'_>) -> Result<&mut Handle, Failed> {
        let number = number(fields)?;
        Ok(self.handles.get_mut(&number).ok_or(Errno::BADF)?)
    }

    fn file(&self, number: u32) -> Result<&OwnedFd, Failed> {
        match self.handles.get(&number) {
            Some(Handle::File { file, .. }) => Ok(file),
            Some(Handle::Directory(_)) => Err(Errno::ISDIR.into()),
            None => Err(Errno::BADF.into()),
        }
    }

    fn read(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<(), Failed> {
        let number = number(fields)?;
        let offset = fields.u64().ok_or(Failed::Malformed)?;
        let length = fields.u32().ok_or(Failed::Malformed)?;
        let most = usize::try_from(length)
            .unwrap_or(PIECE_BYTES)
            .min(PIECE_BYTES);
        let Some(Handle::File { file, .. }) = self.handles.get(&number) else {
            return Err(Errno::BADF.into());
        };
        let reply = Reply::new(&mut self.output, kind::DATA, id);
        match reply.filled(most, |place| rustix::io::pread(file, place, offset))? {
            0 if most > 0 => Err(Failed::End),
            0 => Err(Errno::INVAL.into()),
            _ => Ok(()),
        }
    }

    fn write(&self, fields: &mut Fields<'_>) -> Result<(), Failed> {
        let number = number(fields)?;
        let mut offset = fields.u64().ok_or(Failed::Malformed)?;
        let data = fields.bytes().ok_or(Failed::Malformed)?;
        let Some(Handle::File { file, is_append }) = self.handles.get(&number) else {
            return Err(Errno::BADF.into());
        };
        let mut rest = data;
        while !rest.is_empty() {
            let written = if *is_append {
                rustix::io::write(file, rest)
            } else {
                rustix::io::pwrite(file, rest, offset)
            };
            match written {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(count) => {
                    offset = offset.saturating_add(count as u64);
                    rest = rest.get(count..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn list(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<(), Failed> {
        let number = number(fields)?;
        let Some(Handle::Directory(directory)) = self.handles.get_mut(&number) else {
            return Err(Errno::BADF.into());
        };
        let mut entries = Vec::new();
        for entry in directory.by_ref().take(ENTRIES) {
            entries.push(entry?);
        }
        if entries.is_empty() {
            return Err(Failed::End);
        }
        let folder = directory.fd()?;
        let found = |name: &std::ffi::CStr| {
            let data = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some(Found::from(&data))
        };
        // An entry that is gone by now, or that this process may not look at, is left out.
        let entries: Vec<_> = entries
            .iter()
            .filter_map(|entry| Some((entry.file_name().to_bytes(), found(entry.file_name())?)))
            .collect();
        let mut reply = Reply::new(&mut self.output, kind::NAME, id);
        reply.u32(u32::try_from(entries.len()).unwrap_or(0));
        for (name, found) in entries {
            reply.bytes(name);
            reply.bytes(&found.line(name));
            found.write(&mut reply);
        }
        reply.finish();
        Ok(())
    }

    fn attributes(&mut self, id: u32, found: Found) -> Result<(), Failed> {
        let mut reply = Reply::new(&mut self.output, kind::ATTRS, id);
        found.write(&mut reply);
        reply.finish();
        Ok(())
    }

    /// Replies with one path, without attributes.
    fn name(&mut self, id: u32, path: &Path) -> Result<(), Failed> {
        let name = path.as_os_str().as_bytes();
        let mut reply = Reply::new(&mut self.output, kind::NAME, id);
        reply.u32(1);
        reply.bytes(name);
        reply.bytes(name);
        reply.u32(0);
        reply.finish();
        Ok(())
    }

    fn volume(&mut self, id: u32, volume: &rustix::fs::StatVfs) -> Result<(), Failed> {
        const READ_ONLY: u64 = 1;
        const NO_SET_ID: u64 = 2;
        let flags = [
            (rustix::fs::StatVfsMountFlags::RDONLY, READ_ONLY),
            (rustix::fs::StatVfsMountFlags::NOSUID, NO_SET_ID),
        ];
        let flags = flags
            .iter()
            .filter(|(flag, _)| volume.f_flag.contains(*flag))
            .map(|(_, bit)| bit)
            .sum();
        let mut reply = Reply::new(&mut self.output, kind::EXTENDED_REPLY, id);
        for number in [
            volume.f_bsize,
            volume.f_frsize,
            volume.f_blocks,
            volume.f_bfree,
            volume.f_bavail,
            volume.f_files,
            volume.f_ffree,
            volume.f_favail,
            volume.f_fsid,
            flags,
            volume.f_namemax,
        ] {
            reply.u64(number);
        }
        reply.finish();
        Ok(())
    }
}

fn path<'p>(fields: &mut Fields<'p>) -> Result<&'p Path, Failed> {
    fields.path().ok_or(Failed::Malformed)
}

/// Reads the number of a handle.
fn number(fields: &mut Fields<'_>) -> Result<u32, Failed> {
    let bytes = fields.bytes().ok_or(Failed::Malformed)?;
    Ok(bytes
        .try_into()
        .map(u32::from_be_bytes)
        .map_err(|_| Errno::BADF)?)
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits as RawMode)
}

/// Sets attributes by path, in an order in which they do not undo each other.
fn set(path: &Path, wanted: &Wanted, flags: AtFlags) -> Result<(), Failed> {
    if let Some(size) = wanted.size {
        if flags.contains(AtFlags::SYMLINK_NOFOLLOW) {
            return Err(Errno::OPNOTSUPP.into());
        }
        File::options().write(true).open(path)?.set_len(size)?;
    }
    if let Some((uid, gid)) = wanted.owner {
        rustix::fs::chownat(
            CWD,
            path,
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
            flags,
        )?;
    }
    if let Some(permissions) = wanted.permissions {
        match rustix::fs::chmodat(CWD, path, mode(permissions & 0o7777), flags) {
            // A symlink has no permissions.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if flags.contains(AtFlags::SYMLINK_NOFOLLOW) => {}
            changed => changed?,
        }
    }
    if let Some(times) = wanted.timestamps() {
        rustix::fs::utimensat(CWD, path, &times, flags)?;
    }
    Ok(())
}

/// Sets attributes of an open file.
fn set_open(file: &OwnedFd, wanted: &Wanted) -> Result<(), Failed> {
    if let Some(size) = wanted.size {
        rustix::fs::ftruncate(file, size)?;
    }
    if let Some((uid, gid)) = wanted.owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    if let Some(permissions) = wanted.permissions {
        rustix::fs::fchmod(file, mode(permissions & 0o7777))?;
    }
    if let Some(times) = wanted.timestamps() {
        rustix::fs::futimens(file.as_fd(), &times)?;
    }
    Ok(())
}

/// Renames without replacing anything, as the protocol demands.
fn rename(from: &Path, to: &Path) -> Result<(), Failed> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system cannot check and rename in one step.
        Err(Errno::INVAL | Errno::NOSYS) if std::fs::symlink_metadata(to).is_err() => {
            Ok(std::fs::rename(from, to)?)
        }
        renamed => Ok(renamed?),
    }
}

/// Returns the path without symlinks; its last part need not exist.
fn real_path(path: &Path) -> Result<PathBuf, Failed> {
    match std::fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            Ok(std::fs::canonicalize(folder)?.join(name))
        }
        real => Ok(real?),
    }
}

/// Replaces a leading `~` with the home directory, which is where this process started.
fn expand(path: &Path) -> PathBuf {
    match path.strip_prefix("~") {
        Ok(rest) => Path::new(".").join(rest),
        Err(_) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests;
