//! Secrets in answers: an upstream that sends one back is not heard by the workload.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use memchr::memmem;
use zeroize::Zeroizing;

use crate::credentials::placeholder::base64_forms;
use crate::credentials::vault::Credential;
use crate::record::Echo;

/// What stands where a secret stood, as often as that had bytes: whatever says how long a message is stays true.
const MASK: u8 = b'*';

/// A part of Base64 that is shorter is met by chance.
const BASE64_BYTES: usize = 8;

/// One form of a secret.
#[derive(Debug)]
pub struct Needle {
    bytes: Zeroizing<Vec<u8>>,
    /// For each length of a beginning, how much of its end is a beginning again (Knuth, Morris, Pratt 1977).
    borders: Vec<usize>,
}

/// The forms of `secret`: as it is, in URLs, in JSON, in Base64.
#[must_use]
pub fn needles(secret: &[u8]) -> Vec<Needle> {
    let mut forms = vec![secret.to_vec()];
    for is_plain in [|_| false, |byte: u8| b"!$&'()*+,;=:@".contains(&byte)] {
        for hex in [|byte| format!("%{byte:02X}"), |byte: u8| format!("%{byte:02x}")] {
            let code = |byte: &u8| match byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || is_plain(*byte) {
                true => vec![*byte],
                false => hex(*byte).into_bytes(),
            };
            forms.push(secret.iter().flat_map(code).collect());
        }
    }
    for is_slash_escaped in [false, true] {
        let escape = |byte: &u8| match byte {
            b'"' | b'\\' => vec![b'\\', *byte],
            b'/' if is_slash_escaped => vec![b'\\', b'/'],
            b'\t' => b"\\t".to_vec(),
            byte => vec![*byte],
        };
        forms.push(secret.iter().flat_map(escape).collect());
    }
    forms.extend(base64_forms(secret).into_iter().filter(|form| form.len() >= BASE64_BYTES));
    forms.sort_unstable();
    forms.dedup();
    forms.into_iter().map(Needle::new).collect()
}

impl Needle {
    fn new(bytes: Vec<u8>) -> Self {
        let mut borders = vec![0; bytes.len() + 1];
        let mut border = 0;
        for (index, byte) in bytes.iter().enumerate().skip(1) {
            border = step(&bytes, &borders, border, *byte);
            if let Some(slot) = borders.get_mut(index + 1) {
                *slot = border;
            }
        }
        Self { bytes: Zeroizing::new(bytes), borders }
    }

    /// How many bytes at the end of `text` are a beginning of it, short of the whole.
    fn begun_in(&self, text: &[u8]) -> usize {
        let last = text.get(text.len().saturating_sub(self.bytes.len() - 1)..).unwrap_or_default();
        last.iter().fold(0, |matched, byte| step(&self.bytes, &self.borders, matched, *byte))
    }
}

/// How much of `bytes` is matched when `byte` comes behind what `matched` before.
fn step(bytes: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    loop {
        match bytes.get(matched) {
            Some(next) if *next == byte => return matched + 1,
            _ if matched == 0 => return 0,
            _ => matched = borders.get(matched).copied().unwrap_or(0),
        }
    }
}

/// Masks the secrets of some credentials in what comes in parts.
#[derive(Debug)]
pub struct Scrubber {
    credentials: Vec<Arc<Credential>>,
    /// What could be the beginning of a secret…
    held: BytesMut,
    /// …and which bytes of it were the end of one.
    masked: Vec<bool>,
}

impl Scrubber {
    /// For the secrets of `credentials`.
    #[must_use]
    pub fn new(credentials: Vec<Arc<Credential>>) -> Self {
        Self { credentials, held: BytesMut::new(), masked: Vec::new() }
    }

    fn needles(&self) -> impl Iterator<Item = &Needle> {
        self.credentials.iter().flat_map(|credential| credential.echoes())
    }

    /// What can be sent on now that `part` has come, and whether a secret ended in it.
    pub fn push(&mut self, part: Bytes) -> (Bytes, bool) {
        let text = if self.held.is_empty() {
            part
        } else {
            self.held.extend_from_slice(&part);
            self.held.split().freeze()
        };
        let found = self.found_in(&text);
        let is_found = !found.is_empty();
        let kept = self.needles().map(|needle| needle.begun_in(&text)).max().unwrap_or(0);
        let sent = text.len() - kept;
        let mut before = std::mem::take(&mut self.masked);
        if !is_found && before.is_empty() {
            if kept > 0 {
                self.held = BytesMut::from(text.get(sent..).unwrap_or_default());
                self.masked = vec![false; kept];
            }
            return (text.slice(..sent), false);
        }
        before.resize(text.len(), false);
        mask(&mut before, found);
        self.masked = before.split_off(sent);
        self.held = BytesMut::from(text.get(sent..).unwrap_or_default());
        (masked(text.get(..sent).unwrap_or_default(), &before), is_found)
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Bytes {
        let masks = std::mem::take(&mut self.masked);
        masked(&self.held.split(), &masks)
    }

    /// Where there are secrets, which may overlap.
    fn found_in(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for needle in self.needles() {
            let finder = memmem::Finder::new(&*needle.bytes);
            let mut at = 0;
            while let Some(offset) = text.get(at..).and_then(|rest| finder.find(rest)) {
                found.push(at + offset..at + offset + needle.bytes.len());
                at += offset + 1;
            }
        }
        found
    }

    /// `value`, which is whole, without secrets; `None` if it has none.
    #[must_use]
    pub fn whole(&self, value: &[u8]) -> Option<Vec<u8>> {
        let found = self.found_in(value);
        let mut masks = vec![false; value.len()];
        let is_found = !found.is_empty();
        mask(&mut masks, found);
        is_found.then(|| masked(value, &masks).to_vec())
    }
}

fn mask(masks: &mut [bool], ranges: Vec<Range<usize>>) {
    for range in ranges {
        masks.get_mut(range).unwrap_or_default().fill(true);
    }
}

fn masked(text: &[u8], masks: &[bool]) -> Bytes {
    text.iter().zip(masks).map(|(byte, masked)| if *masked { MASK } else { *byte }).collect()
}

/// The body of an answer, without secrets.
#[derive(Debug)]
pub struct Scrubbed<B> {
    body: B,
    scrubber: Scrubber,
    /// What comes behind the last of the body.
    trailers: Option<Frame<Bytes>>,
    is_over: bool,
    /// Reports the first.
    echo: Option<Echo>,
}

/// `response` without the secrets of `credentials`, which `echo` reports where there are any.
#[must_use]
pub fn scrubbed<B>(mut response: Response<B>, credentials: Vec<Arc<Credential>>, echo: Echo) -> Response<Scrubbed<B>> {
    let scrubber = Scrubber::new(credentials);
    let mut is_found = scrub_headers(&scrubber, response.headers_mut());
    let reason = response.extensions().get::<ReasonPhrase>();
    if let Some(clean) = reason.and_then(|reason| scrubber.whole(reason.as_bytes())) {
        is_found = true;
        response.extensions_mut().remove::<ReasonPhrase>();
        if let Ok(clean) = ReasonPhrase::try_from(clean) {
            response.extensions_mut().insert(clean);
        }
    }
    let mut echo = Some(echo);
    if is_found {
        echo.take().into_iter().for_each(Echo::report);
    }
    response.map(|body| Scrubbed { body, scrubber, trailers: None, is_over: false, echo })
}

/// Masks what stands in values, and removes what stands in names.
fn scrub_headers(scrubber: &Scrubber, headers: &mut HeaderMap) -> bool {
    let names = headers.keys().filter(|name| is_secret(scrubber, name)).cloned().collect::<Vec<_>>();
    names.iter().for_each(|name| drop(headers.remove(name)));
    let mut is_found = !names.is_empty();
    for value in headers.values_mut() {
        if let Some(Ok(clean)) = scrubber.whole(value.as_bytes()).map(HeaderValue::try_from) {
            *value = clean;
            is_found = true;
        }
    }
    is_found
}

/// Names have no case. What is short is met by chance.
fn is_secret(scrubber: &Scrubber, name: &HeaderName) -> bool {
    let needles = scrubber.needles().filter(|needle| needle.bytes.len() >= BASE64_BYTES);
    needles
        .into_iter()
        .any(|needle| memmem::find(name.as_str().as_bytes(), &needle.bytes.to_ascii_lowercase()).is_some())
}

impl<B> Body for Scrubbed<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        while !this.is_over {
            let (clean, is_found) = match ready!(Pin::new(&mut this.body).poll_frame(cx)?).map(Frame::into_data) {
                Some(Ok(data)) => this.scrubber.push(data),
                Some(Err(other)) => {
                    let mut other = other;
                    let is_found = other.trailers_mut().is_some_and(|trailers| scrub_headers(&this.scrubber, trailers));
                    this.trailers = Some(other);
                    (this.scrubber.finish(), is_found)
                }
                None => {
                    this.is_over = true;
                    (this.scrubber.finish(), false)
                }
            };
            if is_found {
                this.echo.take().into_iter().for_each(Echo::report);
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
        let mut hint = self.body.size_hint();
        let held = self.scrubber.held.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(hint.lower() + held);
        hint
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
            (name, Secret::new(secret.as_bytes().to_vec()), Binding::default())
        };
        let vault = Vault::new(secrets.iter().enumerate().map(credential));
        Scrubber::new((0..secrets.len()).map(|index| Arc::clone(vault.get(&format!("A{index}")).unwrap())).collect())
    }

    /// What comes of `parts`, and how much of it at once.
    fn passed(secrets: &[&str], parts: &[&str]) -> (String, Vec<usize>) {
        let mut scrubber = scrubber(secrets);
        let mut sent: Vec<_> =
            parts.iter().map(|part| scrubber.push(Bytes::copy_from_slice(part.as_bytes())).0).collect();
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
                assert_eq!(passed(&["hunter2"], &parts).0, expected, "cut at {first} and {second}");
            }
        }
        let bytes: Vec<_> = (0..text.len()).map(|at| &text[at..=at]).collect();
        assert_eq!(passed(&["hunter2"], &bytes).0, expected);
    }

    #[test]
    fn secrets_that_overlap_are_masked_as_one() {
        assert_eq!(passed(&["aba"], &["xab", "ab", "ax"]).0, "x*****x");
        assert_eq!(passed(&["aba"], &["abab", "c"]).0, "***bc");
        assert_eq!(passed(&["abcd", "cdef"], &["abc", "def", "-cde"]).0, "******-cde");
        assert_eq!(passed(&["x", "xyz"], &["x", "y", "z", "xy"]).0, "****y");
        let long = "k".repeat(64 * 1024);
        assert_eq!(passed(&[&long], &[&long[1..], "k", "-", &long[1..]]).0, "*".repeat(65536) + "-" + &long[1..]);
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
        ];
        for form in forms {
            assert_eq!(passed(&[secret], &["<", &form, ">"]).0, format!("<{}>", "*".repeat(form.len())), "{form}");
        }
        for before in ["", "u:", "us:", "user:"] {
            let text = format!("{before}{secret}");
            for encoded in [STANDARD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
                let masked = passed(&[secret], &[&encoded]).0;
                // At its ends a character holds bits of its neighbours.
                assert!(masked.matches('*').count() >= 27 && masked.len() == encoded.len(), "{encoded} {masked}");
            }
        }
    }

    #[test]
    fn what_cannot_be_the_beginning_of_a_secret_is_not_held_back() {
        assert_eq!(passed(&["hunter2"], &["data: hunt\n\n", "hun", "t", "er", "3"]).1, [12, 0, 0, 0, 7, 0]);
        assert_eq!(passed(&["hunter2"], &["ends in hunt"]).1, [8, 4]);
    }
}
