//! What a path of the policy stands for: symlinks are followed where root alone could have made them.
//!
//! A workload that may write to a folder could put a link there which the next start would take for what the policy
//! means, and grant what it points to.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links on the way to one path; as many as the kernel follows (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// `path` without symlinks. Followed are those that belong to root, in folders where nobody else may make any.
///
/// # Errors
/// It does not exist, or a link on the way could be somebody else's: the error says what to list instead.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    Ok(resolve_with_links(path)?.0)
}

/// What [`resolve`] says, and the links that it followed.
pub(crate) fn resolve_with_links(path: &Path) -> io::Result<(PathBuf, Vec<PathBuf>)> {
    let mut followed = Vec::new();
    let mut resolved = PathBuf::from("/");
    // What is still to be walked, the next component last.
    let mut left: Vec<_> = components(path);
    while let Some(name) = left.pop() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(&name);
        let data = std::fs::symlink_metadata(&next)?;
        if !data.is_symlink() {
            resolved = next;
            continue;
        }
        if followed.len() == MAX_LINKS {
            return Err(io::Error::other("it goes through too many symlinks"));
        }
        let target = std::fs::read_link(&next)?;
        let folder = std::fs::metadata(&resolved)?;
        let is_root_owned = data.uid() == 0 && folder.uid() == 0 && folder.mode() & 0o022 == 0;
        if !is_root_owned {
            let (link, target) = (next.display(), resolved.join(&target));
            let target = target.display();
            return Err(io::Error::other(format!(
                "{link} is a symlink that is not root's alone; list {target} instead"
            )));
        }
        if target.is_absolute() {
            resolved = PathBuf::from("/");
        }
        left.extend(components(&target));
        followed.push(next);
    }
    Ok((resolved, followed))
}

/// The names in `path`, last one first.
fn components(path: &Path) -> Vec<std::ffi::OsString> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.rev().map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
    use std::path::Path;

    use super::resolve;

    #[test]
    fn root_owned_links_are_followed_and_no_others() {
        let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir_in("/var").unwrap();
        let path = folder.path();
        std::fs::create_dir_all(path.join("real/deep")).unwrap();
        symlink("real", path.join("link")).unwrap();
        symlink(path.join("link/deep"), path.join("absolute")).unwrap();
        symlink("../real/./deep", path.join("real/up")).unwrap();
        let deep = path.join("real/deep");
        for name in ["real/deep", "link/deep", "absolute", "link/up", "link/../absolute"] {
            assert_eq!(resolve(&path.join(name)).unwrap(), deep, "{name}");
        }
        // A link of another's, and a link in a folder of another's.
        lchown(path.join("link"), Some(61184), None).unwrap();
        let message = resolve(&path.join("absolute")).unwrap_err().to_string();
        assert!(message.contains("not root's alone") && message.contains("real instead"), "{message}");
        lchown(path.join("link"), Some(0), None).unwrap();
        chown(path, Some(61184), None).unwrap();
        assert!(resolve(&path.join("link")).is_err());
        assert_eq!(resolve(&deep).unwrap(), deep, "no link, no question");
    }

    #[test]
    fn a_folder_that_everybody_may_write_to_has_no_links_that_count() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        symlink("/etc", folder.path().join("link")).unwrap();
        assert!(resolve(&folder.path().join("link")).is_err());
    }

    #[test]
    fn what_is_not_there_and_what_has_no_end_are_errors() {
        assert_eq!(resolve(Path::new("/nowhere/x")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir_in("/var").unwrap();
        symlink("loop", folder.path().join("loop")).unwrap();
        assert!(resolve(&folder.path().join("loop")).unwrap_err().to_string().contains("too many"));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }
}
