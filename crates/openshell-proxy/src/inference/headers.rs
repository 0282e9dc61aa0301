//! Selects the header fields that pass between clients and backends; all others are removed.

use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, DATE,
    HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use openshell_policy::inference::Provider;

use crate::inference::route::Route;

/// Returns true for a field of a request that may pass. The operator, not the client, chooses keys,
/// cookies, organisations and projects.
fn is_for_backend(name: &HeaderName) -> bool {
    const NAMES: [&str; 5] = [
        "anthropic-version",
        "anthropic-beta",
        "openai-beta",
        "idempotency-key",
        "x-request-id",
    ];
    [ACCEPT, ACCEPT_LANGUAGE, USER_AGENT].contains(name)
        || NAMES.contains(&name.as_str())
        || name.as_str().starts_with("x-stainless-")
}

/// Returns true for a field of a response that may pass. The operator's account at the backend
/// stays hidden.
fn is_for_client(name: &HeaderName) -> bool {
    const NAMES: [&str; 7] = [
        "request-id",
        "x-request-id",
        "retry-after-ms",
        "x-should-retry",
        "openai-processing-ms",
        "openai-version",
        "x-openshell-mock",
    ];
    const PREFIXES: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];
    [CONTENT_TYPE, CONTENT_ENCODING, DATE, RETRY_AFTER].contains(name)
        || NAMES.contains(&name.as_str())
        || PREFIXES
            .iter()
            .any(|prefix| name.as_str().starts_with(prefix))
}

/// Builds the headers of a request to the backend of `route`, at `host`, from those of the client's
/// request, `head`.
#[must_use]
pub fn for_backend(head: &HeaderMap, route: &Route, host: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, host);
    for (name, value) in head.iter().filter(|(name, _)| is_for_backend(name)) {
        headers.append(name, value.clone());
    }
    // The backend must read the body in the format in which it was checked.
    if head.contains_key(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    // Usage cannot be read from a compressed response.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let name = match route.provider {
        Provider::Bearer => AUTHORIZATION,
        Provider::Anthropic => {
            let version = HeaderName::from_static("anthropic-version");
            headers
                .entry(version)
                .or_insert(HeaderValue::from_static("2023-06-01"));
            HeaderName::from_static("x-api-key")
        }
    };
    if let Some(key) = route.key() {
        headers.insert(name, key.clone());
    }
    headers
}

/// Removes the fields of a response that may not pass.
pub fn retain_for_client(headers: &mut HeaderMap) {
    let names: Vec<_> = headers
        .keys()
        .filter(|name| !is_for_client(name))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}
