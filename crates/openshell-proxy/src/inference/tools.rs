//! Finds what a request has a provider do by itself: run tools, call servers, fetch documents.
//! Through these a workload could reach hosts that its policy does not permit.

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Keys of requests for completions, embeddings, responses and messages that do not make a provider
/// fetch or run anything, including those of self-hosted servers. Any other key is refused, because
/// providers add keys that do.
const KEYS: [&str; 69] = [
    "anthropic_beta",
    "anthropic_version",
    "audio",
    "background",
    "best_of",
    "cache_control",
    "chat_template_kwargs",
    "context_management",
    "conversation",
    "dimensions",
    "echo",
    "encoding_format",
    "format",
    "frequency_penalty",
    "function_call",
    "functions",
    "include",
    "input",
    "instructions",
    "keep_alive",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_tool_calls",
    "messages",
    "metadata",
    "min_p",
    "modalities",
    "model",
    "n",
    "options",
    "output_config",
    "output_format",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "stop_sequences",
    "store",
    "stream",
    "stream_options",
    "suffix",
    "system",
    "temperature",
    "text",
    "think",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate",
    "truncation",
    "user",
    "verbosity",
];

/// Values of `type`, in a list of tools, of those that the client runs. Such a tool may also have
/// no `type`.
const LOCAL_TOOLS: [&str; 2] = ["function", "custom"];

/// Values of `type`, in the list `input`, of messages and of a client's own calls and their
/// results.
const LOCAL_INPUTS: [&str; 13] = [
    "apply_patch_call",
    "apply_patch_call_output",
    "compaction",
    "custom_tool_call",
    "custom_tool_call_output",
    "function_call",
    "function_call_output",
    "item_reference",
    "local_shell_call",
    "local_shell_call_output",
    "message",
    "reasoning",
    "text",
];

/// Keys of references to documents, whose values need not look like addresses.
const REFERENCES: [&str; 6] = [
    "image_url",
    "file_url",
    "video_url",
    "audio_url",
    "fileData",
    "file_data",
];

/// Keys of the address in such a reference.
const ADDRESSES: [&str; 3] = ["url", "fileUri", "file_uri"];

/// Keys whose values the client's own tools define.
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

/// Keys of what a model reads, and of identifiers: an address in them is only text.
const WORDS: [&str; 15] = [
    "action",
    "call_id",
    "content",
    "context",
    "format",
    "id",
    "instructions",
    "metadata",
    "name",
    "output",
    "prompt",
    "system",
    "text",
    "thinking",
    "title",
];

/// Returns what makes a provider fetch or run something in `body`, a JSON object, or what makes it
/// impossible to tell.
#[must_use]
pub fn of_provider(body: &[u8]) -> Option<String> {
    let found = match serde_json::from_slice::<Unrepeated>(body) {
        Ok(_) => match serde_json::from_slice(body) {
            Ok(Value::Object(request)) => of_request(&request)?.to_owned(),
            Ok(_) | Err(_) => return None,
        },
        // If a key is repeated, another parser may take the other value.
        Err(error) if error.to_string().starts_with(REPEATED) => REPEATED.to_owned(),
        // Another parser may read what is too deep for this one, or too large a number.
        Err(_) if serde_json::from_slice::<IgnoredAny>(body).is_ok() => {
            "parts that cannot be read".to_owned()
        }
        Err(_) => return None,
    };
    Some(found.chars().take(KEY_CHARS).collect())
}

/// The largest number of characters of a key that are told.
const KEY_CHARS: usize = 64;

fn of_request(request: &Map<String, Value>) -> Option<&str> {
    let is_known = |key: &str| KEYS.contains(&key);
    if let Some((key, _)) = request
        .iter()
        .find(|(key, value)| !value.is_null() && !is_known(key))
    {
        return Some(key);
    }
    let are_local = match request.get("tools") {
        None | Some(Value::Null) => true,
        Some(Value::Array(tools)) => tools.iter().all(is_local),
        Some(_) => false,
    };
    if !are_local {
        return Some("tools");
    }
    // A prompt that is kept at the provider.
    if request.get("prompt").is_some_and(Value::is_object) {
        return Some("prompt");
    }
    // Clients send text as input, or a list of parts.
    let input = request.get("input").and_then(Value::as_array);
    for item in input.into_iter().flatten() {
        let kind = item.get("type").filter(|kind| !kind.is_null());
        if kind.is_some_and(|kind| {
            kind.as_str()
                .is_none_or(|kind| !LOCAL_INPUTS.contains(&kind))
        }) {
            return Some("input");
        }
        if let Some(key) = fetched(item) {
            return Some(key);
        }
    }
    fetched_in(request)
}

/// The description of a key that an object has twice.
const REPEATED: &str = "a repeated key";

/// Any JSON in which no object repeats a key, ignoring case.
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
                return Err(A::Error::custom(REPEATED));
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

/// Returns the value of `key`, ignoring case like some parsers.
fn value_of<'o>(object: &'o Map<String, Value>, key: &str) -> Option<&'o Value> {
    object
        .iter()
        .find(|(own, _)| own.eq_ignore_ascii_case(key))
        .map(|(_, value)| value)
}

fn is_local(tool: &Value) -> bool {
    let Some(tool) = tool.as_object() else {
        return false;
    };
    match value_of(tool, "type") {
        Some(kind) => kind
            .as_str()
            .is_some_and(|kind| LOCAL_TOOLS.contains(&kind)),
        None => tool.contains_key("name"),
    }
}

/// Returns the key in `value` of a reference that a provider fetches.
fn fetched(value: &Value) -> Option<&str> {
    match value {
        Value::Object(object) => fetched_in(object),
        Value::Array(list) => list.iter().find_map(fetched),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn fetched_in(object: &Map<String, Value>) -> Option<&str> {
    for (key, value) in object {
        let is_reference = REFERENCES
            .iter()
            .any(|reference| key.eq_ignore_ascii_case(reference));
        if is_reference && (is_elsewhere(value) || value.as_object().is_some_and(has_address)) {
            return Some(key);
        }
        let are_words = WORDS.contains(&key.as_str());
        if !are_words && value.as_str().is_some_and(is_address) {
            return Some(key);
        }
        if !OF_TOOLS.contains(&key.as_str())
            && let Some(key) = fetched(value)
        {
            return Some(key);
        }
    }
    None
}

fn has_address(object: &Map<String, Value>) -> bool {
    ADDRESSES
        .iter()
        .any(|key| value_of(object, key).is_some_and(is_elsewhere))
}

/// Returns true for a text that does not hold a document itself.
fn is_elsewhere(value: &Value) -> bool {
    value.as_str().is_some_and(|address| {
        !address
            .trim_start()
            .to_ascii_lowercase()
            .starts_with("data:")
    })
}

/// Returns true for a text that begins with a scheme and the slashes of an authority (RFC 3986 §3).
fn is_address(text: &str) -> bool {
    let Some((scheme, _)) = text.trim_start().split_once("://") else {
        return false;
    };
    let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    !scheme.is_empty() && scheme.bytes().all(is_of_scheme)
}

#[cfg(test)]
mod tests {
    use super::of_provider;

    #[test]
    fn what_a_provider_fetches_or_runs_is_told_from_the_clients_own_tools() {
        for (body, expected) in [
            (
                r#"{"messages":[{"role":"user","content":"see https://a.test/"}]}"#,
                None,
            ),
            (
                r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"image_url":"x"}}}]}"#,
                None,
            ),
            (
                r#"{"tools":[{"name":"f","input_schema":{}},{"type":"custom","name":"g"}]}"#,
                None,
            ),
            (
                r#"{"messages":[{"content":[{"type":"tool_use","input":{"type":"url","url":"https://a.test"}}]}]}"#,
                None,
            ),
            (
                r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]}"#,
                None,
            ),
            (r#"{"mcp_servers":null,"tools":[]}"#, None),
            (r#"[1]"#, None),
            (
                r#"{"tools":[{"type":"web_search"}],"Tools":[]}"#,
                Some("a repeated key"),
            ),
            (
                r#"{"input":[{"image_url":"https://a.test","image_url":"data:,"}]}"#,
                Some("a repeated key"),
            ),
            (r#"{"metadata":[1,-1,1.5,null,true,"x",{"b":{}}]}"#, None),
            (
                r#"{"tools":[{"type":"function"}],"input":[{"role":"user","content":"https://a.test"},{"type":"reasoning"}]}"#,
                None,
            ),
            (
                r#"{"input":[{"type":"mcp_approval_response","approve":true}]}"#,
                Some("input"),
            ),
            (r#"{"input":[{"type":"additional_tools"}]}"#, Some("input")),
            (r#"{"tools":{"type":"web_search"}}"#, Some("tools")),
            (r#"{"tools":["web_search"]}"#, Some("tools")),
            (r#"{"prompt":{"id":"pmpt_1"}}"#, Some("prompt")),
            (r#"{"prompt":"https://a.test"}"#, None),
            (r#"{"search_parameters":{}}"#, Some("search_parameters")),
            (r#"{"plugins":[]}"#, Some("plugins")),
            (
                r#"{"messages":[{"content":[{"type":"document_url","document_url":"https://a.test"}]}]}"#,
                Some("document_url"),
            ),
            (
                r#"{"messages":[{"content":[{"input_audio":{"data":"https://a.test"}}]}]}"#,
                Some("data"),
            ),
            (
                r#"{"messages":[{"content":[{"source":{"url":"gs://a/b"}}]}]}"#,
                Some("url"),
            ),
            (
                r#"{"mcp_servers":[{"url":"https://a.test"}]}"#,
                Some("mcp_servers"),
            ),
            (r#"{"Tools":[{"type":"web_search"}]}"#, Some("Tools")),
            (r#"{"tools":[{"Type":"web_search"}]}"#, Some("tools")),
            (
                r#"{"messages":[{"content":[{"Image_URL":{"URL":"https://a.test"}}]}]}"#,
                Some("Image_URL"),
            ),
            (r#"{"web_search_options":{}}"#, Some("web_search_options")),
            (
                r#"{"tools":[{"type":"web_search_20250305","name":"web_search"}]}"#,
                Some("tools"),
            ),
            (
                r#"{"tools":[{"type":"mcp","server_url":"https://a.test"}]}"#,
                Some("tools"),
            ),
            (r#"{"tools":[{"google_search":{}}]}"#, Some("tools")),
            (
                r#"{"messages":[{"content":[{"image_url":{"url":"https://a.test/?x"}}]}]}"#,
                Some("image_url"),
            ),
            (
                r#"{"input":[{"content":[{"type":"input_image","image_url":"HTTPS://a.test"}]}]}"#,
                Some("image_url"),
            ),
            (
                r#"{"messages":[{"content":[{"source":{"type":"url","url":"https://a.test"}}]}]}"#,
                Some("url"),
            ),
            (r#"{"contents":[]}"#, Some("contents")),
        ] {
            assert_eq!(of_provider(body.as_bytes()).as_deref(), expected, "{body}");
        }
        // What is too deep to be read may contain anything.
        let deep = format!(
            r#"{{"metadata":{}{},"tools":[{{"type":"mcp"}}]}}"#,
            "[".repeat(130),
            "]".repeat(130)
        );
        assert_eq!(
            of_provider(deep.as_bytes()).as_deref(),
            Some("parts that cannot be read")
        );
        assert_eq!(of_provider(b"no JSON"), None, "it is refused as such");
    }
}
