//! Messages at the control socket.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A message of a client. The first is [`Self::Describe`] or [`Self::Exec`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Describe the sandbox.
    Describe,
    /// Start a command; carries its standard streams, apart from those on its terminal.
    Exec(Exec),
    /// Continue the command, in the foreground of its terminal or in its background.
    Continue {
        /// True for the foreground.
        is_foreground: bool,
    },
    /// Send this signal to the process group of the command.
    Signal(i32),
}

/// A command to start.
#[derive(Debug, Serialize, Deserialize)]
pub struct Exec {
    /// Program and arguments.
    pub arguments: Vec<OsString>,
    /// Variables beside those of the main command.
    pub variables: Vec<(String, OsString)>,
    /// Directory to start in, instead of the main command's.
    pub directory: Option<PathBuf>,
    /// The terminal that it gets, if any.
    pub terminal: Option<TerminalSpec>,
}

/// A terminal to open.
#[derive(Debug, Serialize, Deserialize)]
pub struct TerminalSpec {
    /// Its type, the value of `TERM`.
    pub kind: Option<OsString>,
    /// Its width in characters.
    pub columns: u16,
    /// Its height in lines.
    pub rows: u16,
    /// The standard streams that are on it: input, output, error.
    pub streams: [bool; 3],
    /// Its keyboard.
    pub keyboard: TerminalKeyboard,
}

/// What a client types on the terminal of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalKeyboard {
    /// Nothing.
    None,
    /// Something, once the command has read it or was continued in its foreground.
    Later,
    /// Something from the start.
    Now,
}

/// A message of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// What the sandbox is.
    Described(Description),
    /// The terminal was opened; carries its master.
    Terminal,
    /// The command runs.
    Started,
    /// The command never ran, with the exit code for that.
    Refused {
        /// The exit code.
        code: u8,
        /// Why, for a person.
        reason: String,
    },
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command ended, with its exit code.
    Ended {
        /// The exit code.
        code: u8,
    },
}

/// A running sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// The name in its log lines.
    pub name: String,
    /// PID of its supervisor.
    pub pid: u32,
    /// Seconds since 1970 of its start.
    pub started: u64,
    /// Words of the main command.
    pub command: Vec<String>,
    /// Number of the policy in force, from 1 on.
    pub generation: u64,
    /// Connections open at the proxy.
    pub connections: usize,
}
