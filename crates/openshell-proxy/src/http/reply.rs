//! A refusal as an HTTP answer.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use serde::Serialize;

use crate::record::Record;
use crate::refusal::Refusal;

/// The body of an answer: the proxy's own, or the upstream's as it comes.
pub type Body = Either<Full<Bytes>, Incoming>;

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
    nearest_rule: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// The answer to a refused request; the connection ends with it.
#[must_use]
pub fn refused(refusal: &Refusal, record: &Record) -> Response<Body> {
    let content = Content {
        error: refusal.error(),
        detail: refusal.detail(record.request(), record.target()),
        reason_code: refusal.code().as_str(),
        layer: refusal.code().stage().as_str(),
        host: record.target().map(|target| target.host.to_string()),
        port: record.target().map(|target| target.port),
        binary: record.caller().map(|caller| caller.program.executable.as_str()),
        nearest_rule: refusal.nearest_rule(),
        fix: record.target().and_then(|target| refusal.fix(target, record.caller())),
    };
    // Texts and numbers always have a JSON form.
    let body = serde_json::to_vec(&content).unwrap_or_default();
    let mut response = Response::new(Either::Left(Full::from(body)));
    *response.status_mut() = refusal.status();
    // Clients that show nothing of the body show the status line.
    response.extensions_mut().insert(ReasonPhrase::from_static(refusal.code().as_str().as_bytes()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The answer to a permitted CONNECT.
#[must_use]
pub fn established() -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::default()));
    response.extensions_mut().insert(ReasonPhrase::from_static(b"Connection Established"));
    response
}
