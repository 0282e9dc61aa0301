//! Filesystem policy to a Landlock domain, with requested and granted rights kept apart.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use openshell_policy::filesystem::{BASELINE, BaselineAccess, Compatibility, Filesystem};
use rustix::fs::{FileType, OFlags};
use serde::{Deserialize, Serialize};

use crate::trusted_symlinks::{self, resolve_with_links};

/// The newest interface that the crate knows; what the running kernel lacks of it is given up or fatal, as the policy
/// says.
const REQUESTED: ABI = ABI::V9;

/// What a path may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathAccess {
    /// Read files, list directories.
    Read,
    /// The same, and execute.
    ReadExecute,
    /// Everything but creating device nodes.
    ReadWrite,
    /// Read and write what exists.
    Device,
    /// The same, with ioctls.
    Terminal,
    /// List directories, and nothing else.
    List,
}

/// A path, what for, and whether its absence is the policy's business.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The path.
    pub path: PathBuf,
    /// What for.
    pub access: PathAccess,
    /// Whether the policy lists it; the baseline is silent about what does not exist.
    pub listed: bool,
}

/// A grant, and what its path stands for. To be found out before anything is covered, or the way there would be.
#[derive(Debug)]
pub(crate) struct Resolved<'g> {
    grant: &'g Grant,
    /// The path behind its symlinks, where those may be followed, with those that were.
    path: io::Result<(PathBuf, Vec<PathBuf>)>,
}

impl Resolved<'_> {
    /// What has to stay in sight for it: of a folder that may only be listed, nothing but its names.
    pub(crate) fn visible(&self) -> impl Iterator<Item = PathBuf> {
        let path = self.path.as_ref().ok().filter(|_| self.grant.access != PathAccess::List);
        path.into_iter().flat_map(|(path, links)| links.iter().chain([path])).cloned()
    }

    /// Looks once more for a path that was not there: it may have been made meanwhile.
    pub(crate) fn retry_missing(&mut self) {
        if self.path.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.path = resolve_with_links(&self.grant.path);
        }
    }
}

/// What is asked of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    grants: Vec<Grant>,
    hard_requirement: bool,
}

/// What the kernel agreed to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The interface version in force.
    pub abi: i32,
    /// Rights that neither this kernel's Landlock nor anything else enforces, in words.
    pub missing_rights: Vec<String>,
    /// Listed paths that could not be opened, each with the reason.
    pub missing_paths: Vec<String>,
    /// Whether abstract sockets outside are out of reach.
    pub scopes: bool,
}

/// What else keeps the workload from what newer kernels' Landlock keeps it from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompensatingMechanisms {
    /// Every folder that is not granted is covered, and its sockets with it.
    pub(crate) masked_sockets: bool,
    /// A network namespace keeps abstract sockets apart, and a PID namespace signals.
    pub(crate) scopes: bool,
}

/// Why there is no domain.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum LandlockError {
    #[error(
        "this kernel has no Landlock, which confines the workload's files; boot one with CONFIG_SECURITY_LANDLOCK and `landlock` in `lsm=`"
    )]
    Unsupported,
    #[error(
        "this kernel cannot restrict {0}, and `landlock.compatibility` is hard_requirement; use best_effort or a newer kernel"
    )]
    Degraded(String),
    #[error("filesystem path {path} cannot be opened, and `landlock.compatibility` is hard_requirement")]
    Path { path: PathBuf, source: io::Error },
    #[error("the kernel refused the Landlock ruleset")]
    Ruleset { source: landlock::RulesetError },
    #[error("the kernel did not enforce the Landlock ruleset")]
    NotEnforced,
}

impl Request {
    /// The rights of `filesystem` together with the baseline, and with `workdir` where the policy includes it.
    #[must_use]
    pub fn new(filesystem: &Filesystem, workdir: Option<&Path>) -> Self {
        let listed = |path: &Path, access| Grant { path: path.to_owned(), access, listed: true };
        let baseline = |path: &str, access| Grant { path: PathBuf::from(path), access, listed: false };
        let workdir = workdir.filter(|_| filesystem.include_workdir);
        let mut grants: Vec<_> =
            filesystem.read_only.iter().map(|path| listed(path.as_path(), PathAccess::ReadExecute)).collect();
        grants.extend(filesystem.read_write.iter().map(|path| listed(path.as_path(), PathAccess::ReadWrite)));
        grants.extend(workdir.map(|path| listed(path, PathAccess::ReadWrite)));
        // Rules on one path unite, so the baseline adds to what is listed and takes nothing from it.
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
        // Internal services (sftp and the like) are this very program, run as confined commands.
        grants.push(baseline("/proc/self/exe", PathAccess::ReadExecute));
        Self { grants, hard_requirement: filesystem.compatibility == Compatibility::HardRequirement }
    }

    /// The same, and `path` may be read.
    #[must_use]
    pub fn reading(mut self, path: &Path) -> Self {
        self.grants.push(Grant { path: path.to_owned(), access: PathAccess::Read, listed: false });
        self
    }

    /// The same, and `path`, a folder of the sandbox's own, may be written.
    #[must_use]
    pub fn writing(mut self, path: &Path) -> Self {
        self.grants.push(Grant { path: path.to_owned(), access: PathAccess::ReadWrite, listed: false });
        self
    }

    /// The same without one path.
    #[cfg(test)]
    pub(crate) fn without(mut self, path: &str) -> Self {
        self.grants.retain(|grant| grant.path != Path::new(path));
        self
    }

    /// What is granted, found in the file system.
    pub(crate) fn resolve(&self) -> Vec<Resolved<'_>> {
        let path = |grant: &Grant| match (grant.access, grant.listed) {
            (PathAccess::ReadWrite, true) => Ok((grant.path.clone(), Vec::new())),
            _ => resolve_with_links(&grant.path),
        };
        self.grants.iter().map(|grant| Resolved { grant, path: path(grant) }).collect()
    }

    /// Whether a file beneath `path` may be written.
    #[must_use]
    pub fn grants_writing(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| grant.access == PathAccess::ReadWrite && path.starts_with(&grant.path))
    }

    /// Whether `path` may be listed and entered.
    #[must_use]
    pub fn grants_reading(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| grant.access != PathAccess::List && path.starts_with(&grant.path))
    }

    /// Returns true if the policy lists `path` or a path beneath it. Everything lies beneath the root, which says nothing.
    #[must_use]
    pub fn lists_beneath(&self, path: &Path) -> bool {
        path != Path::new("/") && self.grants.iter().any(|grant| grant.listed && grant.path.starts_with(path))
    }

    /// Returns true if the host's /run can be replaced in the sandbox: no grant holds the sandbox's own folder.
    #[must_use]
    pub fn replaces_run(&self) -> bool {
        crate::private_run::is_replaceable(self.resolve().iter().flat_map(Resolved::visible))
    }

    /// Returns true under `hard_requirement`: a rule that cannot be enforced ends the start.
    pub(crate) fn is_hard(&self) -> bool {
        self.hard_requirement
    }

    /// Puts the calling thread, and all that it starts, into a domain of the rights that were `granted`, what
    /// [`Self::resolve`] found. Sets `no_new_privs`. What is enforced by `compensating` mechanisms is not missed here.
    ///
    /// # Errors
    /// The kernel has no Landlock, or lacks something under `hard_requirement`.
    pub(crate) fn enforce(
        &self,
        granted: Vec<Resolved<'_>>,
        compensating: CompensatingMechanisms,
    ) -> Result<Granted, LandlockError> {
        let ruleset = |source| LandlockError::Ruleset { source };
        let mut created = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(REQUESTED))
            .map_err(ruleset)?
            .scope(Scope::from_all(REQUESTED))
            .map_err(ruleset)?
            .create()
            .map_err(ruleset)?;
        let mut missing_paths = Vec::new();
        for Resolved { grant, path } in granted {
            let (fd, is_directory) = match path.and_then(|(path, _)| open(&path)) {
                Ok(opened) => opened,
                Err(source) if !grant.listed && source.kind() == io::ErrorKind::NotFound => continue,
                Err(source) if self.hard_requirement => {
                    return Err(LandlockError::Path { path: grant.path.clone(), source });
                }
                Err(source) => {
                    missing_paths.push(format!("{} ({source})", grant.path.display()));
                    continue;
                }
            };
            created = created.add_rule(PathBeneath::new(fd, rights(grant, is_directory))).map_err(ruleset)?;
        }
        let status = created.restrict_self().map_err(ruleset)?;
        let LandlockStatus::Available { effective_abi, .. } = status.landlock else {
            return Err(LandlockError::Unsupported);
        };
        if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
            return Err(LandlockError::NotEnforced);
        }
        let missing_rights = rights_beyond(effective_abi, compensating);
        if self.hard_requirement && !missing_rights.is_empty() {
            return Err(LandlockError::Degraded(missing_rights.join(", ")));
        }
        let missing_rights = missing_rights.into_iter().map(str::to_owned).collect();
        Ok(Granted { abi: effective_abi as i32, missing_rights, missing_paths, scopes: effective_abi >= ABI::V6 })
    }
}

/// Opens what a grant is about. What the policy lets the workload write to was checked for symlinks when it was
/// prepared, and is held to that here, as another sandbox of the same user could have put one there since.
fn open(path: &Path) -> io::Result<(OwnedFd, bool)> {
    let fd = trusted_symlinks::open(path, OFlags::PATH)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    Ok((fd, kind == FileType::Directory))
}

fn rights(grant: &Grant, is_directory: bool) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let nodes = AccessFs::MakeChar | AccessFs::MakeBlock;
    let rights = match grant.access {
        PathAccess::Read => read,
        PathAccess::ReadExecute => AccessFs::from_read(REQUESTED),
        // A policy that lists a device means to use it; the baseline's directories hold none of their own.
        PathAccess::ReadWrite if grant.listed => AccessFs::from_all(REQUESTED) & !nodes,
        PathAccess::ReadWrite => AccessFs::from_all(REQUESTED) & !(nodes | AccessFs::IoctlDev),
        PathAccess::Device => read | AccessFs::WriteFile | AccessFs::Truncate,
        PathAccess::List => AccessFs::ReadDir.into(),
        PathAccess::Terminal => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
    };
    // A rule on a file may carry file rights alone.
    if is_directory { rights } else { rights & AccessFs::from_file(REQUESTED) }
}

/// What the interface `abi` cannot enforce and nothing else does, in words.
fn rights_beyond(abi: ABI, compensating: CompensatingMechanisms) -> Vec<&'static str> {
    let since = [
        (ABI::V2, false, "moving files between folders (Landlock ABI 2, Linux 5.19)"),
        (ABI::V3, false, "truncating files (Landlock ABI 3, Linux 6.2)"),
        (ABI::V5, false, "device ioctls (Landlock ABI 5, Linux 6.10)"),
        (ABI::V6, compensating.scopes, "signals and abstract sockets to the outside (Landlock ABI 6, Linux 6.12)"),
        (ABI::V9, compensating.masked_sockets, "sockets by path (Landlock ABI 9, Linux 7.1)"),
    ];
    since
        .into_iter()
        .filter(|(since, is_compensated, _)| abi < *since && !is_compensated)
        .map(|(_, _, name)| name)
        .collect()
}
