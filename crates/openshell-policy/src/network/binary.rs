//! Which executables a network policy speaks about.

use std::fmt;

use globset::GlobBuilder;

use crate::violation::ViolationKind;

/// An absolute path, or a glob over paths if it holds `*`. Compared to the executable of a caller and of its ancestors,
/// never to its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryPattern(String);

impl BinaryPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// A relative path, or a glob that does not compile.
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

/// Checks that `text` is a glob that the policy engine can evaluate; a broken one would make every evaluation an error.
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
