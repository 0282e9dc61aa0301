//! Directories and files that a start created on the host. With the sandbox, the directories that
//! are empty and the files that are unchanged are removed.
//!
//! Sandboxes whose run directories have the same parent coordinate. Each one records the paths that
//! it uses before it looks for them. When it ends, it hands the removal of a directory over to
//! another sandbox that still uses it. Both happen under a lock of that parent.
//!
//! Any process can lock a file that it can open, so every lock here is on a file or directory that
//! only root can open.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::paths::mounts::{by_descriptor, open_in};
use crate::paths::pins::Identity;
use crate::paths::trusted_symlinks;
use crate::runs::run_dir::lock::{RunDir, is_ours, is_shared, open_regular};

/// The files in a run directory that list the created paths and the used paths. Each path is
/// followed by a NUL.
const MADE: &str = "made";
const USES: &str = "uses";

/// The longest list that is read, in bytes; the paths of the largest policy fit.
const LIST_BYTES: u64 = 4 * 1024 * 1024;

/// The file that is locked in a parent directory that users other than root can open. It exists
/// only while it is locked.
const LOCK: &str = ".openshell-lock";

/// The longest wait for a lock. A sandbox holds one for less than a millisecond.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The mode of a directory that [`CreatedDirs::hold`] can lock.
pub const HELD_MODE: u32 = 0o700;

/// The directories and files that one sandbox created. On drop, the empty directories and the
/// unchanged files are removed.
#[derive(Debug)]
pub struct CreatedDirs {
    /// The run directory, reached by the descriptor of its parent.
    run_dir: PathBuf,
    /// What was created. The list in the run directory says the same, but a workload of the same
    /// user might change that list.
    made: Vec<PathBuf>,
    /// Locked directories and placeholders. No other sandbox removes them, wherever its run
    /// directory is.
    held: Vec<File>,
    /// The placeholders that other sandboxes may share.
    shared: Vec<PathBuf>,
    /// True if nothing was added since [`Self::remove`].
    is_removed: bool,
}

impl CreatedDirs {
    /// Starts an empty record and registers `uses`: paths that no other sandbox removes from now
    /// on, whether they exist yet or not.
    ///
    /// # Errors
    /// Fails if the run directory cannot be written.
    pub fn new<'p>(run_dir: &RunDir, uses: impl Iterator<Item = &'p Path>) -> io::Result<Self> {
        let run_dir = run_dir.reached().to_owned();
        // Without the lock, another sandbox may remove a directory at any moment. That risk does
        // not prevent the start.
        let _lock = run_dir.parent().map(lock);
        let list: Vec<u8> = uses.flat_map(line).collect();
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        open_regular(&run_dir.join(USES), &mut options)?.write_all(&list)?;
        Ok(Self {
            run_dir,
            made: Vec::new(),
            held: Vec::new(),
            shared: Vec::new(),
            is_removed: false,
        })
    }

    /// Keeps other sandboxes from removing `folder` by locking the directory itself. The directory
    /// must therefore be hidden from every workload. If users other than root can open it, no
    /// sandbox created it with [`HELD_MODE`] and none removes it, so it is not locked. Returns
    /// false if the directory has been removed meanwhile.
    ///
    /// # Errors
    /// Fails if the directory cannot be opened, or if a process of root holds a lock on it for
    /// longer than two seconds.
    pub fn hold(&mut self, folder: &Path) -> io::Result<bool> {
        let held = match trusted_symlinks::open(folder, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(false),
            opened => File::from(opened?),
        };
        let data = held.metadata()?;
        if !is_root_only(&data) {
            return Ok(true);
        }
        wait_for(&held, FlockOperation::NonBlockingLockShared)?;
        let is_same =
            Identity::at(folder).is_ok_and(|now| Identity::of(&held).is_ok_and(|held| held == now));
        self.held.push(held);
        Ok(is_same)
    }

    /// Shares a placeholder, whoever made it: while this sandbox lasts, no other sandbox removes
    /// it, wherever their run directories are. If a process holds the same lock for longer, the
    /// placeholder stays.
    pub fn share(&mut self, placeholder: &Path) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        if let Ok(opened) = trusted_symlinks::open(placeholder, flags)
            && rustix::fs::flock(&opened, FlockOperation::NonBlockingLockShared).is_ok()
        {
            self.held.push(opened.into());
            self.shared.push(placeholder.to_owned());
        }
    }

    /// Records that `folder` was created. Parents must be recorded before their children.
    ///
    /// # Errors
    /// Fails if the run directory cannot be written.
    pub fn add(&mut self, folder: &Path) -> io::Result<()> {
        self.is_removed = false;
        self.made.push(folder.to_owned());
        record(&self.run_dir, folder)
    }

    /// Records that `file` was created, as `data` describes it.
    ///
    /// # Errors
    /// Fails if the run directory cannot be written.
    pub fn add_file(&mut self, file: &Path, data: &Metadata) -> io::Result<()> {
        self.is_removed = false;
        let entry = [identity(data).as_bytes(), file.as_os_str().as_bytes()].concat();
        let entry = Path::new(OsStr::from_bytes(&entry));
        self.made.push(entry.to_owned());
        record(&self.run_dir, entry)
    }

    /// Removes the created directories and files, and returns the directories that remain because
    /// they are not empty. A directory that another sandbox uses is handed over to that sandbox and
    /// not returned.
    pub fn remove(&mut self) -> Vec<PathBuf> {
        self.held.clear();
        if std::mem::replace(&mut self.is_removed, true) {
            Vec::new()
        } else {
            remove_created(&self.run_dir, std::mem::take(&mut self.made), &self.shared)
        }
    }
}

impl Drop for CreatedDirs {
    fn drop(&mut self) {
        // After a failed start, nothing is logged about directories that remain.
        let _ = self.remove();
    }
}

/// Removes the directories that are recorded in `run_dir`, whose sandbox was killed, and the
/// record; returns the directories that remain.
pub(crate) fn remove_recorded(run_dir: &Path) -> Vec<PathBuf> {
    remove_created(run_dir, Vec::new(), &[])
}

/// Removes what the sandbox of `run_dir` has `made`, what other sandboxes have handed over to it,
/// and the record; returns the directories that remain. A workload of the same user might have
/// written the record, so of the files that only the record names, only placeholders are removed.
fn remove_created(run_dir: &Path, mut made: Vec<PathBuf>, shared: &[PathBuf]) -> Vec<PathBuf> {
    let Some(parent) = run_dir.parent() else {
        return Vec::new();
    };
    let lock = lock(parent);
    // In a shared place nothing is handed over. A list that cannot be read is taken as empty.
    let mut recorded = if is_shared(parent) {
        Vec::new()
    } else {
        paths(&run_dir.join(MADE)).unwrap_or_default()
    };
    recorded.retain(|entry| {
        !made.contains(entry) && file_of(entry).is_none_or(|(_, file)| is_placeholder(file))
    });
    made.extend(recorded);
    // From here on this sandbox uses nothing, and directories that other sandboxes create now are
    // theirs. Both files would go with the run directory anyway.
    for name in [USES, MADE] {
        let _ = std::fs::remove_file(run_dir.join(name));
    }
    // Most sandboxes make nothing, so they need not look at the others.
    if lock.is_err() || made.is_empty() {
        return made;
    }
    // Children come first. The entry of a file begins with its identity.
    made.sort_by_key(|entry| {
        std::cmp::Reverse(
            file_of(entry)
                .map_or(entry.as_path(), |(_, file)| file)
                .components()
                .count(),
        )
    });
    // If it is unknown what other sandboxes use, everything stays.
    let Ok(others) = others(parent, run_dir) else {
        return made;
    };
    made.retain(|entry| {
        let file = file_of(entry);
        let path = file.map_or(entry.as_path(), |(_, file)| file);
        match others
            .iter()
            .find(|(_, uses)| uses.iter().any(|used| used.starts_with(path)))
        {
            // Another sandbox uses it: that one removes it.
            Some((other, _)) => record(other, entry).is_err(),
            None => match file {
                // A file that somebody has changed or replaced is theirs now.
                Some((identity, file)) => drop_unchanged(file, identity),
                None => {
                    let is_shared = shared.contains(entry);
                    let removed = remove_empty(entry, is_shared);
                    // A shared placeholder that is still locked belongs to another sandbox from
                    // here on.
                    removed.is_err_and(|errno| {
                        errno != Errno::NOENT && !(is_shared && errno == Errno::WOULDBLOCK)
                    })
                }
            },
        }
    });
    made
}

/// The contents of placeholders, and the length of the longest in bytes.
const PLACEHOLDERS: [&[u8]; 4] = [b"", b"{}\n", b".\n", b"../.git\n"];
const PLACEHOLDER_BYTES: i64 = 8;

/// Returns true if the file has the content of a placeholder.
#[must_use]
pub fn is_placeholder(file: &Path) -> bool {
    small_content(file).is_ok_and(|content| PLACEHOLDERS.contains(&content.as_slice()))
}

/// Reads a regular file that is not longer than a placeholder.
fn small_content(file: &Path) -> io::Result<Vec<u8>> {
    let found = trusted_symlinks::open(file, OFlags::PATH)?;
    let data = rustix::fs::fstat(&found)?;
    // Opening a device may have effects.
    if FileType::from_raw_mode(data.st_mode) != FileType::RegularFile
        || data.st_size > PLACEHOLDER_BYTES
    {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut content = Vec::new();
    reopen(&found)?
        .take(PLACEHOLDER_BYTES.unsigned_abs() + 1)
        .read_to_end(&mut content)?;
    Ok(content)
}

/// Opens a regular file for reading by its descriptor, whatever is at its path by now.
fn reopen(found: &OwnedFd) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(by_descriptor(found), flags, Mode::empty())?.into())
}

/// Returns what distinguishes a file from another one at its path, and from itself with other
/// content.
fn identity(data: &Metadata) -> String {
    let seconds = data.mtime();
    let nanoseconds = data.mtime_nsec();
    format!(
        "{}:{}:{}:{seconds}.{nanoseconds}:",
        data.dev(),
        data.ino(),
        data.len()
    )
}

/// Returns the identity and the path of the file that `entry` of a list records, or `None` if the
/// entry is a directory.
fn file_of(entry: &Path) -> Option<(&[u8], &Path)> {
    let bytes = entry.as_os_str().as_bytes();
    let begin = bytes
        .iter()
        .position(|byte| *byte == b'/')
        .filter(|begin| *begin > 0)?;
    let (identity, path) = bytes.split_at_checked(begin)?;
    Some((identity, Path::new(OsStr::from_bytes(path))))
}

/// Removes a file if it is unchanged. Always returns false: a file that remains is not reported.
fn drop_unchanged(file: &Path, made_as: &[u8]) -> bool {
    let (Some(parent), Some(name)) = (file.parent(), file.file_name()) else {
        return false;
    };
    let Ok(parent) = trusted_symlinks::open(parent, OFlags::PATH | OFlags::DIRECTORY) else {
        return false;
    };
    let Ok(now) = open_in(&parent, name) else {
        return false;
    };
    let Ok(data) = now.try_clone().and_then(|now| File::from(now).metadata()) else {
        return false;
    };
    // A lock means that another sandbox shares it.
    if data.is_file()
        && identity(&data).as_bytes() == made_as
        && !reopen(&now).is_ok_and(|opened| is_locked(&opened))
    {
        let _ = rustix::fs::unlinkat(parent, name, AtFlags::empty());
    }
    false
}

/// Returns the run directories in `parent` except `own`, each with the paths that its sandbox uses.
///
/// # Errors
/// Fails if one of them cannot be read.
fn others(parent: &Path, own: &Path) -> io::Result<Vec<(PathBuf, Vec<PathBuf>)>> {
    let mut others = Vec::new();
    if is_shared(parent) {
        return Ok(others);
    }
    for entry in std::fs::read_dir(parent)? {
        let path = entry?.path();
        if path == own || !is_ours(&path) {
            continue;
        }
        match paths(&path.join(USES)) {
            Ok(uses) => others.push((path, uses)),
            // That sandbox has ended, or it registers its paths only after this.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(others)
}

/// Records `folder` in `run_dir`; the sandbox of `run_dir` has to remove it.
fn record(run_dir: &Path, folder: &Path) -> io::Result<()> {
    let mut file = open_regular(
        &run_dir.join(MADE),
        File::options().create(true).append(true),
    )?;
    file.write_all(&line(folder))
}

fn line(path: &Path) -> Vec<u8> {
    [path.as_os_str().as_bytes(), &[0]].concat()
}

fn paths(file: &Path) -> io::Result<Vec<PathBuf>> {
    let mut list = Vec::new();
    open_regular(file, File::options().read(true))?
        .take(LIST_BYTES)
        .read_to_end(&mut list)?;
    let lines = list
        .split(|byte| *byte == 0)
        .filter(|path| !path.is_empty());
    Ok(lines
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
        .collect())
}

/// Removes an empty directory without following symlinks, because the workload may have replaced a
/// parent by one.
fn remove_empty(folder: &Path, is_shared: bool) -> rustix::io::Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(());
    };
    let parent = trusted_symlinks::open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    let held = File::from(held);
    // On any other directory anybody could hold a lock, so it does not count.
    if (is_shared || held.metadata().is_ok_and(|data| is_root_only(&data))) && is_locked(&held) {
        return Err(Errno::WOULDBLOCK);
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Returns true if another process holds a lock on `file`.
fn is_locked(file: impl AsFd) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

/// Returns true if only root can open the file that `data` describes, and so hold a lock on it.
fn is_root_only(data: &Metadata) -> bool {
    data.uid() == rustix::process::geteuid().as_raw() && data.mode() & 0o066 == 0
}

/// A lock on a parent of run directories. It is released on drop.
struct Lock {
    _held: File,
    /// The lock file to remove, if there is one.
    file: Option<PathBuf>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is still locked here: a process that waits for it finds it unlinked and creates
        // another.
        let _ = self.file.take().map(std::fs::remove_file);
    }
}

/// Locks `parent`, a parent of run directories, against other sandboxes. A shared parent is not
/// locked, because workloads could hold the lock.
fn lock(parent: &Path) -> io::Result<Lock> {
    let folder = File::open(parent)?;
    if is_shared(parent) {
        return Ok(Lock {
            _held: folder,
            file: None,
        });
    }
    if is_root_only(&folder.metadata()?) {
        wait_for(&folder, FlockOperation::NonBlockingLockExclusive)?;
        return Ok(Lock {
            _held: folder,
            file: None,
        });
    }
    let deadline = Instant::now() + LOCK_TIMEOUT;
    while Instant::now() < deadline {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let held = File::from(rustix::fs::openat(
            &folder,
            LOCK,
            flags,
            Mode::RUSR | Mode::WUSR,
        )?);
        let data = held.metadata()?;
        // In /tmp any user may have created a file of this name.
        if !data.is_file() || !is_root_only(&data) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        wait_for(&held, FlockOperation::NonBlockingLockExclusive)?;
        if held.metadata()?.nlink() > 0 {
            return Ok(Lock {
                _held: held,
                file: Some(parent.join(LOCK)),
            });
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

fn wait_for(file: impl AsFd, operation: FlockOperation) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match rustix::fs::flock(&file, operation) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::CreatedDirs;
    use crate::runs::run_dir::RunDir;

    fn place() -> tempfile::TempDir {
        tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .unwrap()
    }

    fn make(made: &mut CreatedDirs, folder: &Path) {
        std::fs::create_dir(folder).unwrap();
        made.add(folder).unwrap();
    }

    #[test]
    fn empty_folders_are_removed_and_others_are_named() {
        let place = place();
        let run_dir = RunDir::create(Some(place.path()), None).unwrap();
        let [outer, inner, full] =
            ["outer", "outer/inner", "full"].map(|name| place.path().join(name));
        let mut made =
            CreatedDirs::new(&run_dir, [inner.as_path(), full.as_path()].into_iter()).unwrap();
        for folder in [&outer, &inner, &full] {
            make(&mut made, folder);
        }
        std::fs::write(full.join("file"), "").unwrap();
        assert_eq!(made.remove(), std::slice::from_ref(&full));
        assert!(!outer.exists() && full.exists());
        assert!(made.remove().is_empty(), "said once");
    }

    #[test]
    fn what_another_sandbox_uses_is_left_to_that_one() {
        let place = place();
        let folder = place.path().join("shared");
        let [one, other] = [0, 1].map(|_| RunDir::create(Some(place.path()), None).unwrap());
        let mut made = CreatedDirs::new(&one, [folder.as_path()].into_iter()).unwrap();
        make(&mut made, &folder);
        let others = CreatedDirs::new(&other, [folder.as_path()].into_iter()).unwrap();
        assert!(made.remove().is_empty(), "it is the other's now");
        assert!(folder.exists());
        drop(others);
        assert!(
            !folder.exists(),
            "a start that failed removes what is its own too"
        );
    }

    #[test]
    fn a_folder_that_is_held_stays_whatever_run_directory_its_holder_has() {
        let [here, there] = [place(), place()];
        let folder = here.path().join("shared");
        let [one, other] =
            [&here, &there].map(|place| RunDir::create(Some(place.path()), None).unwrap());
        let [mut made, mut others] =
            [&one, &other].map(|run_dir| CreatedDirs::new(run_dir, std::iter::empty()).unwrap());
        make(&mut made, &folder);
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(super::HELD_MODE)).unwrap();
        assert!(made.hold(&folder).unwrap() && others.hold(&folder).unwrap());
        assert_eq!(made.remove(), std::slice::from_ref(&folder));
        made.add(&folder).unwrap();
        drop(others);
        assert!(made.remove().is_empty() && !folder.exists());
        assert!(!made.hold(&folder).unwrap(), "it is gone");
    }

    #[test]
    fn a_lock_that_others_may_hold_delays_nothing_and_keeps_nothing() {
        let place = place();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let run_dir = RunDir::create(Some(place.path()), None).unwrap();
        let [shown, made_one] = ["shown", "made"].map(|name| place.path().join(name));
        let mut made = CreatedDirs::new(&run_dir, std::iter::empty()).unwrap();
        std::fs::create_dir(&shown).unwrap();
        make(&mut made, &made_one);
        // Any process that may open them can do this.
        let locked = [place.path(), &shown, &made_one].map(|folder| {
            let folder = std::fs::File::open(folder).unwrap();
            rustix::fs::flock(
                &folder,
                rustix::fs::FlockOperation::NonBlockingLockExclusive,
            )
            .unwrap();
            folder
        });
        let start = std::time::Instant::now();
        assert!(made.hold(&shown).unwrap());
        drop(CreatedDirs::new(&run_dir, [shown.as_path()].into_iter()).unwrap());
        make(&mut made, &place.path().join("later"));
        assert!(made.remove().is_empty(), "what was made is removed");
        assert!(start.elapsed() < super::LOCK_TIMEOUT);
        drop((locked, made, run_dir));
        let left: Vec<_> = std::fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["shown"]);
    }

    #[test]
    fn a_lock_file_that_another_user_made_is_none_and_a_lock_that_root_holds_too_long_is_said() {
        let place = place();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let run_dir = RunDir::create(Some(place.path()), None).unwrap();
        let mut made = CreatedDirs::new(&run_dir, std::iter::empty()).unwrap();
        let [folder, file] = ["made", super::LOCK].map(|name| place.path().join(name));
        make(&mut made, &folder);
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::chown(&file, Some(900), None).unwrap();
        assert_eq!(
            made.remove(),
            std::slice::from_ref(&folder),
            "left, as nothing keeps others from using it"
        );
        assert!(file.exists());
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(super::HELD_MODE)).unwrap();
        let locked = std::fs::File::open(&folder).unwrap();
        rustix::fs::flock(
            &locked,
            rustix::fs::FlockOperation::NonBlockingLockExclusive,
        )
        .unwrap();
        assert_eq!(
            made.hold(&folder).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
    }

    #[test]
    fn a_lock_file_is_held_by_one_at_a_time() {
        let place = place();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let inside = std::sync::atomic::AtomicU32::new(0);
        let ordering = std::sync::atomic::Ordering::SeqCst;
        let enter = || {
            let lock = super::lock(place.path()).unwrap();
            assert_eq!(inside.fetch_add(1, ordering), 0);
            assert_eq!(inside.fetch_sub(1, ordering), 1);
            drop(lock);
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                drop(scope.spawn(|| (0..50).for_each(|_| enter())));
            }
        });
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_next_start_removes_what_a_killed_one_made() {
        let place = place();
        let folder = place.path().join("made");
        let killed = place.path().join("openshell-0123456789abcdef");
        std::fs::create_dir_all(&killed).unwrap();
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(killed.join("lock"), "").unwrap();
        std::fs::write(killed.join("made"), super::line(&folder)).unwrap();
        drop(RunDir::create(Some(place.path()), None).unwrap());
        assert!(!folder.exists() && !killed.exists());
    }

    #[test]
    fn a_symlink_on_the_way_leads_nowhere() {
        let place = place();
        let run_dir = RunDir::create(Some(place.path()), None).unwrap();
        let [way, inner, elsewhere] =
            ["way", "way/inner", "elsewhere"].map(|name| place.path().join(name));
        let mut made = CreatedDirs::new(&run_dir, std::iter::empty()).unwrap();
        for folder in [&way, &inner] {
            make(&mut made, folder);
        }
        std::fs::remove_dir_all(&way).unwrap();
        std::fs::create_dir_all(elsewhere.join("inner")).unwrap();
        symlink(&elsewhere, &way).unwrap();
        assert_eq!(made.remove(), [inner, way]);
        assert!(elsewhere.join("inner").exists());
    }
}
