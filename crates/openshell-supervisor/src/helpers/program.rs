//! Looks up a program that helps the supervisor.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use super::wire::Program;
use crate::paths::trusted_symlinks::resolve_unwritable;

/// Why a program cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum Unusable {
    #[error("it names no program")]
    Empty,
    #[error("there is no program {0} in PATH")]
    NotFound(String),
    #[error("{}: {source}", path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("what runs inside can write {}, so it must not run outside", .0.display())]
    Writable(PathBuf),
    #[error("{} is no program that you may execute", .0.display())]
    NoProgram(PathBuf),
}

/// Looks up the first of `words` in `search_path`, the variable PATH of the caller. Leaves out the
/// folders of PATH that are relative, or in which the workload can write (`is_writable`).
///
/// # Errors
/// Fails if there is no such program, or if the workload can write it or a symlink on its way.
pub fn find(
    words: &[String],
    search_path: &OsStr,
    is_writable: impl Fn(&Path) -> bool,
) -> Result<Program, Unusable> {
    let (name, _) = words.split_first().ok_or(Unusable::Empty)?;
    let folders: Vec<_> = env::split_paths(search_path)
        .filter(|folder| folder.is_absolute() && !is_reached(folder, &is_writable))
        .collect();
    let path = if name.contains('/') {
        let absolute = std::path::absolute(name);
        absolute.map_err(|source| Unusable::Path {
            path: name.into(),
            source,
        })?
    } else {
        let mut places = folders.iter().map(|folder| folder.join(name));
        let found = places.find(|path| is_executable(path));
        found.ok_or_else(|| Unusable::NotFound(name.clone()))?
    };
    let resolved = resolve_unwritable(&path, &is_writable);
    let resolved = resolved.map_err(|source| Unusable::Path {
        path: path.clone(),
        source,
    })?;
    if is_writable(&resolved) || is_writable(&path) {
        return Err(Unusable::Writable(path));
    }
    if !is_executable(&resolved) {
        return Err(Unusable::NoProgram(path));
    }
    Ok(Program {
        path,
        arguments: words.iter().map(OsString::from).collect(),
        search_path: env::join_paths(folders).unwrap_or_default(),
    })
}

/// Returns true if the workload can write what lies in `folder`.
fn is_reached(folder: &Path, is_writable: impl Fn(&Path) -> bool) -> bool {
    let resolved = std::fs::canonicalize(folder);
    is_writable(folder) || resolved.is_ok_and(|resolved| is_writable(&resolved))
}

fn is_executable(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|data| data.is_file());
    is_file && rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{Unusable, find};

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn what_the_workload_can_write_is_never_found() {
        let folder = tempfile::tempdir().unwrap();
        let [theirs, ours] = ["theirs", "ours"].map(|name| folder.path().join(name));
        program(&theirs.join("notify"));
        program(&ours.join("notify"));
        symlink(theirs.join("notify"), ours.join("link")).unwrap();
        symlink(&theirs, folder.path().join("way")).unwrap();
        let is_writable = |path: &Path| path.starts_with(&theirs);
        let path = format!(
            "bin:{}:{}/way:{}",
            theirs.display(),
            folder.path().display(),
            ours.display()
        );
        let path = OsStr::new(&path);
        let found = find(&words(&["notify", "a b"]), path, is_writable).unwrap();
        assert_eq!(found.path, ours.join("notify"));
        assert_eq!(found.search_path, ours.as_os_str());
        assert_eq!(found.arguments, ["notify", "a b"]);
        for name in [theirs.join("notify"), ours.join("link")] {
            let name = name.to_str().unwrap();
            let refused = find(&words(&[name]), path, is_writable).unwrap_err();
            assert!(
                matches!(refused, Unusable::Writable(_) | Unusable::Path { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_program_that_is_missing_or_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let path = folder.path().as_os_str();
        for (name, said) in [
            ("notify", "there is no program notify in PATH"),
            ("file", "there is no program file in PATH"),
            (file.to_str().unwrap(), "is no program that you may execute"),
            ("/no/such", "/no/such: "),
        ] {
            let refused = find(&words(&[name]), path, |_| false).unwrap_err();
            assert!(refused.to_string().contains(said), "{refused}");
        }
        assert!(matches!(find(&[], path, |_| false), Err(Unusable::Empty)));
    }
}
