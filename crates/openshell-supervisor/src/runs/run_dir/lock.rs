//! A run directory, and its lock. The lock tells other starts that the directory is not the orphan
//! of a killed supervisor.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::host::privilege::is_caller_root;
use crate::paths::mounts::by_descriptor;
use crate::paths::own_folder::OwnFolder;

/// The prefix of every run directory's name; 16 hexadecimal digits follow.
pub(super) const PREFIX: &str = "openshell-";

/// The file in each run directory on which its owner holds a lock.
pub(super) const LOCK: &str = "lock";

/// Opens a folder; fails if `path` itself is a symlink.
fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A directory that is removed when this value is dropped. Its owner holds a lock on a file inside;
/// the lock of an orphan is free.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// The path of the directory by the descriptor of its parent.
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
    /// Fails with `NotFound` or `WouldBlock` if another start mistook it for an orphan meanwhile;
    /// any other error comes from the file system.
    pub(super) fn make(parent: &OwnFolder) -> io::Result<Self> {
        let mut unique = [0; 8];
        rustix::rand::getrandom(&mut unique, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(unique));
        let parent = parent.try_clone()?;
        let reached = parent.reached().join(&name);
        // Other users may enter it, but not list it.
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

    /// Returns the folder to protect from a workload. `is_callers` says that the workload runs as
    /// this process's user. Such a workload could put a false run directory beside the others, so
    /// their parent is protected, unless everybody may write there.
    #[must_use]
    pub fn protected(&self, is_callers: bool) -> &Path {
        self.path
            .parent()
            .filter(|parent| is_callers && !is_shared(parent))
            .unwrap_or(&self.path)
    }

    /// Returns the path at which the supervisor makes the socket that takes requests.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        control_socket(&self.reached)
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path by which this process reaches the directory. It is valid for as long as
    /// this value lives, whatever happens to the folders above.
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

/// A name in use: a file that contains the name of the run directory and is locked for as long as
/// this value lives.
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
        // If the file is left behind, the next owner of the name takes it over.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the path of the supervisor's socket in the run directory `path`.
#[must_use]
pub fn control_socket(path: &Path) -> PathBuf {
    path.join("control")
}

/// Opens a regular file of a run directory, without waiting and without following a symlink at its
/// path.
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

/// Returns true if workloads may have made what is in `parent`, and own it as this user does. This
/// process then looks at no run directory there except its own.
pub(crate) fn is_shared(parent: &Path) -> bool {
    // To root in a user namespace, all other users look like itself.
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

/// Removes the directory, its lock file last: if the process is killed half-way, the next start
/// still recognizes what it leaves.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    // By its descriptor, so that a symlink that takes its place meanwhile is not followed.
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
