//! Parts of policy documents.

use serde_json::Value;

use crate::proto::sandbox::v1::L7QueryMatcher;

/// Returns the document of a matcher.
pub(super) fn matcher(L7QueryMatcher { glob, any }: L7QueryMatcher) -> Value {
    fields([
        ("glob", text(&glob)),
        ("any", list(any.into_iter().map(Value::from))),
    ])
}

pub(super) fn text(text: &str) -> Option<Value> {
    Some(text).filter(|text| !text.is_empty()).map(Value::from)
}

pub(super) fn list(items: impl Iterator<Item = Value>) -> Option<Value> {
    let items: Vec<_> = items.collect();
    Some(items)
        .filter(|items| !items.is_empty())
        .map(Value::from)
}

pub(super) fn fields<'k>(fields: impl IntoIterator<Item = (&'k str, Option<Value>)>) -> Value {
    let present = fields
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(present.collect())
}
