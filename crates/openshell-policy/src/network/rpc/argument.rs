//! Conditions on the arguments of a tool.

use std::fmt;

use crate::network::rpc::decimal::Decimal;
use crate::network::rpc::glob::NameGlob;
use crate::violation::ViolationKind;

/// Conditions on the arguments of a call, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The conditions.
    pub conditions: Vec<(ArgumentPath, Condition)>,
    /// True if no argument may be there that no condition names.
    pub denies_others: bool,
}

impl Arguments {
    /// Returns true if they say nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty() && !self.denies_others
    }
}

/// The place of a value in arguments, such as `a.b[*]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentPath {
    written: String,
    steps: Vec<Step>,
}

/// One step to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value of this key.
    Key(String),
    /// Each item.
    Items,
}

impl ArgumentPath {
    /// Parses a path: keys with `.` between them, each followed by `[*]` for the items of its value.
    /// A key with `.`, `[` or `"` is written as a JSON string.
    ///
    /// # Errors
    /// Fails if the text is not such a path.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let invalid = || ViolationKind::ArgumentPath(text.to_owned());
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            let (key, behind) = key(rest).ok_or_else(invalid)?;
            steps.push(Step::Key(key));
            rest = behind;
            while let Some(behind) = rest.strip_prefix("[*]") {
                steps.push(Step::Items);
                rest = behind;
            }
            if rest.is_empty() {
                break;
            }
            rest = rest.strip_prefix('.').ok_or_else(invalid)?;
        }
        Ok(Self {
            written: text.to_owned(),
            steps,
        })
    }

    /// Returns the steps, of which the first is a key.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl fmt::Display for ArgumentPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// Takes a key from the beginning of `text`; returns it and the rest.
fn key(text: &str) -> Option<(String, &str)> {
    if text.starts_with('"') {
        let mut strings = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let key = strings.next()?.ok()?;
        let behind = text.get(strings.byte_offset()..)?;
        return Some((key, behind));
    }
    let length = text.find(['.', '[', '"', ']']).unwrap_or(text.len());
    let (key, behind) = text.split_at(length);
    (!key.is_empty()).then(|| (key.to_owned(), behind))
}

/// A condition on a value; all its operators must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// It is this value.
    pub equals: Option<Scalar>,
    /// It is one of these values.
    pub one_of: Option<Vec<Scalar>>,
    /// It is a text that the glob matches.
    pub glob: Option<NameGlob>,
    /// It is a text that one of the globs matches.
    pub any: Option<Vec<NameGlob>>,
    /// It is a number between these, each inclusive and left out where there is no bound.
    pub range: Option<[Option<Decimal>; 2]>,
    /// It is a text of at most so many characters, or an array of at most so many items.
    pub max_length: Option<usize>,
    /// It is not there.
    pub absent: bool,
    /// It need not be there.
    pub optional: bool,
}

/// A value without parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of JSON")]
pub enum Scalar {
    Null,
    Boolean(bool),
    Number(Decimal),
    Text(String),
}

#[cfg(test)]
mod tests {
    use super::{ArgumentPath, Step};

    #[test]
    fn a_path_names_keys_and_items() {
        let key = |text: &str| Step::Key(text.to_owned());
        for (text, steps) in [
            ("repo", vec![key("repo")]),
            ("a.b", vec![key("a"), key("b")]),
            (
                "a[*].b[*][*]",
                vec![key("a"), Step::Items, key("b"), Step::Items, Step::Items],
            ),
            (r#""a.b[*]".c"#, vec![key("a.b[*]"), key("c")]),
            (r#"a."\u0062\"""#, vec![key("a"), key("b\"")]),
            (r#""""#, vec![key("")]),
        ] {
            let path = ArgumentPath::parse(text).unwrap();
            assert_eq!(path.steps(), steps, "{text}");
            assert_eq!(path.to_string(), text);
        }
        for text in [
            "", ".a", "a.", "a..b", "[*]", "a[0]", "a[*]b", "a]", r#""a"#, r#"a"b""#, r#""a"b"#,
        ] {
            assert!(ArgumentPath::parse(text).is_err(), "{text}");
        }
    }
}
