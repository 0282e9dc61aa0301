//! The table that decides what is covered: the whole paths that the policy grants, and where a path
//! that is to be covered leads.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::files::landlock::{Request, Resolved};
use crate::paths::missing::is_missing;
use crate::paths::mounts::{Shown, bind};
use crate::paths::pins::{Identity, find_in};
use crate::paths::trusted_symlinks::open;

/// The folders and files that the policy grants.
#[derive(Debug)]
pub(crate) struct Granted {
    /// The paths that may be written.
    pub(crate) writing: BTreeSet<PathBuf>,
    /// The paths that may be read.
    pub(crate) reading: BTreeSet<PathBuf>,
    /// The paths that may be read and that the policy itself lists.
    pub(crate) listed: BTreeSet<PathBuf>,
}

impl Granted {
    pub(crate) fn of(resolved: &[Resolved<'_>]) -> Self {
        let mut granted = Self {
            writing: BTreeSet::new(),
            reading: BTreeSet::new(),
            listed: BTreeSet::new(),
        };
        for grant in resolved {
            let Some(path) = grant.target() else {
                continue;
            };
            if grant.grants_writing() {
                granted.writing.insert(path.to_owned());
            }
            if grant.grants_reading() {
                granted.reading.insert(path.to_owned());
            }
            if grant.is_listed() && grant.grants_reading() {
                granted.listed.insert(path.to_owned());
            }
        }
        granted
    }

    /// Returns the shortest writable path that `path` equals or lies in.
    pub(crate) fn writable_above(&self, path: &Path) -> Option<&PathBuf> {
        self.writing.iter().find(|grant| path.starts_with(grant))
    }

    /// Returns the shortest readable path that `path` equals or lies in.
    pub(crate) fn readable_above(&self, path: &Path) -> Option<&PathBuf> {
        self.reading.iter().find(|grant| path.starts_with(grant))
    }

    /// Returns the writable paths in `folder`, without those that lie in another one of them.
    pub(crate) fn writable_within<'g>(
        &'g self,
        folder: &'g Path,
    ) -> impl Iterator<Item = &'g PathBuf> {
        let is_beneath = move |path: &PathBuf| path != folder && path.starts_with(folder);
        let is_of_another = move |path: &PathBuf| {
            path.ancestors().skip(1).any(|above| {
                above != folder && above.starts_with(folder) && self.writing.contains(above)
            })
        };
        self.writing
            .iter()
            .filter(move |path| is_beneath(path) && !is_of_another(path))
    }

    /// Covers `folder` by itself, read-only together with the mounts in it. `mount` makes that
    /// mount and returns its root. Paths that may be written in the folder stay writable.
    ///
    /// # Errors
    /// Fails if the kernel refuses a mount, or if another process renames or replaces something.
    pub(crate) fn cover_read_only(
        &self,
        folder: &Path,
        mount: impl FnOnce(Shown) -> io::Result<OwnedFd>,
    ) -> io::Result<OwnedFd> {
        let mut writable = Vec::new();
        for path in self.writable_within(folder) {
            match open(path, OFlags::PATH) {
                Err(Errno::NOENT) => {}
                opened => writable.push((path, opened?)),
            }
        }
        let root = mount(Shown::ReadOnlyWithin)?;
        for (path, opened) in writable {
            let rest = path.strip_prefix(folder).map_err(io::Error::other)?;
            let place = find_in(&root, rest)?;
            if Identity::of(&place.file)? != Identity::of(&opened)? {
                return Err(Errno::STALE.into());
            }
            bind(&opened, &place, Shown::AsItIs)?;
        }
        Ok(root)
    }
}

/// Returns where `path` leads. Returns `None` if there is nothing, or if a workload with the rights
/// of `landlock` cannot reach it or is not shown it.
///
/// # Errors
/// Fails if the path cannot be inspected although a grant reaches it.
pub(crate) fn reached(path: &Path, landlock: &Request) -> io::Result<Option<PathBuf>> {
    match std::fs::canonicalize(path) {
        Err(error) if is_missing(&error) => Ok(None),
        // A path that no grant reaches needs no cover.
        Err(_) if !landlock.reaches(path) => Ok(None),
        real => Ok(Some(real?).filter(|real| landlock.shows(real))),
    }
}

/// Returns the identity of what is at `path`, to compare it when it is covered. Returns `None` in
/// an observed run, because its home is another file system inside.
///
/// # Errors
/// Fails if the path cannot be inspected.
pub(crate) fn identity(path: &Path, landlock: &Request) -> io::Result<Option<Identity>> {
    if landlock.is_learning() {
        return Ok(None);
    }
    Identity::at(path).map(Some)
}
