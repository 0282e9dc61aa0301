//! Folders that belong to the supervisor. Each is reached by a descriptor, because a workload may
//! be able to rename the folders above it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::paths::mounts::by_descriptor;
use crate::paths::trusted_symlinks::{self, place_to_make};

/// An open folder.
#[derive(Debug)]
pub struct OwnFolder {
    path: PathBuf,
    folder: OwnedFd,
}

impl OwnFolder {
    /// Opens the folder at `path`. As root it follows only root's symlinks.
    ///
    /// # Errors
    /// Fails if there is no folder, or if a symlink on the way is not trusted.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = place_to_make(path)?;
        let folder = trusted_symlinks::open(&path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Self { path, folder })
    }

    /// Opens the folder like [`Self::open`]; if it or folders above it are missing, creates them
    /// with `mode`. The caller has to check who owns an existing folder, and who may change it.
    ///
    /// # Errors
    /// Fails like [`Self::open`], or if a folder cannot be created.
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

    /// Returns the path that the folder had when it was opened, without symlinks.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptor.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Returns the path by which this process reaches the folder as long as this value lives,
    /// whatever happens to the folder's own path.
    #[must_use]
    pub fn reached(&self) -> PathBuf {
        by_descriptor(&self.folder).into()
    }

    /// Returns another handle of the folder.
    ///
    /// # Errors
    /// Fails if no more descriptors are available.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            path: self.path.clone(),
            folder: self.folder.try_clone()?,
        })
    }

    /// Returns the path that the folder had when it was opened, and its descriptor.
    #[must_use]
    pub fn into_parts(self) -> (PathBuf, OwnedFd) {
        (self.path, self.folder)
    }
}

/// Creates the folder `path` with `mode`; no symlink may be on the way to it. Returns false if it
/// already exists.
///
/// # Errors
/// Fails if the path exists but is not a folder, or if the folder cannot be created.
pub fn make_if_missing(path: &Path, mode: u32) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(false);
    };
    let parent = trusted_symlinks::open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok(make_or_open(&parent, name, mode)?.1)
}

/// Creates the folder `name` in `parent`, or opens the existing one. Also returns whether it was
/// created.
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
