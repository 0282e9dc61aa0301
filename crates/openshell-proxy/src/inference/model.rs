//! The model in the body of a request: the route's, whatever was asked for. All else stays byte for byte.

use std::ops::Range;

use bytes::Bytes;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// `body` with `model` as the model it asks for, if it is a JSON object; as it is, if it cannot be one to anybody.
///
/// # Errors
/// Others could read it as an object, of another model.
pub fn with_model(body: Bytes, model: &str) -> Result<Bytes, Ambiguous> {
    let Some(places) = places(&body) else {
        // Some parsers take what begins like an object and is none, other encodings, and what is not text at all.
        let text = std::str::from_utf8(&body).map_err(|_| Ambiguous)?;
        let is_other = text.starts_with('\u{feff}') || text.contains('\0') || text.trim_start().starts_with('{');
        return if is_other { Err(Ambiguous) } else { Ok(body) };
    };
    // Nobody asks twice who does not hope that the other one counts.
    if places.models.len() > 1 {
        return Err(Ambiguous);
    }
    // A text always has a JSON form.
    let model = serde_json::Value::from(model).to_string();
    let mut written = Vec::with_capacity(body.len() + places.models.len().max(1) * (model.len() + 16));
    let mut end = 0;
    if !places.has_exact {
        written.extend_from_slice(body.get(..places.start).unwrap_or_default());
        written.extend_from_slice(format!("\"model\":{model}").as_bytes());
        if !places.is_empty {
            written.push(b',');
        }
        end = places.start;
    }
    for place in &places.models {
        written.extend_from_slice(body.get(end..place.start).unwrap_or_default());
        written.extend_from_slice(model.as_bytes());
        end = place.end;
    }
    written.extend_from_slice(body.get(end..).unwrap_or_default());
    Ok(written.into())
}

/// A body that is no JSON object here, and may be one elsewhere; or that asks for more than one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguous;

/// Where an object begins, and where its models stand.
struct Places {
    start: usize,
    is_empty: bool,
    /// Whether one is called just that; some parsers take any case.
    has_exact: bool,
    models: Vec<Range<usize>>,
}

fn places(body: &[u8]) -> Option<Places> {
    let start = body.iter().position(|byte| !byte.is_ascii_whitespace())? + 1;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let found = deserializer.deserialize_map(FindModels { body }).ok()?;
    deserializer.end().ok()?;
    Some(Places { start, ..found })
}

struct FindModels<'b> {
    body: &'b [u8],
}

impl<'de> Visitor<'de> for FindModels<'de> {
    type Value = Places;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut found = Places { start: 0, is_empty: true, has_exact: false, models: Vec::new() };
        while let Some((key, value)) = entries.next_entry::<String, &RawValue>()? {
            found.is_empty = false;
            found.has_exact |= key == "model";
            if key.eq_ignore_ascii_case("model") {
                // The text is a part of the body.
                let start = value.get().as_ptr().addr() - self.body.as_ptr().addr();
                found.models.push(start..start + value.get().len());
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::with_model;
    use bytes::Bytes;

    #[test]
    fn inf_13_the_model_is_the_routes_and_all_else_stays() {
        for (body, expected) in [
            (r#"{"model":"x"}"#, r#"{"model":"m\"1"}"#),
            ("{}", r#"{"model":"m\"1"}"#),
            (" { } ", r#" {"model":"m\"1" } "#),
            (r#"{"a":1.50, "b":[{"model":"inner"}]}"#, r#"{"model":"m\"1","a":1.50, "b":[{"model":"inner"}]}"#),
            (r#"{"n": 1e400, "model" : {"x": 1} }"#, r#"{"n": 1e400, "model" : "m\"1" }"#),
            (r#"{"mod\u0065l":"x","k":"\u00e4"}"#, r#"{"mod\u0065l":"m\"1","k":"\u00e4"}"#),
            ("[1]", "[1]"),
            ("not json", "not json"),
            ("", ""),
            (r#"{"Model":"big"}"#, r#"{"model":"m\"1","Model":"m\"1"}"#),
        ] {
            assert_eq!(with_model(Bytes::from(body), "m\"1").unwrap(), expected, "{body}");
        }
    }

    #[test]
    fn what_others_could_read_as_an_object_is_refused() {
        for body in [
            &br#"{"model":"x"} {"#[..],
            br#"{"model":"m","model":"big"}"#,
            br#"{"model":"m","MODEL":"big"}"#,
            br#"{"model":"x""#,
            br#"{"x":NaN,"model":"big"}"#,
            br#"{"\ud800":1,"model":"big"}"#,
            b"\xef\xbb\xbf{\"model\":\"big\"}",
            b"{\"k\":\"\xff\",\"model\":\"big\"}",
            b"\0{\0\"",
            b"{\0\"\0",
        ] {
            assert_eq!(with_model(Bytes::copy_from_slice(body), "m"), Err(super::Ambiguous), "{}", body.escape_ascii());
        }
    }
}
