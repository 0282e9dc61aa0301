//! Messages between the supervisor and init over a SOCK_SEQPACKET pair.

use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::confine::{Confinement, Enforced, StepFailed};
use crate::paths::pins::KeptPath;

/// Request to init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Confine init, up to its entry into the network.
    Confine(Box<Confinement>),
    /// Finish that in this network; carries the namespace, if the workload's `is_own`, and the
    /// files that the command gets as its outputs.
    Enter {
        is_own: bool,
        firewall_probe: Option<SocketAddrV4>,
    },
    /// Open a terminal.
    OpenTerminal { id: u32 },
    /// Start a command; carries its three standard streams, and for [`Session::Job`] its terminal.
    Start { id: u32, command: Command },
    /// Continue the process group of a running command, in the foreground of its terminal or in its
    /// background.
    Continue { id: u32, is_foreground: bool },
    /// Stop every process of the sandbox but init.
    StopAll { id: u32 },
    /// Continue those that were stopped for that, if the carve-outs are still kept.
    ContinueAll,
    /// Send a signal to the process group of a running command.
    Signal { id: u32, signal: i32 },
    /// End the sandbox after this time.
    EndAfter(Duration),
}

/// Reply from init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Init is up.
    Up,
    /// Init cannot mount a /proc of its own, and ends.
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
    /// Every process of the sandbox but init is stopped.
    AllStopped { id: u32 },
    /// Paths are no longer kept from the workload.
    Lost(Loss),
    /// The command ended.
    Exited { id: u32, status: Status },
    /// The time set by [`Request::EndAfter`] has passed.
    OutOfTime,
}

/// Paths that are no longer kept from the workload, as they were replaced outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The paths.
    pub paths: Vec<KeptPath>,
    /// True if init ends the sandbox for it.
    pub is_end: bool,
}

/// A command to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments. A program without a slash is looked up in `PATH` of the environment.
    pub arguments: Vec<OsString>,
    /// Names and values of variables.
    pub environment: Vec<(OsString, OsString)>,
    /// Candidate working directories; the first that the workload may enter counts.
    pub directories: Vec<PathBuf>,
    /// Session and terminal.
    pub session: Session,
    /// Signals that the supervisor's caller ignores.
    pub ignored: IgnoredSignals,
}

/// Signals that the supervisor's caller ignores, in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IgnoredSignals {
    /// They stay ignored, as `nohup` relies on: the command is the caller's.
    Kept,
    /// They have their default action: the command is another client's, whose interrupts and
    /// hang-ups must reach it.
    Reset,
}

/// Session and terminal of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Session {
    /// A new session without a terminal.
    New,
    /// A new session, which the command leads, with the standard input as its terminal.
    Terminal,
    /// A new session that another process leads, with a terminal that can stop the command.
    Job {
        /// True if the command is in the foreground of the terminal from the start.
        is_foreground: bool,
    },
}

/// Exit status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// Exited with this code.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
}

impl Status {
    /// Returns the exit code that a shell gives to it: 128 more than the number of a signal.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            // The kernel keeps 8 bits of an exit code.
            Self::Exited(code) => u8::try_from(code & 0xff).unwrap_or(1),
            Self::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// Reason why a command never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotStarted {
    /// No such program exists.
    NotFound,
    /// The program cannot be executed.
    NotExecutable {
        /// System error number.
        errno: i32,
    },
    /// The program exists, but its interpreter or loader does not.
    NoInterpreter,
    /// A step of its confinement failed.
    Step(StepFailed),
    /// Init could not fork, or received an invalid request.
    Init {
        /// Description of the failure.
        what: String,
    },
}
