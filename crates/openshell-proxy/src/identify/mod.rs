//! Which program is calling: from the socket to its owners, their executables and their ancestors, each held to the
//! fingerprint of its first use.

pub mod caller;
mod fingerprint;
mod proc;
mod sock_diag;

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use crate::refusal::Refusal;
use caller::{Caller, Callers};
use fingerprint::Fingerprints;
pub use proc::Processes;
use sock_diag::SockDiag;

/// Both ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The workload's end.
    pub client: SocketAddrV4,
    /// The proxy's.
    pub server: SocketAddrV4,
}

/// Finds out who is calling.
#[derive(Debug)]
pub struct Identifier {
    sockets: SockDiag,
    processes: Processes,
    fingerprints: Fingerprints,
}

impl Identifier {
    /// An identifier that asks `sockets`, a NETLINK_SOCK_DIAG socket opened inside the sandbox's network namespace, and
    /// looks for owners among `processes`.
    #[must_use]
    pub fn new(sockets: OwnedFd, processes: Processes) -> Self {
        Self { sockets: SockDiag::new(sockets), processes, fingerprints: Fingerprints::default() }
    }

    /// Every program that holds the client's end of `flow`. Blocks: it reads /proc, and hashes a program the first time.
    ///
    /// # Errors
    /// Nobody is found, a program is not the one of its first use, or a look-up fails: each a refusal.
    pub fn identify(&self, flow: Flow) -> Result<Callers, Refusal> {
        let unknown = |what: String| Refusal::CallerUnknown(format!("failed to resolve peer binary: {what}"));
        let inode = self
            .sockets
            .inode(flow)
            .map_err(|error| unknown(format!("socket {} is not established: {error}", flow.client)))?;
        let mut callers: Vec<Caller> = Vec::new();
        for process in self.processes.owners_of(inode).map_err(|error| unknown(error.to_string()))? {
            let caller = self.processes.describe(&process).map_err(|error| unknown(error.to_string()))?;
            self.verify(&caller)?;
            if !callers.iter().any(|known| known.program == caller.caller.program) {
                callers.push(caller.caller);
            }
        }
        Callers::new(callers).ok_or_else(|| {
            unknown(format!(
                "no process of the sandbox owns socket {inode} (looking needs CAP_SYS_PTRACE in a container)"
            ))
        })
    }

    fn verify(&self, described: &proc::Described) -> Result<(), Refusal> {
        let (own, ancestors) = (&described.executable, &described.ancestors);
        self.fingerprints
            .verify(own)
            .map_err(|problem| Refusal::CallerChanged(format!("binary integrity check failed: {problem}")))?;
        ancestors.iter().try_for_each(|ancestor| {
            self.fingerprints.verify(ancestor).map_err(|problem| {
                let path = ancestor.path.display();
                Refusal::CallerChanged(format!("ancestor integrity check failed for {path}: {problem}"))
            })
        })
    }
}
