//! Issuers of secrets: the variables that usually hold a secret, its shape, and the hosts that it
//! is for.
//!
//! The table is `data/secrets.json`. It is not YAML because every start reads it, and parsing YAML
//! would take half a millisecond. An issuer has no hosts if it is a server of the user's own or a
//! package registry, or if its secrets only sign and are never sent.

use serde::Deserialize;

/// The known issuers.
#[derive(Debug)]
pub struct Issuers(Vec<Issuer>);

/// An issuer of secrets.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issuer {
    /// Name for messages.
    #[serde(rename = "issuer")]
    pub name: String,
    /// Variables that usually hold one of its secrets.
    #[serde(default)]
    variables: Vec<String>,
    #[serde(default)]
    shapes: Vec<Shape>,
    /// True if other issuers use its shapes too.
    #[serde(default)]
    shared: bool,
    /// Variables that hold the URL of another server for its secrets.
    #[serde(default)]
    pub urls: Vec<String>,
    /// Hosts that its secrets are for, as [`BoundHost`](crate::credential::BoundHost) reads them;
    /// there may be none.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// Shape of a secret.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Text that it begins with.
    #[serde(default)]
    pub begins: String,
    /// Shortest length in bytes.
    #[serde(default)]
    pub length: usize,
    /// True if the length must be exact.
    #[serde(default)]
    pub exact: bool,
    /// Characters after the beginning.
    #[serde(default)]
    pub of: Characters,
    /// The least count of digits that stand before the beginning.
    #[serde(default)]
    pub digits: usize,
    /// Text that must follow, in place of the characters.
    pub then: Option<String>,
    /// Length of another text that must stand nearby for this to be a secret.
    pub beside: Option<usize>,
    /// Lengths of three parts separated by dots; replaces all other fields.
    pub parts: Option<[usize; 3]>,
}

/// Characters of a secret.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Characters {
    /// Letters, digits, `_` and `-`.
    #[default]
    Word,
    /// Letters and digits.
    Alnum,
    /// Capitals and digits.
    Upper,
    /// The characters of [`Self::Word`], and dots.
    Dotted,
}

impl Characters {
    /// Returns true if `byte` is one of these characters.
    #[must_use]
    pub const fn include(self, byte: u8) -> bool {
        match self {
            Self::Word => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'),
            Self::Alnum => byte.is_ascii_alphanumeric(),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Dotted => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'),
        }
    }
}

impl Shape {
    fn includes(&self, value: &[u8]) -> bool {
        self.parts.is_none()
            && value.len() >= self.length
            && value.starts_with(self.begins.as_bytes())
    }
}

impl Issuers {
    /// Reads the table of the known issuers.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "the table is part of the binary, and a test reads it"
    )]
    pub fn known() -> Self {
        Self(
            serde_json::from_str(include_str!("../../../data/secrets.json"))
                .expect("data/secrets.json is valid"),
        )
    }

    /// Returns the issuer of a secret, by its value and by the name of the variable that holds it.
    /// A shape that only one issuer uses takes precedence over the name, and the name over a shape
    /// that issuers share. If several shapes match, the one with the longest beginning wins.
    #[must_use]
    pub fn of(&self, name: &str, value: &[u8]) -> Option<&Issuer> {
        let shape = self.by_shape(value);
        shape
            .filter(|issuer| !issuer.shared)
            .or_else(|| self.named(name))
            .or(shape)
    }

    /// Returns the issuer whose secrets the variable `name` usually holds.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Issuer> {
        self.0
            .iter()
            .find(|issuer| issuer.variables.iter().any(|known| known == name))
    }

    /// Returns every shape with the name of its issuer and the hosts that its secrets are for.
    pub fn into_shapes(self) -> impl Iterator<Item = (String, Vec<String>, Shape)> {
        let of = |issuer: Issuer| {
            let Issuer {
                name,
                hosts,
                shapes,
                ..
            } = issuer;
            shapes
                .into_iter()
                .map(move |shape| (name.clone(), hosts.clone(), shape))
        };
        self.0.into_iter().flat_map(of)
    }

    fn by_shape(&self, value: &[u8]) -> Option<&Issuer> {
        let shapes = self
            .0
            .iter()
            .flat_map(|issuer| issuer.shapes.iter().map(move |shape| (issuer, shape)));
        let fitting = shapes.filter(|(_, shape)| shape.includes(value));
        fitting
            .max_by_key(|(_, shape)| shape.begins.len())
            .map(|(issuer, _)| issuer)
    }
}

#[cfg(test)]
mod tests {
    use super::Issuers;
    use crate::credential::{BoundHost, CredentialName};

    #[test]
    fn every_row_of_the_table_is_valid() {
        let Issuers(issuers) = Issuers::known();
        for issuer in &issuers {
            assert!(
                !issuer.variables.is_empty() || !issuer.shapes.is_empty(),
                "{issuer:?}"
            );
            for name in issuer.variables.iter().chain(&issuer.urls) {
                assert!(CredentialName::parse(name).is_ok(), "{name}");
            }
            for host in &issuer.hosts {
                assert!(BoundHost::parse(host).is_ok(), "{host}");
            }
        }
        let mut names: Vec<_> = issuers
            .iter()
            .flat_map(|issuer| &issuer.variables)
            .collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "a variable is in two rows");
    }

    #[test]
    fn the_longest_shape_of_an_issuer_alone_counts_then_the_name_then_a_shared_shape() {
        let issuers = Issuers::known();
        let of = |name: &str, value: &str| {
            issuers
                .of(name, value.as_bytes())
                .map(|issuer| issuer.name.as_str())
        };
        let key = "0123456789012345678901234567890123456789";
        assert_eq!(of("X", &format!("sk-ant-{key}")), Some("Anthropic"));
        assert_eq!(of("X", &format!("sk-{key}")), Some("OpenAI"));
        assert_eq!(
            of("OPENAI_API_KEY", &format!("sk-or-v1-{key}")),
            Some("OpenRouter")
        );
        assert_eq!(
            of("DEEPSEEK_API_KEY", &format!("sk-{key}")),
            Some("DeepSeek")
        );
        assert_eq!(of("GITHUB_TOKEN", key), Some("GitHub"));
        assert_eq!(of("X", "ghp_short"), None);
        assert_eq!(of("X", "sk-learn"), None);
        assert_eq!(of("X_TOKEN", key), None);
        assert_eq!(
            of("X", "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA"),
            Some("private keys")
        );
    }
}
