//! Trusted symlink resolution: follows only the symlinks that nobody but root can have created.
//!
//! A workload that may write to a folder could put a symlink there. The next start would then grant
//! its target as if the policy had listed it. In a user namespace that does not map root, all users
//! but the caller look alike, so the symlinks of any of them are followed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;

use crate::host::privilege::{NOBODY, is_root_mapped};
use crate::paths::missing::is_missing;

/// The number of symlinks that are followed for one path, as many as the kernel follows
/// (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Resolves the symlinks of `path`. They must be owned by root and lie in folders that only root
/// can write to.
///
/// # Errors
/// Fails if `path` does not exist, has more than 40 symlinks, or has one that is not trusted. In
/// the last case, the message names the path to list instead.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    Ok(resolve_with_links(path)?.0)
}

/// Resolves like [`resolve`], and also follows symlinks in folders for which `is_writable` is
/// false, because the workload cannot have created those. Their owner does not matter, but
/// everybody must not be allowed to write to the folder.
///
/// # Errors
/// Fails like [`resolve`].
pub fn resolve_unwritable(path: &Path, is_writable: impl Fn(&Path) -> bool) -> io::Result<PathBuf> {
    let is_trusted = |link: &Stat, at: &Path, folder: &Stat| {
        is_roots_alone(link, folder) || (folder.st_mode & 0o002 == 0 && !is_writable(at))
    };
    Ok(follow(path, is_trusted)?.0)
}

/// Returns the absolute place, without symlinks, at which the supervisor is to create `path` and
/// the missing folders above it. As root it follows only root's symlinks: a command may have made
/// others, and root would write to where they lead. Other users follow every symlink, because they
/// have only their own rights.
///
/// # Errors
/// Fails if a folder on the way cannot be read, or is a symlink that is not trusted or leads
/// nowhere; also if `..` follows a missing folder.
pub fn place_to_make(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let is_root = rustix::process::geteuid().is_root();
    for above in path.ancestors() {
        match if is_root {
            resolve(above)
        } else {
            std::fs::canonicalize(above)
        } {
            Err(error) if is_missing(&error) => {}
            resolved => {
                let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
                // Where a `..` behind a missing folder leads is unknown until that folder is
                // created.
                let is_plain = rest
                    .components()
                    .all(|component| matches!(component, Component::Normal(_)));
                return if is_plain {
                    Ok(resolved?.join(rest))
                } else {
                    Err(io::ErrorKind::NotFound.into())
                };
            }
        }
        if above.is_symlink() {
            let message = format!(
                "{} is a symlink to nothing; name the path that it leads to instead",
                above.display()
            );
            return Err(io::Error::other(message));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Returns the symlinks on the way to `path`, trusted or not.
pub(crate) fn links(path: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(follow(path, |_, _, _| true)?.1)
}

/// Returns the symlinks on the way to `path`, trusted or not, as far as it exists. Symlinks that
/// lead to nothing are included.
pub(crate) fn links_so_far(path: &Path) -> Vec<PathBuf> {
    let mut followed = Vec::new();
    // If the way cannot be followed to its end, the symlinks before that point count.
    let _ = walk(path, |_, _, _| true, &mut followed);
    followed
}

/// Follows `path` through all symlinks as far as it exists. Returns the part that exists, and the
/// part behind it that is missing.
///
/// # Errors
/// Fails if a folder on the way cannot be read, if there are too many symlinks, or if the missing
/// part has a `..`.
pub fn so_far(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let Way { existing, missing } = walk(path, |_, _, _| true, &mut Vec::new())?;
    let missing = missing.map(|(rest, _)| rest).unwrap_or_default();
    if missing
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        Ok((existing, missing))
    } else {
        Err(io::Error::other("it is a symlink to nothing"))
    }
}

/// Resolves like [`resolve`], and also returns the symlinks that it followed.
pub(crate) fn resolve_with_links(path: &Path) -> io::Result<(PathBuf, Vec<PathBuf>)> {
    follow(path, |link, _, folder| is_roots_alone(link, folder))
}

/// Returns true if only root can have created the symlink `link` in `folder`.
fn is_roots_alone(link: &Stat, folder: &Stat) -> bool {
    is_root(link.st_uid) && is_root(folder.st_uid) && folder.st_mode & 0o022 == 0
}

/// Follows the trusted symlinks of `path`. Returns where it leads, and the symlinks. `is_trusted`
/// takes the metadata of the symlink, the path of its folder, and the metadata of that folder.
fn follow(
    path: &Path,
    is_trusted: impl Fn(&Stat, &Path, &Stat) -> bool,
) -> io::Result<(PathBuf, Vec<PathBuf>)> {
    let mut followed = Vec::new();
    let Way { existing, missing } = walk(path, is_trusted, &mut followed)?;
    match missing {
        Some((_, errno)) => Err(errno.into()),
        None => Ok((existing, followed)),
    }
}

/// The result of following a path.
struct Way {
    existing: PathBuf,
    /// The part behind it that does not exist, and the error that showed this.
    missing: Option<(PathBuf, Errno)>,
}

/// Walks along `path`, and adds the symlinks to `followed`. Each part is looked up only once, in
/// the folder that was found before it.
fn walk(
    path: &Path,
    is_trusted: impl Fn(&Stat, &Path, &Stat) -> bool,
    followed: &mut Vec<PathBuf>,
) -> io::Result<Way> {
    if let Some(way) = without_symlinks(path) {
        return Ok(way);
    }
    let mut resolved = PathBuf::from("/");
    // The descriptors of the root and of each component of `resolved`.
    let root = open(Path::new("/"), OFlags::PATH | OFlags::DIRECTORY)?;
    let mut found = vec![root];
    // The components that remain to be resolved, the next one last.
    let mut left: Vec<_> = components(path);
    while let (Some(name), Some(folder)) = (left.pop(), found.last()) {
        if name == ".." {
            if resolved.pop() {
                found.pop();
            }
            continue;
        }
        let file = match find(folder, &name) {
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => {
                let rest = std::iter::once(name)
                    .chain(left.into_iter().rev())
                    .collect();
                return Ok(Way {
                    existing: resolved,
                    missing: Some((rest, errno)),
                });
            }
            found => found?,
        };
        let data = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(data.st_mode) != FileType::Symlink {
            resolved.push(&name);
            found.push(file);
            continue;
        }
        if followed.len() == MAX_LINKS {
            return Err(io::Error::other("it goes through too many symlinks"));
        }
        let link = resolved.join(&name);
        let target = rustix::fs::readlinkat(&file, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if !is_trusted(&data, &resolved, &rustix::fs::fstat(folder)?) {
            let whole = left
                .iter()
                .rev()
                .fold(resolved.join(target), |path, name| path.join(name));
            return Err(untrusted(&link, whole));
        }
        if target.is_absolute() {
            resolved = PathBuf::from("/");
            found.truncate(1);
        }
        left.extend(components(target));
        followed.push(link);
    }
    Ok(Way {
        existing: resolved,
        missing: None,
    })
}

/// Finds `path` if it has no symlink. Most paths have none, and this takes one call instead of one
/// for each component.
fn without_symlinks(path: &Path) -> Option<Way> {
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let open =
        |path| rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    match open(path) {
        Ok(_) => Some(Way {
            existing: path.components().collect(),
            missing: None,
        }),
        // There is no symlink before the missing part.
        Err(Errno::NOENT) => {
            let existing = path.ancestors().skip(1).find(|above| open(above).is_ok())?;
            let rest = path.strip_prefix(existing).unwrap_or(path).to_owned();
            Some(Way {
                existing: existing.components().collect(),
                missing: Some((rest, Errno::NOENT)),
            })
        }
        Err(_) => None,
    }
}

/// Returns the error for a symlink at `link` that others may exchange, and through which the path
/// leads to `whole`.
fn untrusted(link: &Path, whole: PathBuf) -> io::Error {
    let whole = std::fs::canonicalize(&whole).unwrap_or(whole);
    let link = link.display();
    let whole = whole.display();
    io::Error::other(format!(
        "{link} is a symlink that users other than root can change; list {whole} instead"
    ))
}

/// Opens `name` in `folder`. If it is a symlink, the symlink itself is opened.
fn find(folder: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // It is first opened as a folder, because only that mounts a file system that waits for its
    // first use (autofs).
    match rustix::fs::openat(folder, name, flags | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR) => rustix::fs::openat(folder, name, flags, Mode::empty()),
        opened => opened,
    }
}

/// Returns true if `file` was opened in a read-only mount (statvfs(3)). Nobody can change the file
/// unless another mount shows it to them.
///
/// # Errors
/// Fails if the mount cannot be inspected.
pub fn is_on_read_only_mount(file: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatvfs(file)?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY))
}

/// Returns true if `uid` is root, or if it looks like root in a user namespace that does not map
/// root (user_namespaces(7)).
#[must_use]
pub fn is_root(uid: u32) -> bool {
    uid == if is_root_mapped() { 0 } else { NOBODY }
}

/// Returns the components of `path` in reverse order.
fn components(path: &Path) -> Vec<std::ffi::OsString> {
    let names = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names
        .rev()
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

/// Opens `path`, close-on-exec. Fails with ELOOP at any symlink, because the owner of a folder
/// could have replaced it by one since it was checked. With `OFlags::PATH`, a symlink as the last
/// component is opened itself.
pub(crate) fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
    use std::path::Path;

    use super::{place_to_make, resolve, resolve_unwritable};

    #[test]
    fn root_makes_nothing_behind_a_link_that_a_command_may_have_made() {
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir_in("/var")
            .unwrap();
        let path = folder.path();
        std::fs::create_dir(path.join("real")).unwrap();
        symlink("real", path.join("link")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        let place = |name: &str| place_to_make(&path.join(name));
        assert_eq!(place("new/deep").unwrap(), path.join("new/deep"));
        assert_eq!(place("link/new").unwrap(), path.join("real/new"));
        assert!(
            place("dangling").is_err()
                && place("dangling/new").is_err()
                && place("new/../x").is_err()
        );
        lchown(path.join("link"), Some(61184), None).unwrap();
        for name in ["link", "link/new", "link/new/deep"] {
            assert!(
                place(name)
                    .unwrap_err()
                    .to_string()
                    .contains("users other than root can change"),
                "{name}"
            );
        }
        std::fs::write(path.join("file"), "").unwrap();
        assert_eq!(
            place("file/new").unwrap(),
            path.join("file/new"),
            "which nobody can make"
        );
    }

    #[test]
    fn root_owned_links_are_followed_and_no_others() {
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir_in("/var")
            .unwrap();
        let path = folder.path();
        std::fs::create_dir_all(path.join("real/deep")).unwrap();
        symlink("real", path.join("link")).unwrap();
        symlink(path.join("link/deep"), path.join("absolute")).unwrap();
        symlink("../real/./deep", path.join("real/up")).unwrap();
        let deep = path.join("real/deep");
        for name in [
            "real/deep",
            "link/deep",
            "absolute",
            "link/up",
            "link/../absolute",
        ] {
            assert_eq!(resolve(&path.join(name)).unwrap(), deep, "{name}");
        }
        // A symlink of another user, and a symlink in another user's folder.
        lchown(path.join("link"), Some(61184), None).unwrap();
        let message = resolve(&path.join("absolute")).unwrap_err().to_string();
        assert!(
            message.contains("users other than root can change")
                && message.contains("real/deep instead"),
            "{message}"
        );
        lchown(path.join("link"), Some(0), None).unwrap();
        chown(path, Some(61184), None).unwrap();
        assert!(resolve(&path.join("link")).is_err());
        assert_eq!(resolve(&deep).unwrap(), deep, "no link, no question");
    }

    #[test]
    fn links_of_others_are_followed_where_the_workload_cannot_write() {
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir_in("/var")
            .unwrap();
        let path = folder.path();
        std::fs::create_dir_all(path.join("venv/bin")).unwrap();
        std::fs::write(path.join("python3.11"), "").unwrap();
        symlink(path.join("python3.11"), path.join("python3")).unwrap();
        symlink("../../python3", path.join("venv/bin/python")).unwrap();
        for owned in ["", "python3", "venv/bin", "venv/bin/python"] {
            lchown(path.join(owned), Some(61184), None).unwrap();
        }
        let link = path.join("venv/bin/python");
        assert_eq!(
            resolve_unwritable(&link, |_| false).unwrap(),
            path.join("python3.11")
        );
        for granted in ["", "venv", "venv/bin"] {
            let refused = resolve_unwritable(&link, |at| at.starts_with(path.join(granted)))
                .unwrap_err()
                .to_string();
            assert!(
                refused.ends_with(&format!(
                    "list {} instead",
                    path.join("python3.11").display()
                )),
                "{refused}"
            );
        }
        assert!(resolve(&link).is_err());
        std::fs::set_permissions(path.join("venv/bin"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(
            resolve_unwritable(&link, |_| false).is_err(),
            "anybody can have made it"
        );
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
        assert_eq!(
            resolve(Path::new("/nowhere/x")).unwrap_err().kind(),
            std::io::ErrorKind::NotFound
        );
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir_in("/var")
            .unwrap();
        symlink("loop", folder.path().join("loop")).unwrap();
        assert!(
            resolve(&folder.path().join("loop"))
                .unwrap_err()
                .to_string()
                .contains("too many")
        );
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }
}
