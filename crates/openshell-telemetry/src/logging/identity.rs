//! What tells the lines and records of one run from those of others.

use std::fmt::Write;

/// The name of a sandbox and the labels of its run, the end of every line.
#[derive(Clone, Debug)]
pub struct RunIdentity {
    sandbox: String,
    labels: Vec<Label>,
    end: String,
}

/// A label of a run, such as `tenant=acme`; both parts are plain words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// What it says something about.
    pub key: String,
    /// What it says.
    pub value: String,
}

impl RunIdentity {
    /// Names the sandbox `sandbox`, whose run has `labels`.
    #[must_use]
    pub fn new(sandbox: String, labels: Vec<Label>) -> Self {
        let mut end = String::new();
        for Label { key, value } in &labels {
            // Writing to a String cannot fail.
            let _ = write!(end, " {key}={value}");
        }
        let _ = write!(end, " sandbox={sandbox}");
        Self {
            sandbox,
            labels,
            end,
        }
    }

    pub(super) fn sandbox(&self) -> &str {
        &self.sandbox
    }

    pub(super) fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// The end of a line, from the space before it on: the labels, and `sandbox=<name>`.
    pub(super) fn end(&self) -> &str {
        &self.end
    }
}
