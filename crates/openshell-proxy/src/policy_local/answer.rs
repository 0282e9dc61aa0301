//! Answers of the host: JSON, and one text.

use bytes::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinError;

use crate::policy_local::{SKILL, WRONG_SCHEME};

/// An answer: its status and its body.
pub(super) type Answer = (StatusCode, Value);

pub(super) fn error(status: StatusCode, code: &str, detail: impl Into<String>) -> Answer {
    (status, json!({"error": code, "detail": detail.into()}))
}

pub(super) fn bad(detail: impl Into<String>) -> Answer {
    error(StatusCode::BAD_REQUEST, "bad_request", detail)
}

/// Returns the answer to a request whose work `failed`, which the log has.
pub(super) fn broken(failed: &JoinError) -> Answer {
    tracing::error!("policy.local: {failed}");
    let detail = "it could not be answered; the log of the sandbox says why";
    error(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", detail)
}

/// Returns the answer to a request that does not come by HTTP at port 80.
#[must_use]
pub fn wrong_scheme() -> Response<Bytes> {
    let code = "invalid_policy_local_scheme";
    response(error(StatusCode::BAD_REQUEST, code, WRONG_SCHEME))
}

pub(super) fn response((status, value): Answer) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("{value}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED
        && let Some(Ok(method)) = value["allow"].as_str().map(HeaderValue::from_str)
    {
        headers.insert(ALLOW, method);
    }
    response
}

/// Returns the text that tells agents how to ask.
pub(super) fn skill() -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(SKILL.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/markdown"));
    response
}
