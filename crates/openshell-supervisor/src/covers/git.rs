//! Finds the files of git work trees through which git runs programs for whoever uses the tree
//! next: hooks, and attributes that name filters and drivers. Git also runs programs that a
//! repository's `config` names (`core.hooksPath`, `core.fsmonitor`, filters). The `config` is kept
//! too, unless the command is to write it, as `git config`, `git remote add` and `git push -u` do.
//!
//! An earlier command may have written what is read here. It can therefore only add paths that are
//! kept from being written. What cannot be read in full is reported.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::DirEntry;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::paths::missing::is_missing;

use super::git_files::content_of;
use super::git_settings::GitSettings;
use super::git_use::GitUse;
use super::patterns::closed_by;

/// The largest number of repositories, with those of submodules, whose files are kept.
const REPOSITORIES: usize = 500;

/// The largest number of folders that are searched for the repositories of submodules, and of
/// entries in a folder of hooks.
const FOLDERS: usize = 10_000;

/// A path that git takes programs from, or that leads git to them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SensitivePath {
    pub(super) path: PathBuf,
    /// The content of a file in its place that changes nothing for git.
    pub(super) placeholder: &'static str,
}

impl SensitivePath {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            placeholder: "",
        }
    }
}

/// What was found in a work tree or repository.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) paths: Vec<SensitivePath>,
    /// The reasons why further paths may be unknown.
    pub(super) unknown: Vec<String>,
    /// The repository of a work tree.
    pub(super) repository: Option<PathBuf>,
}

impl Found {
    fn add(&mut self, path: PathBuf) {
        self.paths.push(SensitivePath::new(path));
    }

    /// Returns what was read. Records the reason if it could not be read.
    fn known<T: Default>(&mut self, read: Result<T, String>) -> T {
        read.unwrap_or_else(|why| {
            self.unknown.push(why);
            T::default()
        })
    }
}

/// Returns the paths in `folder` that the command must not change. There are none if it is neither
/// a work tree nor a repository.
pub(super) fn sensitive_paths(folder: &Path, git: &GitUse) -> Found {
    let mut found = Found::default();
    let Some(Own { path: own, is_tree }) = own_repository(folder, &mut found) else {
        return found;
    };
    let common = found
        .known(path_of(&own.join("commondir"), ""))
        .map(|common| normal(&own.join(common)));
    let repository = common.unwrap_or_else(|| own.clone());
    found.repository = is_tree.then(|| repository.clone());
    let repositories = with_submodules(&repository, &own, &mut found);
    if repositories.len() > REPOSITORIES {
        found.unknown.push(format!(
            "{} has more than {REPOSITORIES} submodules",
            repository.display()
        ));
        return found;
    }
    if own != repository {
        let leads = leads(&own, git.has_config);
        found.paths.extend(leads);
    }
    for repository in &repositories {
        add_repository(repository, folder, is_tree, git, &mut found);
    }
    // The folder itself is not kept; only its parts are.
    found.paths.retain(|found| found.path != folder);
    found
}

/// The part of a repository that belongs to one folder only.
struct Own {
    path: PathBuf,
    /// False for a bare repository.
    is_tree: bool,
}

/// Returns the repository of `folder`; `None` if it has none or its repository is not known.
fn own_repository(folder: &Path, found: &mut Found) -> Option<Own> {
    let link = folder.join(".git");
    match link.metadata() {
        // This is a linked work tree or a submodule (gitrepository-layout(5)).
        Ok(data) if data.is_file() => {
            found.add(link.clone());
            let path = found.known(linked(&link))?;
            Some(Own {
                path,
                is_tree: true,
            })
        }
        Ok(_) => Some(Own {
            path: link,
            is_tree: true,
        }),
        Err(error) if is_missing(&error) => found.known(is_repository(folder)).then(|| Own {
            path: folder.to_owned(),
            is_tree: false,
        }),
        Err(error) => {
            // A folder that the command's user may not enter contains nothing for that user.
            if !is_closed(folder, &error) {
                found.unknown.push(format!("{}: {error}", link.display()));
            }
            None
        }
    }
}

/// Returns `repository` and the repositories of the submodules of all its work trees.
fn with_submodules(repository: &Path, own: &Path, found: &mut Found) -> Vec<PathBuf> {
    let mut repositories = vec![repository.to_owned()];
    let mut holders = vec![repository.to_owned(), own.to_owned()];
    let trees = found.known(entries(&repository.join("worktrees")));
    holders.extend(trees.iter().map(DirEntry::path));
    holders.dedup();
    for holder in holders {
        let searched = modules(&holder, &mut repositories);
        found.known(searched);
    }
    repositories
}

/// Adds the paths of `repository` that git executes, or that configure it. If `is_tree`, `folder`
/// is a work tree.
fn add_repository(
    repository: &Path,
    folder: &Path,
    is_tree: bool,
    git: &GitUse,
    found: &mut Found,
) {
    let home = git.home.as_deref();
    let config = found.known(GitSettings::read(&repository.join("config"), home));
    let of_trees = repository.join("config.worktree");
    let of_trees = found.known(GitSettings::read(&of_trees, home));
    // The `.git` file of a submodule's work tree leads to its repository.
    let own_tree = config
        .worktree
        .as_ref()
        .map(|tree| normal(&repository.join(tree)));
    let link = own_tree.as_ref().map(|tree| tree.join(".git"));
    found.paths.extend(
        link.filter(|link| !repository.starts_with(link))
            .map(SensitivePath::new),
    );
    let named = config.hooks.iter().chain(&of_trees.hooks).chain(&git.hooks);
    // A relative path counts from the work tree that git is used in (git-config(1),
    // core.hooksPath).
    let mut trees = vec![repository.parent().unwrap_or(repository)];
    trees.extend(own_tree.as_deref());
    trees.extend(is_tree.then_some(folder));
    let named = named.flat_map(|hooks| trees.iter().map(move |tree| normal(&tree.join(hooks))));
    let all: BTreeSet<_> = named.chain([repository.join("hooks")]).collect();
    for hooks in &all {
        add_hooks(hooks, folder, found);
    }
    found.add(repository.join("info/attributes"));
    for linked in found.known(entries(&repository.join("worktrees"))) {
        found.paths.extend(leads(&linked.path(), git.has_config));
    }
    if git.has_config {
        let included = config.included.iter().chain(&of_trees.included);
        found
            .paths
            .extend(included.map(|path| SensitivePath::new(normal(path))));
        add_config(repository, found);
    }
}

/// Adds the folder `hooks`, and the files that the symlinks in it lead to.
fn add_hooks(hooks: &Path, folder: &Path, found: &mut Found) {
    if folder.starts_with(hooks) {
        found.unknown.push(format!(
            "core.hooksPath is {}, which contains the whole folder",
            hooks.display()
        ));
    }
    for target in found.known(targets(hooks)) {
        found.add(target);
    }
    // The programs of husky run those in the folder above.
    let beside = hooks.parent().filter(|_| hooks.ends_with("_"));
    found.add(beside.unwrap_or(hooks).to_owned());
}

/// Adds the configuration of `repository`.
fn add_config(repository: &Path, found: &mut Found) {
    // The last two name remotes as well (gitrepository-layout(5)).
    for name in ["config", "config.worktree", "remotes", "branches"] {
        found.add(repository.join(name));
    }
    // A `commondir` file would make the configuration of another folder count. If the placeholder
    // were only a dot, libgit2 would find no repository.
    let placeholder = if repository.ends_with(".git") {
        "../.git\n"
    } else {
        ".\n"
    };
    found.paths.push(SensitivePath {
        path: repository.join("commondir"),
        placeholder,
    });
}

/// Returns the files that lead from a linked work tree's own part of the repository to the rest.
fn leads(own: &Path, has_config: bool) -> impl Iterator<Item = SensitivePath> {
    let config = has_config.then(|| own.join("config.worktree"));
    let paths = ["commondir", "gitdir"].map(|name| own.join(name));
    // A file that cannot be looked at is kept as well.
    let is_there = |path: &PathBuf| {
        path.symlink_metadata()
            .map_or_else(|error| !is_missing(&error), |_| true)
    };
    paths
        .into_iter()
        .filter(is_there)
        .chain(config)
        .map(SensitivePath::new)
}

/// Returns the repository of the linked work tree `tree` if it lies elsewhere, belongs to `uid`,
/// and names the tree as one of its own (gitrepository-layout(5), worktrees). These checks are
/// needed because an earlier command may have written the tree's `.git` file.
#[must_use]
pub fn linked_repository(tree: &Path, uid: u32) -> Option<PathBuf> {
    let link = tree.join(".git");
    let own = linked(&link).ok()??;
    let repository = normal(&own.join(path_of(&own.join("commondir"), "").ok()??));
    let back = path_of(&own.join("gitdir"), "").ok()??;
    let is_its_own =
        own.parent() == Some(&repository.join("worktrees")) && normal(&own.join(back)) == link;
    let is_real = std::fs::canonicalize(&repository).is_ok_and(|real| real == repository);
    let is_users = repository
        .symlink_metadata()
        .is_ok_and(|data| data.uid() == uid);
    let is_elsewhere = !tree.starts_with(&repository) && !repository.starts_with(tree);
    let is_meant =
        is_its_own && is_real && is_users && is_elsewhere && is_repository(&repository).ok()?;
    is_meant.then_some(repository)
}

/// Returns the repository that a `.git` file names.
pub(super) fn linked(file: &Path) -> Result<Option<PathBuf>, String> {
    let target = path_of(file, "gitdir:")?;
    Ok(target.and_then(|target| Some(normal(&file.parent()?.join(target)))))
}

fn is_repository(folder: &Path) -> Result<bool, String> {
    for name in ["HEAD", "objects", "refs"] {
        let path = folder.join(name);
        match path.metadata() {
            Ok(_) => {}
            Err(error) if is_missing(&error) || is_closed(folder, &error) => return Ok(false),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(true)
}

/// Returns true if `error` comes from a folder of another user that the calling user may not enter.
fn is_closed(folder: &Path, error: &io::Error) -> bool {
    let user = rustix::process::geteuid().as_raw();
    error.kind() == io::ErrorKind::PermissionDenied && closed_by(folder, user).is_none()
}

/// Adds the repositories of the submodules in `repository`, at any depth, because a submodule's
/// name may contain slashes.
fn modules(repository: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let mut folders = vec![repository.join("modules")];
    let mut seen = 0;
    let mut failed = Ok(());
    while let Some(folder) = folders.pop() {
        let entries = entries(&folder).unwrap_or_else(|why| {
            failed = Err(why);
            Vec::new()
        });
        for entry in entries {
            // A symlink leads to a repository that does not belong to a submodule.
            if !entry
                .file_type()
                .map_err(|error| format!("{}: {error}", entry.path().display()))?
                .is_dir()
            {
                continue;
            }
            seen += 1;
            if seen > FOLDERS {
                return Err(format!(
                    "{} has more than {FOLDERS} folders",
                    repository.join("modules").display()
                ));
            }
            let path = entry.path();
            let is_store = ["objects", "refs", "logs"]
                .iter()
                .any(|name| path.ends_with(name))
                && is_repository(&folder)?;
            if !is_store {
                folders.push(path.clone());
                match path.join("HEAD").symlink_metadata() {
                    Ok(_) => found.push(path),
                    Err(error) if is_missing(&error) => {}
                    Err(error) => return Err(format!("{}: {error}", path.display())),
                }
            }
        }
    }
    failed
}

/// Returns the symlinks in a folder of hooks that lead to something. For a symlink that leads to
/// nothing, returns its target, because the command could make it.
fn targets(hooks: &Path) -> Result<Vec<PathBuf>, String> {
    let mut targets = Vec::new();
    for entry in entries(hooks)? {
        let link = entry.path();
        let failed = |error: io::Error| format!("{}: {error}", link.display());
        let data = entry.metadata().map_err(failed)?;
        if data.is_file() && data.nlink() > 1 {
            return Err(format!(
                "{} has further names (hard links), through which the command can write to it",
                link.display()
            ));
        }
        if !data.is_symlink() {
            continue;
        }
        match std::fs::canonicalize(&link) {
            // Keeping the link also keeps the links on its way.
            Ok(_) => targets.push(link),
            Err(error) if is_missing(&error) => {
                targets.push(normal(
                    &hooks.join(std::fs::read_link(&link).map_err(failed)?),
                ));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(targets)
}

/// Returns the entries of a folder, or none if there is no folder.
///
/// # Errors
/// Fails if the folder cannot be read, or has more than [`FOLDERS`] entries.
fn entries(folder: &Path) -> Result<Vec<DirEntry>, String> {
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let opened = match std::fs::read_dir(folder) {
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        opened => opened.map_err(failed)?,
    };
    let found: Vec<_> = opened
        .take(FOLDERS + 1)
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    if found.len() > FOLDERS {
        Err(format!(
            "{} has more than {FOLDERS} entries",
            folder.display()
        ))
    } else {
        Ok(found)
    }
}

/// Returns the path behind `word` in the first line of a file; `None` if there is no file, or if
/// the line begins otherwise.
fn path_of(file: &Path, word: &str) -> Result<Option<PathBuf>, String> {
    let Some(content) = content_of(file)? else {
        return Ok(None);
    };
    let line = content
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default()
        .trim_ascii_end();
    let path = line
        .strip_prefix(word.as_bytes())
        .map(<[u8]>::trim_ascii_start);
    Ok(path.map(|path| PathBuf::from(OsStr::from_bytes(path))))
}

/// Removes `.` and `..` from `path`, because the command must not be able to make them lead
/// elsewhere.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[expect(clippy::disallowed_methods, reason = "the tests run git itself")]
#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::GitUse;

    fn git(folder: &Path, words: &[&str]) {
        let settings = [
            "-c",
            "protocol.file.allow=always",
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
        ];
        let run = Command::new("git")
            .current_dir(folder)
            .args(settings)
            .args(words)
            .output()
            .unwrap();
        assert!(run.status.success(), "{run:?}");
    }

    fn sensitive_paths(tree: &Path, has_config: bool) -> super::Found {
        super::sensitive_paths(
            tree,
            &GitUse {
                has_config,
                ..GitUse::default()
            },
        )
    }

    fn names(tree: &Path, root: &Path, has_config: bool) -> Vec<String> {
        let paths = sensitive_paths(tree, has_config).paths.into_iter();
        let mut names: Vec<_> = paths
            .map(|found| found.path.strip_prefix(root).unwrap().display().to_string())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    #[test]
    fn a_repository_with_placeholders_is_the_same_one_for_git_and_for_libgit2() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        git(&root, &["init", "-q"]);
        for found in sensitive_paths(&root, true).paths {
            if !found.path.exists() {
                std::fs::create_dir_all(found.path.parent().unwrap()).unwrap();
                std::fs::write(&found.path, found.placeholder).unwrap();
            }
        }
        git(&root, &["commit", "-q", "--allow-empty", "-m", "first"]);
        // Cargo uses libgit2. It makes no repository inside an existing one.
        let made = Command::new(env!("CARGO"))
            .current_dir(&root)
            .args(["new", "--quiet", "sub"])
            .output()
            .unwrap();
        assert!(
            made.status.success() && !root.join("sub/.git").exists(),
            "{made:?}"
        );
    }

    #[test]
    fn hooks_and_attributes_of_the_repository_its_submodules_and_linked_trees_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let other = root.join("other");
        let main = root.join("main");
        for tree in [&other, &main] {
            std::fs::create_dir(tree).unwrap();
            git(tree, &["init", "-q"]);
            git(tree, &["commit", "-q", "--allow-empty", "-m", "first"]);
        }
        assert!(sensitive_paths(&root, true).paths.is_empty());
        git(
            &main,
            &[
                "submodule",
                "--quiet",
                "add",
                other.to_str().unwrap(),
                "deep/sub",
            ],
        );
        git(
            &main,
            &[
                "worktree",
                "add",
                "-q",
                root.join("linked").to_str().unwrap(),
            ],
        );
        let own = ["main/.git/hooks", "main/.git/info/attributes"];
        let leads = [
            "main/.git/worktrees/linked/commondir",
            "main/.git/worktrees/linked/gitdir",
        ];
        let module = [
            "main/.git/modules/deep/sub/hooks",
            "main/.git/modules/deep/sub/info/attributes",
            "main/deep/sub/.git",
        ];
        let mut all = [&own[..], &module, &leads].concat();
        all.sort_unstable();
        assert_eq!(names(&main, &root, false), all);
        assert_eq!(
            names(&root.join("linked"), &root, false),
            [&["linked/.git"], &all[..]].concat()
        );
        assert_eq!(names(&main.join("deep/sub"), &root, false), module);
        assert!(names(&main, &root, true).contains(&"main/.git/commondir".to_owned()));
        // An earlier command may have left this.
        std::fs::write(main.join(".git/modules/deep/HEAD"), "").unwrap();
        git(
            &main.join("deep/sub"),
            &["config", "extensions.worktreeConfig", "true"],
        );
        git(&main, &["config", "core.worktree", ".."]);
        git(&main, &["config", "core.hooksPath", ".husky"]);
        std::os::unix::fs::symlink("../../script", main.join(".git/hooks/pre-commit")).unwrap();
        std::fs::write(main.join("script"), "").unwrap();
        let found = names(&main, &root, false);
        for name in all
            .iter()
            .chain(&["main/.git/hooks/pre-commit", "main/.husky"])
        {
            assert!(found.iter().any(|found| found == name), "{name}: {found:?}");
        }
        assert!(!found.contains(&"main/.git".to_owned()));
        assert_eq!(names(&main.join(".git"), &root, false), found);
        // What cannot be read is reported, and does not hide what else is found.
        std::fs::remove_file(main.join(".git/config")).unwrap();
        std::fs::create_dir(main.join(".git/config")).unwrap();
        let odd = sensitive_paths(&main, false);
        assert!(
            odd.unknown
                .iter()
                .any(|why| why.contains("config: Is a directory")),
            "{:?}",
            odd.unknown
        );
        assert!(
            odd.paths
                .iter()
                .any(|found| found.path.ends_with("main/.git/hooks"))
        );
    }
}
