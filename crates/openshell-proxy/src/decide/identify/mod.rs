//! Identification of callers: finds the process that made a connection, its executable and its
//! ancestors, and checks each executable against the fingerprint of its first use.

mod executable;
mod fingerprint;
mod proc;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use crate::denial::refusal::Refusal;
use crate::ground::peer::{Caller, Program};
use executable::{Executable, Executables};
use fingerprint::{Fingerprints, Replaced, Untrusted};
pub use proc::Processes;
use proc::{Process, ROUNDS};

/// Identifies the programs that connect. It has seen their connect(2) calls.
pub trait Witness: fmt::Debug + Send + Sync {
    /// Returns the process whose connect(2) made the accepted connection `client`; `None` if no
    /// process of the sandbox did, or if it was asked for before.
    fn caller(&self, client: BorrowedFd<'_>) -> Option<Identity>;

    /// Returns the process that sent packets with `mark`, which the egress firewall refused, if it
    /// is known.
    fn sender(&self, mark: u32) -> Option<Caller>;

    /// Returns the process whose socket at `port` was connected to the name server, if it is known.
    fn asker(&self, port: u16) -> Option<Caller>;
}

/// A process that made a connection, or the reason why it cannot be identified.
pub type Identity = Result<Identified, Refusal>;

/// A process as it was when it made a connection.
#[derive(Clone, Debug)]
pub struct Identified(Arc<Snapshot>);

#[derive(Debug)]
struct Snapshot {
    caller: Caller,
    /// The process and its ancestors.
    processes: Vec<Process>,
    /// Their executables.
    executables: Vec<Arc<Executable>>,
}

impl Identified {
    /// Returns the caller, without its arguments.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.0.caller
    }
}

/// Identifies processes of the sandbox.
pub struct Identifier {
    processes: Processes,
    executables: Executables,
    fingerprints: Fingerprints,
    is_writable: IsWritable,
}

/// Returns true if the policy permits the workload to write at a path.
pub type IsWritable = Box<dyn Fn(&Path) -> bool + Send + Sync>;

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identifier")
            .field("processes", &self.processes)
            .finish_non_exhaustive()
    }
}

impl Identifier {
    /// Creates an identifier of `processes`, which can write to the files for which `is_writable`
    /// returns true.
    #[must_use]
    pub fn new(processes: Processes, is_writable: IsWritable) -> Self {
        let executables = Executables::default();
        let fingerprints = Fingerprints::default();
        Self {
            processes,
            executables,
            fingerprints,
            is_writable,
        }
    }

    /// Identifies the process of `thread`, which stays in its system call meanwhile. Reads only
    /// /proc, and neither files on disk nor the memory of processes.
    ///
    /// # Errors
    /// The process or an ancestor cannot be read.
    pub fn identify(&self, thread: i32) -> Identity {
        let unknown = |what: String| {
            Refusal::caller_unknown(format!("failed to resolve peer binary: {what}"))
        };
        let mut rounds = 0..ROUNDS;
        // It is normal that an ancestor ends meanwhile, for example a shell that started its
        // command in the background.
        let described = loop {
            match self.processes.describe(thread, &self.executables) {
                Err(error) if error.is_change() && rounds.next().is_some() => {}
                described => break described.map_err(|error| unknown(error.to_string()))?,
            }
        };
        let mut paths = described
            .executables
            .iter()
            .map(|executable| executable.path.clone());
        let executable = paths.next().unwrap_or_default();
        let program = Program {
            executable,
            ancestors: paths.collect(),
            cmdline_paths: Vec::new(),
            is_modified: false,
        };
        let caller = Caller {
            pid: described.pid,
            program: program.into(),
        };
        let processes = described.processes;
        let executables = described.executables;
        Ok(Identified(Arc::new(Snapshot {
            caller,
            processes,
            executables,
        })))
    }

    /// Returns the caller with the absolute paths among the arguments of itself and its ancestors.
    /// Blocks, because processes can delay the read.
    #[must_use]
    pub fn with_arguments(&self, identified: &Identified) -> Caller {
        let Snapshot {
            caller,
            processes,
            executables,
        } = &*identified.0;
        let mut paths: Vec<_> = processes
            .iter()
            .flat_map(|process| self.processes.cmdline_paths(process))
            .collect();
        paths.retain(|path| {
            !executables
                .iter()
                .any(|executable| executable.path == *path)
        });
        paths.truncate(crate::ground::limits::Limits::CMDLINE_PATHS);
        let program = Program {
            cmdline_paths: paths,
            ..Program::clone(&caller.program)
        };
        Caller {
            pid: caller.pid,
            program: program.into(),
        }
    }

    /// Returns true if [`Self::verify`] would succeed without reading a file.
    #[must_use]
    pub fn is_verified(&self, identified: &Identified) -> bool {
        identified
            .0
            .executables
            .iter()
            .all(|executable| self.fingerprints.knows(executable))
    }

    /// Returns the maximum number of bytes that [`Self::verify`] would read.
    #[must_use]
    pub fn unread_bytes(&self, identified: &Identified) -> u64 {
        let unread = identified
            .0
            .executables
            .iter()
            .filter(|executable| !self.fingerprints.knows(executable));
        unread.map(|executable| executable.stamp.size).sum()
    }

    /// Verifies that every executable of `identified` is the one that its path had at first use.
    /// Blocks, because it hashes new programs; so call it after the policy has permitted the path.
    /// If `is_pinned` is false for a path, a change of its program is logged and accepted.
    ///
    /// # Errors
    /// An executable is not the one of its first use, or it cannot be read.
    pub fn verify(
        &self,
        identified: &Identified,
        is_pinned: impl Fn(&str) -> bool,
    ) -> Result<(), Refusal> {
        for (level, executable) in identified.0.executables.iter().enumerate() {
            let pinned = is_pinned(&executable.path);
            let verified = self.fingerprints.verify(executable, pinned).map(|changed| {
                if let Some(Replaced { before, now }) = changed {
                    let path = &executable.path;
                    tracing::warn!(
                        "a program has changed, which `pinned: false` permits: {path} (before: \
                         {before}, now: {now})"
                    );
                }
            });
            verified.map_err(|problem| match (problem, level) {
                (Untrusted::Full, _) => Refusal::limit_reached(
                    "the proxy cannot remember another program because it already remembers as \
                     many as it can",
                ),
                (problem, 0) => {
                    let reason = format!("binary integrity check failed: {problem}");
                    Refusal::caller_changed(reason, executable.path.clone())
                }
                (problem, _) => {
                    let path = &executable.path;
                    let reason = format!("ancestor integrity check failed for {path}: {problem}");
                    Refusal::caller_changed(reason, path.clone())
                }
            })?;
        }
        Ok(())
    }

    /// Returns what makes the caller a modified program: it runs code from a file that the workload
    /// can write, as far as its mappings show, or its code cannot be examined. `None` if nothing
    /// does. Blocks, because processes can delay the read.
    #[must_use]
    pub fn modified_by(&self, identified: &Identified) -> Option<String> {
        let Snapshot {
            processes,
            executables,
            ..
        } = &*identified.0;
        let (process, executable) = processes.first().zip(executables.first())?;
        let mappings = self.processes.code_files(process);
        // If the process runs another program by now, the mappings are those of that program.
        match self
            .processes
            .runs(process, executable)
            .and_then(|is_same| Ok((is_same, mappings?)))
        {
            Ok((true, mappings)) => {
                let file = mappings
                    .into_iter()
                    .find(|path| (self.is_writable)(Path::new(path)))?;
                Some(format!("it runs {file}, which the workload can write"))
            }
            Ok((false, _)) => Some(
                "the process now runs another program, so the proxy cannot check its code"
                    .to_owned(),
            ),
            Err(error) => Some(format!("the proxy cannot check its code: {error}")),
        }
    }
}
