//! Finds placeholders of credentials in text, in every encoding in which one could leave.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use hyper::header::{HeaderName, HeaderValue};
use memchr::memmem::{self, Finder};
use openshell_events::words::REDACTED;
use openshell_policy::credential::CredentialName;
pub use openshell_policy::credential::MARKER;
use zeroize::Zeroizing;

use super::decode::Escapes;

/// Length in bytes of the longest name: a gateway's prefix (`s`, 64 digits and `_`) and a
/// credential's own.
const NAME: usize = CredentialName::MAX + 66;

/// Number of bytes that hold the marker in any encoding, with the first byte of a name.
pub const SPAN: usize = 48;

/// The first word of the marker.
pub const BEGINNING: &str = "openshell";

static BEGINNINGS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(BEGINNING));

/// The marker inside Base64, at each alignment.
static BASE64: LazyLock<Vec<Finder<'static>>> = LazyLock::new(|| {
    base64_forms(MARKER.as_bytes())
        .iter()
        .map(|form| Finder::new(&**form).into_owned())
        .collect()
});

/// Encodings of a colon: as it is, in URLs and forms (RFC 3986 §2.1), and in JSON (RFC 8259 §7).
const COLONS: [&str; 5] = [":", "%3A", "%3a", "\\u003a", "\\u003A"];

/// Encodes `bytes` as a part of Base64 (RFC 4648 §4, §5), at each of its three alignments and
/// without the characters that hold bits of neighbouring bytes.
#[must_use]
pub fn base64_forms(bytes: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let mut forms: Vec<_> = (0..3)
        .flat_map(|before| base64_forms_after(before, bytes))
        .collect();
    forms.sort_unstable_by(|one, other| one.as_slice().cmp(other));
    forms.dedup_by(|one, other| one.as_slice() == other.as_slice());
    forms
}

/// Encodes like [`base64_forms`], but only for bytes that begin `before` bytes (at most 2) into a
/// group of three.
#[must_use]
pub fn base64_forms_after(before: usize, bytes: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let padded = Zeroizing::new([&[0; 2][..before.min(2)], bytes].concat());
    let whole = (before * 8).div_ceil(6)..padded.len() * 8 / 6;
    let encoded =
        [STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|engine| Zeroizing::new(engine.encode(&*padded)));
    let mut forms: Vec<_> = encoded
        .iter()
        .filter_map(|encoded| {
            encoded
                .as_bytes()
                .get(whole.clone())
                .map(|form| Zeroizing::new(form.to_vec()))
        })
        .collect();
    forms.dedup_by(|one, other| one.as_slice() == other.as_slice());
    forms
}

/// Returns true if `bytes` hold a placeholder, plain or in one of the usual encodings. A marker
/// without a name does not count.
#[must_use]
pub fn is_in(bytes: &[u8]) -> bool {
    has_marker(bytes, true)
}

fn has_marker(bytes: &[u8], needs_name: bool) -> bool {
    let after = |at: usize| bytes.get(at + BEGINNING.len()..).unwrap_or_default();
    BEGINNINGS
        .find_iter(bytes)
        .any(|at| ends_marker(after(at), needs_name))
}

/// Returns true if `rest` continues the beginning of a marker to its end.
fn ends_marker(rest: &[u8], needs_name: bool) -> bool {
    let colon = |rest: &'_ [u8]| {
        COLONS
            .iter()
            .find(|colon| rest.starts_with(colon.as_bytes()))
            .map(|colon| colon.len())
    };
    let mut rest = rest;
    for word in ["", "resolve", "env"] {
        let Some(after) = rest.strip_prefix(word.as_bytes()) else {
            return false;
        };
        let Some(length) = colon(after) else {
            return false;
        };
        rest = after.get(length..).unwrap_or_default();
    }
    !needs_name
        || rest
            .first()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
}

/// Returns true if `bytes` hold a marker in any encoding, or encoded several times.
#[must_use]
pub fn is_hidden_in(bytes: &[u8]) -> bool {
    let mut text = Cow::Borrowed(bytes);
    for _ in 0..DECODED {
        if has_marker(&text, false) || BASE64.iter().any(|form| form.find(&text).is_some()) {
            return true;
        }
        if !text.contains(&b'%') {
            return false;
        }
        text = Cow::Owned(Escapes::Percent.decoded(&text));
    }
    false
}

/// Rounds of decoding; no server decodes so often.
const DECODED: usize = 8;

/// The encoding of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Plain.
    Plain,
    /// Percent-encoded.
    Percent,
}

/// A placeholder in a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Its bytes in the text.
    pub range: Range<usize>,
    /// The longest possible name of its credential.
    pub name: String,
}

/// Finds the placeholders in `text`, in their order.
#[must_use]
pub fn find(text: &[u8], coding: Coding) -> Vec<Found> {
    let is_coded = coding == Coding::Percent && text.contains(&b'%');
    if !is_coded && memmem::find(text, MARKER.as_bytes()).is_none() {
        return Vec::new();
    }
    let (bytes, offsets) = if is_coded {
        Escapes::Percent.decoded_with_places(text)
    } else {
        (text.to_vec(), (0..=text.len()).collect())
    };
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(offset) = bytes
        .get(from..)
        .and_then(|rest| memmem::find(rest, MARKER.as_bytes()))
    {
        let start = from + offset;
        let after = bytes.get(start + MARKER.len()..).unwrap_or_default();
        let length = after
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        // If a name runs into another marker, that marker does not count.
        from = start + MARKER.len() + length;
        let name = after
            .get(..length)
            .and_then(|name| std::str::from_utf8(name).ok());
        let name = name.filter(|name| {
            length <= NAME && name.starts_with(|first: char| !first.is_ascii_digit())
        });
        if let (Some(name), Some((first, end))) = (name, offsets.get(start).zip(offsets.get(from)))
        {
            found.push(Found {
                range: *first..*end,
                name: name.to_owned(),
            });
        }
    }
    found
}

/// Returns true if a header line holds a marker in any encoding: in its value, in its name, or
/// across the colon between them.
#[must_use]
pub fn is_in_header(name: &HeaderName, value: &HeaderValue) -> bool {
    let could_begin = name.as_str().contains('%') || name.as_str().contains(BEGINNING);
    let line = || Zeroizing::new([name.as_str().as_bytes(), b":", value.as_bytes()].concat());
    is_hidden_in(name.as_str().as_bytes())
        || is_hidden_in(value.as_bytes())
        || (could_begin && is_hidden_in(&line()))
}

/// Returns `path` with [`REDACTED`] for each placeholder, as it is judged and shown; `None` if it
/// has none.
#[must_use]
pub fn redacted(path: &str) -> Option<String> {
    let found = find(path.as_bytes(), Coding::Percent);
    let mut text = path.to_owned();
    for found in found.iter().rev() {
        text.replace_range(found.range.clone(), REDACTED);
    }
    (!found.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::{Coding, find, is_hidden_in, is_in, redacted};
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    const PLACEHOLDER: &str = "openshell:resolve:env:API_KEY";

    #[test]
    fn the_longest_name_is_meant() {
        let names = |text: &str, coding| -> Vec<_> {
            find(text.as_bytes(), coding)
                .into_iter()
                .map(|found| (found.name, text[found.range].to_owned()))
                .collect()
        };
        let one = |text: &str, name: &str, whole: &str| {
            assert_eq!(
                names(text, Coding::Percent),
                [(name.to_owned(), whole.to_owned())],
                "{text}"
            );
        };
        one(PLACEHOLDER, "API_KEY", PLACEHOLDER);
        one(
            "/botopenshell:resolve:env:API_KEY/send",
            "API_KEY",
            PLACEHOLDER,
        );
        one("openshell:resolve:env:A-B", "A", "openshell:resolve:env:A");
        one(
            "openshell:resolve:env:v12_A9é",
            "v12_A9",
            "openshell:resolve:env:v12_A9",
        );
        one(
            "openshell%3aresolve%3Aenv%3A%41PI.",
            "API",
            "openshell%3aresolve%3Aenv%3A%41PI",
        );
        assert!(names("openshell%3aresolve%3Aenv%3AAPI", Coding::Plain).is_empty());
        assert!(names("openshell:resolve:env:9", Coding::Plain).is_empty());
        assert!(
            names(
                &format!("openshell:resolve:env:{}", "a".repeat(195)),
                Coding::Plain
            )
            .is_empty()
        );
        assert_eq!(
            names(&format!("{PLACEHOLDER} {PLACEHOLDER}"), Coding::Plain).len(),
            2
        );
    }

    #[test]
    fn a_placeholder_is_seen_in_every_form() {
        for before in ["", "a", "ab", "abc", "user:"] {
            let text = format!("{before}{PLACEHOLDER}");
            for encoded in [
                STANDARD.encode(&text),
                URL_SAFE.encode(&text),
                format!("xx.{}.y", STANDARD.encode(&text)),
            ] {
                assert!(is_hidden_in(encoded.as_bytes()), "{encoded}");
            }
        }
        for text in [
            PLACEHOLDER,
            "openshell%3Aresolve%3aenv%3AK",
            "{\"k\":\"openshell\\u003aresolve\\u003Aenv:K\"}",
        ] {
            assert!(
                is_in(text.as_bytes()) && is_hidden_in(text.as_bytes()),
                "{text}"
            );
        }
        for text in [
            "%6Fpenshell:resolve:env:",
            "%256Fpenshell:resolve:env:",
            "%2525256Fpenshell%3Aresolve:env:X",
        ] {
            assert!(is_hidden_in(text.as_bytes()), "{text}");
        }
        for text in [
            "openshell",
            "openshell:resolve",
            "openshell:resolve:env:",
            "openshell:resolve:env:*",
            "openshell-resolve:env:A",
        ] {
            assert!(!is_in(text.as_bytes()), "{text}");
        }
        assert!(is_hidden_in(b"openshell:resolve:env:") && !is_hidden_in(b"100%, %zz, openshell"));
    }

    #[test]
    fn a_path_is_shown_without_its_placeholders() {
        assert_eq!(
            redacted(&format!("/bot{PLACEHOLDER}/send")).as_deref(),
            Some("/bot[CREDENTIAL]/send")
        );
        assert_eq!(redacted("/bot/send"), None);
        for (path, shown) in [
            (
                "/openshell:resolve:env:openshell:resolve:env:A",
                "/[CREDENTIAL]:resolve:env:A",
            ),
            (
                "/openshell:resolve:env:%6F%70%65%6E%73%68%65%6C%6C:resolve:env:A",
                "/[CREDENTIAL]:resolve:env:A",
            ),
            (
                "/openshell:resolve:env:Aopenshell:resolve:env:B/x",
                "/[CREDENTIAL]:resolve:env:B/x",
            ),
        ] {
            assert_eq!(redacted(path).as_deref(), Some(shown), "{path}");
        }
    }
}
