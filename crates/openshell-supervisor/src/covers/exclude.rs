//! Keeps placeholders and hidden files out of commits: git inside sees an `info/exclude` that also
//! names them (gitignore(5)). This has no effect on files that git tracks.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files::filesystem::{Placeholder, make_placeholder};
use crate::runs::run_dir::created_dirs::{CreatedDirs, is_placeholder};

use crate::files::carve_outs::Restriction;

use super::git::linked;
use super::git_files::{content_of, content_up_to};
use super::git_index;

/// A work tree's list of what git does not add.
#[derive(Debug)]
pub(super) struct Exclude {
    tree: PathBuf,
    file: PathBuf,
    content: Vec<u8>,
}

impl Exclude {
    /// Reads the list of the work tree `tree`, whose repository is given; `None` if another list
    /// cannot be shown in its place. Call this as the workload's user, who can put a symlink there.
    pub(super) fn read(tree: &Path, repository: &Path) -> Option<Self> {
        let file = repository.join("info/exclude");
        let content = content_of(&file).ok()?.unwrap_or_default();
        (!file.is_symlink()).then(|| Self {
            tree: tree.to_owned(),
            file,
            content,
        })
    }

    /// Returns the place of the list, and its content with those of `paths` in the work tree that
    /// are placeholders or hidden; `None` if there are none. With `made`, makes the list if it is
    /// missing.
    pub(super) fn naming<'p>(
        &self,
        paths: impl Iterator<Item = (&'p Path, Restriction)>,
        made: Option<&mut CreatedDirs>,
    ) -> Option<(PathBuf, Vec<u8>)> {
        let in_tree = paths.filter_map(|(path, restriction)| {
            Some((path, path.strip_prefix(&self.tree).ok()?, restriction))
        });
        let is_left_out =
            |path: &Path, restriction| restriction == Restriction::Hidden || is_stand_in(path);
        let left_out = in_tree.filter(|(path, inside, restriction)| {
            !inside.starts_with(".git") && is_left_out(path, *restriction)
        });
        let lines: Vec<u8> = left_out.flat_map(|(_, inside, _)| line(inside)).collect();
        if lines.is_empty() {
            return None;
        }
        // If the list cannot be made, there is no place to show the new one, and nothing changes.
        if let Some(made) = made {
            let _ = make_placeholder(&self.file, Placeholder::File(""), made);
        }
        Some((
            self.file.clone(),
            [&self.content, b"\n".as_slice(), &lines].concat(),
        ))
    }
}

impl Exclude {
    /// Returns those of `paths` that git tracks in the work tree and compares. The index tells
    /// this, as far as it can be read.
    pub(super) fn tracked<'p>(&self, paths: impl Iterator<Item = &'p Path>) -> Vec<&'p Path> {
        let inside = |path: &'p Path| {
            Some((
                path.strip_prefix(&self.tree).ok()?.as_os_str().as_bytes(),
                path,
            ))
        };
        let wanted: BTreeMap<&[u8], &Path> = paths.filter_map(inside).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let link = self.tree.join(".git");
        // Each linked work tree has its own index.
        let own = if link.is_dir() {
            Some(link)
        } else {
            linked(&link).ok().flatten()
        };
        let index = own.and_then(|own| {
            content_up_to(&own.join("index"), INDEX_BYTES)
                .ok()
                .flatten()
        });
        let names = wanted.keys().copied().collect();
        let compared = index
            .map(|index| git_index::compared(&index, &names))
            .unwrap_or_default();
        wanted
            .into_iter()
            .filter(|(name, _)| compared.contains(*name))
            .map(|(_, path)| path)
            .collect()
    }
}

/// The largest number of bytes of an index that are read.
const INDEX_BYTES: u64 = 64 * 1024 * 1024;

/// Returns true for a path that may be a placeholder.
pub(super) fn is_stand_in(path: &Path) -> bool {
    is_placeholder(path) || is_empty_folder(path)
}

/// Returns true for an empty folder. It is not part of any commit, but `git clean` would remove it.
fn is_empty_folder(path: &Path) -> bool {
    !path.is_symlink() && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns the line that excludes a file of the work tree. No character in it acts as a pattern.
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
