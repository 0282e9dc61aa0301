//! The model in the body of a request: the route's, whatever was asked for. All else stays byte for byte.

use std::ops::Range;

use bytes::Bytes;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// `body` with `model` as the model it asks for, if it is a JSON object; as it is otherwise.
#[must_use]
pub fn with_model(body: Bytes, model: &str) -> Bytes {
    let Some(places) = places(&body) else { return body };
    // A text always has a JSON form.
    let model = serde_json::Value::from(model).to_string();
    let mut written = Vec::with_capacity(body.len() + model.len() + 16);
    let mut end = 0;
    for place in &places.models {
        written.extend_from_slice(body.get(end..place.start).unwrap_or_default());
        written.extend_from_slice(model.as_bytes());
        end = place.end;
    }
    if places.models.is_empty() {
        written.extend_from_slice(body.get(..places.start).unwrap_or_default());
        written.extend_from_slice(format!("\"model\":{model}").as_bytes());
        if !places.is_empty {
            written.push(b',');
        }
        end = places.start;
    }
    written.extend_from_slice(body.get(end..).unwrap_or_default());
    written.into()
}

/// Where an object begins, and where its models stand.
struct Places {
    start: usize,
    is_empty: bool,
    models: Vec<Range<usize>>,
}

fn places(body: &[u8]) -> Option<Places> {
    let start = body.iter().position(|byte| !byte.is_ascii_whitespace())? + 1;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let (models, is_empty) = deserializer.deserialize_map(Models { body }).ok()?;
    deserializer.end().ok()?;
    Some(Places { start, is_empty, models })
}

struct Models<'b> {
    body: &'b [u8],
}

impl<'de> Visitor<'de> for Models<'de> {
    type Value = (Vec<Range<usize>>, bool);

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let (mut models, mut is_empty) = (Vec::new(), true);
        while let Some((key, value)) = entries.next_entry::<String, &RawValue>()? {
            is_empty = false;
            if key == "model" {
                // The text is a part of the body.
                let start = value.get().as_ptr().addr() - self.body.as_ptr().addr();
                models.push(start..start + value.get().len());
            }
        }
        Ok((models, is_empty))
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
            (r#"{"model": {"x": 1}, "n": 1e400, "model" :null}"#, r#"{"model": "m\"1", "n": 1e400, "model" :"m\"1"}"#),
            (r#"{"mod\u0065l":"x","k":"\u00e4"}"#, r#"{"mod\u0065l":"m\"1","k":"\u00e4"}"#),
            ("[1]", "[1]"),
            ("not json", "not json"),
            (r#"{"model":"x"} {"#, r#"{"model":"x"} {"#),
            (r#"{"model":"x""#, r#"{"model":"x""#),
            ("", ""),
        ] {
            assert_eq!(with_model(Bytes::from(body), "m\"1"), expected, "{body}");
        }
    }
}
