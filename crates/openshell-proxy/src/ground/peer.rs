//! The program behind a connection, as policies and logs name it.

use std::sync::Arc;

use openshell_events::event::Lineage;

/// The facts about a process on which decisions depend. Paths are text, as in rules and logs; a
/// program whose path is not UTF-8 is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Path of the running executable.
    pub executable: String,
    /// Executables of its ancestors, nearest first, up to the command that init started.
    pub ancestors: Vec<String>,
    /// Absolute paths among the arguments of the process and its ancestors. They explain a
    /// decision, and never grant anything.
    pub cmdline_paths: Vec<String>,
    /// True if the process runs code from a file that the workload can write.
    pub is_modified: bool,
}

/// The process that made a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// PID inside the sandbox.
    pub pid: i32,
    /// The program that the process runs.
    pub program: Arc<Program>,
}

impl Caller {
    /// Returns the same caller; it `is_modified`, or as it was known to be before.
    #[must_use]
    pub fn modified(&self, is_modified: bool) -> Self {
        if self.program.is_modified || !is_modified {
            return self.clone();
        }
        let program = Program {
            is_modified,
            ..Program::clone(&self.program)
        };
        Self {
            pid: self.pid,
            program: program.into(),
        }
    }

    /// Returns the processes behind the caller, for events.
    #[must_use]
    pub fn lineage(&self) -> Lineage<'_> {
        let Program {
            ancestors,
            cmdline_paths,
            ..
        } = &*self.program;
        Lineage {
            ancestors,
            cmdline_paths,
        }
    }
}
