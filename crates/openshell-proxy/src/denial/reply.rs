//! Turns refusals into responses: JSON over HTTP, a gRPC status, or the bytes of an HTTP/1.1
//! response.

use bytes::Bytes;
use hyper::ext::ReasonPhrase;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Response, StatusCode};
use openshell_events::reason::Connection;
use serde::Serialize;

use crate::denial::answer::RpcAnswer;
use crate::denial::guidance::{Guidance, SENTENCE, Step};
use crate::denial::judged::{JudgedRequest, RequestFault};
use crate::denial::refusal::{Facts, Refusal, Subject};

/// The body of a refusal; unknown facts are left out.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_steps: Option<Vec<Step>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_guidance: Option<&'static str>,
}

/// Builds the response to a refused request.
#[must_use]
pub fn refused(refusal: &Refusal, subject: &Subject, guidance: &Guidance) -> Response<Bytes> {
    let (head, body) = content(refusal, subject, guidance);
    Response::from_parts(head, body)
}

/// The body of a refusal for clients of models.
#[derive(Serialize)]
struct ModelContent {
    error: String,
    reason_code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

fn content(refusal: &Refusal, subject: &Subject, guidance: &Guidance) -> (Parts, Bytes) {
    let code = refusal.code();
    let detail = refusal.detail(subject);
    let target = subject.target.as_ref();
    let steps = guidance.steps(refusal);
    let content = match refusal.facts() {
        Facts::Model(hint) => serde_json::to_vec(&ModelContent {
            error: detail,
            reason_code: code.as_str(),
            hint: *hint,
        }),
        Facts::None
        | Facts::Nearest(_)
        | Facts::Policy(_)
        | Facts::Addresses(..)
        | Facts::Request(_)
        | Facts::Authority(_)
        | Facts::NoCredential(_)
        | Facts::CredentialHost(_)
        | Facts::CredentialPath(_)
        | Facts::Leak(_)
        | Facts::Placeholder
        | Facts::Program(..) => serde_json::to_vec(&Content {
            policy: ruled(refusal).and_then(|request| request.policy.as_deref()),
            rule: ruled(refusal).map(rule),
            method: ruled(refusal).map(|request| request.method.as_str()),
            path: ruled(refusal).map(|request| request.path.as_str()),
            error: code.error(),
            detail,
            reason_code: code.as_str(),
            layer: code.stage().as_str(),
            host: target.map(|target| target.host.to_string()),
            port: target.map(|target| target.port),
            binary: subject
                .caller
                .as_ref()
                .map(|caller| caller.program.executable.as_str()),
            nearest_rule: refusal.nearest_rule(),
            fix: target.and_then(|target| refusal.fix(target, subject.caller.as_ref())),
            hint: target.and_then(|target| refusal.no_fix(target)),
            asked: refusal.asked,
            agent_guidance: steps.as_ref().map(|_| SENTENCE),
            next_steps: steps,
        }),
    };
    // Strings and numbers always have a JSON form.
    message(refusal, content.unwrap_or_default())
}

/// Returns the word for what was refused of `request` in its rules.
fn rule(request: &JudgedRequest) -> String {
    match &request.message {
        None => format!("{} {}", request.method, request.path),
        Some(message) => {
            let about = message.about.as_ref().map(|(_, value)| value.as_str());
            let words = [message.method.as_deref(), about];
            words.into_iter().flatten().collect::<Vec<_>>().join(" ")
        }
    }
}

/// Returns the request that the rules denied.
fn ruled(refusal: &Refusal) -> Option<&JudgedRequest> {
    refusal
        .judged_request()
        .filter(|request| match request.fault {
            RequestFault::NoRule(_)
            | RequestFault::DenyRule
            | RequestFault::Version { .. }
            | RequestFault::Ambiguous(_) => true,
            RequestFault::EncodedSlash | RequestFault::Upgrade(_) => false,
        })
}

fn message(refusal: &Refusal, mut content: Vec<u8>) -> (Parts, Bytes) {
    let mut media_type = "application/json";
    let answer = refusal.answer();
    if let Some(answer) = answer
        && let Ok(data) = std::str::from_utf8(&content)
        && let sentence = format!("{} ({})", refusal.reason(), refusal.code().as_str())
        && let Some((body, of_body)) = answer.body(&sentence, data)
    {
        content = body;
        media_type = of_body;
    }
    // A terminal that shows the body then shows its prompt on a new line.
    content.push(b'\n');
    let mut response = Response::new(Bytes::from(content));
    *response.status_mut() = status(refusal);
    // Clients that hide the body show the status line.
    response.extensions_mut().insert(ReasonPhrase::from_static(
        refusal.code().as_str().as_bytes(),
    ));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    if answer.is_some_and(RpcAnswer::is_about_method) {
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
    }
    // The key of a policy is always valid in a field value.
    let policy = ruled(refusal).and_then(|request| request.policy.as_deref());
    if let Some(Ok(policy)) = policy.map(HeaderValue::from_str) {
        response.headers_mut().insert("X-OpenShell-Policy", policy);
    }
    match refusal.code().connection() {
        // The request was read to its end.
        Connection::Ends if answer.is_none() => {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Connection::Ends | Connection::Stays => {}
    }
    response.into_parts()
}

fn status(refusal: &Refusal) -> StatusCode {
    StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Builds the response to a refused gRPC call: a single head without a body (gRPC over HTTP/2,
/// Trailers-Only), because clients show only the status of any other response.
#[must_use]
pub fn refused_call(refusal: &Refusal, subject: &Subject) -> Response<Bytes> {
    let status = match status(refusal) {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        _ => PERMISSION_DENIED,
    };
    let fix = subject
        .target
        .as_ref()
        .and_then(|target| refusal.fix(target, subject.caller.as_ref()));
    let fix = fix.map(|fix| format!("; {fix}")).unwrap_or_default();
    let message = format!(
        "{}: {}{fix}",
        refusal.code().as_str(),
        refusal.detail(subject)
    );
    let escape = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    let guidance = Guidance::default();
    let mut response = refused(refusal, subject, &guidance).map(|_| Bytes::new());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(status));
    // Escaped text is always valid in a field value.
    if let Ok(message) = HeaderValue::try_from(message.bytes().map(escape).collect::<String>()) {
        headers.insert("grpc-message", message);
    }
    response
}

/// The status codes of gRPC that refusals use.
const PERMISSION_DENIED: &str = "7";
const UNAVAILABLE: &str = "14";

/// Serializes the response to a refusal, for connections that the HTTP library does not serve.
#[must_use]
pub fn raw(refusal: &Refusal, subject: &Subject, guidance: &Guidance) -> Vec<u8> {
    let (head, body) = content(refusal, subject, guidance);
    let mut answer = format!(
        "HTTP/1.1 {} {}\r\n",
        head.status.as_u16(),
        refusal.code().as_str()
    )
    .into_bytes();
    for (name, value) in &head.headers {
        answer.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    answer.extend(format!("content-length: {}\r\n\r\n", body.len()).into_bytes());
    answer.extend(body);
    answer
}
