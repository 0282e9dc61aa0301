//! Patterns of executables in network policies.

use std::fmt;

use globset::GlobBuilder;

use crate::violation::ViolationKind;

/// An absolute path, or a glob over paths if it contains `*`. Matched against the executables of a caller and of its
/// ancestors, never against arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryPattern(String);

impl BinaryPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The path is relative, or the glob does not compile.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        if text.contains('*') {
            glob(text)?;
        } else if !text.starts_with('/') || text.contains('\0') {
            return Err(ViolationKind::PathNotAbsolute(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for BinaryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that the policy engine can evaluate the glob `text`; an invalid one would fail every evaluation.
pub(crate) fn glob(text: &str) -> Result<(), ViolationKind> {
    let invalid = |problem: String| ViolationKind::GlobInvalid { glob: text.to_owned(), problem };
    if text.is_empty() || text.contains('\0') {
        return Err(invalid("it is empty or holds a NUL byte".to_owned()));
    }
    match GlobBuilder::new(text).literal_separator(true).build() {
        Ok(_) => Ok(()),
        Err(error) => Err(invalid(error.kind().to_string())),
    }
}
