//! Executables of running processes; each is opened once and held open.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::ground::limits::Limits;

/// The open file of a running program, and the path from which it was started.
#[derive(Debug)]
pub(super) struct Executable {
    pub(super) path: String,
    /// An O_PATH descriptor.
    pub(super) file: OwnedFd,
    /// The file's metadata when it was opened.
    pub(super) stamp: Stamp,
}

impl Executable {
    /// Opens the file for reading. Does not wait for a file that is not regular; such a file has no
    /// fingerprint.
    pub(super) fn open(&self) -> io::Result<File> {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(File::from(rustix::fs::open(link, flags, Mode::empty())?))
    }

    /// Returns true if `link`, a link of /proc in `root`, leads to this file, and the file is
    /// unchanged.
    pub(super) fn is_at(&self, root: impl AsFd, link: &str) -> io::Result<bool> {
        Ok(Stamp::at(root, link, AtFlags::empty())? == self.stamp)
    }
}

/// Metadata that shows that a file is unchanged, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    device: (u32, u32),
    inode: u64,
    pub(super) size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Stamp {
    /// Stamps `file`.
    pub(super) fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        Self::at(file, "", AtFlags::EMPTY_PATH)
    }

    fn at(folder: impl AsFd, path: &str, flags: AtFlags) -> rustix::io::Result<Self> {
        // A remote file system is not asked, because that could take long.
        let flags = flags | AtFlags::STATX_DONT_SYNC;
        let data: Statx = rustix::fs::statx(folder, path, flags, StatxFlags::BASIC_STATS)?;
        Ok(Self {
            device: (data.stx_dev_major, data.stx_dev_minor),
            inode: data.stx_ino,
            size: data.stx_size,
            modified: (data.stx_mtime.tv_sec, data.stx_mtime.tv_nsec),
            changed: (data.stx_ctime.tv_sec, data.stx_ctime.tv_nsec),
        })
    }
}

/// The executables in use; all processes of a program share one descriptor.
#[derive(Debug, Default)]
pub(super) struct Executables(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    used: HashMap<(Stamp, String), Weak<Executable>>,
    /// The most recent ones, which the next callers probably run.
    last: VecDeque<Arc<Executable>>,
}

/// An error of opening an executable.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    System(#[from] Errno),
    #[error("the path of its program is not UTF-8")]
    NotUtf8,
    #[error("more than {max} programs are in use", max = Limits::EXECUTABLES)]
    TooMany,
}

impl Executables {
    /// Opens the executable behind `link`, a link of /proc in `root`.
    pub(super) fn open(&self, root: impl AsFd, link: &str) -> Result<Arc<Executable>, OpenError> {
        let stamp = Stamp::at(&root, link, AtFlags::empty())?;
        let path = rustix::fs::readlinkat(&root, link, Vec::new())?;
        let key = (stamp, path.into_string().map_err(|_| OpenError::NotUtf8)?);
        let mut known = self.0.lock();
        let Known { used, last } = &mut *known;
        if let Some(executable) = used.get(&key).and_then(Weak::upgrade) {
            return Ok(executable);
        }
        if used.len() >= Limits::EXECUTABLES {
            used.retain(|_, executable| executable.strong_count() > 0);
        }
        if used.len() >= Limits::EXECUTABLES {
            return Err(OpenError::TooMany);
        }
        // This is the file that runs, whatever its path leads to now. O_PATH does not ask the file
        // system, which could take long.
        let file = rustix::fs::openat(&root, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        // An ancestor may run another program by now, whose path was not read.
        if Stamp::of(&file).ok() != Some(stamp) {
            return Err(Errno::SRCH.into());
        }
        let executable = Arc::new(Executable {
            path: key.1.clone(),
            file,
            stamp,
        });
        used.insert(key, Arc::downgrade(&executable));
        if last.len() == Limits::RECENT_EXECUTABLES {
            last.pop_front();
        }
        last.push_back(Arc::clone(&executable));
        Ok(executable)
    }
}
