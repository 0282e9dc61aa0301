//! Files of git work trees by which git runs programs for whoever uses the tree next: hooks, and attributes that name filters and drivers.
//! By a writable `config` it does that too (`core.hooksPath`, `core.fsmonitor`, filters), which is kept only on request, as `git config`,
//! `git remote add` and `git push -u` write to it.

use std::fs::{Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

/// Repositories of submodules that are looked at, and folders on the way to them.
const MODULES: usize = 1000;

/// Bytes of a file of git's that are read.
const BYTES: u64 = 64 * 1024;

/// A path that git takes programs from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SensitivePath {
    pub(super) path: PathBuf,
    /// Content of a file in its place that changes nothing for git.
    pub(super) placeholder: &'static str,
}

/// Returns the paths in the work tree `folder` that the command must not change; none if it is no work tree. With `has_config` those of
/// the configuration are among them.
pub(super) fn sensitive_paths(folder: &Path, has_config: bool) -> Vec<SensitivePath> {
    let link = folder.join(".git");
    let Ok(data) = link.symlink_metadata() else { return Vec::new() };
    let mut found = Vec::new();
    let repository = match data.is_file() {
        // A linked work tree, or a submodule (gitrepository-layout(5)).
        true => {
            found.push(SensitivePath { path: link.clone(), placeholder: "" });
            linked(&link)
        }
        false => Some(link),
    };
    let Some(repository) = repository else { return found };
    let common = line_of(&repository.join("commondir")).map(|common| normal(&repository.join(common)));
    let repository = common.unwrap_or(repository);
    let modules = modules(&repository);
    let repositories: Vec<_> = std::iter::once(repository).chain(modules).collect();
    for repository in &repositories {
        // The `.git` file of a submodule's work tree leads to its repository.
        if let Some(tree) = work_tree(&repository.join("config")) {
            found.push(SensitivePath { path: normal(&repository.join(tree)).join(".git"), placeholder: "" });
        }
        found.extend(
            ["hooks", "info/attributes"].map(|name| SensitivePath { path: repository.join(name), placeholder: "" }),
        );
        if has_config {
            found.extend(
                ["config", "config.worktree"]
                    .map(|name| SensitivePath { path: repository.join(name), placeholder: "" }),
            );
            // It would make another folder's configuration count.
            found.push(SensitivePath { path: repository.join("commondir"), placeholder: ".\n" });
        }
    }
    found
}

/// Returns the repository that a `.git` file names.
fn linked(file: &Path) -> Option<PathBuf> {
    let line = line_of(file)?;
    let target = line.strip_prefix("gitdir: ")?;
    Some(normal(&file.parent()?.join(target)))
}

/// Returns the repositories of submodules in `repository`; a name may have slashes.
fn modules(repository: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders, mut seen) = (Vec::new(), vec![repository.join("modules")], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MODULES {
                return found;
            }
            let path = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if path.join("HEAD").is_file() {
                folders.push(path.join("modules"));
                found.push(path);
            } else {
                folders.push(path);
            }
        }
    }
    found
}

/// Returns the value of `core.worktree`, as git writes it for a submodule.
fn work_tree(config: &Path) -> Option<String> {
    let text = text_of(config)?;
    let value = text.lines().find_map(|line| line.trim().strip_prefix("worktree"))?;
    Some(value.trim_start().strip_prefix('=')?.trim().trim_matches('"').to_owned())
}

fn line_of(file: &Path) -> Option<String> {
    text_of(file)?.lines().next().map(str::to_owned)
}

fn text_of(file: &Path) -> Option<String> {
    // Of whatever kind an earlier run has left it.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(file).ok()?;
    let mut text = String::new();
    file.metadata().ok().filter(Metadata::is_file)?;
    file.take(BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns `path` without `.` and `..`, which the command must not be able to make lead elsewhere.
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests run git itself")]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::sensitive_paths;

    fn git(folder: &Path, words: &[&str]) {
        let settings = ["-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@b"];
        let run = Command::new("git").current_dir(folder).args(settings).args(words).output().unwrap();
        assert!(run.status.success(), "{run:?}");
    }

    fn names(tree: &Path, root: &Path, has_config: bool) -> Vec<String> {
        let paths = sensitive_paths(tree, has_config).into_iter();
        let mut names: Vec<_> =
            paths.map(|found| found.path.strip_prefix(root).unwrap().display().to_string()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    #[test]
    fn hooks_and_attributes_of_the_repository_its_submodules_and_linked_trees_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let (other, main) = (root.join("other"), root.join("main"));
        for tree in [&other, &main] {
            std::fs::create_dir(tree).unwrap();
            git(tree, &["init", "-q"]);
            git(tree, &["commit", "-q", "--allow-empty", "-m", "first"]);
        }
        assert!(sensitive_paths(&root, true).is_empty());
        git(&main, &["submodule", "--quiet", "add", other.to_str().unwrap(), "deep/sub"]);
        git(&main, &["worktree", "add", "-q", root.join("linked").to_str().unwrap()]);
        let own = ["main/.git/hooks", "main/.git/info/attributes"];
        let module =
            ["main/.git/modules/deep/sub/hooks", "main/.git/modules/deep/sub/info/attributes", "main/deep/sub/.git"];
        let all = [&own[..], &module].concat();
        assert_eq!(names(&main, &root, false), all);
        assert_eq!(names(&root.join("linked"), &root, false), [&["linked/.git"], &all[..]].concat());
        assert_eq!(names(&main.join("deep/sub"), &root, false), module);
        assert!(names(&main, &root, true).contains(&"main/.git/commondir".to_owned()));
    }
}
