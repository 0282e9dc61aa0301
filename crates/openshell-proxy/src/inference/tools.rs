//! What a request has a provider do by itself: tools that run there, servers that it calls, documents that it fetches. A workload reaches
//! hosts through them that its policy does not permit.

use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Keys of a request that begin such work.
const KEYS: [&str; 3] = ["mcp_servers", "web_search_options", "container"];

/// Values of `type` in a list of tools that the client runs, beside none.
const LOCAL_TOOLS: [&str; 2] = ["function", "custom"];

/// Keys of the list of tools of Gemini that the client runs.
const LOCAL_LISTS: [&str; 2] = ["functionDeclarations", "function_declarations"];

/// Keys of a reference to a document.
const REFERENCES: [&str; 6] = ["image_url", "file_url", "video_url", "audio_url", "fileData", "file_data"];

/// Keys of such a reference's address.
const ADDRESSES: [&str; 3] = ["url", "fileUri", "file_uri"];

/// Keys whose values a client's own tools define.
const OF_TOOLS: [&str; 9] = [
    "tools",
    "input",
    "input_schema",
    "parameters",
    "arguments",
    "args",
    "functionCall",
    "functionResponse",
    "response_format",
];

/// Returns the key by which `body`, a JSON object, has a provider fetch or run something, if it does.
#[must_use]
pub fn of_provider(body: &[u8]) -> Option<String> {
    let Ok(Value::Object(request)) = serde_json::from_slice(body) else { return None };
    // Of a repeated key another parser may take the other value.
    if serde_json::from_slice::<Unrepeated>(body).is_err() {
        return Some("a repeated key".to_owned());
    }
    let is_named = |key: &&&str| value_of(&request, key).is_some_and(|value| !value.is_null());
    if let Some(key) = KEYS.iter().find(is_named) {
        return Some((*key).to_owned());
    }
    let tools = value_of(&request, "tools").and_then(Value::as_array).into_iter().flatten();
    if tools.filter_map(Value::as_object).any(|tool| !is_local(tool)) {
        return Some("tools".to_owned());
    }
    // What a client sends for input is text, or a list of parts.
    let input = value_of(&request, "input").filter(|input| input.is_array()).and_then(fetched);
    input.or_else(|| fetched_in(&request)).map(str::to_owned)
}

/// Any JSON none of whose objects repeats a key, in any case.
struct Unrepeated;

impl<'de> serde::Deserialize<'de> for Unrepeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unrepeated {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        let mut keys = std::collections::HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if !keys.insert(key.to_ascii_lowercase()) {
                return Err(A::Error::custom("a repeated key"));
            }
            entries.next_value::<Self>()?;
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }
}

/// Returns the value of `key`, which some parsers take in any case.
fn value_of<'o>(object: &'o Map<String, Value>, key: &str) -> Option<&'o Value> {
    object.iter().find(|(own, _)| own.eq_ignore_ascii_case(key)).map(|(_, value)| value)
}

fn is_local(tool: &Map<String, Value>) -> bool {
    match value_of(tool, "type") {
        Some(kind) => kind.as_str().is_some_and(|kind| LOCAL_TOOLS.contains(&kind)),
        None if tool.contains_key("name") => true,
        None => tool.keys().all(|key| LOCAL_LISTS.contains(&key.as_str())),
    }
}

/// Returns the key of a reference in `value` that a provider fetches.
fn fetched(value: &Value) -> Option<&'static str> {
    match value {
        Value::Object(object) => fetched_in(object),
        Value::Array(list) => list.iter().find_map(fetched),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn fetched_in(object: &Map<String, Value>) -> Option<&'static str> {
    let is_source = value_of(object, "type").and_then(Value::as_str) == Some("url");
    if is_source && has_address(object) {
        return Some("source");
    }
    let is_reference = |key: &&&str| {
        value_of(object, key).is_some_and(|value| is_remote(value) || value.as_object().is_some_and(has_address))
    };
    let reference = REFERENCES.iter().find(is_reference).copied();
    let others = || object.iter().filter(|(key, _)| !OF_TOOLS.contains(&key.as_str()));
    reference.or_else(|| others().find_map(|(_, value)| fetched(value)))
}

fn has_address(object: &Map<String, Value>) -> bool {
    ADDRESSES.iter().any(|key| value_of(object, key).is_some_and(is_remote))
}

/// Returns true for an address of something that is not in the request itself.
fn is_remote(value: &Value) -> bool {
    value.as_str().is_some_and(|address| !address.trim_start().to_ascii_lowercase().starts_with("data:"))
}

#[cfg(test)]
mod tests {
    use super::of_provider;

    #[test]
    fn what_a_provider_fetches_or_runs_is_told_from_the_clients_own_tools() {
        for (body, expected) in [
            (r#"{"messages":[{"role":"user","content":"see https://a.test/"}]}"#, None),
            (r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"image_url":"x"}}}]}"#, None),
            (r#"{"tools":[{"name":"f","input_schema":{}},{"type":"custom","name":"g"}]}"#, None),
            (r#"{"tools":[{"functionDeclarations":[{"name":"f"}]}]}"#, None),
            (r#"{"messages":[{"content":[{"type":"tool_use","input":{"type":"url","url":"https://a.test"}}]}]}"#, None),
            (
                r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]}"#,
                None,
            ),
            (r#"{"mcp_servers":null,"tools":[]}"#, None),
            (r#"[1]"#, None),
            (r#"{"tools":[{"type":"web_search"}],"Tools":[]}"#, Some("a repeated key")),
            (r#"{"input":[{"image_url":"https://a.test","image_url":"data:,"}]}"#, Some("a repeated key")),
            (r#"{"a":[1,-1,1.5,null,true,"x",{"b":{}}]}"#, None),
            (r#"{"mcp_servers":[{"url":"https://a.test"}]}"#, Some("mcp_servers")),
            (r#"{"Tools":[{"Type":"web_search"}]}"#, Some("tools")),
            (r#"{"messages":[{"content":[{"Image_URL":{"URL":"https://a.test"}}]}]}"#, Some("image_url")),
            (r#"{"web_search_options":{}}"#, Some("web_search_options")),
            (r#"{"tools":[{"type":"web_search_20250305","name":"web_search"}]}"#, Some("tools")),
            (r#"{"tools":[{"type":"mcp","server_url":"https://a.test"}]}"#, Some("tools")),
            (r#"{"tools":[{"google_search":{}}]}"#, Some("tools")),
            (r#"{"tools":[{"functionDeclarations":[],"url_context":{}}]}"#, Some("tools")),
            (r#"{"messages":[{"content":[{"image_url":{"url":"https://a.test/?x"}}]}]}"#, Some("image_url")),
            (r#"{"input":[{"content":[{"type":"input_image","image_url":"HTTPS://a.test"}]}]}"#, Some("image_url")),
            (r#"{"messages":[{"content":[{"source":{"type":"url","url":"https://a.test"}}]}]}"#, Some("source")),
            (r#"{"contents":[{"parts":[{"fileData":{"fileUri":"https://a.test"}}]}]}"#, Some("fileData")),
        ] {
            assert_eq!(of_provider(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }
}
