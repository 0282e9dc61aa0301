//! Folders that a start made on the host, and their end: those that are empty are removed with the sandbox.
//!
//! Sandboxes with run directories in one place know of each other: each writes down what it uses before it looks for it, and
//! leaves what another has written down to that one, both under a lock of that place.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, ResolveFlags};

use crate::run_dir::{self, RunDir};

/// The files in a run directory that hold what its sandbox made and uses, each path followed by a NUL.
const MADE: &str = "made";
const USES: &str = "uses";

/// How long another sandbox may hold the lock; it does for less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// The folders that one sandbox made.
#[derive(Debug)]
pub struct Made {
    run_dir: PathBuf,
    /// Folders that no other sandbox removes, wherever its run directory is.
    held: Vec<File>,
}

impl Made {
    /// None so far. From now on no other sandbox removes a folder of `uses`, which are made if they are missing.
    ///
    /// # Errors
    /// The run directory cannot be written.
    pub fn none<'p>(run_dir: &RunDir, uses: impl Iterator<Item = &'p Path>) -> io::Result<Self> {
        let run_dir = run_dir.path().to_owned();
        // Without the lock a folder may be gone in a moment, which is no reason not to start.
        let _lock = run_dir.parent().map(|place| lock(place, FlockOperation::NonBlockingLockExclusive));
        let list: Vec<u8> = uses.flat_map(line).collect();
        std::fs::write(run_dir.join(USES), list)?;
        Ok(Self { run_dir, held: Vec::new() })
    }

    /// Keeps other sandboxes from removing `folder` by a lock on the folder itself, so it must be one that no workload sees.
    /// False if it has been removed meanwhile.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn hold(&mut self, folder: &Path) -> io::Result<bool> {
        let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        // A sandbox holds it exclusively for less than a millisecond; a process of another user must not stop the start by it.
        let held = match lock(folder, FlockOperation::NonBlockingLockShared) {
            Err(error) if is_gone(&error) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            held => held?,
        };
        let is_same = std::fs::metadata(folder)
            .is_ok_and(|now| held.metadata().is_ok_and(|then| (now.dev(), now.ino()) == (then.dev(), then.ino())));
        self.held.push(held);
        Ok(is_same)
    }

    /// Writes down that `folder` was made; what leads to it comes before it.
    ///
    /// # Errors
    /// The run directory cannot be written.
    pub fn add(&mut self, folder: &Path) -> io::Result<()> {
        record(&self.run_dir, folder)
    }

    /// Removes the folders, and returns those that it left, as they are not empty. One that another sandbox uses is left to it.
    pub fn remove(&mut self) -> Vec<PathBuf> {
        self.held.clear();
        remove_recorded(&self.run_dir)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // After a start that failed there is no log line for what stays.
        let _ = self.remove();
    }
}

/// Removes the folders that the sandbox of `run_dir` made, once, and returns those that are left.
pub(crate) fn remove_recorded(run_dir: &Path) -> Vec<PathBuf> {
    let Some(place) = run_dir.parent() else { return Vec::new() };
    let lock = lock(place, FlockOperation::NonBlockingLockExclusive);
    let mut made = paths(&run_dir.join(MADE));
    // From here on it uses nothing, and what another one makes is not its to remove. Both files go with the directory too.
    for name in [USES, MADE] {
        let _ = std::fs::remove_file(run_dir.join(name));
    }
    if lock.is_err() {
        return made;
    }
    // Parents come after their children.
    made.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
    let others = others(place, run_dir);
    made.retain(|folder| match others.iter().find(|(_, uses)| uses.iter().any(|path| path.starts_with(folder))) {
        // The sandbox that uses it removes it.
        Some((other, _)) => record(other, folder).is_err(),
        None => remove_empty(folder).is_err_and(|errno| errno != rustix::io::Errno::NOENT),
    });
    made
}

/// The run directories in `place` but `own`, and what each sandbox uses.
fn others(place: &Path, own: &Path) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let others = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let others = others.filter(|path| path != own && run_dir::is_ours(path));
    others.map(|path| (path.clone(), paths(&path.join(USES)))).collect()
}

/// Writes down that the sandbox of `run_dir` has to remove `folder`.
fn record(run_dir: &Path, folder: &Path) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(run_dir.join(MADE))?;
    file.write_all(&line(folder))
}

fn line(path: &Path) -> Vec<u8> {
    [path.as_os_str().as_bytes(), &[0]].concat()
}

fn paths(file: &Path) -> Vec<PathBuf> {
    let list = std::fs::read(file).unwrap_or_default();
    let lines = list.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    lines.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect()
}

/// Removes a folder without going through a symlink, as the workload may have put one on the way to it.
fn remove_empty(folder: &Path) -> rustix::io::Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { return Ok(()) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// A lock of `place`, which ends with the result.
fn lock(place: &Path, operation: FlockOperation) -> io::Result<File> {
    let folder = File::open(place)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&folder, operation) {
            // Where /tmp is the place, any process may hold it.
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result.map(|()| folder).map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::Made;
    use crate::run_dir::RunDir;

    fn place() -> tempfile::TempDir {
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o700)).tempdir().unwrap()
    }

    fn make(made: &mut Made, folder: &Path) {
        std::fs::create_dir(folder).unwrap();
        made.add(folder).unwrap();
    }

    #[test]
    fn empty_folders_are_removed_and_others_are_named() {
        let place = place();
        let run_dir = RunDir::create(Some(place.path())).unwrap();
        let [outer, inner, full] = ["outer", "outer/inner", "full"].map(|name| place.path().join(name));
        let mut made = Made::none(&run_dir, [inner.as_path(), full.as_path()].into_iter()).unwrap();
        [&outer, &inner, &full].into_iter().for_each(|folder| make(&mut made, folder));
        std::fs::write(full.join("file"), "").unwrap();
        assert_eq!(made.remove(), std::slice::from_ref(&full));
        assert!(!outer.exists() && full.exists());
        assert!(made.remove().is_empty(), "said once");
    }

    #[test]
    fn what_another_sandbox_uses_is_left_to_that_one() {
        let place = place();
        let folder = place.path().join("shared");
        let [one, other] = [0, 1].map(|_| RunDir::create(Some(place.path())).unwrap());
        let mut made = Made::none(&one, [folder.as_path()].into_iter()).unwrap();
        make(&mut made, &folder);
        let others = Made::none(&other, [folder.as_path()].into_iter()).unwrap();
        assert!(made.remove().is_empty(), "it is the other's now");
        assert!(folder.exists());
        drop(others);
        assert!(!folder.exists(), "a start that failed removes what is its own too");
    }

    #[test]
    fn a_folder_that_is_held_stays_whatever_run_directory_its_holder_has() {
        let [here, there] = [place(), place()];
        let folder = here.path().join("shared");
        let [one, other] = [&here, &there].map(|place| RunDir::create(Some(place.path())).unwrap());
        let [mut made, mut others] = [&one, &other].map(|run_dir| Made::none(run_dir, std::iter::empty()).unwrap());
        make(&mut made, &folder);
        assert!(made.hold(&folder).unwrap() && others.hold(&folder).unwrap());
        assert_eq!(made.remove(), std::slice::from_ref(&folder));
        made.add(&folder).unwrap();
        drop(others);
        assert!(made.remove().is_empty() && !folder.exists());
        assert!(!made.hold(&folder).unwrap(), "it is gone");
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
        drop(RunDir::create(Some(place.path())).unwrap());
        assert!(!folder.exists() && !killed.exists());
    }

    #[test]
    fn a_symlink_on_the_way_leads_nowhere() {
        let place = place();
        let run_dir = RunDir::create(Some(place.path())).unwrap();
        let [way, inner, elsewhere] = ["way", "way/inner", "elsewhere"].map(|name| place.path().join(name));
        let mut made = Made::none(&run_dir, std::iter::empty()).unwrap();
        [&way, &inner].into_iter().for_each(|folder| make(&mut made, folder));
        std::fs::remove_dir_all(&way).unwrap();
        std::fs::create_dir_all(elsewhere.join("inner")).unwrap();
        symlink(&elsewhere, &way).unwrap();
        assert_eq!(made.remove(), [inner, way]);
        assert!(elsewhere.join("inner").exists());
    }
}
