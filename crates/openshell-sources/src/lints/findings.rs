//! Lines about a policy, each with its place.

/// What is said of a pattern that matches all programs.
pub const EVERY_PROGRAM: &str = "is every program";

/// Findings of a policy, a line each.
#[derive(Debug, Default)]
pub struct Findings {
    /// Place of the part that is looked at.
    pub(super) place: String,
    /// Problems that the author of the policy should solve.
    pub warnings: Vec<String>,
    /// Facts that the author should know, and may not be able to change.
    pub notes: Vec<String>,
}

impl Findings {
    pub(super) fn warn(&mut self, problem: String) {
        self.warnings.push(format!("{}: {problem}", self.place));
    }

    pub(super) fn note(&mut self, fact: String) {
        self.notes.push(format!("{}: {fact}", self.place));
    }
}
