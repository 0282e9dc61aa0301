//! Creates missing read-write directories and placeholders, without following symlinks.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, StatxFlags, Uid};

use crate::identity::run_as::ProcessIdentity;
use crate::paths::own_folder::existing_ancestor;
use crate::runs::run_dir::created_dirs::CreatedDirs;

/// A failure to prepare a directory.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum PrepareError {
    #[error(
        "read_write path {path} goes through a symlink, which the supervisor refuses to follow; \
         write {target}"
    )]
    Symlink { path: PathBuf, target: PathBuf },
    #[error("cannot open read_write path {path}")]
    Inspect { path: PathBuf, source: io::Error },
    #[error("cannot create read_write path {path}")]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot give read_write path {path} to the workload's user")]
    Chown { path: PathBuf, source: io::Error },
}

/// Creates the missing directories of `read_write` with mode 0755 and the owner `owner`, and
/// records them in `made`. Existing directories are left unchanged.
///
/// # Errors
/// Fails at the first path that goes through a symlink, cannot be inspected, cannot be created, or
/// cannot be given to `owner`.
pub fn prepare<'p>(
    read_write: impl IntoIterator<Item = &'p Path>,
    owner: &ProcessIdentity,
    made: &mut CreatedDirs,
) -> Result<(), PrepareError> {
    read_write
        .into_iter()
        .try_for_each(|path| prepare_one(path, owner, made))
}

fn prepare_one(
    path: &Path,
    owner: &ProcessIdentity,
    made: &mut CreatedDirs,
) -> Result<(), PrepareError> {
    let inspect = |source: io::Error| PrepareError::Inspect {
        path: path.to_owned(),
        source,
    };
    let (deepest, missing) = match existing_ancestor(path) {
        Ok(found) => found,
        Err(rustix::io::Errno::LOOP) => {
            let target = std::fs::canonicalize(path)
                .unwrap_or_else(|_| PathBuf::from("the path that it points to"));
            return Err(PrepareError::Symlink {
                path: path.to_owned(),
                target,
            });
        }
        Err(errno) => return Err(inspect(errno.into())),
    };
    let mut directory = deepest;
    let above = path.ancestors().nth(missing.len()).unwrap_or(path);
    let mut reached = above.to_owned();
    for name in missing {
        let (folder, is_new) = create(&directory, name, owner, path)?;
        directory = folder;
        reached.push(name);
        if is_new {
            made.add(&reached).map_err(|source| PrepareError::Create {
                path: reached.clone(),
                source,
            })?;
        }
    }
    Ok(())
}

/// Creates `name` in `parent`. The second value is false if it already existed, because another
/// sandbox may have created it meanwhile.
fn create(
    parent: &OwnedFd,
    name: &OsStr,
    owner: &ProcessIdentity,
    path: &Path,
) -> Result<(OwnedFd, bool), PrepareError> {
    let failed = |source| PrepareError::Create {
        path: path.to_owned(),
        source,
    };
    let (made, is_new) = match NewFolder::make(parent, name, FOLDER_MODE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(parent, name, flags, Mode::empty());
            (opened.map_err(|errno| failed(errno.into()))?, false)
        }
        made => (made.map_err(failed)?, true),
    };
    if !is_new {
        return Ok((made, false));
    }
    let uid = Uid::from_raw(owner.uid);
    let gid = Gid::from_raw(owner.gid);
    rustix::fs::chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(|errno| {
        PrepareError::Chown {
            path: path.to_owned(),
            source: errno.into(),
        }
    })?;
    Ok((made, true))
}

/// A placeholder for a missing path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placeholder<'t> {
    /// A file with this content.
    File(&'t str),
    /// An empty folder.
    Folder,
}

/// Creates a placeholder at `path`, and the missing folders above it. They belong to the owner of
/// the folder that holds the first of them, and all are recorded in `made`. No symlink may be on
/// the way. Everything is done on descriptors, because a workload of another sandbox may meanwhile
/// replace what is on the way.
///
/// # Errors
/// Fails if a part of the way is a symlink or not a folder, if something is at `path` by now, or if
/// the placeholder cannot be created.
pub fn make_placeholder(
    path: &Path,
    placeholder: Placeholder<'_>,
    made: &mut CreatedDirs,
) -> io::Result<()> {
    let (deepest, missing) = existing_ancestor(path)?;
    let data = rustix::fs::fstat(&deepest)?;
    let Some((name, folders)) = missing.split_last() else {
        return Err(io::ErrorKind::AlreadyExists.into());
    };
    if FileType::from_raw_mode(data.st_mode) != FileType::Directory {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let owner = Owner {
        uid: Uid::from_raw(data.st_uid),
        gid: Gid::from_raw(data.st_gid),
    };
    let mut reached = path
        .ancestors()
        .nth(missing.len())
        .unwrap_or(path)
        .to_owned();
    let mut folder = deepest;
    for name in folders {
        folder = make_folder(&folder, name, owner)?;
        reached.push(name);
        made.add(&reached)?;
    }
    match placeholder {
        Placeholder::Folder => {
            make_folder(&folder, name, owner)?;
            made.add(path)
        }
        Placeholder::File(content) => {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = std::fs::File::from(rustix::fs::openat(
                &folder,
                *name,
                flags,
                Mode::from_raw_mode(0o644),
            )?);
            file.write_all(content.as_bytes())?;
            give(&file, owner)?;
            made.add_file(path, &file.metadata()?)
        }
    }
}

/// The user and group of a file.
#[derive(Clone, Copy)]
struct Owner {
    uid: Uid,
    gid: Gid,
}

fn make_folder(parent: &OwnedFd, name: &OsStr, owner: Owner) -> io::Result<OwnedFd> {
    let folder = NewFolder::make(parent, name, FOLDER_MODE)?;
    give(&folder, owner)?;
    Ok(folder)
}

/// The mode of new folders, before the umask is applied.
const FOLDER_MODE: u32 = 0o755;

/// Creates folders that are then given to another user. Between creating a folder and opening it,
/// somebody else may put another folder in its place. That one may be root's, and must not be given
/// away.
#[derive(Debug)]
pub struct NewFolder;

impl NewFolder {
    /// Creates the folder `name` in `parent`, and opens it.
    ///
    /// # Errors
    /// Fails if something is there already, if the folder cannot be created, or if what is there
    /// now may be another folder.
    pub fn make(parent: impl AsFd, name: &OsStr, mode: u32) -> io::Result<OwnedFd> {
        let before = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
        // A process that is not root owns every folder that it could give away.
        if !rustix::process::geteuid().is_root()
            || Self::is_new(&folder, mode, (before.tv_sec, before.tv_nsec))?
        {
            return Ok(folder);
        }
        Err(io::Error::other(
            "another process put something else in its place, or this file system does not record \
             when a folder was made; make the folder yourself, and start again",
        ))
    }

    /// Returns true if `folder` is empty, belongs to root, has no bits beyond `mode`, and is not
    /// older than `since`.
    fn is_new(folder: &OwnedFd, mode: u32, since: (i64, i64)) -> io::Result<bool> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let data = rustix::fs::statx(folder, "", AtFlags::EMPTY_PATH, wanted)?;
        let has_birth = data.stx_mask & StatxFlags::BTIME.bits() != 0;
        let birth = (data.stx_btime.tv_sec, i64::from(data.stx_btime.tv_nsec));
        let is_empty = Dir::read_from(folder)?
            .all(|entry| entry.is_ok_and(|entry| [c".", c".."].contains(&entry.file_name())));
        let is_roots = data.stx_uid == rustix::process::geteuid().as_raw();
        Ok(has_birth
            && birth >= since
            && is_empty
            && is_roots
            && u32::from(data.stx_mode) & 0o777 & !mode == 0)
    }
}

/// Changes the owner of a file, if this process is root.
fn give(file: impl AsFd, Owner { uid, gid }: Owner) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        Ok(rustix::fs::fchown(file, Some(uid), Some(gid))?)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{PrepareError, prepare};
    use crate::identity::run_as::ProcessIdentity;
    use crate::runs::run_dir::RunDir;
    use crate::runs::run_dir::created_dirs::CreatedDirs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    fn nobody() -> ProcessIdentity {
        ProcessIdentity {
            uid: 61184,
            gid: 61185,
            groups: vec![61185],
            is_callers: false,
        }
    }

    fn prepare_one(path: &Path) -> Result<(), PrepareError> {
        let place = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o700))
            .tempdir()
            .unwrap();
        let run_dir = RunDir::create(Some(place.path()), None).unwrap();
        let mut made = CreatedDirs::new(&run_dir, std::iter::once(path)).unwrap();
        let result = prepare([path], &nobody(), &mut made);
        // Dropping it would remove the directories that the test examines.
        std::mem::forget(made);
        result
    }

    // Conformance: FS-09.
    #[test]
    fn a_missing_path_is_created_for_the_workload() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c");
        prepare_one(&path).unwrap();
        let made = path.metadata().unwrap();
        assert_eq!(
            (made.uid(), made.gid(), made.mode() & 0o7777),
            (61184, 61185, 0o755)
        );
    }

    // Conformance: FS-10.
    #[test]
    fn an_existing_path_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        prepare_one(folder.path()).unwrap();
        assert_eq!(folder.path().metadata().unwrap().uid(), 0);
    }

    // Conformance: FS-11.
    #[test]
    fn a_symlink_is_refused_with_the_path_to_write_instead() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/etc", &link).unwrap();
        let message = prepare_one(&link).unwrap_err().to_string();
        assert!(message.ends_with("write /etc"), "{message}");
    }

    #[test]
    fn nothing_is_created_behind_a_symlink() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::fs::create_dir(&target).unwrap();
        symlink(&target, folder.path().join("link")).unwrap();
        let result = prepare_one(&folder.path().join("link/new"));
        assert!(
            matches!(result, Err(PrepareError::Symlink { .. })),
            "{result:?}"
        );
        assert!(!target.join("new").exists());
    }

    #[test]
    fn a_dangling_symlink_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink(folder.path().join("nowhere"), &link).unwrap();
        assert!(matches!(
            prepare_one(&link),
            Err(PrepareError::Symlink { .. })
        ));
        assert!(!folder.path().join("nowhere").exists());
    }
}
