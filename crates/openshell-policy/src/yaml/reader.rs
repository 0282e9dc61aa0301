//! Converts values of a tree to types, and collects violations and warnings.

use crate::violation::{FieldPath, Violation, ViolationKind, Violations, Warning, WarningKind};
use crate::yaml::node::{Node, Value};

/// Largest text value in a document, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 64 * 1024;

/// A value and its path.
#[derive(Clone)]
pub(super) struct At<'n> {
    pub(super) node: &'n Node,
    pub(super) path: FieldPath,
}

impl<'n> At<'n> {
    pub(super) fn root(node: &'n Node) -> Self {
        Self {
            node,
            path: FieldPath::root(),
        }
    }
}

/// Fields of a mapping that have not been read yet.
pub(super) struct Fields<'n>(Vec<(&'n str, At<'n>)>);

impl<'n> Fields<'n> {
    /// Takes the value of `key`.
    pub(super) fn take(&mut self, key: &str) -> Option<At<'n>> {
        let index = self.0.iter().position(|(name, _)| *name == key)?;
        Some(self.0.swap_remove(index).1)
    }
}

/// Violations and warnings found so far.
#[derive(Default)]
pub(super) struct Reader {
    /// True if the document is the policy of a gateway.
    pub(super) is_of_gateway: bool,
    violations: Vec<Violation>,
    warnings: Vec<Warning>,
}

impl Reader {
    /// Returns the number of violations found so far.
    pub(super) fn violation_count(&self) -> usize {
        self.violations.len()
    }

    pub(super) fn has_violations(&self) -> bool {
        !self.violations.is_empty()
    }

    pub(super) fn reject(&mut self, at: &At<'_>, kind: ViolationKind) {
        self.violations.push(Violation {
            path: at.path.clone(),
            line: Some(at.node.line()),
            kind,
        });
    }

    /// Rejects a combination of values that have already been read; the path gives the line.
    pub(super) fn reject_at_path(&mut self, root: &At<'_>, path: FieldPath, kind: ViolationKind) {
        let line = line_of(root.node, &FieldPath::root(), &path);
        self.violations.push(Violation { path, line, kind });
    }

    /// Warns of a combination of values that have already been read; the path gives the line.
    pub(super) fn warn_at_path(&mut self, root: &At<'_>, path: FieldPath, kind: WarningKind) {
        let line = line_of(root.node, &FieldPath::root(), &path);
        self.warnings.push(Warning { path, line, kind });
    }

    pub(super) fn warn(&mut self, at: &At<'_>, kind: WarningKind) {
        self.warnings.push(Warning {
            path: at.path.clone(),
            line: Some(at.node.line()),
            kind,
        });
    }

    /// Returns the value, or records the violation.
    pub(super) fn check<T>(&mut self, at: &At<'_>, result: Result<T, ViolationKind>) -> Option<T> {
        result.map_err(|kind| self.reject(at, kind)).ok()
    }

    pub(super) fn mapping<'n>(&mut self, at: &At<'n>, known: &[&str]) -> Option<Fields<'n>> {
        let entries = self.entries(at)?;
        for (key, value) in entries.iter().filter(|(key, _)| !known.contains(key)) {
            self.reject(
                value,
                ViolationKind::UnknownKey {
                    key: (*key).to_owned(),
                    known: known.iter().map(|&known| known.to_owned()).collect(),
                },
            );
        }
        Some(Fields(entries))
    }

    pub(super) fn entries<'n>(&mut self, at: &At<'n>) -> Option<Vec<(&'n str, At<'n>)>> {
        let Value::Mapping(entries) = at.node.value() else {
            self.wrong_type(at, "a map");
            return None;
        };
        let field = |(key, node): &'n (String, Node)| {
            (
                key.as_str(),
                At {
                    node,
                    path: at.path.key(key),
                },
            )
        };
        Some(entries.iter().map(field).collect())
    }

    pub(super) fn sequence<'n>(&mut self, at: &At<'n>) -> Option<Vec<At<'n>>> {
        let Value::Sequence(items) = at.node.value() else {
            self.wrong_type(at, "a list");
            return None;
        };
        Some(
            items
                .iter()
                .enumerate()
                .map(|(index, node)| At {
                    node,
                    path: at.path.index(index),
                })
                .collect(),
        )
    }

    pub(super) fn text<T>(
        &mut self,
        at: &At<'_>,
        parse: impl FnOnce(&str) -> Result<T, ViolationKind>,
    ) -> Option<T> {
        let Value::Text(text) = at.node.value() else {
            self.wrong_type(at, "a text (put it in quotes)");
            return None;
        };
        if text.len() > MAX_TEXT_BYTES {
            self.reject(
                at,
                ViolationKind::TextTooLong {
                    bytes: text.len(),
                    limit: MAX_TEXT_BYTES,
                },
            );
            return None;
        }
        self.check(at, parse(text))
    }

    pub(super) fn texts<T>(
        &mut self,
        at: &At<'_>,
        parse: impl Fn(&str) -> Result<T, ViolationKind>,
    ) -> Vec<T> {
        let items = self.sequence(at).unwrap_or_default();
        items
            .iter()
            .filter_map(|item| self.text(item, &parse))
            .collect()
    }

    pub(super) fn boolean(&mut self, at: &At<'_>) -> Option<bool> {
        let Value::Boolean(value) = at.node.value() else {
            self.wrong_type(at, "true or false");
            return None;
        };
        Some(*value)
    }

    pub(super) fn finish<T>(self, built: Option<T>) -> Result<(T, Vec<Warning>), Violations> {
        match built {
            Some(built) if self.violations.is_empty() => Ok((built, self.warnings)),
            _ => {
                let mut violations = self.violations;
                violations.sort_by_key(|violation| violation.line);
                Err(Violations(violations))
            }
        }
    }

    fn wrong_type(&mut self, at: &At<'_>, expected: &'static str) {
        self.reject(
            at,
            ViolationKind::WrongType {
                expected,
                found: at.node.value().kind(),
            },
        );
    }
}

fn line_of(node: &Node, here: &FieldPath, wanted: &FieldPath) -> Option<u64> {
    if here == wanted {
        return Some(node.line());
    }
    match node.value() {
        Value::Mapping(entries) => entries
            .iter()
            .find_map(|(key, value)| line_of(value, &here.key(key), wanted)),
        Value::Sequence(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| line_of(item, &here.index(index), wanted)),
        Value::Null | Value::Boolean(_) | Value::Integer(_) | Value::Float(_) | Value::Text(_) => {
            None
        }
    }
}
