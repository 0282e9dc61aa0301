//! YAML documents as trees with the line of each value.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::budget::BudgetBreach;
use zeroize::Zeroize;

/// A value of a document and its line.
#[derive(Debug)]
pub(super) struct Node(Spanned<Value>);

/// Kind and content of a value.
#[derive(Debug)]
pub(super) enum Value {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Sequence(Vec<Node>),
    Mapping(Vec<(String, Node)>),
}

impl Node {
    /// Parses a document with a single root value. The error is a message and its line, if known.
    pub(super) fn parse(document: &str) -> Result<Self, (Option<u64>, String)> {
        let options = serde_saphyr::options! {
            strict_booleans: true,
            leading_zero_numbers_as_strings: true,
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(document, options)
            .map(Self)
            .map_err(|error| {
                (
                    error.location().map(|location| location.line()),
                    problem(&error),
                )
            })
    }

    pub(super) fn value(&self) -> &Value {
        &self.0.value
    }

    /// Overwrites all texts, because any of them may be a secret.
    pub(super) fn wipe(&mut self) {
        match &mut self.0.value {
            Value::Text(text) => text.zeroize(),
            Value::Sequence(items) => {
                for item in items {
                    item.wipe();
                }
            }
            Value::Mapping(entries) => {
                for (_, node) in entries {
                    node.wipe();
                }
            }
            Value::Null | Value::Boolean(_) | Value::Integer(_) | Value::Float(_) => {}
        }
    }

    /// Returns the line, from 1.
    pub(super) fn line(&self) -> u64 {
        self.0.referenced.line()
    }
}

/// Returns the message for a parse error, without its line.
fn problem(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error as E;
    match error {
        E::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{key}` is given twice; keep one")
        }
        E::DuplicateMappingKey { key: None, .. } => "a key is given twice; keep one".to_owned(),
        E::MultipleDocuments { .. } => {
            "a second document begins; a file can hold only one".to_owned()
        }
        E::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias repeats the value that contains it; write the value out".to_owned()
        }
        E::AliasReplayLimitExceeded { .. }
        | E::AliasExpansionLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. } => {
            "the aliases repeat too much; write the values out".to_owned()
        }
        E::Budget {
            breach: BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. },
            ..
        } => "the document has too many values".to_owned(),
        E::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        } => "the document is nested too deeply".to_owned(),
        E::Budget { .. } => "the document is too large".to_owned(),
        other => {
            let text = other.to_string();
            let problem = text
                .rsplit_once(" at line ")
                .map_or(text.as_str(), |(problem, _)| problem);
            match problem {
                "recursion limit exceeded" => "the document is nested too deeply".to_owned(),
                "expected string scalar" => "a key must be a text".to_owned(),
                problem => problem.to_owned(),
            }
        }
    }
}

impl Value {
    /// Returns the name of the kind, as messages use it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Boolean(_) => "true or false",
            Self::Integer(_) => "a number",
            Self::Float(_) => "a decimal number",
            Self::Text(_) => "a text",
            Self::Sequence(_) => "a list",
            Self::Mapping(_) => "a map",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        i64::try_from(value)
            .map(Value::Integer)
            .map_err(|_| E::custom("the number is too large for any key"))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(Value::Sequence(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = entries.next_entry()? {
            fields.push(field);
        }
        Ok(Value::Mapping(fields))
    }
}
