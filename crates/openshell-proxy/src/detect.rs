//! What a connection speaks, by its first bytes; never by guess.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout};

use crate::limits::Limits;

/// What the first bytes of a client say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The beginning of a TLS handshake (RFC 8446 §5.1).
    Tls,
    /// A request line (RFC 9112 §3), of whatever version.
    Http1,
    /// The preface of HTTP/2 (RFC 9113 §3.4).
    Http2,
    /// Anything else, or a server that speaks first.
    Other,
}

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What `bytes`, the first ones, say; `None` while more could change that. What is said once is said for all that begins so.
#[must_use]
pub fn protocol(bytes: &[u8]) -> Option<Protocol> {
    match bytes {
        [] | [0x16] | [0x16, 3] => return None,
        [0x16, 3, 0..=4, ..] => return Some(Protocol::Tls),
        [0x16, ..] => return Some(Protocol::Other),
        _ => {}
    }
    if bytes.starts_with(HTTP2_PREFACE) {
        return Some(Protocol::Http2);
    }
    if HTTP2_PREFACE.starts_with(bytes) {
        return None;
    }
    // Servers skip empty lines before a request (RFC 9112 §2.2).
    let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let line = bytes.get(blank..).unwrap_or_default();
    // A line without end that began as a request's is refused as one that is too long.
    let as_it_began = if line.contains(&b' ') { Protocol::Http1 } else { Protocol::Other };
    request_line(line).or_else(|| (bytes.len() >= Limits::INSPECTED_HEAD_BYTES).then_some(as_it_began))
}

/// Whether `bytes`, of which [`protocol`] is not certain, are the beginning of what clients usually say. Where no rule depends on
/// it nobody should wait for the rest of a word that is no method.
fn is_usual(bytes: &[u8]) -> bool {
    const METHODS: &[&[u8]] = &[
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"PATCH ",
        b"OPTIONS ",
        b"TRACE ",
        b"CONNECT ",
        b"PROPFIND ",
        b"PROPPATCH ",
        b"MKCOL ",
        b"COPY ",
        b"MOVE ",
        b"LOCK ",
        b"UNLOCK ",
        b"REPORT ",
        b"SEARCH ",
        b"QUERY ",
    ];
    let begins = |method: &&[u8]| bytes.starts_with(method) || method.starts_with(bytes);
    matches!(bytes, [0x16, ..] | [b'\r' | b'\n', ..]) || HTTP2_PREFACE.starts_with(bytes) || METHODS.iter().any(begins)
}

/// Whether `bytes` begin with a method, a target and a version, each behind one space.
fn request_line(bytes: &[u8]) -> Option<Protocol> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let behind = |bytes: &'_ [u8], accepted: &dyn Fn(&u8) -> bool| {
        let count = bytes.iter().take_while(|byte| accepted(byte)).count();
        match bytes.get(count) {
            None => None,
            Some(b' ') if count > 0 => Some(Ok(count + 1)),
            Some(_) => Some(Err(())),
        }
    };
    let mut rest = bytes;
    for accepted in [&is_token as &dyn Fn(&u8) -> bool, &|byte: &u8| *byte > b' ' && *byte != 0x7f] {
        match behind(rest, accepted)? {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(()) => return Some(Protocol::Other),
        }
    }
    const VERSION: &[u8] = b"HTTP/";
    match rest.strip_prefix(VERSION) {
        Some(version) => {
            let count = version.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
            match version.get(count..).unwrap_or_default() {
                _ if count > 8 => Some(Protocol::Other),
                [] | [b'\r'] => None,
                [b'\n', ..] | [b'\r', b'\n', ..] => Some(Protocol::Http1),
                _ => Some(Protocol::Other),
            }
        }
        None if VERSION.starts_with(rest) => None,
        None => Some(Protocol::Other),
    }
}

/// The head of the frame that a server of HTTP/2 begins with: SETTINGS of whole entries, no flags, stream 0 (RFC 9113 §3.4, §6.5).
const SETTINGS_HEAD: usize = 9;

/// What `bytes`, the first ones of a server that spoke before its client, say; `None` while more could change that.
#[must_use]
fn server_protocol(bytes: &[u8]) -> Option<Protocol> {
    const STATUS_LINE: &[u8] = b"HTTP/";
    if bytes.starts_with(STATUS_LINE) {
        return Some(Protocol::Http1);
    }
    let head = bytes.get(..bytes.len().min(SETTINGS_HEAD)).unwrap_or_default();
    let is_settings = head.iter().enumerate().all(|(at, byte)| match at {
        1 | 2 => true,
        3 => *byte == 4,
        _ => *byte == 0,
    });
    match head {
        [_, high, low, _, ..] if is_settings && u16::from_be_bytes([*high, *low]) % 6 != 0 => Some(Protocol::Other),
        _ if is_settings => (head.len() == SETTINGS_HEAD).then_some(Protocol::Http2),
        _ if STATUS_LINE.starts_with(bytes) => None,
        _ => Some(Protocol::Other),
    }
}

/// What was read on the way to knowing.
#[derive(Debug)]
pub struct Detected {
    /// What the client speaks.
    pub protocol: Protocol,
    /// What it has sent.
    pub from_client: Bytes,
    /// What the upstream has sent, if it spoke first.
    pub from_upstream: Bytes,
}

/// Reads from `client`, of which `surplus` was read before, until it is certain what it speaks. Where `may_be_opaque`, an
/// `upstream` that speaks first settles it, as HTTP if it begins as a server of HTTP does, and so does a client that leaves it open.
///
/// # Errors
/// Either failed; or the client said nothing, where that will not do.
pub async fn detect(
    client: &mut (impl AsyncRead + Unpin),
    surplus: Bytes,
    upstream: &mut (impl AsyncRead + Unpin),
    may_be_opaque: bool,
) -> io::Result<Detected> {
    let mut from_client = BytesMut::from(surplus);
    let mut from_upstream = BytesMut::new();
    let detected = |protocol, from_client: BytesMut, from_upstream: BytesMut| {
        Ok(Detected { protocol, from_client: from_client.freeze(), from_upstream: from_upstream.freeze() })
    };
    let mut deadline = None;
    loop {
        if let Some(protocol) = protocol(&from_client) {
            return detected(protocol, from_client, from_upstream);
        }
        if may_be_opaque && !is_usual(&from_client) {
            return detected(Protocol::Other, from_client, from_upstream);
        }
        let patience = match (from_client.is_empty() && from_upstream.is_empty(), may_be_opaque) {
            (true, _) => Limits::IDLE,
            (false, true) => Limits::DETECT_TIMEOUT,
            (false, false) => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + Limits::HEAD_DEADLINE);
                deadline.saturating_duration_since(Instant::now())
            }
        };
        // What is still silent takes no more than it must.
        from_client.reserve(1024);
        let more = tokio::select! {
            // What the client has said already counts before what the upstream says.
            biased;
            more = within(patience, client.read_buf(&mut from_client)) => more,
            spoken = upstream.read_buf(&mut from_upstream), if may_be_opaque => {
                // Its end is an answer too.
                let is_over = spoken? == 0;
                match server_protocol(&from_upstream) {
                    None if !is_over => continue,
                    settled => return detected(settled.unwrap_or(Protocol::Other), from_client, from_upstream),
                }
            }
        };
        match more? {
            Some(1..) => {}
            // Whoever says nothing asks for nothing.
            Some(0) | None if from_client.is_empty() && !may_be_opaque => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Some(0) | None => return detected(Protocol::Other, from_client, from_upstream),
        }
    }
}

/// `None` where it takes longer than `patience`.
async fn within(patience: Duration, read: impl Future<Output = io::Result<usize>>) -> io::Result<Option<usize>> {
    match timeout(patience, read).await {
        Ok(read) => read.map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::{Protocol, protocol, server_protocol};

    #[track_caller]
    fn check(sample: &[u8], certain_at: usize, expected: Protocol) {
        for end in 0..=sample.len() {
            let found = protocol(&sample[..end]);
            let wanted = (end >= certain_at).then_some(expected);
            assert_eq!(found, wanted, "{:?}", sample[..end].escape_ascii().to_string());
        }
    }

    // Conformance: TLS-08.
    #[test]
    fn every_prefix_of_every_sample_is_either_certain_or_open() {
        use Protocol::{Http1, Http2, Other, Tls};
        for minor in 0..=4 {
            check(&[0x16, 3, minor, 0, 5, 1, 0, 0, 1, 3], 3, Tls);
        }
        check(&[0x16, 3, 5, 0], 3, Other);
        check(&[0x16, 2, 1], 2, Other);
        check(b"\x00\x01PING", 1, Other);
        check(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 17, Http1);
        check(b"GET /a HTTP/1.1\nHost: x\n\n", 16, Http1);
        check(b"\r\n\r\nGET /a HTTP/1.1\r\n", 21, Http1);
        check(b"get /a HTTP/2.0\r\n", 17, Http1);
        check(b"X-ODD! * HTTP/1.0\r\n", 19, Http1);
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", 24, Http2);
        check(b"PRI * HTTP/2.0\r\nHost: x", 17, Http1);
        check(b"NICK somebody\r\n", 14, Other);
        check(b"USER a b c\r\n", 8, Other);
        check(b"EHLO a.test\r\n", 12, Other);
        check(b"GET /\r\n", 6, Other);
        check(b"GET  / HTTP/1.1\r\n", 5, Other);
        check(b"GET / HTTPS/1.1\r\n", 11, Other);
        check(b"SSH-2.0-x\r\n", 10, Other);
        check(b"{\"json\": 1}", 1, Other);
        check(b" GET / HTTP/1.1\r\n", 1, Other);
    }

    #[track_caller]
    fn check_server(sample: &[u8], certain_at: usize, expected: Protocol) {
        for end in 1..=sample.len() {
            let wanted = (end >= certain_at).then_some(expected);
            assert_eq!(server_protocol(&sample[..end]), wanted, "{:?}", sample[..end].escape_ascii().to_string());
        }
    }

    #[test]
    fn a_server_that_speaks_first_begins_http_by_settings_or_a_status_line_and_nothing_else_does() {
        use Protocol::{Http1, Http2, Other};
        check_server(b"\0\0\0\x04\0\0\0\0\0", 9, Http2);
        check_server(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80", 9, Http2);
        check_server(b"\0\0\x05\x04\0\0\0\0\0", 4, Other);
        check_server(b"\0\0\x06\x04\x01\0\0\0\0", 5, Other);
        check_server(b"\0\0\x06\x04\0\0\0\0\x01", 9, Other);
        check_server(b"\0\0\x08\x07\0\0\0\0\0", 4, Other);
        check_server(b"HTTP/1.1 408 Request Timeout\r\n", 5, Http1);
        check_server(b"HELO", 2, Other);
        check_server(b"220 mail.test ESMTP\r\n", 1, Other);
        check_server(b"SSH-2.0-x\r\n", 1, Other);
        check_server(b"\x4a\0\0\0\x0a8.0.36", 1, Other);
    }

    #[test]
    fn a_line_without_end_is_something_else_in_the_end() {
        assert_eq!(protocol(&[b'A'; 1000]), None);
        assert_eq!(protocol(&[b'A'; 16 * 1024]), Some(Protocol::Other));
        assert_eq!(protocol(&[b"GET /".as_slice(), &[b'a'; 16 * 1024]].concat()), Some(Protocol::Http1));
    }
}
