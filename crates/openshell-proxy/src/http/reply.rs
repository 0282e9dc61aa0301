//! A refusal as an HTTP answer.

use bytes::Bytes;
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::record::Record;
use crate::refusal::{InferenceFault, Refusal};

/// What a refusal's body holds; what is unknown is left out.
#[derive(Serialize)]
struct Content<'r> {
    error: &'static str,
    detail: String,
    reason_code: &'static str,
    layer: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest_rule: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// The answer to a refused request; the connection ends with it.
#[must_use]
pub fn refused(refusal: &Refusal, record: &Record) -> Response<Bytes> {
    let (head, body) = content(refusal, record);
    Response::from_parts(head, body)
}

/// What clients of models read of a refusal.
#[derive(Serialize)]
struct InferenceContent {
    error: String,
    reason_code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

fn content(refusal: &Refusal, record: &Record) -> (Parts, Bytes) {
    if let Refusal::Inference(fault) = refusal
        && *fault != InferenceFault::NotConfigured
    {
        let content =
            InferenceContent { error: fault.text(), reason_code: refusal.code().as_str(), hint: fault.hint() };
        // What was not read to its end ends the connection.
        let closes = !matches!(
            fault,
            InferenceFault::Budget { .. } | InferenceFault::Unavailable(_) | InferenceFault::Failed(_)
        );
        return message(refusal, serde_json::to_vec(&content), (None, closes));
    }
    let judged = match refusal {
        Refusal::Request { policy, rule: (method, path), .. } => {
            Some((policy.as_deref(), method.as_str(), path.as_str()))
        }
        _ => None,
    };
    let content = Content {
        policy: judged.and_then(|(policy, ..)| policy),
        rule: judged.map(|(_, method, path)| format!("{method} {path}")),
        method: judged.map(|(_, method, _)| method),
        path: judged.map(|(_, _, path)| path),
        error: refusal.error(),
        detail: refusal.detail(record),
        reason_code: refusal.code().as_str(),
        layer: refusal.code().stage().as_str(),
        host: record.target().map(|target| target.host.to_string()),
        port: record.target().map(|target| target.port),
        binary: record.caller().map(|caller| caller.program.executable.as_str()),
        nearest_rule: refusal.nearest_rule(),
        fix: record.target().and_then(|target| refusal.fix(target, record.caller())),
        hint: record.target().and_then(|target| refusal.no_fix(target)),
    };
    message(refusal, serde_json::to_vec(&content), (judged.and_then(|(policy, ..)| policy), true))
}

fn message(
    refusal: &Refusal,
    content: serde_json::Result<Vec<u8>>,
    (policy, closes): (Option<&str>, bool),
) -> (Parts, Bytes) {
    // Texts and numbers always have a JSON form. A terminal that shows it goes on in a line of its own.
    let mut content = content.unwrap_or_default();
    content.push(b'\n');
    let mut response = Response::new(Bytes::from(content));
    *response.status_mut() = refusal.status();
    // Clients that show nothing of the body show the status line.
    response.extensions_mut().insert(ReasonPhrase::from_static(refusal.code().as_str().as_bytes()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // A key of a policy is always a field value.
    if let Some(Ok(policy)) = policy.map(HeaderValue::from_str) {
        response.headers_mut().insert("X-OpenShell-Policy", policy);
    }
    if closes {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.into_parts()
}

/// The answer to a refused call of gRPC's, in one head without a body: of any other its clients show the status alone (gRPC over
/// HTTP/2, Trailers-Only).
#[must_use]
pub fn refused_call(refusal: &Refusal, record: &Record) -> Response<Bytes> {
    let status = match refusal.status() {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        _ => PERMISSION_DENIED,
    };
    let fix = record.target().and_then(|target| refusal.fix(target, record.caller()));
    let fix = fix.map(|fix| format!("; {fix}")).unwrap_or_default();
    let message = format!("{}: {}{fix}", refusal.code().as_str(), refusal.detail(record));
    let escape = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    let mut response = refused(refusal, record).map(|_| Bytes::new());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(status));
    // What is escaped is a field value.
    if let Ok(message) = HeaderValue::try_from(message.bytes().map(escape).collect::<String>()) {
        headers.insert("grpc-message", message);
    }
    response
}

/// Codes of gRPC's.
const PERMISSION_DENIED: &str = "7";
const UNAVAILABLE: &str = "14";

/// The same for a connection that is no HTTP to the HTTP library.
#[must_use]
pub fn raw(refusal: &Refusal, record: &Record) -> Vec<u8> {
    let (head, body) = content(refusal, record);
    let mut answer = format!("HTTP/1.1 {} {}\r\n", head.status.as_u16(), refusal.code().as_str()).into_bytes();
    for (name, value) in &head.headers {
        answer.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    answer.extend(format!("content-length: {}\r\n\r\n", body.len()).into_bytes());
    answer.extend(body);
    answer
}

/// The answer to a permitted CONNECT.
#[must_use]
pub fn established() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    response.extensions_mut().insert(ReasonPhrase::from_static(b"Connection Established"));
    response
}
