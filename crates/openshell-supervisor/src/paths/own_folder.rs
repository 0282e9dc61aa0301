//! Folders of the supervisor's own. Each is reached by a descriptor, as the folders above may lie
//! where a workload can rename them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::paths::mounts::by_descriptor;
use crate::paths::trusted_symlinks::{self, place_to_make};

/// A folder that is open.
#[derive(Debug)]
pub struct OwnFolder {
    path: PathBuf,
    folder: OwnedFd,
}

impl OwnFolder {
    /// Opens the folder at `path`. As root it goes through no symlink but root's.
    ///
    /// # Errors
    /// There is no folder, or a symlink leads to it that is not trusted.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = place_to_make(path)?;
        let folder = trusted_symlinks::open(&path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Self { path, folder })
    }

    /// As [`Self::open`]; makes the folder and those above it with `mode` where they are missing.
    /// Whose it is then, and who may change it, is left to be looked at.
    ///
    /// # Errors
    /// As [`Self::open`]; or a folder cannot be made.
    pub fn make(path: &Path, mode: u32) -> io::Result<Self> {
        let path = place_to_make(path)?;
        let (mut folder, missing) = existing_ancestor(&path)?;
        for name in missing {
            (folder, _) = make_or_open(&folder, name, mode)?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            rustix::fs::openat2(&folder, ".", flags, Mode::empty(), ResolveFlags::BENEATH)?;
        Ok(Self { path, folder })
    }

    /// Returns its path at the time at which it was opened, without symlinks.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path by which this process reaches it as long as this value lives, whatever
    /// becomes of its own.
    #[must_use]
    pub fn reached(&self) -> PathBuf {
        by_descriptor(&self.folder).into()
    }

    /// Returns another handle of it.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            path: self.path.clone(),
            folder: self.folder.try_clone()?,
        })
    }

    /// Returns its path at the time at which it was opened, and its descriptor.
    #[must_use]
    pub fn into_parts(self) -> (PathBuf, OwnedFd) {
        (self.path, self.folder)
    }
}

/// Makes the folder `path` with `mode`, in a folder on whose way no symlink may be. Returns false
/// if it is there already.
///
/// # Errors
/// Something else is there, or it cannot be made.
pub fn make_if_missing(path: &Path, mode: u32) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(false);
    };
    let parent = trusted_symlinks::open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok(make_or_open(&parent, name, mode)?.1)
}

/// Makes the folder `name` in `parent`, or opens the one that is there; tells whether it was made.
fn make_or_open(parent: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<(OwnedFd, bool)> {
    let is_made = match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => false,
        made => made.map(|()| true)?,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok((
        rustix::fs::openat(parent, name, flags, Mode::empty())?,
        is_made,
    ))
}

/// Returns the deepest existing ancestor of `path`, opened without following symlinks, and the
/// names missing below it.
pub(crate) fn existing_ancestor(path: &Path) -> rustix::io::Result<(OwnedFd, Vec<&OsStr>)> {
    let mut missing = Vec::new();
    for ancestor in path.ancestors() {
        match (
            trusted_symlinks::open(ancestor, OFlags::PATH),
            ancestor.file_name(),
        ) {
            // O_PATH with O_NOFOLLOW opens a final symlink itself.
            (Ok(fd), _)
                if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode)
                    == FileType::Symlink =>
            {
                return Err(Errno::LOOP);
            }
            (Ok(fd), _) => {
                missing.reverse();
                return Ok((fd, missing));
            }
            (Err(Errno::NOENT), Some(name)) => missing.push(name),
            (Err(errno), _) => return Err(errno),
        }
    }
    Err(Errno::NOENT)
}
