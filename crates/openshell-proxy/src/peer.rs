//! The workload's end of a connection: its addresses, and the programs behind it as policies and logs name them.

use std::net::SocketAddrV4;
use std::sync::Arc;

/// Both ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The workload's end.
    pub client: SocketAddrV4,
    /// The proxy's end.
    pub server: SocketAddrV4,
}

/// The facts of a process that decisions depend on. Paths are text, as in rules and logs; a program whose path is not
/// UTF-8 is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Path of the running executable.
    pub executable: String,
    /// Executables of its ancestors, nearest first, up to the command that init started.
    pub ancestors: Vec<String>,
    /// Absolute paths among the arguments of the process and its ancestors. They explain a decision, and never grant
    /// anything.
    pub cmdline_paths: Vec<String>,
}

/// A process that holds a client's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// PID inside the sandbox.
    pub pid: i32,
    /// The program that it runs.
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

    /// Returns these callers and `further` ones, each program once.
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

    /// Iterates over all callers.
    pub fn iter(&self) -> impl Iterator<Item = &Caller> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// All callers but the first.
    #[must_use]
    pub fn others(&self) -> &[Caller] {
        &self.others
    }
}
