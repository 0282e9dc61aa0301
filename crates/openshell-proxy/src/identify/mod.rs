//! Which program is calling: from the socket to its owners, their executables and their ancestors, each held to the
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

/// Finds out who is calling.
#[derive(Debug)]
pub struct Identifier {
    sockets: SockDiag,
    processes: Processes,
    fingerprints: Fingerprints,
}

impl Identifier {
    /// An identifier that asks `sockets`, a NETLINK_SOCK_DIAG socket opened inside the sandbox's network namespace, about
    /// connections by its interface number `interface`, and looks for owners among `processes`.
    ///
    /// # Errors
    /// The socket takes no time limit.
    pub fn new(sockets: OwnedFd, interface: u32, processes: Processes) -> io::Result<Self> {
        Ok(Self { sockets: SockDiag::new(sockets, interface)?, processes, fingerprints: Fingerprints::default() })
    }

    /// Every program that holds the client's end of `flow`, as far as `search` goes. Blocks: it reads /proc.
    ///
    /// # Errors
    /// Nobody is found, or a look-up fails: each a refusal.
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

    /// Everybody who holds one of the sockets. Blocks: it looks at all processes.
    ///
    /// # Errors
    /// /proc cannot be read, or a process that holds one cannot be described: each a refusal of them all.
    pub fn sweep(&self, inodes: &[u32]) -> Result<HashMap<u32, Vec<Owner>>, Refusal> {
        let unknown = |error: ProcError| Refusal::caller_unknown(format!("failed to look at all processes: {error}"));
        let mut found: HashMap<u32, Vec<Owner>> = HashMap::new();
        let search = Search::new(Limits::SWEPT_DESCRIPTORS, Limits::SWEEP_DEADLINE);
        for (owner, inode) in self.processes.sweep(inodes, &search).map_err(unknown)? {
            let described = self.describe_owner(&owner, inode, &search).map_err(unknown)?;
            if let Some(Described { caller, executables }) = described {
                found.entry(inode).or_default().push(Owner { caller, executables });
            }
        }
        Ok(found)
    }

    /// Holds everything that `owner` is judged by to the first use of its path, as [`Self::verify`] does.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn verify_owner(&self, owner: &Owner) -> Result<(), Refusal> {
        self.verify_all(&owner.executables)
    }

    /// The first program found that holds the UDP socket which sends from `local` to `remote`, for a report: `None` if
    /// there is none any more. Blocks: it reads /proc.
    #[must_use]
    pub fn sender(&self, local: SocketAddrV4, remote: SocketAddrV4) -> Option<Caller> {
        let inode = self.sockets.udp_inode(local, remote).ok()?;
        let search = Search::new(Limits::SEARCHED_DESCRIPTORS, Limits::REPORT_DEADLINE);
        let owners = self.processes.owners_of(inode, &search).ok()?;
        owners.found.iter().find_map(|owner| Some(self.describe_owner(owner, inode, &search).ok()??.caller))
    }

    /// What an owner is, unless it has let go meanwhile: a child between fork and exec holds what its parent holds.
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
            // Whoever still holds it and cannot be described is not left out. An ancestor that ended during the look is
            // ordinary, though: a shell that started its command in the background.
            match described {
                Err(ProcError::Changed(_) | ProcError::Gone(_)) if rounds.next().is_some() => {}
                described => return described.map(Some),
            }
        }
    }

    /// Holds everything that `identified` is judged by to the first use of its path. Blocks: it hashes a program the first
    /// time, so it comes after the policy has said that the path may.
    ///
    /// # Errors
    /// A program is not the one of its first use, or cannot be read: each a refusal.
    pub fn verify(&self, identified: &Identified) -> Result<(), Refusal> {
        identified.evidence.iter().try_for_each(|executables| self.verify_all(executables))
    }

    /// A program first, then its ancestors.
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

/// Who holds a socket, with the open files of everything that each is judged by: own program first, then ancestors.
#[derive(Debug)]
pub struct Identified {
    inode: u32,
    callers: Callers,
    evidence: Vec<Vec<Executable>>,
    is_complete: bool,
}

impl Identified {
    /// Who they are.
    #[must_use]
    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    /// The socket that has still to be looked for among all processes; `None` where that was done.
    #[must_use]
    pub fn unsearched(&self) -> Option<u32> {
        (!self.is_complete).then_some(self.inode)
    }
}
