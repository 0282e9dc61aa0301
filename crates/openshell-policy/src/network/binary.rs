//! Patterns of executables in network policies.

use std::fmt;

use globset::GlobBuilder;

use crate::violation::ViolationKind;

/// An entry of `binaries`: programs that may use the endpoints of the same policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Path or pattern of the programs.
    pub path: BinaryPattern,
    /// True if only the calling program counts and not its ancestors. Then it must not run code
    /// from files that the workload can write.
    pub exact: bool,
    /// False if the file at the path may change while the sandbox runs.
    pub pinned: bool,
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// An absolute path, or a glob over paths if it contains `*`. It is matched against the executables
/// of a caller and of its ancestors, never against arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryPattern(String);

impl BinaryPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Fails if the path is relative, or if the glob does not compile.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        if text.contains('*') {
            glob(text)?;
        } else if !text.starts_with('/') || text.contains('\0') {
            return Err(ViolationKind::PathNotAbsolute(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns true if the pattern matches the path of an executable.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        if !self.0.contains('*') {
            return self.0 == path;
        }
        // The glob has compiled in `parse`, so this cannot fail.
        GlobBuilder::new(&self.0)
            .literal_separator(true)
            .build()
            .is_ok_and(|glob| glob.compile_matcher().is_match(path))
    }
}

impl fmt::Display for BinaryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that the policy engine can evaluate the glob `text`; an invalid one would make every
/// evaluation fail.
pub(crate) fn glob(text: &str) -> Result<(), ViolationKind> {
    let invalid = |problem: String| ViolationKind::GlobInvalid {
        glob: text.to_owned(),
        problem,
    };
    if text.is_empty() || text.contains('\0') {
        return Err(invalid("it is empty or holds a NUL byte".to_owned()));
    }
    match GlobBuilder::new(text).literal_separator(true).build() {
        Ok(_) => Ok(()),
        Err(error) => Err(invalid(error.kind().to_string())),
    }
}
