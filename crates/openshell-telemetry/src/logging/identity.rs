//! The identity of a run, which distinguishes its lines and records from those of other runs.

use std::fmt::Write;

/// The name of a sandbox and the labels of its run, which end every line.
#[derive(Clone, Debug)]
pub struct RunIdentity {
    sandbox: String,
    labels: Vec<Label>,
    end: String,
}

/// A label of a run, such as `tenant=acme`; key and value are plain words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The name of the label.
    pub key: String,
    /// The value of the label.
    pub value: String,
}

impl RunIdentity {
    /// Creates the identity of the sandbox `sandbox`, whose run has `labels`.
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

    /// Returns the end of a line, including the space before it: the labels, and `sandbox=<name>`.
    pub(super) fn end(&self) -> &str {
        &self.end
    }
}
