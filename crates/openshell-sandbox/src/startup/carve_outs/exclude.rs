//! Keeps placeholders out of commits: git inside sees an `info/exclude` that names them too (gitignore(5)).

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use openshell_supervisor::filesystem::{Placeholder, make_placeholder};
use openshell_supervisor::run_dir::created_dirs::{CreatedDirs, is_placeholder};

use super::git_files::content_of;

/// The list of a work tree of what git does not add.
#[derive(Debug)]
pub(super) struct Exclude {
    tree: PathBuf,
    file: PathBuf,
    content: Vec<u8>,
}

impl Exclude {
    /// Reads the list of the work tree `tree`, whose repository is given; `None` if it cannot be shown as another one. To be called as
    /// the workload's user, who can put a symlink in its place.
    pub(super) fn read(tree: &Path, repository: &Path) -> Option<Self> {
        let file = repository.join("info/exclude");
        let content = content_of(&file).ok()?.unwrap_or_default();
        (!file.is_symlink()).then(|| Self { tree: tree.to_owned(), file, content })
    }

    /// Returns the place of the list, which is made if it is missing, and its content with those of `paths` that are placeholders in
    /// the work tree; `None` if there are none.
    pub(super) fn naming<'p>(
        &self,
        paths: impl Iterator<Item = &'p Path>,
        made: &mut CreatedDirs,
    ) -> Option<(PathBuf, Vec<u8>)> {
        let in_tree = paths.filter_map(|path| Some((path, path.strip_prefix(&self.tree).ok()?)));
        let stand_ins = in_tree.filter(|(path, inside)| !inside.starts_with(".git") && is_stand_in(path));
        let lines: Vec<u8> = stand_ins.flat_map(|(_, inside)| line(inside)).collect();
        if lines.is_empty() {
            return None;
        }
        // Without a place to show it at, the list stays as it is.
        let _ = make_placeholder(&self.file, Placeholder::File(""), made);
        Some((self.file.clone(), [&self.content, b"\n".as_slice(), &lines].concat()))
    }
}

/// Returns true for what may be a placeholder.
pub(super) fn is_stand_in(path: &Path) -> bool {
    is_placeholder(path) || is_empty_folder(path)
}

/// An empty folder is in no commit, but would be removed by `git clean`.
fn is_empty_folder(path: &Path) -> bool {
    !path.is_symlink() && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns the line that excludes a file of the work tree, nothing of which is a pattern.
fn line(inside: &Path) -> Vec<u8> {
    let mut line = vec![b'/'];
    for byte in inside.as_os_str().as_bytes() {
        if br"\*?[ ".contains(byte) {
            line.push(b'\\');
        }
        line.push(*byte);
    }
    line.push(b'\n');
    line
}
