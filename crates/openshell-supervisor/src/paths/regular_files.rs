//! Opens files that a workload may have put in their places: it opens only regular files, and never
//! waits for one to be ready.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::paths::mounts::by_descriptor;

/// The longest wait for the holder of a lease to give it up (fcntl(2), `F_SETLEASE`).
const LEASE: Duration = Duration::from_secs(1);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens the regular file at `path` for reading, following symlinks. A file of another kind is not
/// opened, because that could wait or have an effect.
///
/// # Errors
/// Fails if the file does not exist, is of another kind, or may not be read, or if a process holds
/// a lease on it for longer than a second.
pub fn open(path: &Path) -> io::Result<File> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR.into()),
        FileType::Fifo => return Err(io::Error::other("it is a FIFO; remove it")),
        FileType::Socket => return Err(io::Error::other("it is a socket; remove it")),
        _ => return Err(io::Error::other("it is a device; remove it")),
    }
    let deadline = Instant::now() + LEASE;
    loop {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match rustix::fs::open(by_descriptor(&found), flags, Mode::empty()) {
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => {
                return Err(io::Error::other(
                    "a process holds a lease on it; end that process",
                ));
            }
            opened => return Ok(File::from(opened?)),
        }
    }
}
