//! The messages on the control socket.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A message of a client. The first is [`Self::Describe`] or [`Self::Exec`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Describe the sandbox.
    Describe,
    /// Start a command. The message carries its standard streams, except those on its terminal.
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
    /// Variables in addition to those of the main command.
    pub variables: Vec<(String, OsString)>,
    /// Directory to start in, instead of the main command's.
    pub directory: Option<PathBuf>,
    /// The terminal that the command gets, if any.
    pub terminal: Option<TerminalSpec>,
}

/// A terminal to open.
#[derive(Debug, Serialize, Deserialize)]
pub struct TerminalSpec {
    /// Its type, which becomes the value of `TERM`.
    pub kind: Option<OsString>,
    /// Its width in characters.
    pub columns: u16,
    /// Its height in lines.
    pub rows: u16,
    /// The standard streams that are on it: input, output, error.
    pub streams: [bool; 3],
    /// What is typed on it.
    pub keyboard: TerminalKeyboard,
}

/// What a client types on the terminal of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalKeyboard {
    /// Nothing.
    None,
    /// Everything that is typed, after the command has read its terminal or was continued in the
    /// foreground.
    Later,
    /// Everything that is typed, from the start.
    Now,
}

/// A message of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The description of the sandbox.
    Described(Description),
    /// The terminal was opened. The message carries its master.
    Terminal,
    /// The command runs.
    Started,
    /// The command did not run.
    Refused {
        /// The exit code.
        code: u8,
        /// The reason, for a person.
        reason: String,
    },
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command ended.
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
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// Words of the main command.
    pub command: Vec<String>,
    /// Number of the policy in force, starting at 1.
    pub generation: u64,
    /// Connections open at the proxy.
    pub connections: usize,
}
