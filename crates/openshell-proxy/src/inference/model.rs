//! Replaces the model in a request's body by the route's; every other byte stays. A body that is
//! not JSON in UTF-8 is refused, because a backend could find another model in it.

use std::ops::Range;

use bytes::Bytes;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Replaces the model in `body`, a JSON object.
///
/// # Errors
/// Fails if the body is not a JSON object in UTF-8, or if it names more than one model.
pub fn with_model(body: Bytes, model: &str) -> Result<Bytes, BodyError> {
    let Some(spans) = spans(&body) else {
        return match serde_json::from_slice::<IgnoredAny>(&body) {
            Ok(_) if !body.trim_ascii_start().starts_with(b"{") => Err(BodyError::NoObject),
            Ok(_) | Err(_) => Err(BodyError::NotJson),
        };
    };
    if spans.models.len() > 1 || spans.has_others {
        return Err(BodyError::Ambiguous);
    }
    // A string always has a JSON form.
    let model = serde_json::Value::from(model).to_string();
    let mut written =
        Vec::with_capacity(body.len() + spans.models.len().max(1) * (model.len() + 16));
    let mut end = 0;
    if !spans.has_exact {
        written.extend_from_slice(body.get(..spans.start).unwrap_or_default());
        written.extend_from_slice(format!("\"model\":{model}").as_bytes());
        if !spans.is_empty {
            written.push(b',');
        }
        end = spans.start;
    }
    for span in &spans.models {
        written.extend_from_slice(body.get(end..span.start).unwrap_or_default());
        written.extend_from_slice(model.as_bytes());
        end = span.end;
    }
    written.extend_from_slice(body.get(end..).unwrap_or_default());
    Ok(written.into())
}

/// The reason why a body cannot be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// It is not JSON in UTF-8 (RFC 8259 §8.1).
    NotJson,
    /// It names more than one model.
    Ambiguous,
    /// It is JSON, but not an object.
    NoObject,
}

/// Returns true unless the Content-Type `kind`, which may hold several types, has a `charset` other
/// than UTF-8 or ASCII.
#[must_use]
pub fn is_utf8(kind: &[u8]) -> bool {
    let Ok(kind) = std::str::from_utf8(kind) else {
        return false;
    };
    kind.split([';', ',']).skip(1).all(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = value.trim().trim_matches('"').to_ascii_lowercase();
        let is_charset = name.trim().to_ascii_lowercase().starts_with("charset");
        !is_charset || matches!(value.as_str(), "utf-8" | "utf8" | "us-ascii" | "ascii")
    })
}

/// Returns true if `body`, a JSON object, asks for a stream of events.
#[must_use]
pub fn asks_for_stream(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Options {
        #[serde(default)]
        stream: bool,
    }
    serde_json::from_slice::<Options>(body).is_ok_and(|options| options.stream)
}

/// Positions in a JSON object: the one after its opening brace, and those of its models.
struct ModelSpans {
    start: usize,
    is_empty: bool,
    /// True if a key is exactly `model`; some parsers ignore the case of keys.
    has_exact: bool,
    /// True if a key of [`OTHERS`] may name other models, from which a backend may choose.
    has_others: bool,
    models: Vec<Range<usize>>,
}

fn spans(body: &[u8]) -> Option<ModelSpans> {
    let start = body.iter().position(|byte| !byte.is_ascii_whitespace())? + 1;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let found = deserializer.deserialize_map(FindModels { body }).ok()?;
    deserializer.end().ok()?;
    Some(ModelSpans { start, ..found })
}

/// Keys by which model gateways use other models than the one that is asked for.
const OTHERS: [&str; 5] = [
    "models",
    "fallbacks",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    "extra_body",
];

struct FindModels<'b> {
    body: &'b [u8],
}

impl<'de> Visitor<'de> for FindModels<'de> {
    type Value = ModelSpans;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut found = ModelSpans {
            start: 0,
            is_empty: true,
            has_exact: false,
            has_others: false,
            models: Vec::new(),
        };
        while let Some((key, value)) = entries.next_entry::<String, &RawValue>()? {
            found.is_empty = false;
            found.has_exact |= key == "model";
            found.has_others |=
                OTHERS.iter().any(|other| key.eq_ignore_ascii_case(other)) && value.get() != "null";
            if key.eq_ignore_ascii_case("model") {
                // `value` borrows from the body.
                let start = value.get().as_ptr().addr() - self.body.as_ptr().addr();
                found.models.push(start..start + value.get().len());
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::{BodyError, is_utf8, with_model};
    use bytes::Bytes;

    #[test]
    fn only_utf_8_is_a_charset_of_a_request_for_a_model() {
        for kind in [
            "application/json",
            "application/json; charset=utf-8",
            "Application/JSON;Charset=\"UTF8\"",
            "a/b; x=y",
        ] {
            assert!(is_utf8(kind.as_bytes()), "{kind}");
        }
        for kind in [
            "application/json; charset=utf-7",
            "application/json; charset=unicode_escape",
            "application/json; charset=utf-8; charset=utf-16",
            "application/json; charset=\"utf-7\"",
            "application/json; charset*=utf-8''utf-7",
            "application/json; charset",
            "application/json, text/plain; charset=utf-7",
        ] {
            assert!(!is_utf8(kind.as_bytes()), "{kind}");
        }
        assert!(!is_utf8(b"application/json; charset=\xff"));
    }

    // Conformance: INF-13.
    #[test]
    fn the_model_is_the_routes_and_all_else_stays() {
        for (body, expected) in [
            (r#"{"model":"x"}"#, r#"{"model":"m\"1"}"#),
            ("{}", r#"{"model":"m\"1"}"#),
            (" { } ", r#" {"model":"m\"1" } "#),
            (
                r#"{"a":1.50, "b":[{"model":"inner"}]}"#,
                r#"{"model":"m\"1","a":1.50, "b":[{"model":"inner"}]}"#,
            ),
            (
                r#"{"n": 1e400, "model" : {"x": 1} }"#,
                r#"{"n": 1e400, "model" : "m\"1" }"#,
            ),
            (
                r#"{"mod\u0065l":"x","k":"\u00e4"}"#,
                r#"{"mod\u0065l":"m\"1","k":"\u00e4"}"#,
            ),
            (r#"{"Model":"big"}"#, r#"{"model":"m\"1","Model":"m\"1"}"#),
        ] {
            assert_eq!(
                with_model(Bytes::from(body), "m\"1").unwrap(),
                expected,
                "{body}"
            );
        }
    }

    #[test]
    fn what_is_no_object_or_names_other_models_is_refused() {
        for body in [
            r#"{"model":"m","model":"big"}"#,
            r#"{"model":"m","MODEL":"big"}"#,
            r#"{"model":"m","models":["big"]}"#,
            r#"{"model":"m","fallbacks":["big"]}"#,
            r#"{"extra_body":{"model":"big"}}"#,
        ] {
            assert_eq!(
                with_model(Bytes::from(body), "m"),
                Err(BodyError::Ambiguous),
                "{body}"
            );
        }
        for body in [
            r#"[{"model":"big"}]"#,
            r#" ["x", [{}]]"#,
            "[1]",
            "5",
            "null",
            r#""model""#,
        ] {
            assert_eq!(
                with_model(Bytes::from(body), "m"),
                Err(BodyError::NoObject),
                "{body}"
            );
        }
        for body in [
            &br#"{"model":"x"} {"#[..],
            b"not json",
            b"",
            b"+AHsAIg-model+ACI:+ACI-big+ACIAfQ",
            br#"{"model":"x""#,
            br#"{"x":NaN,"model":"big"}"#,
            br#"{"\ud800":1,"model":"big"}"#,
            b"\xef\xbb\xbf{\"model\":\"big\"}",
            b"{\"k\":\"\xff\",\"model\":\"big\"}",
            b"\0{\0\"",
            b"{\0\"\0",
        ] {
            assert_eq!(
                with_model(Bytes::copy_from_slice(body), "m"),
                Err(BodyError::NotJson),
                "{}",
                body.escape_ascii()
            );
        }
    }
}
