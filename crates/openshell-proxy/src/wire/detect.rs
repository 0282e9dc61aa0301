//! Detection of a connection's protocol by its first bytes, never by its port.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout};

use crate::ground::limits::Limits;

/// The protocol to which a client's first bytes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The beginning of a TLS handshake (RFC 8446 §5.1).
    Tls,
    /// A request line (RFC 9112 §3), of any version.
    Http1,
    /// The preface of HTTP/2 (RFC 9113 §3.4).
    Http2,
    /// Bytes that begin like HTTP or TLS and are neither. Some server might still take them for a
    /// request.
    Malformed,
    /// Anything else: bytes that no server of HTTP or TLS understands, or a server that speaks
    /// first.
    Other,
}

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Detects the protocol of a client by its first `bytes`; `None` as long as more bytes could change
/// the result. A result holds for every continuation of `bytes`.
#[must_use]
pub fn protocol(bytes: &[u8]) -> Option<Protocol> {
    match bytes {
        [] | [0x16] => return None,
        // Any version, because a server may take it for the one that it speaks.
        [0x16, 3, ..] => return Some(Protocol::Tls),
        [0x16, ..] => return Some(Protocol::Other),
        // No handshake begins with another record (RFC 8446 §5.1), but servers skip some empty
        // ones.
        [0x14..=0x18, 3, ..] => return Some(Protocol::Malformed),
        [0x14..=0x18] => return None,
        // The older form of a ClientHello (RFC 5246 §E.2), which servers may still accept.
        [0x80..=0xff, _, 1, 0 | 3, ..] => return Some(Protocol::Malformed),
        [0x80..=0xff] | [0x80..=0xff, _] | [0x80..=0xff, _, 1] => return None,
        _ => {}
    }
    if bytes.starts_with(HTTP2_PREFACE) {
        return Some(Protocol::Http2);
    }
    if HTTP2_PREFACE.starts_with(bytes) {
        return None;
    }
    let found = request(bytes);
    // As HTTP/1.1, a line without end is refused as too long.
    found.or_else(|| (bytes.len() >= Limits::DETECTED_BYTES).then_some(Protocol::Http1))
}

/// Splits off what servers skip before a request: empty lines (RFC 9112 §2.2) and, by some servers,
/// blanks.
fn skipped(bytes: &[u8]) -> (&[u8], &[u8]) {
    bytes.split_at(
        bytes
            .iter()
            .take_while(|byte| is_blank(**byte) || matches!(byte, b'\r' | b'\n'))
            .count(),
    )
}

/// Returns true if `bytes`, after what servers skip, begin with a token and a blank.
fn begins_request(bytes: &[u8]) -> bool {
    let (_, line) = skipped(bytes);
    let token = line.iter().take_while(|byte| is_token(byte)).count();
    token > 0 && line.get(token).is_some_and(|next| is_blank(*next))
}

/// Detects a request: it begins with a token and a blank, or with what a lenient server takes for
/// them.
fn request(bytes: &[u8]) -> Option<Protocol> {
    let (before, line) = skipped(bytes);
    let token = line.iter().take_while(|byte| is_token(byte)).count();
    let is_request = match line.get(token..).unwrap_or_default() {
        [] | [b'\r'] => return None,
        [b'\r', b'\n', ..] => false,
        [next, ..] => token > 0 && (is_blank(*next) || *next == b'\r'),
    };
    if !is_request {
        Some(Protocol::Other)
    } else if before.iter().any(|byte| is_blank(*byte)) {
        Some(Protocol::Malformed)
    } else {
        request_line(line)
    }
}

/// Returns true for a byte that some server accepts between the parts of a request line: white
/// space of ASCII and Latin-1.
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// Detects a method, a target and a version with one space between them.
fn request_line(bytes: &[u8]) -> Option<Protocol> {
    let field_end = |bytes: &'_ [u8], accepted: &dyn Fn(&u8) -> bool| {
        let count = bytes.iter().take_while(|byte| accepted(byte)).count();
        match bytes.get(count) {
            None => None,
            Some(b' ') if count > 0 => Some(Ok(count + 1)),
            Some(_) => Some(Err(())),
        }
    };
    let mut rest = bytes;
    for accepted in [&is_token as &dyn Fn(&u8) -> bool, &|byte: &u8| {
        *byte > b' ' && *byte != 0x7f
    }] {
        match field_end(rest, accepted)? {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(()) => return Some(Protocol::Malformed),
        }
    }
    const VERSION: &[u8] = b"HTTP/";
    match rest.strip_prefix(VERSION) {
        Some(version) => {
            let count = version
                .iter()
                .take_while(|byte| byte.is_ascii_digit() || **byte == b'.')
                .count();
            match version.get(count..).unwrap_or_default() {
                _ if count > 8 => Some(Protocol::Malformed),
                [] | [b'\r'] => None,
                [b'\n', ..] | [b'\r', b'\n', ..] => Some(Protocol::Http1),
                _ => Some(Protocol::Malformed),
            }
        }
        None if VERSION.starts_with(rest) => None,
        None => Some(Protocol::Malformed),
    }
}

/// The length of a frame head in bytes. An HTTP/2 server begins with SETTINGS: whole entries, no
/// flags, stream 0 (RFC 9113 §3.4, §6.5).
const SETTINGS_HEAD: usize = 9;

/// Detects the protocol of a server that speaks before its client, by its first `bytes`; `None` as
/// long as more bytes could change the result.
#[must_use]
fn server_protocol(bytes: &[u8]) -> Option<Protocol> {
    const STATUS_LINE: &[u8] = b"HTTP/";
    if bytes.starts_with(STATUS_LINE) {
        return Some(Protocol::Http1);
    }
    let head = bytes
        .get(..bytes.len().min(SETTINGS_HEAD))
        .unwrap_or_default();
    let is_settings = head.iter().enumerate().all(|(at, byte)| match at {
        1 | 2 => true,
        3 => *byte == 4,
        _ => *byte == 0,
    });
    match head {
        [_, high, low, _, ..] if is_settings && u16::from_be_bytes([*high, *low]) % 6 != 0 => {
            Some(Protocol::Other)
        }
        _ if is_settings => (head.len() == SETTINGS_HEAD).then_some(Protocol::Http2),
        _ if STATUS_LINE.starts_with(bytes) => None,
        _ => Some(Protocol::Other),
    }
}

/// A detected protocol, and the bytes that were read to detect it.
#[derive(Debug)]
pub struct Detected {
    /// The protocol of the client.
    pub protocol: Protocol,
    /// The bytes from the client.
    pub from_client: Bytes,
    /// The bytes from the upstream, if it spoke first.
    pub from_upstream: Bytes,
}

/// Reads from `client`, after the `surplus` that was read before, until its protocol is settled. If
/// the connection `may_be_opaque`, an `upstream` that speaks before its client also settles it (as
/// HTTP if it begins like an HTTP server). Nothing else does: the proxy waits for a client that
/// pauses in its first bytes, and in the end calls the protocol [`Protocol::Malformed`].
///
/// # Errors
/// Fails if a read fails, or if the client sends nothing on a connection that must not be opaque.
pub async fn detect(
    client: &mut (impl AsyncRead + Unpin),
    surplus: Bytes,
    upstream: &mut (impl AsyncRead + Unpin),
    may_be_opaque: bool,
) -> io::Result<Detected> {
    let mut from_client = BytesMut::from(surplus);
    let mut from_upstream = BytesMut::new();
    let detected = |protocol, from_client: BytesMut, from_upstream: BytesMut| {
        Ok(Detected {
            protocol,
            from_client: from_client.freeze(),
            from_upstream: from_upstream.freeze(),
        })
    };
    let mut deadline = None;
    loop {
        if let Some(protocol) = protocol(&from_client) {
            return detected(protocol, from_client, from_upstream);
        }
        let is_silent = from_client.is_empty();
        let patience = if is_silent && from_upstream.is_empty() {
            Limits::IDLE
        } else {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + Limits::HEAD_DEADLINE);
            deadline.saturating_duration_since(Instant::now())
        };
        // A silent connection holds no buffer larger than this.
        from_client.reserve(1024);
        let more = tokio::select! {
            // The client's bytes take precedence over those of the upstream.
            biased;
            more = within(patience, client.read_buf(&mut from_client)) => more,
            read = upstream.read_buf(&mut from_upstream), if may_be_opaque && is_silent => {
                // The upstream's end also settles the protocol.
                let is_over = read? == 0;
                match server_protocol(&from_upstream) {
                    None if !is_over => continue,
                    settled => return detected(settled.unwrap_or(Protocol::Other), from_client, from_upstream),
                }
            }
        };
        match more? {
            Some(1..) => {}
            // A silent client has made no request.
            Some(0) | None if is_silent && !may_be_opaque => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // After the client's end, its bytes can no longer begin a protocol. If it stays silent,
            // there is nothing to wait for.
            Some(0) if !begins_request(&from_client) => {
                return detected(Protocol::Other, from_client, from_upstream);
            }
            None if is_silent => return detected(Protocol::Other, from_client, from_upstream),
            // Some server may take a line without an end for a request (HTTP/0.9).
            Some(0) | None => return detected(Protocol::Malformed, from_client, from_upstream),
        }
    }
}

/// Reads within `patience`; returns `None` if that takes longer.
async fn within(
    patience: Duration,
    read: impl Future<Output = io::Result<usize>>,
) -> io::Result<Option<usize>> {
    match timeout(patience, read).await {
        Ok(read) => read.map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::AsyncWriteExt as _;

    use super::{Protocol, detect, protocol, server_protocol};
    use crate::ground::limits::Limits;

    #[track_caller]
    fn check(sample: &[u8], certain_at: usize, expected: Protocol) {
        for end in 0..=sample.len() {
            let found = protocol(&sample[..end]);
            let wanted = (end >= certain_at).then_some(expected);
            assert_eq!(
                found,
                wanted,
                "{:?}",
                sample[..end].escape_ascii().to_string()
            );
        }
    }

    // Conformance: TLS-08.
    #[test]
    fn every_prefix_of_every_sample_is_either_certain_or_open() {
        use Protocol::{Http1, Http2, Malformed, Other, Tls};
        for minor in [0, 1, 3, 4, 5, 0xff] {
            check(&[0x16, 3, minor, 0, 5, 1, 0, 0, 1, 3], 2, Tls);
        }
        check(&[0x16, 2, 1], 2, Other);
        check(&[0x14, 3, 0, 0, 0, 0x16, 3], 2, Malformed);
        check(&[0x18, 3, 3, 0, 2], 2, Malformed);
        check(&[0x15, 0, 0, 0], 2, Other);
        check(&[0x80, 0x2e, 1, 3, 1, 0], 4, Malformed);
        check(&[0xff, 0, 1, 0, 2], 4, Malformed);
        check(&[0x80, 0x2e, 1, 2, 1], 4, Other);
        check(&[0x80, 0x2e, 2, 3], 3, Other);
        check(b"\x00\x01PING", 1, Other);
        check(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 17, Http1);
        check(b"GET /a HTTP/1.1\nHost: x\n\n", 16, Http1);
        check(b"\r\n\r\nGET /a HTTP/1.1\r\n", 21, Http1);
        check(b"get /a HTTP/2.0\r\n", 17, Http1);
        check(b"X-ODD! * HTTP/1.0\r\n", 19, Http1);
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", 24, Http2);
        check(b"PRI * HTTP/2.0\r\nHost: x", 17, Http1);
        check(b"NICK somebody\r\n", 14, Malformed);
        check(b"USER a b c\r\n", 8, Malformed);
        check(b"EHLO a.test\r\n", 12, Malformed);
        check(b"GET /\r\n", 6, Malformed);
        check(b"GET  / HTTP/1.1\r\n", 5, Malformed);
        check(b"GET / HTTPS/1.1\r\n", 11, Malformed);
        check(b"SSH-2.0-x\r\n", 11, Other);
        check(b"{\"json\": 1}", 1, Other);
        check(b" GET / HTTP/1.1\r\n", 5, Malformed);
        check(b"GET\t/ HTTP/1.1\r\n", 4, Malformed);
        check(b"GET\xa0/ HTTP/1.1\r\n", 4, Malformed);
        check(b"\x0b\r\nGET / HTTP/1.1\r\n", 7, Malformed);
        check(b"GET\r/ HTTP/1.1\r\n", 5, Malformed);
        check(b"*1\r\n$4\r\nPING\r\n", 4, Other);
        check(b"PING\r\n", 6, Other);
        check(b"\n\n\0", 3, Other);
    }

    #[track_caller]
    fn check_server(sample: &[u8], certain_at: usize, expected: Protocol) {
        for end in 1..=sample.len() {
            let wanted = (end >= certain_at).then_some(expected);
            assert_eq!(
                server_protocol(&sample[..end]),
                wanted,
                "{:?}",
                sample[..end].escape_ascii().to_string()
            );
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

    /// First bytes of clients, each with its protocol.
    const SAMPLES: &[(&[u8], Protocol)] = &[
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", Protocol::Tls),
        (b"\x16\x03\x05\x00\x05\x01\x00\x00\x01\x03", Protocol::Tls),
        (
            b"\x14\x03\x01\x00\x00\x16\x03\x01\x00\x05\x01",
            Protocol::Malformed,
        ),
        (b"\x80\x2e\x01\x03\x01\x00\x15", Protocol::Malformed),
        (b"\xff\x00\x01\x00\x02\x00\x15", Protocol::Malformed),
        (b"GET /kv HTTP/1.1\r\nHost: a.test\r\n\r\n", Protocol::Http1),
        (b"\r\nPOST /kv HTTP/1.0\r\n\r\n", Protocol::Http1),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            Protocol::Http2,
        ),
        (
            b"GET  /kv HTTP/1.1\r\nHost: a.test\r\n\r\n",
            Protocol::Malformed,
        ),
        (b" GET /kv HTTP/1.1\r\n\r\n", Protocol::Malformed),
        (b"GET /kv\r\n", Protocol::Malformed),
        (b"get key\r\n", Protocol::Malformed),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", Protocol::Other),
        (b"*1\r\n$4\r\nPING\r\n", Protocol::Other),
        (b"SSH-2.0-x\r\n", Protocol::Other),
        (b"\x10\x0c\0\x04MQTT\x04\0\0\0", Protocol::Other),
    ];

    #[tokio::test(start_paused = true)]
    async fn wherever_a_client_pauses_its_protocol_is_that_of_the_whole() {
        for (sample, expected) in SAMPLES {
            for (cut, may_be_opaque) in
                (0..sample.len()).flat_map(|cut| [(cut, false), (cut, true)])
            {
                let (mut client, mut near) = tokio::io::duplex(1024);
                let (_upstream, mut far) = tokio::io::duplex(1024);
                let (first, rest) = sample.split_at(cut);
                let speaks = async {
                    client.write_all(first).await.unwrap();
                    tokio::time::sleep(Limits::HEAD_DEADLINE * 9 / 10).await;
                    // This may fail: nothing is read any more once the protocol is settled.
                    let _ = client.write_all(rest).await;
                    tokio::time::sleep(Limits::IDLE).await;
                };
                let detects = detect(&mut near, Bytes::new(), &mut far, may_be_opaque);
                let found = tokio::select! { found = detects => found, () = speaks => panic!("not settled") };
                let what = (sample.escape_ascii().to_string(), cut, may_be_opaque);
                assert_eq!(found.unwrap().protocol, *expected, "{what:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_falls_silent_in_its_first_bytes_is_never_taken_for_something_else() {
        for (sample, expected) in SAMPLES
            .iter()
            .filter(|(_, expected)| *expected != Protocol::Other)
        {
            for cut in 1..sample.len() {
                let (mut client, mut near) = tokio::io::duplex(1024);
                let (mut upstream, mut far) = tokio::io::duplex(1024);
                client.write_all(&sample[..cut]).await.unwrap();
                upstream.write_all(b"220 ready\r\n").await.unwrap();
                let found = detect(&mut near, Bytes::new(), &mut far, true)
                    .await
                    .unwrap()
                    .protocol;
                assert!(
                    found == *expected || found == Protocol::Malformed,
                    "{} {cut}",
                    sample.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn a_line_without_end_is_a_request_that_is_too_long() {
        assert_eq!(protocol(&[b'A'; 1000]), None);
        assert_eq!(protocol(&[b'A'; 16 * 1024]), Some(Protocol::Http1));
        assert_eq!(
            protocol(&[b"GET /".as_slice(), &[b'a'; 16 * 1024]].concat()),
            Some(Protocol::Http1)
        );
    }
}
