//! Encodings of common software in which a secret may stand.

use std::borrow::Cow;

use crate::secrets::decode::{Escape, Escapes, hex_byte};

/// Encoding of an anchor and of what follows it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Coding {
    /// Plain text, percent-encoded text, or a mixture.
    Text,
    Hex,
    /// Base64: the anchor begins after `lead` characters of a group of four, and the first
    /// `skipped` bytes that the group decodes to are not part of the secret.
    Base64 {
        lead: usize,
        skipped: usize,
    },
}

impl Coding {
    /// Decodes up to `most` bytes of what begins at `at`; also returns true if there are fewer
    /// because `text` ends.
    pub(super) fn decoded(self, text: &[u8], at: usize, most: usize) -> (Cow<'_, [u8]>, bool) {
        let rest = text.get(at..).unwrap_or_default();
        let plain = rest.get(..most).unwrap_or(rest);
        if matches!(self, Self::Text) && !plain.contains(&b'%') {
            return (Cow::Borrowed(plain), plain.len() < most);
        }
        let mut decoded = Vec::with_capacity(most);
        let is_cut = match self {
            Self::Text => {
                let mut rest = rest;
                while let Some(byte) = rest.first()
                    && decoded.len() < most
                {
                    let escape = match byte {
                        b'%' => Escapes::Percent.read(rest),
                        _ => Escape::None,
                    };
                    let read = match escape {
                        Escape::Complete { length, meaning } => {
                            decoded.extend_from_slice(meaning.bytes());
                            length
                        }
                        Escape::Begun => break,
                        Escape::None => {
                            decoded.push(*byte);
                            1
                        }
                    };
                    rest = rest.get(read..).unwrap_or_default();
                }
                decoded.len() < most
            }
            Self::Hex => {
                let mut digits = Lines::of(rest);
                while decoded.len() < most
                    && let Some((high, low)) = digits.next().zip(digits.next())
                    && let Some(byte) = hex_byte(high, low)
                {
                    decoded.push(byte);
                }
                decoded.len() < most && digits.next().is_none() && digits.is_at_end()
            }
            Self::Base64 { lead, skipped } => {
                let from = text.get(at.saturating_sub(lead)..).unwrap_or_default();
                let mut bits = 0_u32;
                let mut count = 0;
                let mut lines = Lines::of(from);
                for value in lines.by_ref().map_while(sextet).take((most + 2) * 4 / 3) {
                    (bits, count) = (bits << 6 | value, count + 6);
                    if count >= 8 {
                        count -= 8;
                        decoded.push(u8::try_from(bits >> count & 0xff).unwrap_or_default());
                    }
                }
                decoded.drain(..skipped.min(decoded.len()));
                decoded.len() < most && lines.is_at_end()
            }
        };
        (Cow::Owned(decoded), is_cut)
    }
}

/// Returns the value of a character of Base64 in either alphabet (RFC 4648 §4, §5).
pub(super) fn sextet(byte: u8) -> Option<u32> {
    match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

/// The marks that end lines: raw, and as escaped in JSON and in URLs.
const LINE_ENDS: [&[u8]; 8] = [b"\n", b"\r", b"\\n", b"\\r", b"%0A", b"%0D", b"%0a", b"%0d"];

/// The largest number of marks of one line end: a carriage return may stand before the line feed.
const MARKS: usize = 2;

/// An iterator over the bytes of an encoded text. It skips line ends, and stops when more than
/// [`MARKS`] follow each other.
struct Lines<'t> {
    rest: &'t [u8],
    /// Marks since the last byte that was not one.
    marks: usize,
}

impl<'t> Lines<'t> {
    fn of(rest: &'t [u8]) -> Self {
        Self { rest, marks: 0 }
    }

    /// Returns true if everything was read.
    fn is_at_end(&self) -> bool {
        // The text may end within a mark.
        let is_begun = |mark: &[u8]| mark.len() > self.rest.len() && mark.starts_with(self.rest);
        LINE_ENDS.into_iter().any(is_begun)
    }
}

impl Iterator for Lines<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        loop {
            let (byte, after) = self.rest.split_first()?;
            if !matches!(byte, b'\n' | b'\r' | b'\\' | b'%') {
                (self.rest, self.marks) = (after, 0);
                return Some(*byte);
            }
            let mark = LINE_ENDS
                .into_iter()
                .find(|mark| self.rest.starts_with(mark))
                .filter(|_| self.marks < MARKS)?;
            (self.rest, self.marks) = (self.rest.get(mark.len()..)?, self.marks + 1);
        }
    }
}

/// Returns the length in bytes of the line end that `text` ends with.
pub(super) fn line_end_before(text: &[u8]) -> usize {
    let mut length = 0;
    for _ in 0..MARKS {
        let before = text.get(..text.len() - length).unwrap_or_default();
        length += LINE_ENDS
            .into_iter()
            .find(|mark| before.ends_with(mark))
            .map_or(0, <[u8]>::len);
    }
    length
}
