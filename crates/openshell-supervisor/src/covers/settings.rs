//! Finds settings of a project that name programs to run. Editors, shells and agents execute these
//! programs for whoever works in the folder next.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

use super::error::{CoverError, unseen};
use super::git_use::elsewhere;
use super::patterns::closed_by;
use crate::files::filesystem::Placeholder;
use crate::paths::missing::is_missing;

/// The largest number of folder entries that are looked at in all projects of a run.
const ENTRIES: usize = 50_000;

/// The largest numbers of paths, and of work trees and repositories, that are kept. Each takes some
/// mounts, and a command may have made many.
const PATHS: usize = 400;
const TREES: usize = 100;

/// The largest number of folders above these paths; each is a mount.
const WAYS: usize = 1000;

/// Names that git, editors, direnv and agents look for at the top of a work tree. If one is missing
/// there, its placeholder stands in for it.
const AT_THE_TOP: [(&str, Placeholder<'static>); 6] = [
    (".gitmodules", Placeholder::File("")),
    (".mcp.json", Placeholder::File("{}\n")),
    (".envrc", Placeholder::File("")),
    (".vscode", Placeholder::Folder),
    (".idea", Placeholder::Folder),
    (".devcontainer", Placeholder::Folder),
];

/// Further names, which are kept only if they exist.
const ANYWHERE: [&str; 22] = [
    ".devcontainer.json",
    ".cursor",
    ".zed",
    ".exrc",
    ".nvim.lua",
    ".dir-locals.el",
    ".gdbinit",
    ".lldbinit",
    ".gitconfig",
    ".ripgreprc",
    ".profile",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".inputrc",
];

/// Folders that are not searched: git's own, which has a search of its own, and packages, which are
/// replaced as a whole.
const CLOSED: [&str; 2] = [".git", "node_modules"];

/// The largest number of threads that search folders, and the number of folders from which on there
/// are several threads. A file system takes up to 1 µs for an entry, and 10 µs for a folder.
const THREADS: usize = 4;
const MANY: usize = 32;

/// The entries that make a folder a bare repository.
const REPOSITORY: [&str; 3] = ["HEAD", "objects", "refs"];

/// The settings that were found in the projects of a run.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) paths: Vec<(PathBuf, Placeholder<'static>)>,
    /// The work trees and repositories in subfolders.
    pub(super) trees: Vec<PathBuf>,
    /// The first project that was not searched in full.
    pub(super) cut: Option<PathBuf>,
    seen: usize,
    /// The folders above what is kept.
    ways: BTreeSet<PathBuf>,
}

impl Settings {
    /// Adds the files that settings in the `home` are symlinks to, for example in a repository of
    /// dotfiles. Whoever uses that home executes them.
    pub(super) fn add_linked(&mut self, home: &Path) {
        let names = AT_THE_TOP.iter().map(|(name, _)| *name).chain(ANYWHERE);
        let links = names
            .map(|name| home.join(name))
            .filter(|path| path.is_symlink());
        let linked = links.filter_map(|link| elsewhere(&link, Some(home)));
        self.paths
            .extend(linked.map(|path| (path, Placeholder::File(""))));
    }

    /// Adds the settings in `project`, those closest to its top first. With `is_tree` also adds
    /// those that are missing at its top.
    ///
    /// # Errors
    /// Fails if a folder of `uid`, the command's user, cannot be searched: the command may make it
    /// readable again.
    pub(super) fn add(
        &mut self,
        project: &Path,
        is_tree: bool,
        uid: u32,
    ) -> Result<(), CoverError> {
        if is_tree {
            self.paths
                .extend(AT_THE_TOP.map(|(name, placeholder)| (project.join(name), placeholder)));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match rustix::fs::open(project, flags, Mode::empty()) {
            Err(errno) if is_missing(&errno.into()) => return Ok(()),
            Err(Errno::ACCESS) if closed_by(project, uid).is_none() => return Ok(()),
            opened => opened.map_err(io::Error::from).map_err(unseen(|| {
                format!("cannot search {} for settings", project.display())
            }))?,
        };
        let walk = Walk {
            project,
            root,
            uid,
            seen: AtomicUsize::new(self.seen),
        };
        let mut level = vec![PathBuf::new()];
        while !level.is_empty() {
            let found = walk.look_at_all(&level)?;
            let is_kept = found
                .paths
                .into_iter()
                .all(|setting| self.add_path(setting, project));
            let is_kept = is_kept
                && found
                    .trees
                    .into_iter()
                    .all(|tree| self.add_tree(tree, project));
            level = found.folders;
            self.seen = walk.seen.load(Ordering::Relaxed);
            if self.seen > ENTRIES || !is_kept {
                self.cut.get_or_insert_with(|| project.to_owned());
                break;
            }
        }
        Ok(())
    }
}

impl Settings {
    /// Adds a setting. Returns false if it exceeds a limit.
    fn add_path(&mut self, setting: (PathBuf, Placeholder<'static>), project: &Path) -> bool {
        let has_room = self.paths.len() < PATHS && self.has_way(&setting.0, project);
        if has_room {
            self.paths.push(setting);
        }
        has_room
    }

    /// Adds a work tree or repository. Returns false if it exceeds a limit.
    fn add_tree(&mut self, tree: PathBuf, project: &Path) -> bool {
        let has_room = self.trees.len() < TREES && self.has_way(&tree, project);
        if has_room {
            self.trees.push(tree);
        }
        has_room
    }

    /// Adds the folders above `path` in `project`. Returns false if there are too many.
    fn has_way(&mut self, path: &Path, project: &Path) -> bool {
        for above in path
            .ancestors()
            .skip(1)
            .take_while(|above| *above != project)
        {
            if !self.ways.insert(above.to_owned()) {
                break;
            }
        }
        self.ways.len() <= WAYS
    }
}

/// A walk through the folders of a project, level by level.
struct Walk<'p> {
    project: &'p Path,
    root: OwnedFd,
    uid: u32,
    seen: AtomicUsize,
}

/// The settings that were found in some folders.
#[derive(Default)]
struct Found {
    paths: Vec<(PathBuf, Placeholder<'static>)>,
    trees: Vec<PathBuf>,
    /// The folders to search next, relative to the project.
    folders: Vec<PathBuf>,
}

impl Walk<'_> {
    /// Searches `folders`, whose paths are relative to the project. Uses several threads if there
    /// are many.
    fn look_at_all(&self, folders: &[PathBuf]) -> Result<Found, CoverError> {
        let next = AtomicUsize::new(0);
        let threads = if folders.len() < MANY {
            1
        } else {
            processors().min(THREADS)
        };
        std::thread::scope(|scope| {
            // The other threads have the user of this thread.
            let others: Vec<_> = (1..threads)
                .map(|_| scope.spawn(|| self.look_at(folders, &next)))
                .collect();
            let mut found = self.look_at(folders, &next)?;
            for other in others {
                let other = other.join().map_err(|_| {
                    CoverError::Refused("the search for settings failed".to_owned())
                })??;
                found.paths.extend(other.paths);
                found.trees.extend(other.trees);
                found.folders.extend(other.folders);
            }
            Ok(found)
        })
    }

    /// Searches those of `folders` that no other thread has taken. `next` is the index of the first
    /// such folder.
    fn look_at(&self, folders: &[PathBuf], next: &AtomicUsize) -> Result<Found, CoverError> {
        let mut space = [MaybeUninit::uninit(); 32 * 1024];
        let mut found = Found::default();
        while let Some(folder) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
            let whole = self.project.join(folder);
            let opened = match open_in(&self.root, folder) {
                // Somebody has removed the folder, or put a symlink in its place.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                // The command cannot open a folder of another user.
                Err(Errno::ACCESS) if closed_by(&whole, self.uid).is_none() => continue,
                opened => opened
                    .map_err(io::Error::from)
                    .map_err(unseen(|| self.cannot_search(&whole)))?,
            };
            let mut of_repository = 0;
            let mut entries = RawDir::new(&opened, &mut space);
            while let Some(entry) = entries.next() {
                let entry = entry
                    .map_err(io::Error::from)
                    .map_err(unseen(|| self.cannot_search(&whole)))?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                if self.seen.fetch_add(1, Ordering::Relaxed) >= ENTRIES {
                    return Ok(found);
                }
                if is_kept(name) {
                    found.paths.push((whole.join(name), Placeholder::File("")));
                    continue;
                }
                of_repository += usize::from(REPOSITORY.iter().any(|entry| name == *entry));
                if name == ".git" && !folder.as_os_str().is_empty() {
                    found.trees.push(whole.clone());
                    continue;
                }
                let is_closed =
                    CLOSED.iter().any(|closed| name == *closed) || is_kernels(&whole, name);
                if !is_closed && is_folder(&opened, name, entry.file_type()) {
                    found.folders.push(folder.join(name));
                }
            }
            if of_repository == REPOSITORY.len() && !folder.as_os_str().is_empty() {
                found.trees.push(whole);
            }
        }
        Ok(found)
    }

    fn cannot_search(&self, folder: &Path) -> String {
        let closed = closed_by(folder, self.uid).unwrap_or(folder).display();
        format!(
            "cannot search {closed} for settings that editors, shells and agents execute; the \
             command could open the folder and change them; run `chmod u+rx {closed}`, or give \
             --no-keep-settings"
        )
    }
}

/// Returns the number of processors that this thread may run on.
fn processors() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize)
}

/// Returns true for the folders of the kernel. Their entries come and go, and are not settings of
/// people.
fn is_kernels(folder: &Path, name: &OsStr) -> bool {
    folder == Path::new("/")
        && ["dev", "proc", "sys"]
            .iter()
            .any(|of_kernel| name == *of_kernel)
}

fn is_kept(name: &OsStr) -> bool {
    // Most names do not begin with a dot.
    name.as_bytes().first() == Some(&b'.')
        && (AT_THE_TOP.iter().any(|(kept, _)| name == *kept)
            || ANYWHERE.iter().any(|kept| name == *kept))
}

fn open_in(root: &OwnedFd, folder: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    rustix::fs::openat2(
        root,
        folder,
        flags,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
}

/// Returns true for a folder. Not every file system tells the type of an entry when it lists a
/// folder.
fn is_folder(parent: &OwnedFd, name: &OsStr, listed: FileType) -> bool {
    if listed != FileType::Unknown {
        return listed == FileType::Directory;
    }
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_or_else(
        // An entry that cannot be looked at cannot be opened either. Opening it reports that.
        |errno| errno != Errno::NOENT,
        |data| FileType::from_raw_mode(data.st_mode) == FileType::Directory,
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ENTRIES, Settings};

    fn found(project: &Path, is_tree: bool) -> (Vec<String>, Settings) {
        let mut settings = Settings::default();
        settings
            .add(project, is_tree, rustix::process::geteuid().as_raw())
            .unwrap();
        let name = |path: &Path| path.strip_prefix(project).unwrap().display().to_string();
        let mut names: Vec<_> = settings.paths.iter().map(|(path, _)| name(path)).collect();
        names.sort_unstable();
        (names, settings)
    }

    #[test]
    fn settings_are_found_at_any_depth_and_missing_ones_at_the_top_of_a_work_tree_alone() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in [
            "a/b/.vscode",
            "node_modules/p/.vscode",
            ".git/.vscode",
            "sub/.git",
            "a/link",
            "a/.envrc.d",
        ] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in [
            ".envrc",
            "a/b/.vscode/settings.json",
            "a/.bashrc",
            "a/b/.mcp.json",
            "a/bashrc",
        ] {
            std::fs::write(root.join(path), "").unwrap();
        }
        std::os::unix::fs::symlink("/", root.join("a/b/way")).unwrap();
        std::os::unix::fs::symlink("/nowhere", root.join("a/.idea")).unwrap();
        let there = [
            ".envrc",
            "a/.bashrc",
            "a/.idea",
            "a/b/.mcp.json",
            "a/b/.vscode",
        ];
        let (names, settings) = found(root, false);
        assert_eq!(names, there);
        assert_eq!(settings.trees, [root.join("sub")]);
        let (mut names, _) = found(root, true);
        names.dedup();
        let missing = [
            ".devcontainer",
            ".gitmodules",
            ".idea",
            ".mcp.json",
            ".vscode",
        ];
        let mut all = [&there[..], &missing[..]].concat();
        all.sort_unstable();
        assert_eq!(names, all);
    }

    #[test]
    fn a_large_project_is_looked_at_from_its_top_and_the_rest_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        for number in 0..ENTRIES {
            std::fs::File::create(deep.join(format!("file{number}"))).unwrap();
        }
        std::fs::write(folder.path().join("a/.envrc"), "").unwrap();
        let (names, settings) = found(folder.path(), false);
        assert_eq!(names, ["a/.envrc"]);
        assert_eq!(settings.cut.as_deref(), Some(folder.path()));
    }
}
