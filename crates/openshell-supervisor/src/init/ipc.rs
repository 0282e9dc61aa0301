//! Messages between the supervisor and init over a SOCK_SEQPACKET pair.

use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::confine::{Confinement, Enforced, StepFailed};
use crate::paths::pins::KeptPath;

/// A request to init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Confine init, up to the point at which it enters the network.
    Confine(Box<Confinement>),
    /// Finish the confinement in this network. Carries the namespace, if the workload has its own
    /// (`is_own`), and the files that the command gets as its outputs.
    Enter {
        is_own: bool,
        firewall_probe: Option<SocketAddrV4>,
    },
    /// Open a terminal.
    OpenTerminal { id: u32 },
    /// Start a command; carries its three standard streams and, for [`Session::Job`], its terminal.
    Start { id: u32, command: Command },
    /// Continue the process group of a running command, in the foreground of its terminal or in its
    /// background.
    Continue { id: u32, is_foreground: bool },
    /// Stop every process of the sandbox except init.
    StopAll { id: u32 },
    /// Continue the processes that [`Self::StopAll`] stopped, if everything is still protected.
    ContinueAll,
    /// Send a signal to the process group of a running command.
    Signal { id: u32, signal: i32 },
    /// End the sandbox after this time.
    EndAfter(Duration),
}

/// A reply from init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Init is up.
    Up,
    /// Init cannot mount a new /proc, and ends.
    NoProc(String),
    /// Init failed, and ends.
    Failed(String),
    /// Init is confined; carries the listener of waiting calls, if there is one.
    Confined(Box<Enforced>),
    /// The terminal was opened; carries its master.
    Terminal { id: u32 },
    /// The terminal could not be opened.
    NoTerminal { id: u32, errno: i32 },
    /// The command was executed; carries its pidfd.
    Started { id: u32, pid: i32 },
    /// The command never ran.
    NotStarted { id: u32, why: NotStarted },
    /// The command was stopped by a signal.
    Stopped { id: u32, signal: i32 },
    /// Every process of the sandbox except init is stopped.
    AllStopped { id: u32 },
    /// Paths are no longer protected from the workload.
    Lost(Loss),
    /// The command ended.
    Exited { id: u32, status: Status },
    /// The time set by [`Request::EndAfter`] has passed.
    OutOfTime,
}

/// Paths that are no longer protected from the workload, because they were replaced outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The paths.
    pub paths: Vec<KeptPath>,
    /// True if init ends the sandbox because of it.
    pub is_end: bool,
}

/// A command to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// The program and its arguments. A program without a slash is looked up in the `PATH` of
    /// `environment`.
    pub arguments: Vec<OsString>,
    /// The names and values of variables.
    pub environment: Vec<(OsString, OsString)>,
    /// The candidates for the working directory; the first that the workload may enter is used.
    pub directories: Vec<PathBuf>,
    /// The session and the terminal.
    pub session: Session,
    /// What happens to signals that the supervisor's caller ignores.
    pub ignored: IgnoredSignals,
}

/// What happens in a command to the signals that the supervisor's caller ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IgnoredSignals {
    /// They stay ignored, which `nohup` relies on: the command is the caller's.
    Kept,
    /// They get their default action: the command belongs to another client, whose interrupts and
    /// hang-ups must reach it.
    Reset,
}

/// The session and the terminal of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Session {
    /// A new session without a terminal.
    New,
    /// A new session, which the command leads, with its standard input as its terminal.
    Terminal,
    /// A new session that another process leads, with a terminal that can stop the command.
    Job {
        /// True if the command is in the foreground of the terminal from the start.
        is_foreground: bool,
    },
}

/// The exit status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// The command exited with this code.
    Exited(i32),
    /// The command was killed by this signal.
    Killed(i32),
}

impl Status {
    /// Returns the exit code that a shell would give: the command's own, or 128 plus the number of
    /// the signal.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            // The kernel keeps 8 bits of an exit code.
            Self::Exited(code) => u8::try_from(code & 0xff).unwrap_or(1),
            Self::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// The reason why a command never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotStarted {
    /// The program does not exist.
    NotFound,
    /// The program cannot be executed.
    NotExecutable {
        /// The system's error number.
        errno: i32,
    },
    /// The program exists, but its interpreter or loader does not.
    NoInterpreter,
    /// A step of its confinement failed.
    Step(StepFailed),
    /// Init could not fork, or received an invalid request.
    Init {
        /// A description of the failure.
        what: String,
    },
}
