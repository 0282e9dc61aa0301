//! Answers of no model, for tests and demonstrations without a network.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use openshell_policy::inference::Interface;
use serde_json::{Value, json};

const TEXT: &str = "Hello from openshell mock backend";

/// The answer to a request for `interface`, as `model`; where it `streams`, in the events that the interface has for that.
#[must_use]
pub fn answer(interface: Interface, model: &str, streams: bool) -> Response<Bytes> {
    match events(interface, model).filter(|_| streams) {
        Some(events) => response(events, "text/event-stream"),
        None => response(whole(interface, model).to_string(), "application/json"),
    }
}

fn whole(interface: Interface, model: &str) -> Value {
    match interface {
        Interface::OpenaiChatCompletions => json!({
            "id": "chatcmpl-mock", "object": "chat.completion", "created": 0, "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6},
        }),
        Interface::OpenaiCompletions => json!({
            "id": "cmpl-mock", "object": "text_completion", "created": 0, "model": model,
            "choices": [{"index": 0, "text": TEXT, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6},
        }),
        Interface::OpenaiResponses => json!({
            "id": "resp-mock", "object": "response", "created_at": 0, "status": "completed", "model": model,
            "output": [{"type": "message", "id": "msg-mock", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": TEXT, "annotations": []}]}],
            "usage": {"input_tokens": 1, "output_tokens": 5, "total_tokens": 6},
        }),
        Interface::OpenaiEmbeddings => json!({
            "object": "list", "model": model, "data": [{"object": "embedding", "index": 0, "embedding": [0.0, 1.0]}],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }),
        Interface::AnthropicMessages => json!({
            "id": "msg_mock", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 1, "output_tokens": 5},
        }),
        Interface::ModelDiscovery => json!({
            "object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "openshell"}],
        }),
    }
}

/// The same answer in events; `None` for interfaces without.
fn events(interface: Interface, model: &str) -> Option<String> {
    let events = match interface {
        Interface::OpenaiChatCompletions => {
            let chunk = |choices: Value, usage: Value| {
                json!({"id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 0, "model": model,
                    "choices": choices, "usage": usage})
            };
            let delta = |delta: Value, reason: Value| json!([{"index": 0, "delta": delta, "finish_reason": reason}]);
            vec![
                chunk(delta(json!({"role": "assistant", "content": TEXT}), Value::Null), Value::Null),
                chunk(delta(json!({}), json!("stop")), Value::Null),
                chunk(json!([]), whole(interface, model)["usage"].take()),
            ]
        }
        Interface::OpenaiCompletions => vec![whole(interface, model)],
        Interface::OpenaiResponses => response_events(whole(interface, model)),
        Interface::AnthropicMessages => message_events(whole(interface, model)),
        Interface::OpenaiEmbeddings | Interface::ModelDiscovery => return None,
    };
    let named = |event: &Value| match event["type"].as_str() {
        Some(name) => format!("event: {name}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    };
    let mut text: String = events.iter().map(named).collect();
    if matches!(interface, Interface::OpenaiChatCompletions | Interface::OpenaiCompletions) {
        text.push_str("data: [DONE]\n\n");
    }
    Some(text)
}

/// The events of the Responses interface for the answer `whole`.
fn response_events(whole: Value) -> Vec<Value> {
    let item = whole["output"][0].clone();
    let part = item["content"][0].clone();
    let mut begun = whole.clone();
    begun["status"] = json!("in_progress");
    begun["output"] = json!([]);
    let mut empty_item = item.clone();
    empty_item["status"] = json!("in_progress");
    empty_item["content"] = json!([]);
    let mut empty_part = part.clone();
    empty_part["text"] = json!("");
    let place = json!({"item_id": "msg-mock", "output_index": 0, "content_index": 0});
    let events = [
        ("response.created", json!({"response": begun.clone()})),
        ("response.in_progress", json!({"response": begun})),
        ("response.output_item.added", json!({"output_index": 0, "item": empty_item})),
        ("response.content_part.added", with(&place, json!({"part": empty_part}))),
        ("response.output_text.delta", with(&place, json!({"delta": TEXT}))),
        ("response.output_text.done", with(&place, json!({"text": TEXT}))),
        ("response.content_part.done", with(&place, json!({"part": part}))),
        ("response.output_item.done", json!({"output_index": 0, "item": item})),
        ("response.completed", json!({"response": whole})),
    ];
    let numbered = events.into_iter().enumerate();
    numbered.map(|(number, (name, event))| with(&event, json!({"type": name, "sequence_number": number}))).collect()
}

/// The events of the Messages interface for the answer `whole`.
fn message_events(whole: Value) -> Vec<Value> {
    let usage = whole["usage"].clone();
    let mut begun = whole;
    begun["content"] = json!([]);
    begun["stop_reason"] = Value::Null;
    begun["usage"]["output_tokens"] = json!(1);
    vec![
        json!({"type": "message_start", "message": begun}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": usage["output_tokens"]}}),
        json!({"type": "message_stop"}),
    ]
}

/// `object` with the entries of `more`.
fn with(object: &Value, more: Value) -> Value {
    let entries = [object.clone(), more].into_iter().filter_map(|value| match value {
        Value::Object(entries) => Some(entries),
        _ => None,
    });
    Value::Object(entries.flatten().collect())
}

fn response(body: String, kind: &'static str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert("x-openshell-mock", HeaderValue::from_static("true"));
    response
}
