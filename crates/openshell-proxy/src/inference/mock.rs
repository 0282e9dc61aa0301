//! Answers of no model, for tests and demonstrations without a network.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use openshell_policy::inference::Interface;
use serde_json::{Value, json};

const TEXT: &str = "Hello from openshell mock backend";

/// The answer to a request for `interface`, as `model`.
#[must_use]
pub fn answer(interface: Interface, model: &str) -> Response<Bytes> {
    let body = match interface {
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
    };
    response(&body)
}

fn response(body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert("x-openshell-mock", HeaderValue::from_static("true"));
    response
}
