//! Redacts responses: masks secrets that an upstream sends back, before the workload gets them.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::credentials::watched::Watched;
use crate::ground::quota::QuotaGuard;
use crate::report::finding::LeakFinding;
use crate::secrets::matcher::Matcher;
use crate::wire::http::head;
use crate::wire::io::pace::{Paced, longer};

/// The byte that masks each byte of a secret, so that Content-Length stays correct.
const MASK: u8 = b'*';

/// A scrubber that masks the secrets of credentials in a text that arrives in parts.
pub struct Scrubber {
    /// The credentials whose secrets are masked.
    watched: Watched,
    matcher: Matcher,
    /// Length in bytes of the longest encoding.
    longest: usize,
    /// The text that is held back because it may be the beginning of a secret.
    held: BytesMut,
    /// True for each byte of `held` that belongs to a secret.
    masked: Vec<bool>,
    /// The message boundaries, in a stream of gRPC messages.
    messages: Option<Messages>,
}

/// The boundaries in a stream of gRPC messages. Each message has a prefix: one byte of flags, and
/// four of its length, big-endian (gRPC over HTTP/2, Length-Prefixed-Message).
#[derive(Debug, Default)]
struct Messages {
    /// The prefix of the current message.
    prefix: [u8; 5],
    /// Bytes of the prefix that have been read.
    prefix_read: usize,
    /// Bytes of the current message that are still to come.
    left: usize,
}

impl Messages {
    /// Returns how many bytes of `part`, the next part, follow the last message that ends in it;
    /// `None` if none ends.
    ///
    /// # Errors
    /// Fails if the text is not a stream of messages.
    fn after_last(&mut self, part: &[u8]) -> Result<Option<usize>, NotMessages> {
        let mut rest = part;
        let mut after = None;
        while !rest.is_empty() {
            if self.prefix_read < self.prefix.len() {
                let slot = self.prefix.get_mut(self.prefix_read);
                if let (Some(slot), Some((byte, others))) = (slot, rest.split_first()) {
                    *slot = *byte;
                    rest = others;
                }
                self.prefix_read += 1;
                if self.prefix_read < self.prefix.len() {
                    continue;
                }
                let [flags, length @ ..] = self.prefix;
                if flags > 1 {
                    return Err(NotMessages);
                }
                self.left = u32::from_be_bytes(length) as usize;
            }
            let read = self.left.min(rest.len());
            rest = rest.get(read..).unwrap_or_default();
            self.left -= read;
            if self.left == 0 {
                self.prefix_read = 0;
                after = Some(rest.len());
            }
        }
        Ok(after)
    }
}

/// The error of a text that is not a stream of messages.
struct NotMessages;

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrubber").finish_non_exhaustive()
    }
}

impl Scrubber {
    /// Creates a scrubber for the credentials of `watched`.
    #[must_use]
    pub fn new(watched: Watched) -> Self {
        let longest = watched.longest().unwrap_or(0);
        let held = BytesMut::new();
        let masked = Vec::new();
        Self {
            watched,
            matcher: Matcher::default(),
            longest,
            held,
            masked,
            messages: None,
        }
    }

    /// Creates a scrubber for a stream of messages. The client may have to receive each of them
    /// before the next one is sent.
    #[must_use]
    pub fn of_messages(watched: Watched) -> Self {
        Self {
            messages: Some(Messages::default()),
            ..Self::new(watched)
        }
    }

    /// Returns how many bytes at the end of `held` and `part` to hold back. A secret ends at the
    /// latest with its line, or with its message, because the next message begins with zeros. The
    /// count depends only on lines and messages; otherwise its timing would tell a guesser how much
    /// of a secret matches.
    fn hold_back(&mut self, part: &[u8]) -> usize {
        // In UTF-16 every second byte of a secret may be a zero, so only two zeros end a line.
        let ends_line = |end: &usize| match part.get(..*end) {
            Some([.., b'\n' | b'\r'] | [.., 0, 0]) => true,
            Some(_) | None => false,
        };
        let line = match (1..=part.len()).rev().find(ends_line) {
            Some(end) => part.len() - end,
            None => part.len() + self.held.len(),
        };
        let message = match self
            .messages
            .as_mut()
            .map(|messages| messages.after_last(part))
        {
            Some(Ok(message)) => message,
            // A text that is not a stream of messages is treated as lines.
            Some(Err(NotMessages)) => {
                self.messages = None;
                None
            }
            None => None,
        };
        line.min(message.unwrap_or(line))
            .min(self.longest.saturating_sub(1))
    }

    /// Takes the next `part`; returns the text to send on, and true if a secret ended in this part.
    pub fn push(&mut self, part: Bytes) -> (Bytes, bool) {
        let before = self.held.len();
        let held_back = self.hold_back(&part);
        let mut found = Vec::new();
        let Self {
            watched, matcher, ..
        } = self;
        matcher.push(watched.search(), &part, before, |credential, place| {
            if watched.includes(credential) {
                found.push(place);
            }
        });
        let is_found = !found.is_empty();
        if before == 0 && !is_found {
            let sent = part.len() - held_back;
            self.held
                .extend_from_slice(part.get(sent..).unwrap_or_default());
            self.masked.resize(held_back, false);
            return (part.slice(..sent), false);
        }
        self.held.extend_from_slice(&part);
        self.masked.resize(self.held.len(), false);
        mask(&mut self.masked, found);
        let sent = self.held.len() - held_back;
        (self.take(sent), is_found)
    }

    /// Returns true if any text is held back.
    #[must_use]
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends the text, and returns what was held back.
    pub fn finish(&mut self) -> Bytes {
        self.matcher = Matcher::default();
        self.take(self.held.len())
    }

    /// Takes the first `length` bytes from the text held back, and returns them masked.
    fn take(&mut self, length: usize) -> Bytes {
        let text = self.held.split_to(length);
        let mut masks = self.masked.drain(..length);
        if masks.as_slice().contains(&true) {
            masked(&text, masks.by_ref())
        } else {
            text.freeze()
        }
    }

    /// Masks a complete `value`; returns `None` if it holds no secret.
    #[must_use]
    pub fn whole(&self, value: &[u8]) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        Matcher::default().push(self.watched.search(), value, 0, |credential, place| {
            if self.watched.includes(credential) {
                found.push(place);
            }
        });
        let mut masks = vec![false; value.len()];
        let is_found = !found.is_empty();
        mask(&mut masks, found);
        is_found.then(|| masked(value, masks.into_iter()).to_vec())
    }

    /// Returns true if a field name holds a secret.
    fn is_in_name(&self, name: &HeaderName) -> bool {
        self.watched
            .iter()
            .any(|credential| credential.forms().are_in_name(name.as_str()))
    }
}

/// Marks all bytes of `ranges`, which may overlap; each byte is written only once.
fn mask(masks: &mut [bool], mut ranges: Vec<Range<usize>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut done = 0;
    for range in ranges {
        masks
            .get_mut(range.start.max(done)..range.end)
            .unwrap_or_default()
            .fill(true);
        done = done.max(range.end);
    }
}

fn masked(text: &[u8], masks: impl Iterator<Item = bool>) -> Bytes {
    text.iter()
        .zip(masks)
        .map(|(byte, masked)| if masked { MASK } else { *byte })
        .collect()
}

/// A response body in which secrets are masked.
#[derive(Debug)]
pub struct Scrubbed<B> {
    body: Paced<B>,
    scrubber: Scrubber,
    /// The trailers, which follow after the last of the text.
    trailers: Option<Frame<Bytes>>,
    is_over: bool,
    /// Reports the first secret that is found.
    finding: Option<LeakFinding>,
    /// A guard of the memory for the text that is held back.
    _room: Option<QuotaGuard>,
}

impl<B> Scrubbed<B> {
    /// Keeps `room` until the body is dropped.
    #[must_use]
    pub fn holding(mut self, room: Option<QuotaGuard>) -> Self {
        self._room = room;
        self
    }
}

/// Masks the secrets of `watched` credentials in `response`; `is_grpc_call` tells that it responds
/// to a gRPC call. `finding` reports the first secret that is found.
#[must_use]
pub fn redact<B>(
    mut response: Response<B>,
    watched: Watched,
    finding: LeakFinding,
    is_grpc_call: bool,
) -> Response<Scrubbed<B>> {
    // Only a response in the form of gRPC has messages; any other is treated as lines.
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    let has_messages = is_grpc_call
        && head::is_grpc(response.headers())
        && response.status() == StatusCode::OK
        && !has_length;
    let scrubber = if has_messages {
        Scrubber::of_messages(watched)
    } else {
        Scrubber::new(watched)
    };
    let mut is_found = scrub_headers(&scrubber, response.headers_mut());
    let reason = response.extensions().get::<ReasonPhrase>();
    if let Some(clean) = reason.and_then(|reason| scrubber.whole(reason.as_bytes())) {
        is_found = true;
        response.extensions_mut().remove::<ReasonPhrase>();
        if let Ok(clean) = ReasonPhrase::try_from(clean) {
            response.extensions_mut().insert(clean);
        }
    }
    let encodings = [CONTENT_ENCODING, HeaderName::from_static("grpc-encoding")];
    let mut encodings = encodings
        .iter()
        .flat_map(|name| response.headers().get_all(name));
    if encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        finding.report_encoded();
    }
    let mut finding = Some(finding);
    if is_found && let Some(finding) = finding.take() {
        finding.report();
    }
    response.map(|body| Scrubbed {
        body: Paced::new(body),
        scrubber,
        trailers: None,
        is_over: false,
        finding,
        _room: None,
    })
}

/// Masks secrets in values, and removes fields with secrets in their names. Content-Length is kept.
fn scrub_headers(scrubber: &Scrubber, headers: &mut HeaderMap) -> bool {
    let names = headers
        .keys()
        .filter(|name| scrubber.is_in_name(name))
        .cloned()
        .collect::<Vec<_>>();
    for name in names.iter() {
        drop(headers.remove(name));
    }
    let mut is_found = !names.is_empty();
    for (_, value) in headers
        .iter_mut()
        .filter(|(name, _)| **name != CONTENT_LENGTH)
    {
        if let Some(Ok(clean)) = scrubber.whole(value.as_bytes()).map(HeaderValue::try_from) {
            *value = clean;
            is_found = true;
        }
    }
    is_found
}

impl<B> Body for Scrubbed<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        while !this.is_over {
            let (clean, is_found) =
                match ready!(Pin::new(&mut this.body).poll_frame(cx)?).map(Frame::into_data) {
                    Some(Ok(data)) => {
                        let scrubber = &mut this.scrubber;
                        this.body.pace.measure(data.len(), || scrubber.push(data))
                    }
                    Some(Err(other)) => {
                        let mut other = other;
                        let is_found = other
                            .trailers_mut()
                            .is_some_and(|trailers| scrub_headers(&this.scrubber, trailers));
                        this.trailers = Some(other);
                        (this.scrubber.finish(), is_found)
                    }
                    None => {
                        this.is_over = true;
                        (this.scrubber.finish(), false)
                    }
                };
            if is_found && let Some(finding) = this.finding.take() {
                finding.report();
            }
            if !clean.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(clean))));
            }
            if this.trailers.is_some() {
                break;
            }
        }
        Poll::Ready(this.trailers.take().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.scrubber.held.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        longer(self.body.size_hint(), self.scrubber.held.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use bytes::Bytes;
    use openshell_policy::credential::{Binding, CredentialName};
    use openshell_policy::secret::Secret;

    use super::Scrubber;
    use crate::credentials::vault::Vault;

    fn scrubber(secrets: &[&str]) -> Scrubber {
        let credential = |(index, secret): (usize, &&str)| {
            let name = CredentialName::parse(&format!("A{index}")).unwrap();
            (
                name,
                Secret::new(secret.as_bytes().to_vec()),
                Binding::default(),
            )
        };
        let vault = Vault::new(secrets.iter().enumerate().map(credential));
        let credential = |index| Arc::clone(vault.get(&format!("A{index}")).unwrap());
        Scrubber::new((0..secrets.len()).map(credential).collect())
    }

    /// Returns the redacted `parts`, and the length of each output.
    fn passed(secrets: &[&str], parts: &[&str]) -> (String, Vec<usize>) {
        let mut scrubber = scrubber(secrets);
        let mut sent: Vec<_> = parts
            .iter()
            .map(|part| scrubber.push(Bytes::copy_from_slice(part.as_bytes())).0)
            .collect();
        sent.push(scrubber.finish());
        let lengths = sent.iter().map(Bytes::len).collect();
        (String::from_utf8(sent.concat()).unwrap(), lengths)
    }

    #[test]
    fn a_secret_is_masked_wherever_it_is_cut() {
        let text = "{\"key\": \"hunter2hunter2\", \"other\": \"hunter22\"}\n";
        let expected = "{\"key\": \"**************\", \"other\": \"*******2\"}\n";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let parts = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(
                    passed(&["hunter2"], &parts).0,
                    expected,
                    "cut at {first} and {second}"
                );
            }
        }
        let bytes: Vec<_> = (0..text.len()).map(|at| &text[at..=at]).collect();
        assert_eq!(passed(&["hunter2"], &bytes).0, expected);
    }

    #[test]
    fn secrets_that_overlap_are_masked_as_one() {
        assert_eq!(passed(&["aba"], &["xab", "ab", "ax"]).0, "x*****x");
        assert_eq!(passed(&["aba"], &["abab", "c"]).0, "***bc");
        assert_eq!(
            passed(&["abcd", "cdef"], &["abc", "def", "-cde"]).0,
            "******-cde"
        );
        assert_eq!(passed(&["x", "xyz"], &["x", "y", "z", "xy"]).0, "****y");
        let long = "k".repeat(64 * 1024);
        assert_eq!(
            passed(&[&long], &[&long[1..], "k", "-", &long[1..]]).0,
            "*".repeat(65536) + "-" + &long[1..]
        );
    }

    #[test]
    fn a_secret_is_masked_in_each_of_its_forms() {
        let secret = "a/b+c=\"d\\e f-0123456789";
        let forms = [
            secret.to_owned(),
            "a%2Fb%2Bc%3D%22d%5Ce%20f-0123456789".to_owned(),
            "a%2fb%2bc%3d%22d%5ce%20f-0123456789".to_owned(),
            "a%2Fb+c=%22d%5Ce%20f-0123456789".to_owned(),
            "a/b+c=\\\"d\\\\e f-0123456789".to_owned(),
            "a\\/b+c=\\\"d\\\\e f-0123456789".to_owned(),
            "a/b%2Bc%3D%22d%5Ce%20f-0123456789".to_owned(),
            "a/b+c=&quot;d\\e f-0123456789".to_owned(),
        ];
        for form in forms {
            assert_eq!(
                passed(&[secret], &["<", &form, ">"]).0,
                format!("<{}>", "*".repeat(form.len())),
                "{form}"
            );
        }
        for before in ["", "u:", "us:", "user:"] {
            let text = format!("{before}{secret}");
            for encoded in [STANDARD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
                let masked = passed(&[secret], &[&encoded]).0;
                // The first and the last character also hold bits of neighbouring bytes.
                assert!(
                    masked.matches('*').count() >= 27 && masked.len() == encoded.len(),
                    "{encoded} {masked}"
                );
            }
        }
    }

    #[test]
    fn a_secret_is_masked_in_utf_16_and_where_each_byte_is_escaped_in_another_way() {
        let secret = "a/b+c=d\"e0123456789";
        let wide =
            |order: fn(u16) -> [u8; 2]| secret.encode_utf16().flat_map(order).collect::<Vec<_>>();
        let mixed = "a%2Fb&#43;c\\u003dd&quot;e%300\\x3123456789".replace("%300", "%30");
        for text in [
            wide(u16::to_le_bytes),
            wide(u16::to_be_bytes),
            mixed.into_bytes(),
        ] {
            let text = [b"<p>".as_slice(), &text, b"</p>\0\0\0\0\0\0\0\0\0\0"].concat();
            for cut in 0..text.len() {
                let mut scrubber = scrubber(&[secret]);
                let (first, second) = text.split_at(cut);
                let parts =
                    [first, second].map(|part| scrubber.push(Bytes::copy_from_slice(part)).0);
                let passed = [&parts[0][..], &parts[1], &scrubber.finish()].concat();
                let shown: Vec<_> = passed
                    .iter()
                    .filter(|byte| byte.is_ascii_alphanumeric() && **byte != b'p')
                    .collect();
                assert!(
                    shown.is_empty() && passed.len() == text.len(),
                    "{cut}: {}",
                    passed.escape_ascii()
                );
            }
        }
        // A run of zeros is not part of a text, however long it is.
        let mut scrubber = scrubber(&[secret]);
        let zeros = [b"a".as_slice(), &[0; 100_000], &secret.as_bytes()[1..]].concat();
        let passed = [
            scrubber.push(Bytes::from(zeros.clone())).0,
            scrubber.finish(),
        ]
        .concat();
        assert_eq!(passed, zeros);
    }

    #[test]
    fn what_ends_a_line_does_not_wait() {
        // In Base64 this secret has ten characters.
        let lengths = |parts: &[&str]| passed(&["hunter2"], parts).1;
        assert_eq!(
            lengths(&["data: hunt\n\n", "hun", "ter", "\n", ""]),
            [12, 0, 0, 7, 0, 0]
        );
        assert_eq!(lengths(&["\0\0\0\r"]), [4, 0]);
    }

    #[test]
    fn how_much_waits_tells_nothing_of_the_secret() {
        let lengths = |text: &str| passed(&["hunter2"], &[text]).1;
        for (guess, other) in [
            ("echo: hunter", "echo: punter"),
            ("echo: aHVudGV", "echo: bHVudGV"),
            ("0123456789h", "0123456789x"),
        ] {
            assert_eq!(lengths(guess), lengths(other), "{guess}");
        }
    }
}
