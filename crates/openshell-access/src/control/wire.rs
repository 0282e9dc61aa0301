//! The messages on the control socket.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
    /// List the questions to a person. If the client follows them, they are listed again whenever they
    /// change.
    Questions {
        /// True for a client that follows them.
        is_following: bool,
    },
    /// Answer a question, or take an answer back.
    Answer(Answer),
}

/// What a person decides about a question or a grant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Decides about what waits under a question.
    Decide {
        /// The id of the question.
        id: String,
        /// `once`, `run`, `save`, `deny` or `deny_run`.
        decision: String,
        /// The line that permits it, counted from 0.
        line: usize,
        /// Why it is denied, for the program that has proposed it; empty without a reason.
        reason: String,
    },
    /// Says what saving a line would change, and answers nothing.
    Preview {
        /// The id of the question.
        id: String,
        /// The line, counted from 0.
        line: usize,
    },
    /// Takes back the grant with this id.
    Revoke(String),
    /// Asks for this program again, which was denied three times in a row.
    Unmute(String),
}

/// What became of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answered {
    /// It has its effect, which is described.
    Done(String),
    /// The policy has changed since the question was asked, so the question is asked anew.
    Stale,
    /// There is no such question or grant any more.
    Gone,
    /// The question does not take this answer, for this reason.
    Unfit(String),
}

/// The questions of a sandbox, and what was answered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Listing {
    /// The questions, those that something waits under first.
    pub questions: Vec<Question>,
    /// What was permitted for the run.
    pub grants: Vec<Grant>,
    /// The programs that are not asked for any more.
    pub muted: Vec<String>,
    /// The ids of the last questions that were answered, each with what became of it: an answer,
    /// `stale`, or `permitted`.
    pub finished: Vec<(String, String)>,
}

/// A question to a person. What it shows never changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// Its id.
    pub id: String,
    /// `held`, `left` or `expired`.
    pub state: String,
    /// The number of requests that wait under it.
    pub held: usize,
    /// The seconds until the oldest has waited too long.
    pub seconds_left: u64,
    /// All that is shown, as a JSON object.
    pub facts: String,
    /// All that is shown, as one text of several lines.
    pub text: String,
    /// The lines of policy that can be chosen, from the narrowest to the widest.
    pub lines: Vec<QuestionLine>,
}

impl Question {
    /// Returns the question of `sandbox` as programs read it.
    #[must_use]
    pub fn to_json(&self, sandbox: &str) -> Value {
        let mut object = match serde_json::from_str(&self.facts) {
            Ok(Value::Object(facts)) => facts,
            Ok(_) | Err(_) => Map::new(),
        };
        object.insert("id".to_owned(), self.id.as_str().into());
        object.insert("sandbox".to_owned(), sandbox.into());
        object.insert("state".to_owned(), self.state.as_str().into());
        object.insert("held".to_owned(), self.held.into());
        object.insert("seconds_left".to_owned(), self.seconds_left.into());
        object.insert("text".to_owned(), self.text.as_str().into());
        Value::Object(object)
    }
}

/// A line of policy that would permit what is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QuestionLine {
    /// The line.
    pub yaml: String,
    /// What it permits, and what it leaves open.
    pub permits: Vec<String>,
    /// True if it takes a second key to permit it.
    pub is_dangerous: bool,
}

/// A line of policy that was permitted for the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Its id.
    pub id: String,
    /// The line.
    pub yaml: String,
    /// What it permits.
    pub permits: Vec<String>,
    /// The file in which the line stays.
    pub kept_in: Option<String>,
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
    /// The questions.
    Questions(Listing),
    /// What became of an answer.
    Answered(Answered),
    /// The sandbox asks nobody.
    AsksNobody,
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
