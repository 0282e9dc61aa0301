//! Merging of several policies into one document.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::violation::{FieldPath, Violation, ViolationKind, Violations};
use crate::yaml::node::{Node, Value};

/// A part of a document, without line numbers.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Sequence(Vec<Tree>),
    Mapping(Vec<(String, Tree)>),
}

/// Returns the document that grants what any of `documents` grants; all of them must be valid
/// policies. Lists are joined. Of single values the first one counts. A network policy whose name
/// is taken gets a number appended.
///
/// # Errors
/// Fails if a document is not YAML, or if the result cannot be written.
pub fn merged(documents: &[&str]) -> Result<String, Violations> {
    let mut whole = Tree::Mapping(Vec::new());
    let failed = |(line, problem)| {
        Violations(vec![Violation {
            path: FieldPath::root(),
            line,
            kind: ViolationKind::Syntax(problem),
        }])
    };
    for document in documents {
        whole.join(tree(&Node::parse(document).map_err(failed)?));
    }
    serde_saphyr::to_string(&whole).map_err(|error| failed((None, error.to_string())))
}

fn tree(node: &Node) -> Tree {
    match node.value() {
        // A valid policy contains no floating-point number.
        Value::Null => Tree::Null,
        Value::Boolean(value) => Tree::Boolean(*value),
        Value::Integer(value) => Tree::Integer(*value),
        Value::Float(value) => Tree::Float(*value),
        Value::Text(text) => Tree::Text(text.clone()),
        Value::Sequence(items) => Tree::Sequence(items.iter().map(tree).collect()),
        Value::Mapping(entries) => Tree::Mapping(
            entries
                .iter()
                .map(|(key, node)| (key.clone(), tree(node)))
                .collect(),
        ),
    }
}

impl Tree {
    fn join(&mut self, other: Self) {
        match (self, other) {
            (Self::Sequence(items), Self::Sequence(more)) => {
                for item in more {
                    if !items.contains(&item) {
                        items.push(item);
                    }
                }
            }
            (Self::Mapping(entries), Self::Mapping(more)) => {
                for (key, value) in more {
                    match entries.iter_mut().find(|(known, _)| *known == key) {
                        None => entries.push((key, value)),
                        Some((name, known)) if name == "network_policies" => {
                            known.join_policies(value)
                        }
                        Some((_, known)) => known.join(value),
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds network policies under free names: if two of the same name were joined, the programs of
    /// one would get the endpoints of the other.
    fn join_policies(&mut self, other: Self) {
        let (Self::Mapping(entries), Self::Mapping(more)) = (self, other) else {
            return;
        };
        for (name, policy) in more {
            let is_taken = |name: &str, entries: &[(String, Self)]| {
                entries.iter().any(|(known, _)| known == name)
            };
            let numbered = (1..).map(|number| {
                if number == 1 {
                    name.clone()
                } else {
                    format!("{name}-{number}")
                }
            });
            let free = numbered.into_iter().find(|name| !is_taken(name, entries));
            entries.extend(free.map(|name| (name, policy)));
        }
    }
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Boolean(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Sequence(items) => {
                let mut sequence = serializer.serialize_seq(Some(items.len()))?;
                items
                    .iter()
                    .try_for_each(|item| sequence.serialize_element(item))?;
                sequence.end()
            }
            Self::Mapping(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries
                    .iter()
                    .try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}
