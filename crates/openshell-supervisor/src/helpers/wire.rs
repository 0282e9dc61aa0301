//! The messages between the supervisor and the runner.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A program that the runner may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The absolute path.
    pub path: PathBuf,
    /// Its name and its arguments.
    pub arguments: Vec<OsString>,
    /// Its variables that name what is executed; `None` for one that it does not have.
    pub variables: Vec<(OsString, Option<OsString>)>,
}

/// A message to the runner.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// These are all programs that there will be. It is the first message, and comes once.
    Programs(Vec<Program>),
    /// Start a program.
    Start(Start),
    /// End the program of the start with this number.
    Cancel(u64),
}

/// The start of a program that gives one answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    /// A number that the answer repeats.
    pub number: u64,
    /// The index of the program.
    pub program: usize,
    /// Its standard input.
    pub input: String,
    /// How long it may run, in milliseconds.
    pub milliseconds: u64,
    /// The most bytes of its standard output.
    pub output_bytes: usize,
}

/// What a program did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The number of its start.
    pub number: u64,
    /// How it ended.
    pub ended: Ended,
    /// Its standard output.
    pub output: Vec<u8>,
    /// The beginning of its standard error.
    pub errors: Vec<u8>,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// It ran for too long.
    TimedOut,
    /// It wrote too much.
    WroteTooMuch,
    /// Nobody wanted its answer any more.
    Cancelled,
    /// It was not started, for this reason.
    NotStarted(String),
}
