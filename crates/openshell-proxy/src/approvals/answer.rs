//! Answers to questions.

use std::borrow::Cow;
use std::fmt;

use crate::approvals::keep::Difference;

/// What a person decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The oldest request goes on as it was shown, and nothing else.
    Once,
    /// The line holds until the sandbox ends.
    Run,
    /// The line holds until the sandbox ends, and is written to where the next run finds it.
    Save,
    /// What is held is refused.
    Deny,
    /// What is held is refused, and what is equal is not asked again.
    DenyRun,
}

impl Decision {
    /// All decisions.
    pub const ALL: [Self; 5] = [Self::Once, Self::Run, Self::Save, Self::Deny, Self::DenyRun];

    /// Returns the word, which is the same in all inputs and outputs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Run => "run",
            Self::Save => "save",
            Self::Deny => "deny",
            Self::DenyRun => "deny_run",
        }
    }

    /// Returns the decision with this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an answer has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The grant for the run.
    pub grant: Option<String>,
    /// What was written, or why nothing was; `None` if nothing was to be.
    pub kept: Option<Result<Difference, String>>,
}

/// What was answered without a decision, or after one that a refusal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Somebody has denied it.
    Denied,
    /// Nobody has answered in time.
    Expired,
}

/// Why an answer has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// No such question is open: it was answered, or never asked.
    #[error("there is no such question, or it was answered")]
    Gone,
    /// The policy has changed since the question was asked, so that the line would permit something
    /// else. The question is asked anew.
    #[error("the policy has changed, and the question is asked anew")]
    Stale,
    /// The question does not take this answer.
    #[error("{0}")]
    Unfit(Cow<'static, str>),
}

/// Who has answered, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answerer<'a> {
    /// How: `terminal`, `command` or `gateway`.
    pub way: &'static str,
    /// The user, if the answer came from this host.
    pub uid: Option<u32>,
    /// The reason, which the program gets that has proposed what is denied; empty without one.
    pub reason: &'a str,
}
