//! A run directory, and the lock by which other starts tell it from the orphan of a killed
//! supervisor.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::host::privilege::is_caller_root;
use crate::paths::mounts::by_descriptor;
use crate::paths::own_folder::OwnFolder;

/// Prefix of every run directory's name; 16 hexadecimal digits follow.
pub(super) const PREFIX: &str = "openshell-";

/// File in each run directory that its owner holds a lock on.
pub(super) const LOCK: &str = "lock";

/// Opens a folder, through no symlink at its own place.
fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A directory that is removed when this value is dropped. Its owner holds a lock on a file inside;
/// an orphan's lock is free.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Path of the directory by the descriptor of its parent.
    reached: PathBuf,
    _parent: OwnFolder,
    /// The name of the sandbox, if it has one.
    pub(super) name: Option<NameClaim>,
    _lock: File,
}

impl RunDir {
    /// Creates a locked directory in `parent`.
    ///
    /// # Errors
    /// `NotFound` or `WouldBlock` if another start took it for an orphan meanwhile; any other error
    /// is the file system's.
    pub(super) fn make(parent: &OwnFolder) -> io::Result<Self> {
        let mut unique = [0; 8];
        rustix::rand::getrandom(&mut unique, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(unique));
        let parent = parent.try_clone()?;
        let reached = parent.reached().join(&name);
        // Users may enter it, but not list it.
        std::fs::DirBuilder::new().mode(0o711).create(&reached)?;
        let lock = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(reached.join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        // Another start may have removed the file before the lock was taken.
        std::fs::metadata(reached.join(LOCK))?;
        Ok(Self {
            path: parent.path().join(name),
            reached,
            _parent: parent,
            name: None,
            _lock: lock,
        })
    }

    /// Returns the folder to protect from a workload: beside other run directories the caller's own
    /// could put a false one, unless everybody may write there.
    #[must_use]
    pub fn protected(&self, is_callers: bool) -> &Path {
        self.path
            .parent()
            .filter(|parent| is_callers && !is_shared(parent))
            .unwrap_or(&self.path)
    }

    /// Path by which the supervisor makes the socket at which it takes requests.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        control_socket(&self.reached)
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path by which this process reaches it for as long as this value lives, whatever becomes of
    /// the folders above.
    pub(crate) fn reached(&self) -> &Path {
        &self.reached
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        drop(self.name.take());
        // The next start removes what is left.
        let _ = remove(&self.reached);
    }
}

/// A name in use: a file with the name of the run directory, locked for as long as this value
/// lives.
#[derive(Debug)]
pub(super) struct NameClaim {
    path: PathBuf,
    _lock: File,
}

impl NameClaim {
    pub(super) fn new(path: PathBuf, lock: File) -> Self {
        Self { path, _lock: lock }
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        // The next owner of the name takes a file that is left.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the path of the supervisor's socket in the run directory `path`.
#[must_use]
pub fn control_socket(path: &Path) -> PathBuf {
    path.join("control")
}

/// Opens a regular file of a run directory, without a wait and through no symlink.
pub(super) fn open_regular(path: &Path, options: &mut std::fs::OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Returns true if workloads may have made what is in `parent`, and own it as this user does: no
/// run directory there but one's own is looked at.
pub(crate) fn is_shared(parent: &Path) -> bool {
    // For root in a user namespace all other users look like itself.
    let is_open =
        is_caller_root() || std::fs::metadata(parent).map_or(true, |data| data.mode() & 0o022 != 0);
    is_open && !rustix::process::geteuid().is_root()
}

/// Returns true if `path` is a directory of this user with the name of a run directory.
pub(crate) fn is_ours(path: &Path) -> bool {
    let digits = path
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix(PREFIX));
    let is_named = digits.is_some_and(|digits| {
        digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    let own = rustix::process::geteuid().as_raw();
    is_named && std::fs::symlink_metadata(path).is_ok_and(|data| data.is_dir() && data.uid() == own)
}

/// Removes the directory, its lock file last: a process killed half-way leaves one that the next
/// start recognizes.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    // A symlink that takes its place meanwhile leads nowhere.
    let folder = open_folder(path)?;
    let held = PathBuf::from(by_descriptor(&folder));
    for entry in std::fs::read_dir(&held)? {
        let entry = entry?;
        match entry.file_type()? {
            _ if entry.file_name() == LOCK => {}
            kind if kind.is_dir() => std::fs::remove_dir_all(entry.path())?,
            _ => std::fs::remove_file(entry.path())?,
        }
    }
    std::fs::remove_file(held.join(LOCK))?;
    std::fs::remove_dir(path)
}
