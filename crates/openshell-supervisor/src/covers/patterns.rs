//! Finds what the patterns of a policy match at the start.

use std::collections::BTreeSet;
use std::fs::ReadDir;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use openshell_policy::filesystem::GrantedPath;

use super::error::{CoverError, unseen};
use crate::files::carve_outs::Restriction;
use crate::paths::missing::is_missing;

/// The largest number of folder entries that are looked at for one pattern.
const ENTRIES: usize = 1_000_000;

/// The largest number of paths that one pattern may match; each takes a mount or two.
const MATCHES: usize = 1000;

/// The largest number of folders above these paths; each is a mount.
const WAYS: usize = 4000;

/// Returns the folder, `folder` itself or one above it, that keeps `folder` from being opened, if
/// the user `uid` owns it; `None` if another user does.
pub(super) fn closed_by(folder: &Path, uid: u32) -> Option<&Path> {
    for above in folder.ancestors() {
        if let Ok(data) = above.symlink_metadata() {
            return (data.uid() == uid).then_some(above);
        }
    }
    None
}

fn holds_all(folder: &Path, paths: &[PathBuf]) -> bool {
    paths
        .iter()
        .all(|path| path != folder && path.starts_with(folder))
}

/// Returns the paths that match a pattern. What lies inside a match is not searched.
///
/// # Errors
/// Fails if there are more than [`MATCHES`] matches, more than [`WAYS`] folders above them, or more
/// than [`ENTRIES`] entries to look at, because some matches could then be missed. Also fails if a
/// folder cannot be searched.
pub(super) fn matches(
    pattern: &GrantedPath,
    restriction: Restriction,
    uid: u32,
) -> Result<Vec<GrantedPath>, CoverError> {
    let (base, is_match) = pattern.matcher();
    let steps = pattern
        .as_path()
        .strip_prefix(&base)
        .map_or(0, |rest| rest.components().count());
    let is_deep = is_deep(pattern.as_path());
    // Folders below the last name of a pattern contain no match.
    let is_searched = |folder: &Path| {
        is_deep
            || folder
                .strip_prefix(&base)
                .is_ok_and(|rest| rest.components().count() < steps)
    };
    // A symlink that leads out of the folder is not part of it: its target is granted by itself, or
    // it is not granted.
    let is_inside = |path: &Path| {
        !path.is_symlink()
            || std::fs::canonicalize(path).map_or(true, |real| real.starts_with(&base))
    };
    let shown = || {
        format!(
            "filesystem_policy.{}: {}",
            restriction.as_str(),
            pattern.as_path().display()
        )
    };
    let mut found = Vec::new();
    let mut folders = vec![base.clone()];
    let mut seen = 0;
    let mut ways = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        let entries = match searched(&folder, uid, &shown)? {
            Searched::Missing => continue,
            // If the owner opens the folder later, what is hidden in it must stay hidden.
            Searched::Closed => {
                if restriction == Restriction::Hidden && folder != base {
                    found.push(folder);
                }
                continue;
            }
            Searched::Open(entries) => entries,
        };
        for entry in entries {
            let entry = entry.map_err(unseen(shown))?;
            seen += 1;
            if seen > ENTRIES {
                return Err(too_large(&base, &shown()));
            }
            let path = entry.path();
            if path.strip_prefix(&base).is_ok_and(&is_match) {
                let above = path.ancestors().skip(1);
                ways.extend(above.take_while(|above| *above != base).map(Path::to_owned));
                if is_inside(&path) {
                    found.push(path);
                }
            } else if entry.file_type().map_err(unseen(shown))?.is_dir() && is_searched(&path) {
                folders.push(path);
            }
            if found.len() > MATCHES || ways.len() > WAYS {
                return Err(too_many(&found, &base, &shown()));
            }
        }
    }
    Ok(found.into_iter().map(GrantedPath::found).collect())
}

/// Returns true if a part of the pattern stands for any number of folders.
fn is_deep(pattern: &Path) -> bool {
    let bytes = pattern.as_os_str().as_encoded_bytes();
    bytes.windows(2).any(|two| two == b"**")
}

fn too_large(base: &Path, shown: &str) -> CoverError {
    CoverError::Refused(format!(
        "{shown}: there are more than {ENTRIES} files to search in {}; name a folder in it",
        base.display()
    ))
}

/// Returns the error for a pattern with too many matches. `shown` is the pattern for messages,
/// `found` some of the matches.
fn too_many(found: &[PathBuf], base: &Path, shown: &str) -> CoverError {
    let holder = found
        .first()
        .and_then(|first| first.ancestors().find(|above| holds_all(above, found)));
    CoverError::Refused(format!(
        "{shown}: more than {MATCHES} paths match, or in more than {WAYS} folders; name the folder \
         that holds them, for example {}",
        holder.unwrap_or(base).display()
    ))
}

/// The result of opening a folder to search it.
enum Searched {
    /// There is no such folder.
    Missing,
    /// The folder belongs to another user, and the command cannot open it.
    Closed,
    /// The entries of the folder.
    Open(ReadDir),
}

/// Opens `folder` to search it for the pattern that is `shown`.
///
/// # Errors
/// Fails if the folder cannot be searched, but the command, which runs as the user `uid`, may make
/// it searchable.
fn searched(folder: &Path, uid: u32, shown: &impl Fn() -> String) -> Result<Searched, CoverError> {
    match std::fs::read_dir(folder) {
        Ok(entries) => Ok(Searched::Open(entries)),
        Err(error) if is_missing(&error) => Ok(Searched::Missing),
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && closed_by(folder, uid).is_none() =>
        {
            Ok(Searched::Closed)
        }
        Err(error) => {
            let closed = closed_by(folder, uid).unwrap_or(folder).display();
            let why = || {
                format!(
                    "{}: cannot search {closed} for what matches; the command could open the \
                     folder and reach it; run `chmod u+rx {closed}`, or take it out of the policy",
                    shown()
                )
            };
            Err(unseen(why)(error))
        }
    }
}
