//! The files that an observed run read beyond its policy, combined into the folders that a policy
//! would list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use openshell_events::words::FileAccess;
use openshell_supervisor::calls::file_calls::{Accessed, FileRights, RefusedBy, interpreter};
use openshell_supervisor::identity::run_as::ProcessIdentity;
use openshell_supervisor::paths::trusted_symlinks::resolve;
use parking_lot::Mutex;

/// The most paths that are kept, and the most bytes of all of them.
const PATHS: usize = 65_536;
const BYTES: usize = 8 * 1024 * 1024;

/// The most paths in a policy.
const LEARNED: usize = 1000;

/// The most files of one folder that are listed one by one; if there are more, the folder is
/// listed.
const FILES: usize = 2;

/// Folders in a home that hold folders of many programs.
const SHARED: &[&str] = &[
    ".config",
    ".cache",
    ".local",
    ".local/share",
    ".local/state",
    ".local/lib",
    ".local/bin",
];

/// Folders in a home for caches. Programs outside use what is in them, and run some of it; the
/// policy has a comment about that.
const CACHES: &[&str] = &[
    ".npm/_cacache",
    ".npm/_logs",
    ".yarn/berry/cache",
    ".bun/install/cache",
    ".local/share/pnpm/store",
    ".local/state/pnpm",
    ".cargo/registry",
    ".cargo/git",
    "go/pkg/mod",
    "go/pkg/sumdb",
    ".gradle/caches",
    ".m2/repository",
    ".ivy2/cache",
    ".nuget/packages",
    ".pub-cache/hosted",
];

/// Accesses of an observed run that its policy does not cover.
#[derive(Debug, Default)]
pub(crate) struct ObservedFiles(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    read: BTreeSet<PathBuf>,
    listed: BTreeSet<PathBuf>,
    /// Files that were only looked at.
    looked_at: BTreeSet<PathBuf>,
    /// Paths that were looked for but do not exist.
    missing: BTreeSet<PathBuf>,
    /// Paths that were written, only for the length of the run, or whose writing was refused.
    written: BTreeSet<PathBuf>,
    paths: usize,
    bytes: usize,
    is_incomplete: bool,
}

impl Seen {
    /// Keeps the path of an access, unless there are too many.
    fn insert(&mut self, accessed: &Accessed) {
        let path = &accessed.path;
        let paths = self.paths + 1;
        let bytes = self.bytes + path.as_os_str().len();
        let Some(set) = self.set(accessed).filter(|set| !set.contains(path)) else {
            return;
        };
        if paths > PATHS || bytes > BYTES {
            self.is_incomplete = true;
            return;
        }
        set.insert(path.clone());
        (self.paths, self.bytes) = (paths, bytes);
    }

    /// Returns the set that an access belongs to.
    fn set(&mut self, accessed: &Accessed) -> Option<&mut BTreeSet<PathBuf>> {
        let Accessed {
            access,
            is_lookup,
            is_missing,
            refused_by,
            ..
        } = accessed;
        match (access, refused_by) {
            _ if *is_missing => Some(&mut self.missing),
            (FileAccess::Read, None) if *is_lookup => Some(&mut self.looked_at),
            (FileAccess::Read | FileAccess::Execute, None) => Some(&mut self.read),
            (FileAccess::List, None) => Some(&mut self.listed),
            (FileAccess::Write, None | Some(RefusedBy::NoGrant)) => Some(&mut self.written),
            (FileAccess::Read | FileAccess::Execute | FileAccess::List | FileAccess::Write, _) => {
                None
            }
        }
    }
}

impl ObservedFiles {
    /// Adds an access of a process of `identity`, unless `of_policy` covers it, or the path is
    /// hidden or its mode refuses the access.
    pub(crate) fn add(
        &self,
        accessed: &Accessed,
        of_policy: &FileRights,
        identity: &ProcessIdentity,
    ) {
        let Accessed {
            path,
            link,
            access,
            is_folder,
            is_lookup,
            is_missing,
            ..
        } = accessed;
        // A file that was found through a symlink has to be found again, so the symlink is needed
        // too. Only symlinks that root made are followed. For any other, its folder is made
        // visible, if that holds only programs.
        let link = link.as_deref().and_then(|link| {
            if resolve(link).is_ok() {
                Some(link)
            } else {
                bin(link)
            }
        });
        let is_in_sight =
            |folder: &Path| folder == Path::new("/") || of_policy.grants(folder, FileAccess::List);
        let is_hidden = |link: &&Path| !link.parent().is_some_and(is_in_sight);
        let link = link
            .filter(is_hidden)
            .map(|link| Accessed::new(accessed.thread, link.to_owned(), FileAccess::Read));
        // Looking at a folder does not use what is in it.
        let is_beyond = !(of_policy.grants(path, *access) || *is_lookup && *is_folder);
        let is_permitted =
            || *is_missing || *access == FileAccess::Write || identity.may_reach(path, *access);
        let is_needed = is_beyond && is_permitted();
        // A panic elsewhere cannot leave the value half changed.
        let mut seen = self.0.lock();
        for accessed in link.iter().chain(is_needed.then_some(accessed)) {
            seen.insert(accessed);
        }
    }

    /// Adds the program of a run, found by `path`, and its interpreter, because their start cannot
    /// be observed in a user namespace.
    pub(crate) fn add_program(
        &self,
        path: &Path,
        of_policy: &FileRights,
        identity: &ProcessIdentity,
    ) {
        for path in std::iter::once(path.to_owned()).chain(interpreter(path)) {
            let Ok(real) = std::fs::canonicalize(&path) else {
                continue;
            };
            let link = Some(path).filter(|path| *path != real);
            self.add(
                &Accessed {
                    link,
                    ..Accessed::new(0, real, FileAccess::Execute)
                },
                of_policy,
                identity,
            );
        }
    }

    /// Returns the accesses so far, combined into folders, for a user with this home.
    pub(super) fn learned(&self, home: Option<&Path>) -> Learned {
        let seen = self.0.lock();
        let shared = SharedFolders { home };
        let (caches, others): (BTreeSet<_>, BTreeSet<_>) = seen
            .written
            .iter()
            .map(|path| cache(path, home).ok_or_else(|| path.clone()))
            .partition(Result::is_ok);
        let others = others.into_iter().filter_map(Result::err).collect();
        // A program that lists a shared folder looks at each file in it, without using it.
        let is_apart =
            |path: &&PathBuf| path.parent().is_some_and(|folder| !shared.contains(folder));
        let read = seen
            .read
            .iter()
            .chain(seen.looked_at.iter().filter(is_apart))
            .cloned()
            .collect();
        // What the command created in the home is gone after the run.
        let is_outside = |path: &Path| {
            !home.is_some_and(|home| path.starts_with(home)) || path.symlink_metadata().is_ok()
        };
        let read: BTreeSet<_> = shared
            .folded(&read, &seen.listed)
            .into_iter()
            .filter(|path| is_outside(path))
            .collect();
        let missing: BTreeSet<_> = seen
            .missing
            .iter()
            .filter_map(|path| shared.missing(path))
            .collect();
        let is_unread = |folder: &&PathBuf| !folder.ancestors().any(|above| read.contains(above));
        Learned {
            written: caches.into_iter().flatten().collect(),
            not_listed: seen.listed.iter().filter(is_unread).cloned().collect(),
            not_written: shared.folded(&others, &BTreeSet::new()),
            is_incomplete: seen.is_incomplete || read.len() > LEARNED || missing.len() > LEARNED,
            missing: missing.into_iter().take(LEARNED).collect(),
            read: read.into_iter().take(LEARNED).collect(),
        }
    }
}

/// What a run was observed to need.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Learned {
    /// Files and folders that the policy must let the command read.
    pub(super) read: BTreeSet<PathBuf>,
    /// Folders that were listed but are not granted.
    pub(super) not_listed: BTreeSet<PathBuf>,
    /// Paths in the home that were looked for, and that the command must be able to see missing.
    pub(super) missing: BTreeSet<PathBuf>,
    /// Caches that the policy must let the command write.
    pub(super) written: BTreeSet<PathBuf>,
    /// Other files and folders that were written, only for the length of the run, or whose writing
    /// was refused.
    pub(super) not_written: BTreeSet<PathBuf>,
    /// True if there were more paths than are kept.
    pub(super) is_incomplete: bool,
}

/// Returns the folder of a program, if by its name it holds only programs.
fn bin(program: &Path) -> Option<&Path> {
    program
        .parent()
        .filter(|folder| folder.ends_with("bin") || folder.ends_with(".bin"))
}

/// Returns the folder that is a cache of one program and that `path` lies in.
fn cache(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let home = home?;
    let rest = path.strip_prefix(home).ok()?;
    let known = CACHES
        .iter()
        .find(|cache| rest.starts_with(cache))
        .map(|cache| home.join(cache));
    let of_program = || {
        let mut names = rest.strip_prefix(".cache").ok()?.iter();
        // A file directly in `.cache` is not a folder that could be granted.
        let folder = home.join(".cache").join(names.next()?);
        names.next().map(|_| folder)
    };
    known
        .filter(|cache| cache != path || !path.is_file())
        .or_else(of_program)
}

/// Folders whose contents belong to many programs, so that none of them is granted as a whole.
struct SharedFolders<'h> {
    home: Option<&'h Path>,
}

impl SharedFolders<'_> {
    fn contains(&self, folder: &Path) -> bool {
        let in_home = |home: &Path| {
            home.starts_with(folder)
                || folder
                    .strip_prefix(home)
                    .is_ok_and(|rest| SHARED.iter().any(|name| rest == Path::new(name)))
        };
        // The root, the folders in it, and folders below that hold others: homes, states, caches.
        let depth = folder.components().count();
        let is_upper = depth <= 2 || folder.parent() == Some(Path::new("/home"));
        let is_state = ["/var/lib", "/var/cache", "/var/tmp", "/usr/local"]
            .iter()
            .any(|path| folder == Path::new(path));
        is_upper || is_state || self.home.is_some_and(in_home)
    }

    /// Returns the uppermost missing folder of a missing path, if it lies in a shared folder in the
    /// home, whose other contents a policy hides. Folders of executables do not count: programs
    /// look in each of them for others, and go on whatever they find.
    fn missing(&self, path: &Path) -> Option<PathBuf> {
        let home = self.home?;
        let owned: Vec<_> = path
            .ancestors()
            .take_while(|above| !self.contains(above))
            .collect();
        let folder = owned.last()?.parent()?;
        let is_hidden = folder != home && folder.starts_with(home) && !folder.ends_with("bin");
        let is_missing = |above: &Path| above.try_exists().is_ok_and(|exists| !exists);
        owned
            .into_iter()
            .rev()
            .find(|above| is_missing(above))
            .filter(|_| is_hidden)
            .map(Path::to_owned)
    }

    /// Returns the smallest list of files and folders that covers `files` and the folders `listed`.
    /// Files with one owner are listed themselves if they are few; otherwise the deepest folder
    /// that holds all of them is.
    fn folded(&self, files: &BTreeSet<PathBuf>, listed: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
        let mut groups: BTreeMap<&Path, Vec<(&Path, &Path)>> = BTreeMap::new();
        let mut folded = BTreeSet::new();
        let entries = files
            .iter()
            .filter_map(|file| Some((file.as_path(), file.parent()?)));
        let entries = entries.chain(
            listed
                .iter()
                .map(|folder| (folder.as_path(), folder.as_path())),
        );
        for (path, folder) in entries {
            // The uppermost folder that is not shared belongs to one program or one project.
            match folder
                .ancestors()
                .take_while(|above| !self.contains(above))
                .last()
            {
                Some(owner) => groups.entry(owner).or_default().push((path, folder)),
                None if path != folder => drop(folded.insert(path.to_owned())),
                // A shared folder was listed. Its contents are not meant for the command.
                None => {}
            }
        }
        for group in groups.values() {
            let listed = group.iter().filter(|(path, folder)| path == folder).count();
            if listed == group.len() {
                // The command only listed folders, and used nothing in them.
                continue;
            }
            if group.len() <= FILES && listed == 0 {
                folded.extend(group.iter().map(|(path, _)| path.to_path_buf()));
            } else if let Some(((_, first), others)) = group.split_first() {
                let holds_all =
                    |above: &&Path| others.iter().all(|(_, folder)| folder.starts_with(above));
                folded.extend(first.ancestors().find(holds_all).map(Path::to_owned));
            }
        }
        let is_covered =
            |path: &PathBuf| path.ancestors().skip(1).any(|above| folded.contains(above));
        folded
            .iter()
            .filter(|path| !is_covered(path))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::SharedFolders;

    fn paths(paths: &[&str]) -> BTreeSet<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    fn check(files: &[&str], listed: &[&str], expected: &[&str]) {
        let shared = SharedFolders {
            home: Some(Path::new("/home/kim")),
        };
        assert_eq!(
            shared.folded(&paths(files), &paths(listed)),
            paths(expected),
            "{files:?} {listed:?}"
        );
    }

    #[test]
    fn many_files_of_a_program_become_the_folder_that_holds_them_and_few_stay() {
        check(&["/home/kim/.gitconfig"], &[], &["/home/kim/.gitconfig"]);
        check(
            &["/home/kim/.config/git/config"],
            &[],
            &["/home/kim/.config/git/config"],
        );
        let many = [
            "/home/kim/.cache/pip/http/a/1",
            "/home/kim/.cache/pip/http/b/2",
            "/home/kim/.cache/pip/selfcheck",
        ];
        check(&many, &[], &["/home/kim/.cache/pip"]);
        let deep = [
            "/home/kim/.rustup/toolchains/s/bin/a",
            "/home/kim/.rustup/toolchains/s/bin/b",
            "/home/kim/.rustup/toolchains/s/lib/c",
        ];
        check(&deep, &[], &["/home/kim/.rustup/toolchains/s"]);
        check(&["/opt/tool/bin/t"], &["/opt/tool/plugins"], &["/opt/tool"]);
        check(
            &["/home/kim/.cache/pip/a/1"],
            &["/home/kim/.cache/pip"],
            &["/home/kim/.cache/pip"],
        );
        check(&[], &["/home/kim/.cache/pip", "/home/kim/other/.git"], &[]);
        check(
            &["/srv/data/x/1", "/srv/data/x/2"],
            &["/srv/data"],
            &["/srv/data"],
        );
    }

    #[test]
    fn a_missing_path_stands_for_its_uppermost_missing_folder_beside_those_of_others() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".cache/pip")).unwrap();
        let shared = SharedFolders {
            home: Some(home.path()),
        };
        for (path, expected) in [
            (".config/git/attributes", Some(".config/git")),
            (".cache/pip/http/a/b", Some(".cache/pip/http")),
            (".local/share/uv/python", Some(".local/share/uv")),
            (".local/bin/git", None),
            (".npmrc", None),
            (".tool/settings", None),
        ] {
            let expected = expected.map(|path| home.path().join(path));
            assert_eq!(shared.missing(&home.path().join(path)), expected, "{path}");
        }
        assert_eq!(shared.missing(Path::new("/opt/tool/x")), None);
    }

    #[test]
    fn a_folder_of_many_programs_is_never_granted_whole() {
        for shared in [
            "/",
            "/home",
            "/home/kim",
            "/home/kim/.config",
            "/home/kim/.local/share",
            "/opt",
            "/var/lib",
            "/home/lee",
        ] {
            let files =
                ["a", "b", "c"].map(|name| Path::new(shared).join(name).display().to_string());
            let files = files.each_ref().map(String::as_str);
            check(&files, &[shared], &files);
        }
        let apart = [
            "/home/kim/.a",
            "/home/kim/.b",
            "/home/kim/.c",
            "/home/kim/.d",
            "/home/kim/.e",
        ];
        check(&apart, &["/home/kim"], &apart);
        let three = [
            "/home/kim/.config/a/1",
            "/home/kim/.config/b/1",
            "/home/kim/.config/c/1",
        ];
        check(&three, &[], &three);
        check(
            &["/opt/a", "/opt/b", "/opt/c", "/opt/d"],
            &[],
            &["/opt/a", "/opt/b", "/opt/c", "/opt/d"],
        );
    }
}
