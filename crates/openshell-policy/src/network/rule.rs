//! HTTP allow and deny rules: method, path glob, query matchers.

use std::collections::BTreeMap;

use globset::{GlobBuilder, GlobMatcher};

use crate::network::binary::glob;
use crate::violation::ViolationKind;

/// A rule for HTTP requests; all parts must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRule {
    /// Methods.
    pub method: MethodPattern,
    /// Glob over canonical paths.
    pub path: Glob,
    /// Required query keys; every value of a key must match.
    pub query: BTreeMap<String, QueryMatcher>,
}

/// A rule that denies requests. Servers differ in which paths they treat as the same. So it matches
/// every reading of a path: in any letter case, with and without trailing slashes, percent-decoded,
/// and with repeated slashes folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenyRule {
    /// Denied requests.
    pub rule: HttpRule,
    /// True if letter case matters for this rule after all.
    pub case_sensitive: bool,
}

/// `*`, or one method, compared case-insensitively. `GET` also permits `HEAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodPattern(String);

impl MethodPattern {
    /// Creates a pattern from a literal that is `*` or a token.
    pub(crate) fn known(method: &'static str) -> Self {
        Self(method.to_owned())
    }

    /// Parses `*` or a method token (RFC 9110 §5.6.2).
    ///
    /// # Errors
    /// Fails if the text is not a token.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if text.is_empty() || !text.bytes().all(token) {
            return Err(ViolationKind::MethodInvalid {
                method: text.to_owned(),
            });
        }
        Ok(Self(text.to_ascii_uppercase()))
    }

    /// Returns the method in upper case, or `*`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the method is `*` or registered (RFC 9110 §16.1, IANA's HTTP Method
    /// Registry).
    #[must_use]
    pub fn is_known(&self) -> bool {
        const REGISTERED: &str = "ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE \
                                  GET HEAD LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL \
                                  MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST \
                                  PROPFIND PROPPATCH PUT QUERY REBIND REPORT SEARCH TRACE UNBIND \
                                  UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF \
                                  VERSION-CONTROL";
        self.0 == "*"
            || REGISTERED
                .split_ascii_whitespace()
                .any(|method| method == self.0)
    }
}

/// A valid glob over paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Returns the glob that matches every path.
    #[must_use]
    pub fn everything() -> Self {
        Self("**".to_owned())
    }

    /// Returns true if the glob matches every path.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self.0.as_str(), "**" | "/**")
    }

    /// Parses a glob.
    ///
    /// # Errors
    /// Fails if the glob is empty or does not compile.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        glob(text)?;
        Ok(Self(text.to_owned()))
    }

    /// Returns the text of a glob that matches only `text`.
    #[must_use]
    pub fn literal(text: &str) -> String {
        let escape = |c: char| {
            if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
                format!("\\{c}")
            } else {
                c.to_string()
            }
        };
        text.chars().map(escape).collect()
    }

    /// Returns the glob as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text before the first wildcard.
    #[must_use]
    pub fn literal_prefix(&self) -> &str {
        let mut parts = self.0.split(['*', '?', '[', '{', '\\']);
        parts.next().unwrap_or_default()
    }

    /// Returns how specific the glob is as the path of an endpoint.
    #[must_use]
    pub fn specificity(&self) -> Specificity {
        let length = self.literal_prefix().len();
        if length == self.0.len() {
            Specificity::Exact
        } else {
            Specificity::Prefix(length)
        }
    }

    /// Compiles the glob with the meaning that it has in rules.
    #[must_use]
    pub fn compiled(&self) -> CompiledGlob {
        if self.0 == "**" {
            return CompiledGlob(None);
        }
        // The glob has compiled in `parse`.
        let glob = GlobBuilder::new(&self.0).literal_separator(true).build();
        CompiledGlob(glob.ok().map(|glob| glob.compile_matcher()))
    }
}

/// How specific the path of an endpoint is, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Specificity {
    /// It has no path.
    Any,
    /// The path is a glob that begins with this many literal bytes.
    Prefix(usize),
    /// The path has no wildcard.
    Exact,
}

/// A compiled glob over paths; `None` matches every path.
#[derive(Clone, Debug)]
pub struct CompiledGlob(Option<GlobMatcher>);

impl CompiledGlob {
    /// Returns true if `path` matches.
    #[must_use]
    pub fn is_match(&self, path: &str) -> bool {
        self.0.as_ref().is_none_or(|glob| glob.is_match(path))
    }
}

/// Alternative globs; every value of a query key must match one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatcher(Vec<Glob>);

impl QueryMatcher {
    /// Creates a matcher.
    ///
    /// # Errors
    /// Fails if `globs` is empty.
    pub fn any(globs: Vec<Glob>) -> Result<Self, ViolationKind> {
        if globs.is_empty() {
            return Err(ViolationKind::MatcherAnyEmpty);
        }
        Ok(Self(globs))
    }

    /// Returns the alternatives.
    #[must_use]
    pub fn globs(&self) -> &[Glob] {
        &self.0
    }
}
