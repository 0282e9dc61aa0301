//! Where lines of policy are written that outlast the run.

use std::fmt;

/// What writing a line changes in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The file.
    pub file: String,
    /// The number of the first line that is new, from 1; `None` if the file is written anew.
    pub first: Option<usize>,
    /// The lines that are new.
    pub lines: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(first) = self.first {
            write!(f, ", line {first}")?;
        }
        f.write_str(":")?;
        for line in &self.lines {
            write!(f, "\n+{line}")?;
        }
        Ok(())
    }
}

/// A place for lines of policy that outlast the run.
pub trait Keep: Send + Sync {
    /// Returns what writing `line`, a key and its network policy, would change. Blocks.
    ///
    /// # Errors
    /// Says why it cannot be written.
    fn difference(&self, line: &str) -> Result<Difference, String>;

    /// Writes `line`. `for_run` are the lines that end with the run. Blocks.
    ///
    /// # Errors
    /// Says why nothing was written.
    fn keep(&self, line: &str, for_run: &[String]) -> Result<Difference, String>;
}
