//! Presets of rules: `access: read-only | read-write | full`.

use std::collections::BTreeMap;

use crate::network::rule::{Glob, HttpRule, MethodPattern};
use crate::violation::ViolationKind;

/// A named set of rules over every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `GET`, `HEAD`, `OPTIONS`.
    ReadOnly,
    /// Also `POST`, `PUT` and `PATCH`, but not `DELETE`.
    ReadWrite,
    /// Any method.
    Full,
}

impl Access {
    /// Parses the word of a policy.
    ///
    /// # Errors
    /// Fails for any other word.
    pub fn parse(word: &str) -> Result<Self, ViolationKind> {
        match word {
            "read-only" => Ok(Self::ReadOnly),
            "read-write" => Ok(Self::ReadWrite),
            "full" => Ok(Self::Full),
            _ => Err(ViolationKind::UnknownWord {
                word: word.to_owned(),
                known: "read-only, read-write, full",
            }),
        }
    }

    /// Returns the word of a policy.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
            Self::Full => "full",
        }
    }

    /// Returns the methods, of which `*` is any.
    #[must_use]
    pub fn methods(self) -> &'static [&'static str] {
        match self {
            Self::ReadOnly => &["GET", "HEAD", "OPTIONS"],
            Self::ReadWrite => &["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"],
            Self::Full => &["*"],
        }
    }

    /// Expands the preset into rules.
    #[must_use]
    pub fn rules(self) -> Vec<HttpRule> {
        let rule = |method: &&'static str| {
            let method = MethodPattern::known(method);
            HttpRule {
                method,
                path: Glob::everything(),
                query: BTreeMap::new(),
            }
        };
        self.methods().iter().map(rule).collect()
    }
}
