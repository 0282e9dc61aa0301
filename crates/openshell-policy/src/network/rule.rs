//! HTTP allow and deny rules: method, path glob, query matchers.

use std::collections::BTreeMap;

use crate::network::binary::glob;
use crate::violation::ViolationKind;

/// One rule over HTTP requests; all of its parts must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRule {
    /// Which methods.
    pub method: MethodPattern,
    /// Which paths, over the canonical path.
    pub path: Glob,
    /// Query keys that must be present, and what each of their values must match.
    pub query: BTreeMap<String, QueryMatcher>,
}

/// A rule that refuses. Servers differ in what they take for the same path, so its path matches every reading of a request's: in any
/// letter case, with and without slashes at the end, percent-decoded, repeated slashes folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenyRule {
    /// What is refused.
    pub rule: HttpRule,
    /// Whether letter case counts after all.
    pub case_sensitive: bool,
}

/// `*`, or one method, compared without regard to case. `GET` also permits `HEAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodPattern(String);

impl MethodPattern {
    /// A method, or `*`, that is known to be a token.
    pub(crate) fn known(method: &'static str) -> Self {
        Self(method.to_owned())
    }

    /// Reads `*` or a method token (RFC 9110 §5.6.2).
    ///
    /// # Errors
    /// A text that is no token.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if text.is_empty() || !text.bytes().all(token) {
            return Err(ViolationKind::MethodInvalid { method: text.to_owned() });
        }
        Ok(Self(text.to_ascii_uppercase()))
    }

    /// The method in upper case, or `*`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the method is `*` or registered (RFC 9110 §9, RFC 5789).
    #[must_use]
    pub fn is_known(&self) -> bool {
        const KNOWN: &[&str] = &["*", "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
        KNOWN.contains(&self.0.as_str())
    }
}

/// A glob that compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Every path.
    #[must_use]
    pub fn everything() -> Self {
        Self("**".to_owned())
    }

    /// Whether every path is meant.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self.0.as_str(), "**" | "/**")
    }

    /// Reads a glob.
    ///
    /// # Errors
    /// An empty or broken glob.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        glob(text)?;
        Ok(Self(text.to_owned()))
    }

    /// The glob, as text, that means `text` alone.
    #[must_use]
    pub fn literal(text: &str) -> String {
        let escape =
            |c: char| if matches!(c, '*' | '?' | '[' | ']' | '{' | '}') { format!("\\{c}") } else { c.to_string() };
        text.chars().map(escape).collect()
    }

    /// The glob as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What every value of a query key must match: one of these globs, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatcher(Vec<Glob>);

impl QueryMatcher {
    /// A matcher over alternatives.
    ///
    /// # Errors
    /// No alternative at all.
    pub fn any(globs: Vec<Glob>) -> Result<Self, ViolationKind> {
        if globs.is_empty() {
            return Err(ViolationKind::MatcherAnyEmpty);
        }
        Ok(Self(globs))
    }

    /// The alternatives.
    #[must_use]
    pub fn globs(&self) -> &[Glob] {
        &self.0
    }
}
