//! Heads of messages: the checks for ambiguity, and the form for the upstream.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::body::Body;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, RANGE,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    VIA,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Uri, Version};
use openshell_policy::network::host::Host;

use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::target::{Origin, Target, port};
use crate::wire::http::target::{RequestTarget, TargetError};

/// Checks that the length of a request's body is unambiguous. The HTTP library refuses or removes
/// other ambiguities.
///
/// # Errors
/// Fails for a transfer coding other than chunked, or for more than one.
pub fn check_framing(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    if codings.next().is_some_and(|coding| !is_chunked(coding)) || codings.next().is_some() {
        return Err(Refusal::bad_request(
            "a request may have only the transfer coding chunked, and only once",
        ));
    }
    Ok(())
}

/// Checks that a request inside a connection to `origin` is for `origin` (RFC 9112 §3.2).
///
/// # Errors
/// Fails if the request names another host, port or scheme, or no host.
pub fn check_authority(request: &Parts, Origin { scheme, target }: &Origin) -> Result<(), Refusal> {
    let mut named = request.headers.get_all(HOST).iter();
    let host = match (named.next(), named.next()) {
        (Some(host), None) => Some(host),
        (None, _) if request.version == Version::HTTP_10 => None,
        // `:authority` names the host (RFC 9113 §8.3.1).
        (None, _) if request.version == Version::HTTP_2 && request.uri.authority().is_some() => {
            None
        }
        (None, _) => return Err(Refusal::bad_request("the request has no Host")),
        (Some(_), Some(_)) => {
            return Err(Refusal::bad_request("the request has more than one Host"));
        }
    };
    if let Some(host) = host {
        let host = host
            .to_str()
            .map_err(|_| Refusal::bad_request("the Host of the request is not a valid host"))?;
        check_named(host, target)?;
    }
    if let Some(other) = request
        .uri
        .scheme_str()
        .filter(|written| !written.eq_ignore_ascii_case(scheme.as_str()))
    {
        return Err(Refusal::authority_mismatch(format!(
            "{other}: inside a connection for {}",
            scheme.as_str()
        )));
    }
    request
        .uri
        .authority()
        .map_or(Ok(()), |authority| check_named(authority.as_str(), target))
}

/// Checks that `written`, a host with or without a port, is `target`.
fn check_named(written: &str, target: &Target) -> Result<(), Refusal> {
    let bracketed = written.rfind(']').map_or(0, |end| end + 1);
    let colon = written
        .get(bracketed..)
        .and_then(|rest| rest.rfind(':'))
        .map(|at| at + bracketed);
    let (host, number) = match colon.and_then(|at| written.split_at_checked(at)) {
        Some((host, number)) => (host, Some(number.trim_start_matches(':'))),
        None => (written, None),
    };
    let is_host = Host::parse(host).as_ref() == Ok(&target.host);
    let is_port =
        number.is_none_or(|number| number.is_empty() || port(number) == Some(target.port));
    if is_host && is_port {
        Ok(())
    } else {
        Err(Refusal::authority_mismatch(loggable(written)))
    }
}

/// Returns an invalid host for logs: at most 255 characters, with `?` in place of each unusual one.
fn loggable(written: &str) -> String {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
    written
        .chars()
        .take(255)
        .map(|c| if is_usual(c) { c } else { '?' })
        .collect()
}

/// The length in bytes of the longest permitted method; a longer one would only fill the log.
const METHOD_BYTES: usize = 64;

/// Checks the method of a request inside a connection.
///
/// # Errors
/// Fails if the method is too long, or is CONNECT.
pub fn check_method(method: &Method) -> Result<(), Refusal> {
    if method.as_str().len() > METHOD_BYTES {
        Err(Refusal::bad_request(
            "the method of the request is too long",
        ))
    } else if *method == Method::CONNECT {
        Err(Refusal::bad_request(
            "CONNECT is not permitted inside a connection",
        ))
    } else {
        Ok(())
    }
}

/// Returns the size of a head in bytes as HTTP/2 counts it: for each field 32, besides its name and
/// value (RFC 9113 §10.5.1).
#[must_use]
pub fn bytes(uri: &Uri, headers: &HeaderMap) -> usize {
    let fields = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32);
    fields.sum::<usize>()
        + uri
            .path_and_query()
            .map_or(0, |target| target.as_str().len())
}

/// Checks the size of a head, because the library also reads larger ones.
///
/// # Errors
/// Fails if the head is too large, or has too many lines.
pub fn check_size(request: &Parts) -> Result<(), Refusal> {
    let is_large = bytes(&request.uri, &request.headers) > Limits::HEAD_BYTES;
    let has_many = request.headers.len() > Limits::HEAD_LINES;
    if is_large || has_many {
        Err(Refusal::head_too_large())
    } else {
        Ok(())
    }
}

/// Returns the protocol to which a request asks to switch (RFC 9110 §7.8). HTTP and TLS (RFC 2817)
/// are left out, because requests in them would be relayed unseen. Clients that offer them go on
/// without a switch.
#[must_use]
pub fn requested_upgrade(request: &Parts) -> Option<HeaderValue> {
    let headers = &request.headers;
    if !tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    let mut requested = headers.get_all(UPGRADE).iter();
    let (Some(protocol), None) = (requested.next(), requested.next()) else {
        return None;
    };
    let is_allowed = if is_websocket(protocol) {
        // A complete handshake (RFC 6455 §4.1), which only a WebSocket server accepts.
        let has_body =
            headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING);
        let is_only = |name, is_value: fn(&[u8]) -> bool| {
            let mut values = headers.get_all(name).iter();
            values
                .next()
                .is_some_and(|value| is_value(value.as_bytes()))
                && values.next().is_none()
        };
        let is_handshake = is_only(SEC_WEBSOCKET_KEY, is_websocket_key)
            && is_only(SEC_WEBSOCKET_VERSION, |version| version == b"13");
        request.method == Method::GET
            && request.version == Version::HTTP_11
            && is_handshake
            && !has_body
    } else {
        let protocol = protocol.to_str().ok()?.to_ascii_lowercase();
        let has_body =
            headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING);
        // A server that does not switch may leave the body of any other method unread, and take it
        // for the next request.
        let takes_body = [Method::POST, Method::PUT, Method::PATCH].contains(&request.method);
        (takes_body || !has_body)
            && !["h2c", "tls", "http/"]
                .iter()
                .any(|word| protocol.contains(word))
    };
    is_allowed.then(|| protocol.clone())
}

/// Returns true if `key` is 16 bytes in Base64 (RFC 6455 §4.1).
fn is_websocket_key(key: &[u8]) -> bool {
    BASE64_STANDARD
        .decode(key)
        .is_ok_and(|bytes| bytes.len() == 16)
}

/// Returns true if the protocol of an upgrade is WebSocket.
#[must_use]
pub fn is_websocket(protocol: &HeaderValue) -> bool {
    protocol
        .as_bytes()
        .trim_ascii()
        .eq_ignore_ascii_case(b"websocket")
}

/// Builds the request for `target` that the upstream gets: with `body`, framed anew, and without
/// hop-by-hop fields.
///
/// # Errors
/// Does not fail for a canonical target.
pub fn outgoing<B: Body>(
    request: &Parts,
    body: B,
    target: &RequestTarget,
    upgrade: Option<&HeaderValue>,
) -> Result<Request<B>, TargetError> {
    let request_version = request.version;
    let mut request = Request::from_parts(request.clone(), body);
    *request.uri_mut() = target.to_uri()?;
    *request.version_mut() = Version::HTTP_11;
    let has_unknown_length =
        request.body().size_hint().exact().is_none() && !request.body().is_end_stream();
    let headers = request.headers_mut();
    if request_version == Version::HTTP_2 {
        join_cookies(headers);
    }
    let takes_trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(headers);
    // The library frames the body, and does not wait for 100 Continue. An empty body keeps its
    // length, because some servers require it.
    if headers
        .get(CONTENT_LENGTH)
        .is_none_or(|length| length != "0")
    {
        headers.remove(CONTENT_LENGTH);
    }
    headers.remove(EXPECT);
    if has_unknown_length {
        // The library would leave this field out for methods that usually have no body.
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let mut options = Vec::new();
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        options.push("TE");
    }
    if let Some(protocol) = upgrade {
        headers.insert(UPGRADE, protocol.clone());
        options.push("Upgrade");
    }
    if let Ok(options) = HeaderValue::try_from(options.join(", "))
        && !options.is_empty()
    {
        headers.insert(CONNECTION, options);
    }
    Ok(request)
}

/// Converts `request`, which is for `origin`, from HTTP/1.1 to the form of HTTP/2 (RFC 9113
/// §8.3.1).
///
/// # Errors
/// Fails if the target has no form in HTTP/2.
pub fn to_http2<B>(mut request: Request<B>, origin: &Origin) -> Result<Request<B>, Refusal> {
    let headers = request.headers_mut();
    let host = headers.remove(HOST).or_else(|| host_value(origin));
    remove_connection(headers);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = origin.scheme.as_str().parse().ok();
    parts.authority = host.and_then(|host| host.to_str().ok()?.parse().ok());
    // The library has no form for `*`.
    let uri = Uri::from_parts(parts)
        .map_err(|_| Refusal::bad_request("the target cannot be written in HTTP/2"))?;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}

/// Adds the Host field to an HTTP/1.0 request without one.
pub fn ensure_host(headers: &mut HeaderMap, origin: &Origin) {
    if !headers.contains_key(HOST)
        && let Some(host) = host_value(origin)
    {
        headers.insert(HOST, host);
    }
}

/// Returns the value of the `Host` field for `origin`; every host and port has one.
#[must_use]
pub fn host_value(Origin { scheme, target }: &Origin) -> Option<HeaderValue> {
    let host = if target.port == scheme.default_port() {
        target.without_port()
    } else {
        target.to_string()
    };
    HeaderValue::from_str(&host).ok()
}

/// Adds the fields of a forwarded request: `Via`, and the `Host` of its target (RFC 9112 §3.2.2).
pub fn mark_forwarded(headers: &mut HeaderMap, origin: &Origin) {
    if let Some(host) = host_value(origin) {
        headers.insert(HOST, host);
    }
    headers
        .entry(VIA)
        .or_insert(HeaderValue::from_static("1.1 openshell-sandbox"));
}

/// Returns true if `headers` say that the connection closes after this message.
#[must_use]
pub fn closes(version: Version, headers: &HeaderMap) -> bool {
    let says =
        |option: &str| tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(option));
    says("close") || (version == Version::HTTP_10 && !says("keep-alive"))
}

/// Removes hop-by-hop fields (RFC 9110 §7.6.1), and fields that address a proxy.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    const HOP_BY_HOP: [&str; 8] = [
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-authentication-info",
        "te",
        "upgrade",
        "http2-settings",
    ];
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|name| name.parse().ok())
        // The host and the length of the message are not hop-by-hop, even if they are named.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    remove_connection(headers);
}

/// Removes the digests of a body (RFC 9530, RFC 9110 §8.8.3) that was changed.
pub fn remove_digests(headers: &mut HeaderMap) {
    for name in [
        "content-md5",
        "digest",
        "content-digest",
        "repr-digest",
        "etag",
    ] {
        headers.remove(name);
    }
}

/// Returns true if `Connection` names the field, so that it is not passed on (RFC 9110 §7.6.1).
#[must_use]
pub fn is_hop_by_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(name.as_str()))
}

/// Removes fields that must not be trailers (RFC 9110 §6.5.1): framing, routing, authentication and
/// content. A server that merges trailers into the headers would otherwise read a request that was
/// not judged.
pub fn remove_forbidden_trailers(trailers: &mut HeaderMap) {
    const HEADERS_ALONE: [HeaderName; 13] = [
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        COOKIE,
        EXPECT,
        HOST,
        MAX_FORWARDS,
        RANGE,
        SET_COOKIE,
        TRAILER,
    ];
    for name in HEADERS_ALONE {
        trailers.remove(name);
    }
    remove_hop_by_hop(trailers);
}

/// Removes the framing and connection fields of HTTP/1.1, which HTTP/2 forbids (RFC 9113 §8.2.2).
pub fn remove_connection(headers: &mut HeaderMap) {
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
}

/// Returns true if a request is a gRPC call in the form that its clients send (gRPC over HTTP/2,
/// Requests).
#[must_use]
pub fn is_grpc_call(request: &Parts) -> bool {
    let takes_trailers =
        tokens(&request.headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    request.method == Method::POST && takes_trailers && is_grpc(&request.headers)
}

/// Returns true if a message is gRPC, which needs HTTP/2.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let content = headers
        .get(CONTENT_TYPE)
        .and_then(|content| content.to_str().ok())
        .unwrap_or_default();
    // gRPC-Web is another protocol, made for HTTP/1.1.
    let after = content
        .get(..GRPC.len())
        .filter(|kind| kind.eq_ignore_ascii_case(GRPC))
        .map(|_| &content[GRPC.len()..]);
    after.is_some_and(|after| matches!(after.bytes().next(), None | Some(b'+' | b';' | b' ')))
}

const GRPC: &str = "application/grpc";

/// Joins the parts of a cookie, which HTTP/2 may split (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_some() {
        let parts: Vec<_> = headers
            .get_all(COOKIE)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        // Field values that are joined by a semicolon and a space are again a field value.
        if let Ok(joined) = HeaderValue::from_bytes(&parts.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}

fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use openshell_policy::network::host::Host;

    use super::check_named;
    use crate::ground::target::Target;

    #[test]
    fn a_host_agrees_with_the_connection_or_not() {
        let target = |host: &str, port| Target {
            host: Host::parse(host).unwrap(),
            port,
        };
        for written in ["web.test", "WEB.test:8443", "web.test.", "web.test:"] {
            assert!(
                check_named(written, &target("web.test", 8443)).is_ok(),
                "{written}"
            );
        }
        for written in [
            "web.test:443",
            "other.test",
            "web.test:8443:1",
            "web.test@x",
            "",
            "10.99.0.1",
            "[::1]",
        ] {
            assert!(
                check_named(written, &target("web.test", 8443)).is_err(),
                "{written}"
            );
        }
        for written in ["[2001:db8::1]", "[2001:DB8:0::1]:8443"] {
            assert!(
                check_named(written, &target("2001:db8::1", 8443)).is_ok(),
                "{written}"
            );
        }
    }
}
