//! Identification of callers: from the socket to its owners, their executables and ancestors, each held to the
//! fingerprint of its first use.

mod fingerprint;
mod proc;
pub mod rescan;
pub mod search;
mod sock_diag;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use crate::denial::refusal::Refusal;
use crate::limits::Limits;
use crate::peer::{Caller, Callers, Flow};
use fingerprint::{Executable, Fingerprints, Untrusted};
pub use proc::Processes;
use proc::{Described, ProcError};
use rescan::Owner;
use search::Search;
use sock_diag::SockDiag;

/// Identifies the programs behind connections.
#[derive(Debug)]
pub struct Identifier {
    sockets: SockDiag,
    processes: Processes,
    fingerprints: Fingerprints,
}

impl Identifier {
    /// Creates an identifier over `sockets`, a NETLINK_SOCK_DIAG socket opened inside the sandbox's network namespace,
    /// and `processes`. Connections arrive at the interface with index `interface`.
    ///
    /// # Errors
    /// The socket's timeout cannot be set.
    pub fn new(sockets: OwnedFd, interface: u32, processes: Processes) -> io::Result<Self> {
        Ok(Self { sockets: SockDiag::new(sockets, interface)?, processes, fingerprints: Fingerprints::default() })
    }

    /// Finds the programs that hold the client's end of `flow`, within `search`. Blocks: it reads /proc.
    ///
    /// # Errors
    /// No owner is found, or a look-up fails.
    pub fn identify(&self, flow: Flow, search: &Search) -> Result<Identified, Refusal> {
        let unknown = |what: String| Refusal::caller_unknown(format!("failed to resolve peer binary: {what}"));
        let inode = self
            .sockets
            .inode(flow)
            .map_err(|error| unknown(format!("socket {} is not established: {error}", flow.client)))?;
        let mut callers: Vec<Caller> = Vec::new();
        let mut evidence = Vec::new();
        let owners = self.processes.owners_of(inode, search).map_err(|error| unknown(error.to_string()))?;
        for owner in owners.found {
            match self.describe_owner(&owner, inode, search) {
                Ok(Some(described)) => {
                    if !callers.iter().any(|known| known.program == described.caller.program) {
                        callers.push(described.caller);
                    }
                    evidence.push(described.executables);
                }
                Ok(None) => {}
                Err(error) => return Err(unknown(error.to_string())),
            }
        }
        let callers = Callers::new(callers).ok_or_else(|| {
            unknown(format!(
                "no process of the sandbox owns socket {inode} (looking needs CAP_SYS_PTRACE in a container)"
            ))
        })?;
        Ok(Identified { inode, callers, evidence, is_complete: owners.is_complete })
    }

    /// Finds all owners of the sockets `inodes`. Blocks: it searches all processes.
    ///
    /// # Errors
    /// /proc cannot be read, or an owner cannot be described; either refuses all the sockets.
    pub fn rescan(&self, inodes: &[u32]) -> Result<HashMap<u32, Vec<Owner>>, Refusal> {
        let unknown = |error: ProcError| Refusal::caller_unknown(format!("failed to look at all processes: {error}"));
        let mut found: HashMap<u32, Vec<Owner>> = HashMap::new();
        let search = Search::new(Limits::RESCAN_DESCRIPTORS, Limits::RESCAN_DEADLINE);
        for (owner, inode) in self.processes.find_owners(inodes, &search).map_err(unknown)? {
            let described = self.describe_owner(&owner, inode, &search).map_err(unknown)?;
            if let Some(Described { caller, executables }) = described {
                found.entry(inode).or_default().push(Owner { caller, executables });
            }
        }
        Ok(found)
    }

    /// Verifies the fingerprints of `owner`, as [`Self::verify`] does.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn verify_owner(&self, owner: &Owner) -> Result<(), Refusal> {
        self.verify_all(&owner.executables)
    }

    /// Finds a program that holds the UDP socket sending from `local` to `remote`, for a report. Blocks: it reads
    /// /proc.
    #[must_use]
    pub fn sender(&self, local: SocketAddrV4, remote: SocketAddrV4) -> Option<Caller> {
        let inode = self.sockets.udp_inode(local, remote).ok()?;
        let search = Search::new(Limits::SEARCHED_DESCRIPTORS, Limits::REPORT_DEADLINE);
        let owners = self.processes.owners_of(inode, &search).ok()?;
        owners.found.iter().find_map(|owner| Some(self.describe_owner(owner, inode, &search).ok()??.caller))
    }

    /// Describes an owner; `None` if it has closed the socket meanwhile, as a child does between fork and exec.
    fn describe_owner(
        &self,
        owner: &proc::Process,
        inode: u32,
        search: &Search,
    ) -> Result<Option<Described>, ProcError> {
        let mut rounds = 0..proc::ROUNDS;
        loop {
            let described = self.processes.describe(owner);
            match self.processes.holds(owner, inode, search) {
                Ok(true) => {}
                Ok(false) | Err(ProcError::Gone(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
            // An owner that still holds the socket and cannot be described is an error. An ancestor that ends meanwhile
            // is ordinary: a shell that started its command in the background.
            match described {
                Err(ProcError::Changed(_) | ProcError::Gone(_)) if rounds.next().is_some() => {}
                described => return described.map(Some),
            }
        }
    }

    /// Verifies that every executable of `identified` is the one of its path's first use. Blocks: it hashes a new
    /// program, so it comes after the policy has permitted the path.
    ///
    /// # Errors
    /// An executable is not the one of its first use, or cannot be read.
    pub fn verify(&self, identified: &Identified) -> Result<(), Refusal> {
        identified.evidence.iter().try_for_each(|executables| self.verify_all(executables))
    }

    /// Verifies a program's executable, then its ancestors'.
    fn verify_all(&self, executables: &[Executable]) -> Result<(), Refusal> {
        for (level, executable) in executables.iter().enumerate() {
            self.fingerprints.verify(executable).map_err(|problem| match (problem, level) {
                (Untrusted::Full, _) => Refusal::limit_reached("too many programs to remember"),
                (problem, 0) => Refusal::caller_changed(format!("binary integrity check failed: {problem}")),
                (problem, _) => {
                    let path = &executable.path;
                    Refusal::caller_changed(format!("ancestor integrity check failed for {path}: {problem}"))
                }
            })?;
        }
        Ok(())
    }
}

/// Owners of a socket, with the open files of their executables: own program first, then ancestors.
#[derive(Debug)]
pub struct Identified {
    inode: u32,
    callers: Callers,
    evidence: Vec<Vec<Executable>>,
    is_complete: bool,
}

impl Identified {
    /// The callers.
    #[must_use]
    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    /// The socket, if not all processes were searched for its owners.
    #[must_use]
    pub fn unsearched(&self) -> Option<u32> {
        (!self.is_complete).then_some(self.inode)
    }
}
