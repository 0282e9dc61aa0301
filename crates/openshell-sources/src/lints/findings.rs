//! Lines about a policy, each with the place that it is about.

/// The findings about a policy, one per line.
#[derive(Debug, Default)]
pub struct Findings {
    /// The place of the part that is being examined.
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
