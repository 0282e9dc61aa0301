//! What persons have permitted.

use crate::decide::line::Line;

/// The most grants that the summary of a run names.
const REMEMBERED: usize = 1_000;

/// A line that a person has added for the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its id, such as `g1`.
    pub id: String,
    /// The line as text.
    pub yaml: String,
    /// What it permits, in words.
    pub permits: Vec<String>,
    /// The file in which the line stays.
    pub kept_in: Option<String>,
    pub(super) line: Line,
}

/// Something that a person has permitted, for the summary of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// `once`, `run` or `save`.
    pub scope: &'static str,
    /// The line as text.
    pub yaml: String,
    /// How often.
    pub count: u64,
}

/// What persons have permitted.
#[derive(Debug, Default)]
pub(super) struct Grants {
    for_run: Vec<Grant>,
    last: u64,
    granted: Vec<Granted>,
}

impl Grants {
    /// Adds `line` for the run; returns the id of the grant.
    pub(super) fn add(&mut self, line: Line, yaml: &str, permits: &[String]) -> String {
        self.last += 1;
        let id = format!("g{}", self.last);
        self.for_run.push(Grant {
            id: id.clone(),
            yaml: yaml.to_owned(),
            permits: permits.to_vec(),
            kept_in: None,
            line,
        });
        id
    }

    /// Remembers a permission for the summary.
    pub(super) fn note(&mut self, scope: &'static str, yaml: &str) {
        let mut known = self.granted.iter_mut();
        if let Some(same) = known.find(|known| known.scope == scope && known.yaml == yaml) {
            same.count += 1;
        } else if self.granted.len() < REMEMBERED {
            self.granted.push(Granted {
                scope,
                yaml: yaml.to_owned(),
                count: 1,
            });
        }
    }

    /// Notes that the line of the grant with this `id` stays in `file`.
    pub(super) fn is_kept(&mut self, id: &str, file: &str) {
        let mut grants = self.for_run.iter_mut();
        if let Some(grant) = grants.find(|grant| grant.id == id) {
            grant.kept_in = Some(file.to_owned());
        }
    }

    /// Removes the grant with this `id`.
    pub(super) fn remove(&mut self, id: &str) -> Option<Grant> {
        let index = self.for_run.iter().position(|grant| grant.id == id)?;
        Some(self.for_run.remove(index))
    }

    /// Removes the grant of `line`.
    pub(super) fn remove_line(&mut self, line: &Line) -> Option<Grant> {
        let index = self.for_run.iter().position(|grant| grant.line == *line)?;
        Some(self.for_run.remove(index))
    }

    /// Returns the grants for the run.
    pub(super) fn for_run(&self) -> &[Grant] {
        &self.for_run
    }

    /// Returns everything that was permitted.
    pub(super) fn granted(&self) -> &[Granted] {
        &self.granted
    }
}
