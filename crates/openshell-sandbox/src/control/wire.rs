//! Messages at the control socket.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A message of a client. The first is [`Self::Describe`] or [`Self::Exec`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Describe the sandbox.
    Describe,
    /// Start a command; carries its standard streams, apart from those on its terminal.
    Exec(Exec),
    /// Continue the command, in the foreground of its terminal or in its background.
    Continue { is_foreground: bool },
    /// Send this signal to the process group of the command.
    Signal(i32),
}

/// A command to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Exec {
    pub(crate) arguments: Vec<OsString>,
    /// Variables beside those of the main command.
    pub(crate) variables: Vec<(String, OsString)>,
    /// Directory to start in, instead of the main command's.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) terminal: Option<TerminalSpec>,
}

/// A terminal to open.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TerminalSpec {
    /// Its type, the value of `TERM`.
    pub(crate) kind: Option<OsString>,
    pub(crate) columns: u16,
    pub(crate) rows: u16,
    /// The standard streams that are on it: input, output, error.
    pub(crate) streams: [bool; 3],
    /// Its keyboard.
    pub(crate) keyboard: TerminalKeyboard,
}

/// What a client types on the terminal of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TerminalKeyboard {
    /// Nothing.
    None,
    /// Something, once the command has read it or was continued in its foreground.
    Later,
    /// Something from the start.
    Now,
}

/// A message of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Described(Description),
    /// The terminal was opened; carries its master.
    Terminal,
    /// The command runs.
    Started,
    /// The command never ran, with the exit code for that.
    Refused {
        code: u8,
        reason: String,
    },
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command ended, with its exit code.
    Ended {
        code: u8,
    },
}

/// A running sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    /// The name in its log lines.
    pub(crate) name: String,
    /// PID of its supervisor.
    pub(crate) pid: u32,
    /// Seconds since 1970 of its start.
    pub(crate) started: u64,
    pub(crate) command: Vec<String>,
    /// Number of the policy in force, from 1 on.
    pub(crate) generation: u64,
    /// Connections open at the proxy.
    pub(crate) connections: usize,
}
