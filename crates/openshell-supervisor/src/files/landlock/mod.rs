//! The Landlock domain of a filesystem policy (landlock(7)). Requested and granted rights are
//! separate types.

pub mod domain;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use openshell_events::words::FileAccess;
use openshell_policy::filesystem::{BASELINE, BaselineAccess, Compatibility, Filesystem};
use serde::{Deserialize, Serialize};

use crate::files::private_tmp;
use crate::host::privilege::is_caller_root;
use crate::paths::missing::is_missing;
use crate::paths::trusted_symlinks::resolve_with_links;

/// The home of the images' user, in which the sandboxes of a container, or of a gateway, work.
const SHARED_HOME: &str = "/sandbox";

/// The access to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PathAccess {
    /// Read files, list directories.
    Read,
    /// Read files, list directories, execute.
    ReadExecute,
    /// Everything except creating device nodes.
    ReadWrite,
    /// Read and write existing files.
    Device,
    /// Like [`Self::Device`], with device ioctls.
    Terminal,
    /// List directories only.
    List,
}

/// A path and the access to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Grant {
    /// The path as written; it may go through symlinks.
    path: PathBuf,
    /// The access to the path and to everything beneath it.
    access: PathAccess,
    /// True if the policy lists the path. Baseline paths that do not exist are skipped silently.
    listed: bool,
    /// True if a listed path may be missing too.
    is_optional: bool,
}

impl Grant {
    fn of(path: &Path, access: PathAccess, listed: bool) -> Self {
        Self {
            path: path.to_owned(),
            access,
            listed,
            is_optional: false,
        }
    }
}

/// A grant with its resolved path. Resolve it before paths are masked, because masks hide symlinks.
#[derive(Debug)]
pub(crate) struct Resolved<'g> {
    grant: &'g Grant,
    /// The resolved path, and the symlinks that were followed.
    path: io::Result<(PathBuf, Vec<PathBuf>)>,
}

impl Resolved<'_> {
    /// Returns the resolved path.
    pub(crate) fn target(&self) -> Option<&Path> {
        self.path.as_ref().ok().map(|(path, _)| path.as_path())
    }

    /// Returns the path of a private folder of the sandbox that does not exist outside.
    pub(crate) fn own(&self) -> Option<&Path> {
        let is_own = !self.grant.listed && !self.grant.is_optional;
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        (is_own && self.path.as_ref().is_err_and(is_missing)).then_some(self.grant.path.as_path())
    }

    /// Returns true if the policy itself lists the path.
    pub(crate) fn is_listed(&self) -> bool {
        self.grant.listed
    }

    /// Returns true if files beneath the path may be written and replaced.
    pub(crate) fn grants_writing(&self) -> bool {
        self.grant.access == PathAccess::ReadWrite
    }

    /// Returns true if files beneath the path may be read.
    pub(crate) fn grants_reading(&self) -> bool {
        matches!(
            self.grant.access,
            PathAccess::Read | PathAccess::ReadExecute | PathAccess::ReadWrite
        )
    }

    /// Returns true if the grant includes `access` to what it covers.
    pub(crate) fn permits(&self, access: FileAccess) -> bool {
        match (self.grant.access, access) {
            (PathAccess::ReadWrite, _) | (_, FileAccess::List) => true,
            (PathAccess::List, _) => false,
            (_, FileAccess::Read) => true,
            (PathAccess::ReadExecute, FileAccess::Execute) => true,
            (PathAccess::Device | PathAccess::Terminal, FileAccess::Write) => true,
            (_, FileAccess::Write | FileAccess::Execute) => false,
        }
    }

    /// Returns the paths that must stay visible for the grant. For a directory that may only be
    /// listed there are none, because its names are enough. An optional path that is missing is
    /// returned too, so that the workload sees that it is missing.
    pub(crate) fn visible(&self) -> impl Iterator<Item = PathBuf> {
        let is_missing =
            |error: &io::Error| error.kind() == io::ErrorKind::NotFound && self.grant.is_optional;
        let missing = self
            .path
            .as_ref()
            .err()
            .filter(|error| is_missing(error))
            .map(|_| &self.grant.path);
        let path = self
            .path
            .as_ref()
            .ok()
            .filter(|_| self.grant.access != PathAccess::List);
        path.into_iter()
            .flat_map(|(path, links)| links.iter().chain([path]))
            .chain(missing)
            .cloned()
    }

    /// Resolves a path again if it was missing or inaccessible. A mount may have created it, or
    /// made it accessible, meanwhile.
    pub(crate) fn retry_missing(&mut self) {
        let may_be_there = |kind| {
            matches!(
                kind,
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            )
        };
        if self
            .path
            .as_ref()
            .is_err_and(|error| may_be_there(error.kind()))
        {
            self.path = resolve_with_links(&self.grant.path);
        }
    }
}

/// What an observed run shows its command in addition to its policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learning {
    /// The folders that may be read.
    pub folders: BTreeSet<PathBuf>,
    /// The home that may be read, and that may be written for the length of the run.
    pub home: Option<PathBuf>,
}

impl Learning {
    fn shows(&self, path: &Path) -> bool {
        self.folders.contains(path) || self.home.as_deref() == Some(path)
    }
}

/// The requested rights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    grants: Vec<Grant>,
    /// The private folders that the sandbox has instead of the host's.
    private: Vec<PathBuf>,
    /// What is shown in order to learn what a command reads and writes.
    learning: Learning,
    hard_requirement: bool,
}

impl Request {
    /// Requests the rights of `filesystem` and of the baseline, and `workdir` if the policy
    /// includes it.
    #[must_use]
    pub fn new(filesystem: &Filesystem, workdir: Option<&Path>) -> Self {
        let listed = |path: &Path, access| Grant::of(path, access, true);
        let baseline = |path: &str, access| Grant::of(Path::new(path), access, false);
        let workdir = workdir.filter(|_| filesystem.include_workdir);
        // A pattern is left out here: it grants what it matches, once its matches have been looked
        // up.
        let read_only = filesystem
            .read_only
            .iter()
            .filter(|path| !path.is_pattern());
        let mut grants: Vec<_> = read_only
            .map(|path| Grant {
                is_optional: path.is_folder(),
                ..listed(path.as_path(), PathAccess::ReadExecute)
            })
            .collect();
        grants.extend(
            filesystem
                .read_write
                .iter()
                .map(|path| listed(path.as_path(), PathAccess::ReadWrite)),
        );
        grants.extend(workdir.map(|path| listed(path, PathAccess::ReadWrite)));
        // Rules on one path add up, so the baseline never reduces a listed right.
        grants.extend(BASELINE.iter().map(|row| {
            let access = match row.access {
                BaselineAccess::Read => PathAccess::Read,
                BaselineAccess::ReadExecute => PathAccess::ReadExecute,
                BaselineAccess::ReadWrite => PathAccess::ReadWrite,
                BaselineAccess::Device => PathAccess::Device,
                BaselineAccess::Terminal => PathAccess::Terminal,
                BaselineAccess::List => PathAccess::List,
            };
            baseline(row.path, access)
        }));
        let mut private: Vec<_> = private_tmp::FOLDERS.iter().map(PathBuf::from).collect();
        // Only a folder that is listed itself stays the host's. A policy that lists `/` for reading
        // does not ask to write to what everybody shares.
        private.retain(|folder| {
            !grants
                .iter()
                .any(|grant| grant.listed && grant.path == *folder)
        });
        private.retain(|folder| match folder.symlink_metadata() {
            Ok(data) => data.is_dir(),
            Err(error) => !is_missing(&error),
        });
        let hard_requirement = filesystem.compatibility == Compatibility::HardRequirement;
        Self {
            grants,
            private,
            learning: Learning::default(),
            hard_requirement,
        }
    }

    /// Adds read access to the folders of `learning` that are not granted, and write access to its
    /// home, unless the policy already grants writing to the host's home. Services that listen in
    /// these folders stay out of reach.
    #[must_use]
    pub fn learning(mut self, mut learning: Learning) -> Self {
        learning
            .folders
            .retain(|folder| !self.grants.iter().any(|grant| grant.path == *folder));
        learning.home = learning
            .home
            .filter(|home| !self.grants_writing(home) && self.shows(home));
        let grant = |path: &PathBuf, access| Grant::of(path, access, false);
        self.grants.extend(
            learning
                .folders
                .iter()
                .map(|folder| grant(folder, PathAccess::ReadExecute)),
        );
        self.grants.extend(
            learning
                .home
                .iter()
                .map(|home| grant(home, PathAccess::ReadWrite)),
        );
        self.learning = learning;
        self
    }

    /// Returns true for an observed run.
    pub(crate) fn is_learning(&self) -> bool {
        self.learning != Learning::default()
    }

    /// Returns the home of an observed run. It shows the user's files, and what is written there
    /// stays in the run.
    pub(crate) fn learning_home(&self) -> Option<&Path> {
        self.learning.home.as_deref()
    }

    /// Makes the home of an observed run read-only.
    pub fn close_learning_home(&mut self) {
        if let Some(home) = self.learning.home.take() {
            let is_it = |grant: &&mut Grant| !grant.listed && grant.path == home;
            for grant in self.grants.iter_mut().filter(is_it) {
                grant.access = PathAccess::ReadExecute;
            }
            self.learning.folders.insert(home);
        }
    }

    /// Returns the paths that the policy lists.
    pub fn listed(&self) -> impl Iterator<Item = &Path> {
        self.grants
            .iter()
            .filter(|grant| grant.listed)
            .map(|grant| grant.path.as_path())
    }

    /// Returns the same request without the folders that are shown for learning.
    #[must_use]
    pub fn without_learning(&self) -> Self {
        let mut grants = self.grants.clone();
        grants.retain(|grant| grant.listed || !self.learning.shows(&grant.path));
        Self {
            grants,
            private: self.private.clone(),
            learning: Learning::default(),
            ..*self
        }
    }

    /// Returns the folders whose contents are shown for learning.
    pub(crate) fn shown_folders(&self) -> &BTreeSet<PathBuf> {
        &self.learning.folders
    }

    /// Returns the same folders and the home: the services that listen in them stay out of reach.
    pub(crate) fn without_services(&self) -> BTreeSet<PathBuf> {
        self.learning
            .folders
            .iter()
            .chain(&self.learning.home)
            .cloned()
            .collect()
    }

    /// Returns the private folders that the sandbox has instead of the host's: those for temporary
    /// files, unless the policy lists them. What the policy grants beneath them is the host's.
    #[must_use]
    pub fn private(&self) -> &[PathBuf] {
        &self.private
    }

    /// Returns true if `path`, when it is granted, is the same inside and outside. It then lies in
    /// no private folder, or it is granted itself or through a folder within the private one.
    #[must_use]
    pub fn shows(&self, path: &Path) -> bool {
        let Some(private) = self.private.iter().find(|folder| path.starts_with(folder)) else {
            return true;
        };
        let is_in = |grant: &Grant| grant.path != *private && grant.path.starts_with(private);
        self.grants
            .iter()
            .any(|grant| is_in(grant) && path.starts_with(&grant.path))
    }

    /// Adds read access to `path`.
    #[must_use]
    pub fn reading(mut self, path: &Path) -> Self {
        self.grants.push(Grant::of(path, PathAccess::Read, false));
        self
    }

    /// Adds write access to `path`, a private directory of the sandbox.
    #[must_use]
    pub fn writing(mut self, path: &Path) -> Self {
        self.grants
            .push(Grant::of(path, PathAccess::ReadWrite, false));
        self
    }

    /// Removes the grants of `path`.
    #[cfg(test)]
    pub(crate) fn without(mut self, path: &str) -> Self {
        self.grants.retain(|grant| grant.path != Path::new(path));
        self
    }

    /// Returns the same request without the shared home, unless the policy lists it: one sandbox
    /// could leave something there that another one runs.
    #[must_use]
    pub fn without_shared_home(mut self) -> Self {
        self.grants
            .retain(|grant| grant.listed || grant.path != Path::new(SHARED_HOME));
        self
    }

    /// Resolves the path of every grant.
    pub(crate) fn resolve(&self) -> Vec<Resolved<'_>> {
        let path = |grant: &Grant| {
            match (grant.access, grant.listed) {
            (PathAccess::ReadWrite, true) => Ok((grant.path.clone(), Vec::new())),
            _ => resolve_with_links(&grant.path).and_then(|(path, links)| {
                // In a user namespace in which the caller, root outside, is nobody, the workload's
                // own symlinks belong to root outside.
                match links.iter().find(|link| is_caller_root() && self.grants_writing(link)) {
                    Some(link) => {
                        let link = link.display();
                        let target = path.display();
                        Err(io::Error::other(format!(
                            "{link} is a symlink in a folder that the workload may write to; list \
                             {target} instead"
                        )))
                    }
                    None => Ok((path, links)),
                }
            }),
        }
        };
        self.grants
            .iter()
            .map(|grant| Resolved {
                grant,
                path: path(grant),
            })
            .collect()
    }

    /// Returns true if files beneath `path` may be written.
    #[must_use]
    pub fn grants_writing(&self, path: &Path) -> bool {
        self.grants
            .iter()
            .any(|grant| grant.access == PathAccess::ReadWrite && path.starts_with(&grant.path))
    }

    /// Returns true if `folder`, or something in it, may be written.
    #[must_use]
    pub fn grants_writing_within(&self, folder: &Path) -> bool {
        let is_within =
            |grant: &Grant| grant.access == PathAccess::ReadWrite && grant.path.starts_with(folder);
        self.grants_writing(folder) || self.grants.iter().any(is_within)
    }

    /// Returns true if a grant for writing, as written or after following its symlinks, covers
    /// `path`, which has no symlinks.
    #[must_use]
    pub fn reaches_for_writing(&self, path: &Path) -> bool {
        let leads_above = |grant: &Grant| match std::fs::canonicalize(&grant.path) {
            Ok(real) => path.starts_with(real),
            // A grant that cannot be inspected may lead there.
            Err(error) => !is_missing(&error),
        };
        // Symlinks are followed only if no grant covers the path as written.
        self.grants_writing(path)
            || self
                .grants
                .iter()
                .any(|grant| grant.access == PathAccess::ReadWrite && leads_above(grant))
    }

    /// Returns true if `path` may be listed and entered.
    #[must_use]
    pub fn grants_reading(&self, path: &Path) -> bool {
        self.grants
            .iter()
            .any(|grant| grant.access != PathAccess::List && path.starts_with(&grant.path))
    }

    /// Returns true if a grant, after following its symlinks, covers the host's `path`, which has
    /// no symlinks.
    #[must_use]
    pub fn reaches(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| {
            let real = std::fs::canonicalize(&grant.path).unwrap_or_else(|_| grant.path.clone());
            grant.access != PathAccess::List && path.starts_with(real)
        }) && self.shows(path)
    }

    /// Returns true if `path` itself is granted: for writing if `writing`, otherwise by the
    /// policy's list.
    #[must_use]
    pub fn grants_itself(&self, path: &Path, writing: bool) -> bool {
        let is_meant = |grant: &Grant| {
            if writing {
                grant.access == PathAccess::ReadWrite
            } else {
                grant.listed
            }
        };
        self.grants
            .iter()
            .any(|grant| grant.path == path && is_meant(grant))
    }

    /// Returns true if the policy lists `path` or a path beneath it. Returns false for the root,
    /// because every path lies beneath it.
    pub(crate) fn lists_beneath(&self, path: &Path) -> bool {
        path != Path::new("/")
            && self
                .grants
                .iter()
                .any(|grant| grant.listed && grant.path.starts_with(path))
    }

    /// Returns true if the host's /run can be replaced in the sandbox, that is, if no grant covers
    /// the sandbox's private directory in it.
    #[must_use]
    pub fn replaces_run(&self) -> bool {
        crate::files::private_run::is_replaceable(self.resolve().iter().flat_map(Resolved::visible))
    }

    /// Returns true under `hard_requirement`: then a rule that cannot be enforced fails the start.
    pub(crate) fn is_hard(&self) -> bool {
        self.hard_requirement
    }
}
