//! The Landlock domain of the requested rights, as far as the kernel can restrict them.

use super::{Grant, Learning, PathAccess, Request, Resolved};
use crate::paths::trusted_symlinks::{self};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The newest ABI that the landlock crate knows. If the running kernel lacks a right, the policy's
/// compatibility mode decides whether it is given up or the start fails.
const REQUESTED: ABI = ABI::V9;

/// This program, wherever its file is. Confined commands run its internal services (sftp) through
/// it.
const PROGRAM: &str = "/proc/self/exe";

/// The rights that are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The Landlock ABI that is in force.
    pub abi: i32,
    /// Descriptions of rights that neither Landlock nor a compensating mechanism enforces.
    pub missing_rights: Vec<String>,
    /// The listed paths that could not be opened, each with the reason.
    pub missing_paths: Vec<String>,
    /// True if abstract sockets outside the domain cannot be reached (ABI 6).
    pub scopes: bool,
}

/// The restrictions that another mechanism already enforces. If Landlock lacks them, that is not
/// reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompensatingMechanisms {
    /// Masked paths hide every folder that is not granted, with the sockets in it.
    pub(crate) masked_sockets: bool,
    /// A network namespace isolates abstract sockets, and a PID namespace isolates signals.
    pub(crate) scopes: bool,
}

/// A failure to enforce a Landlock domain.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum LandlockError {
    #[error(
        "this kernel has no Landlock, which confines the workload's files; boot one with \
         CONFIG_SECURITY_LANDLOCK and `landlock` in `lsm=`"
    )]
    Unsupported,
    #[error(
        "this kernel cannot restrict {0}, and `landlock.compatibility` is hard_requirement; use \
         best_effort or a newer kernel"
    )]
    Degraded(String),
    #[error("cannot open {PROGRAM}, this program; /proc must be mounted")]
    Program { source: io::Error },
    #[error(
        "filesystem path {path} cannot be opened, and `landlock.compatibility` is \
         hard_requirement; correct the path, or use best_effort"
    )]
    Path { path: PathBuf, source: io::Error },
    #[error("the kernel refused the Landlock ruleset")]
    Ruleset { source: landlock::RulesetError },
    #[error("the kernel did not enforce the Landlock ruleset")]
    NotEnforced,
}

impl Request {
    /// Restricts the calling thread, and everything that it starts, to the `granted` rights from
    /// [`Self::resolve`], and to listing the folders `shown`; sets `no_new_privs`. `outputs` are
    /// files that the command can write to through descriptors that it gets, and that it may open
    /// again (`/dev/stdout`). Rights that `compensating` mechanisms enforce are not reported as
    /// missing.
    ///
    /// # Errors
    /// Fails if the kernel has no Landlock or refuses the ruleset, or if this program cannot be
    /// opened; under `hard_requirement` also if a right is missing or a path cannot be opened.
    pub(crate) fn enforce(
        &self,
        granted: Vec<Resolved<'_>>,
        shown: &[OwnedFd],
        outputs: &[OwnedFd],
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
        for resolved in granted {
            if let Some(rule) = self.rule(resolved, &mut missing_paths)? {
                created = created.add_rule(rule).map_err(ruleset)?;
            }
        }
        let program = rustix::fs::open(PROGRAM, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|source| LandlockError::Program {
                source: source.into(),
            })?;
        let rights_to_program = AccessFs::from_read(REQUESTED) & AccessFs::from_file(REQUESTED);
        created = created
            .add_rule(PathBeneath::new(program, rights_to_program))
            .map_err(ruleset)?;
        for folder in shown {
            created = created
                .add_rule(PathBeneath::new(folder, AccessFs::ReadDir))
                .map_err(ruleset)?;
        }
        for output in outputs {
            let rights = AccessFs::WriteFile | AccessFs::Truncate;
            created = created
                .add_rule(PathBeneath::new(output, rights))
                .map_err(ruleset)?;
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
        Ok(Granted {
            abi: effective_abi as i32,
            missing_rights,
            missing_paths,
            scopes: effective_abi >= ABI::V6,
        })
    }

    /// Returns the rule of one grant; `None` if its path is missing, which goes into `missing`
    /// unless it may be.
    ///
    /// # Errors
    /// Fails under `hard_requirement` if the path cannot be opened.
    fn rule(
        &self,
        Resolved { grant, path }: Resolved<'_>,
        missing: &mut Vec<String>,
    ) -> Result<Option<PathBeneath<OwnedFd>>, LandlockError> {
        match path.and_then(|(path, _)| open(&path)) {
            Ok((opened, is_directory)) => {
                let rights = rights(grant, is_directory);
                Ok(Some(PathBeneath::new(opened, rights)))
            }
            Err(error)
                if (!grant.listed || grant.is_optional)
                    && error.kind() == io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(source) if self.hard_requirement => {
                let path = grant.path.clone();
                Err(LandlockError::Path { path, source })
            }
            Err(error) => {
                missing.push(format!("{} ({error})", grant.path.display()));
                Ok(None)
            }
        }
    }
}

/// Returns the ABI of this kernel's Landlock, and descriptions of the rights that it lacks; `None`
/// without Landlock. To find out, this restricts a separate thread.
pub(crate) fn support() -> Option<(i32, Vec<&'static str>)> {
    let nothing = Request {
        grants: Vec::new(),
        private: Vec::new(),
        learning: Learning::default(),
        hard_requirement: false,
    };
    let none = CompensatingMechanisms {
        masked_sockets: false,
        scopes: false,
    };
    let enforced = std::thread::scope(|scope| {
        scope
            .spawn(|| nothing.enforce(Vec::new(), &[], &[], none))
            .join()
    })
    .ok()?
    .ok()?;
    let lacking = rights_beyond(ABI::from(enforced.abi), none);
    Some((enforced.abi, lacking))
}

/// Opens a granted path; the second value is true for a directory. A read-write path was checked
/// for symlinks when it was prepared. It is checked again here, because another sandbox of the same
/// user could have created one since.
fn open(path: &Path) -> io::Result<(OwnedFd, bool)> {
    let fd = trusted_symlinks::open(path, OFlags::PATH)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    Ok((fd, kind == FileType::Directory))
}

/// Restricts the signals that the calling thread, and everything that it starts, can send, to
/// processes that it starts.
///
/// # Errors
/// Fails if the kernel cannot restrict signals (ABI 6), or if it refuses the ruleset.
pub(crate) fn scope_signals() -> io::Result<()> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::Signal);
    let restricted = ruleset
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self);
    restricted.map(drop).map_err(io::Error::other)
}

fn rights(grant: &Grant, is_directory: bool) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let nodes = AccessFs::MakeChar | AccessFs::MakeBlock;
    let rights = match grant.access {
        PathAccess::Read => read,
        PathAccess::ReadExecute => AccessFs::from_read(REQUESTED),
        // A policy that lists a device means to use it. The baseline's directories have no device
        // nodes.
        PathAccess::ReadWrite if grant.listed => AccessFs::from_all(REQUESTED) & !nodes,
        PathAccess::ReadWrite => AccessFs::from_all(REQUESTED) & !(nodes | AccessFs::IoctlDev),
        PathAccess::Device => read | AccessFs::WriteFile | AccessFs::Truncate,
        PathAccess::List => AccessFs::ReadDir.into(),
        PathAccess::Terminal => {
            read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
        }
    };
    // A rule on a file may only carry file rights.
    if is_directory {
        rights
    } else {
        rights & AccessFs::from_file(REQUESTED)
    }
}

/// Returns descriptions of the rights that neither `abi` nor a compensating mechanism enforces.
fn rights_beyond(abi: ABI, compensating: CompensatingMechanisms) -> Vec<&'static str> {
    let since = [
        (
            ABI::V2,
            false,
            "moving files between folders (Landlock ABI 2, Linux 5.19)",
        ),
        (
            ABI::V3,
            false,
            "truncating files (Landlock ABI 3, Linux 6.2)",
        ),
        (ABI::V5, false, "device ioctls (Landlock ABI 5, Linux 6.10)"),
        (
            ABI::V6,
            compensating.scopes,
            "signals and abstract sockets to the outside (Landlock ABI 6, Linux 6.12)",
        ),
        (
            ABI::V9,
            compensating.masked_sockets,
            "sockets by path (Landlock ABI 9, Linux 7.1)",
        ),
    ];
    since
        .into_iter()
        .filter(|(since, is_compensated, _)| abi < *since && !is_compensated)
        .map(|(_, _, name)| name)
        .collect()
}
