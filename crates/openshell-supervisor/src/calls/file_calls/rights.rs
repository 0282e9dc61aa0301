//! Holds the file rights of a run, to tell which access the sandbox refuses, and which part refuses
//! it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use openshell_events::words::FileAccess;
use rustix::fs::StatVfsMountFlags;

use crate::files::carve_outs::{CarveOut, Restriction};
use crate::files::landlock::Request;

/// The part of the sandbox that refuses an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// No rule grants the access.
    NoGrant,
    /// The path is taken out of what is granted.
    CarveOut(Restriction),
    /// The path is a file of the run that the workload must not change or read, or is in a
    /// read-only file system.
    Protection,
}

/// The file rights of a run.
#[derive(Clone, Debug, Default)]
pub struct FileRights {
    /// The accesses to each granted path and everything beneath it.
    grants: BTreeMap<PathBuf, Vec<FileAccess>>,
    /// Paths that are taken out.
    carve_outs: Vec<CarveOut>,
    /// The devices of the file systems whose folders replace folders of the host.
    stand_ins: Vec<u64>,
}

/// Every kind of access.
const ACCESSES: [FileAccess; 4] = [
    FileAccess::Read,
    FileAccess::List,
    FileAccess::Write,
    FileAccess::Execute,
];

impl FileRights {
    /// Returns the rights of `granted` without `carve_outs`.
    #[must_use]
    pub fn new(granted: &Request, carve_outs: &[CarveOut]) -> Self {
        let mut grants: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for grant in granted.resolve() {
            let permitted = ACCESSES.into_iter().filter(|access| grant.permits(*access));
            if let Some(path) = grant.target().or_else(|| grant.own()) {
                grants.entry(path.to_owned()).or_default().extend(permitted);
            }
        }
        Self {
            grants,
            carve_outs: carve_outs.to_vec(),
            stand_ins: Vec::new(),
        }
    }

    /// Returns these rights for a sandbox in which folders of these devices replace folders of the
    /// host and hide their content.
    #[must_use]
    pub fn with_stand_ins(self, stand_ins: &[u64]) -> Self {
        Self {
            stand_ins: stand_ins.to_vec(),
            ..self
        }
    }

    /// Returns true for a file or folder that replaces a path of the host because no rule grants
    /// that path, or because it is hidden.
    pub(super) fn is_stand_in(&self, file: &OwnedFd) -> bool {
        let Ok(data) = rustix::fs::fstat(file) else {
            return false;
        };
        let is_read_only = || {
            rustix::fs::fstatvfs(file)
                .is_ok_and(|data| data.f_flag.contains(StatVfsMountFlags::RDONLY))
        };
        self.stand_ins.contains(&data.st_dev) || (data.st_mode & 0o7777 == 0 && is_read_only())
    }

    /// Returns true if a grant covers `access` to `path`, which has no symlinks. Carve-outs are not
    /// considered.
    #[must_use]
    pub fn grants(&self, path: &Path, access: FileAccess) -> bool {
        let mut covering = path
            .ancestors()
            .filter_map(|folder| self.grants.get(folder));
        covering.any(|permitted| permitted.contains(&access))
    }

    /// Returns the part of the rules that refuses `access` to `path`; `None` if they permit it. A
    /// read-only carve-out is not considered, because it may contain a writable folder, and only
    /// the mount tells that.
    pub(super) fn refusal(&self, path: &Path, access: FileAccess) -> Option<RefusedBy> {
        if self.is_carved_out(path, Restriction::Hidden) {
            return Some(RefusedBy::CarveOut(Restriction::Hidden));
        }
        (!self.grants(path, access)).then_some(RefusedBy::NoGrant)
    }

    /// Returns true if `path` is in a carve-out of this kind.
    pub(super) fn is_carved_out(&self, path: &Path, restriction: Restriction) -> bool {
        self.carve_outs
            .iter()
            .any(|out| out.restriction == restriction && path.starts_with(&out.path))
    }
}
