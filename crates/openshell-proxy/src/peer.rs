//! The workload's end of a connection: its addresses, and the programs behind it as policies and logs name them.

use std::net::SocketAddrV4;
use std::sync::Arc;

/// Both ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The workload's end.
    pub client: SocketAddrV4,
    /// The proxy's.
    pub server: SocketAddrV4,
}

/// What of a process a decision depends on. Paths are text, as rules and logs know no other; a program whose path is not
/// UTF-8 is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// The file that runs.
    pub executable: String,
    /// The files that its ancestors run, nearest first, up to the command that init started.
    pub ancestors: Vec<String>,
    /// Absolute paths among its arguments and its ancestors'; they explain, and never grant.
    pub cmdline_paths: Vec<String>,
}

/// One process that holds a client's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its number inside the sandbox.
    pub pid: i32,
    /// What it runs.
    pub program: Arc<Program>,
}

/// The programs that hold one socket, at least one, each once.
#[derive(Clone, Debug)]
pub struct Callers {
    first: Caller,
    others: Vec<Caller>,
}

impl Callers {
    /// The callers in the order given; `None` if there are none.
    #[must_use]
    pub fn new(callers: Vec<Caller>) -> Option<Self> {
        let mut callers = callers.into_iter();
        let first = callers.next()?;
        Some(Self { first, others: callers.collect() })
    }

    /// The caller that logs name.
    #[must_use]
    pub fn first(&self) -> &Caller {
        &self.first
    }

    /// These and `further` ones, each program once.
    #[must_use]
    pub fn with(&self, further: impl Iterator<Item = Caller>) -> Self {
        let mut all = self.clone();
        for caller in further {
            if !all.iter().any(|known| known.program == caller.program) {
                all.others.push(caller);
            }
        }
        all
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Caller> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The rest.
    #[must_use]
    pub fn others(&self) -> &[Caller] {
        &self.others
    }
}
