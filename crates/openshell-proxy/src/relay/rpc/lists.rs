//! Lists of tools, resources and prompts in answers: a client sees only what it may use.

use crate::decide::message::rpc::headers::RepeatedArgument;
use crate::decide::message::rpc::list::ListKind;
use crate::wire::json::Json;

/// Returns the key of a list in a result, and that of the name in its entries.
fn keys(kind: ListKind) -> (&'static str, &'static str) {
    match kind {
        ListKind::Tools => ("tools", "name"),
        ListKind::Resources => ("resources", "uri"),
        ListKind::Templates => ("resourceTemplates", "uriTemplate"),
        ListKind::Prompts => ("prompts", "name"),
    }
}

/// The number of entries of a list that are judged. What follows is left out.
const ENTRIES: usize = 65_536;

/// Returns the message `json` without those entries of its list that are not `permitted`; `None` if it
/// holds no list of this kind.
pub(super) fn filtered(
    json: Json<'_>,
    kind: ListKind,
    mut permitted: impl FnMut(&str) -> bool,
) -> Option<String> {
    let (list_key, name_key) = keys(kind);
    let result = json.get("result")?;
    let list = result.get(list_key).filter(|list| list.is_array())?;
    let mut kept = Vec::new();
    for item in list.items().take(ENTRIES) {
        let name = item.get(name_key).and_then(Json::text);
        if name.is_some_and(|name| permitted(&name)) {
            kept.push(item.as_str());
        }
    }
    let mut changes = vec![(list, format!("[{}]", kept.join(",")))];
    if let Some(scope) = result.get("cacheScope") {
        changes.push((scope, "\"private\"".to_owned()));
    }
    Some(replaced(json.as_str(), changes))
}

/// Returns the name of each tool in the list of the message `json`, with the arguments that fields
/// repeat.
pub(super) fn tools(json: Json<'_>) -> Vec<(String, Vec<RepeatedArgument>)> {
    let result = json.get("result");
    let list = result.and_then(|result| result.get("tools"));
    let items = list.into_iter().flat_map(Json::items).take(ENTRIES);
    let tool = |item: Json<'_>| {
        let name = item.get("name")?.text()?.into_owned();
        let schema = item.get("inputSchema");
        let repeated = schema.map(RepeatedArgument::of_schema);
        Some((name, repeated.unwrap_or_default()))
    };
    items.filter_map(tool).collect()
}

/// Returns `text` with other texts in place of some of its values.
fn replaced(text: &str, mut changes: Vec<(Json<'_>, String)>) -> String {
    let place = |value: Json<'_>| value.as_str().as_ptr() as usize - text.as_ptr() as usize;
    changes.sort_by_key(|(value, _)| place(*value));
    let mut new = String::with_capacity(text.len());
    let mut at = 0;
    for (value, other) in changes {
        let begin = place(value);
        new.push_str(text.get(at..begin).unwrap_or_default());
        new.push_str(&other);
        at = begin + value.as_str().len();
    }
    new + text.get(at..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{ListKind, filtered};
    use crate::wire::json::Json;

    fn filter(text: &str, kind: ListKind) -> Option<String> {
        let json = Json::read(text.as_bytes()).unwrap();
        filtered(json, kind, |name| name.starts_with('a'))
    }

    #[test]
    fn a_list_loses_the_entries_that_are_not_permitted_and_nothing_else_changes() {
        let text = r#"{"jsonrpc": "2.0", "id": 7, "result": {"_meta": {"x": 1}, "tools": [{"name": "a1", "d": [1]}, {"name":"b"},{"name": "\u0061"}, 7, {}], "nextCursor": "b"}}"#;
        let expected = r#"{"jsonrpc": "2.0", "id": 7, "result": {"_meta": {"x": 1}, "tools": [{"name": "a1", "d": [1]},{"name": "\u0061"}], "nextCursor": "b"}}"#;
        assert_eq!(filter(text, ListKind::Tools).as_deref(), Some(expected));
        assert_eq!(filter(text, ListKind::Prompts), None);
        let scoped = r#"{"result":{"cacheScope":"public","prompts":[{"name":"b"}],"ttlMs":1}}"#;
        let expected = r#"{"result":{"cacheScope":"private","prompts":[],"ttlMs":1}}"#;
        assert_eq!(filter(scoped, ListKind::Prompts).as_deref(), Some(expected));
        let behind =
            r#"{"result":{"resources":[{"uri":"a:b"},{"uri":"c:d"}],"cacheScope":"public"}}"#;
        let expected = r#"{"result":{"resources":[{"uri":"a:b"}],"cacheScope":"private"}}"#;
        assert_eq!(
            filter(behind, ListKind::Resources).as_deref(),
            Some(expected)
        );
        for other in [
            r#"{"error":{}}"#,
            r#"{"result":{"tools":{}}}"#,
            r#"{"result":7}"#,
            "[]",
            "7",
        ] {
            assert_eq!(filter(other, ListKind::Tools), None, "{other}");
        }
    }
}
