//! Canned responses for `mock://` backends, for tests and demonstrations without a network.

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use crate::inference::api::ApiCall;

/// Returns the response of `model` to `call`; if it `streams`, as events of the interface.
#[must_use]
pub fn answer(call: ApiCall, model: &str, streams: bool) -> Response<Bytes> {
    let (template, kind) = match call.interface.mock_events().filter(|_| streams) {
        _ if call.is_free() => (r#"{"input_tokens":1}"#, "application/json"),
        Some(events) => (events, "text/event-stream"),
        None => (call.interface.mock_answer(), "application/json"),
    };
    // The name of the model is escaped as in a JSON string.
    let quoted = Value::from(model).to_string();
    let model = quoted
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or_default();
    let mut response = Response::new(Bytes::from(template.replace("{model}", model)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
        .headers_mut()
        .insert("x-openshell-mock", HeaderValue::from_static("true"));
    response
}

#[cfg(test)]
mod tests {
    use openshell_policy::inference::interface::Interface;
    use serde_json::Value;

    use super::{ApiCall, answer};

    #[test]
    fn every_answer_is_json_or_events_of_json_and_names_the_model() {
        let model = "a \"model\"";
        for interface in Interface::ALL {
            let call = ApiCall {
                interface: *interface,
                kind: "",
            };
            let whole: Value = serde_json::from_slice(answer(call, model, false).body()).unwrap();
            assert!(
                whole["model"] == model || whole["data"][0]["id"] == model,
                "{whole}"
            );
            let Some(_) = interface.mock_events() else {
                continue;
            };
            let events = answer(call, model, true).into_body();
            let events = std::str::from_utf8(&events).unwrap();
            let data: Vec<&str> = events
                .lines()
                .filter_map(|line| line.strip_prefix("data: "))
                .collect();
            let json = data
                .iter()
                .filter(|data| **data != "[DONE]")
                .map(|data| serde_json::from_str::<Value>(data));
            assert!(
                json.map(Result::unwrap).count() > 0 && events.contains(r#"a \"model\""#),
                "{events}"
            );
            assert!(events.ends_with("\n\n"), "{events}");
        }
    }
}
