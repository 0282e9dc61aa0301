//! Encoded texts within a text: runs of characters whose groups stand for ASCII.

use std::ops::Range;

use zeroize::Zeroizing;

use super::coding::{Coding, line_end_before, sextet};

/// Characters of an encoded text in one line that show it to be one; lines of usual encoders are
/// longer.
pub(super) const SHOWN: usize = 32;

/// Characters of an encoded text that hold a whole secret.
const WHOLE: usize = 192;

/// Bytes of an encoded text that are decoded at once.
const DECODED: usize = 1024;

/// A part of an encoded text.
pub(super) struct Encoded {
    /// Place where it begins.
    pub(super) begin: usize,
    pub(super) decoded: Zeroizing<Vec<u8>>,
    /// True if more of it follows.
    pub(super) goes_on: bool,
    /// Place from which more text could show a secret, if the text ends before it does.
    pub(super) undecided: Option<usize>,
}

/// Iterates over the encoded texts that begin in the range `begins` of `text`; long ones come in
/// parts that overlap.
pub(super) fn encoded(text: &[u8], begins: Range<usize>) -> impl Iterator<Item = Encoded> {
    let mut from = begins.start;
    std::iter::from_fn(move || {
        let (shown, code) = next_encoded(text, from, begins.end + WHOLE)?;
        let (begin, characters) = begin_of(text, shown, code);
        if begin >= begins.end {
            return None;
        }
        let (decoded, is_cut) = code.coding().decoded(text, begin, DECODED);
        let decoded = Zeroizing::new(decoded.into_owned());
        // What was decoded is not looked at again, but for a secret that it holds the beginning of.
        let read = code
            .characters_of(decoded.len())
            .saturating_sub(characters + WHOLE);
        from = shown + read.max(SHOWN);
        let undecided = is_cut.then(|| begin.max(text.len().saturating_sub(WHOLE)));
        Some(Encoded {
            begin,
            goes_on: is_cut || decoded.len() >= DECODED,
            decoded,
            undecided,
        })
    })
}

/// Encodings that consist of groups of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Base64,
    Hex,
}

impl Code {
    const fn coding(self) -> Coding {
        match self {
            Self::Base64 => Coding::Base64 {
                lead: 0,
                skipped: 0,
            },
            Self::Hex => Coding::Hex,
        }
    }

    /// Characters of a group, which stands for whole bytes.
    const fn group(self) -> usize {
        match self {
            Self::Base64 => 4,
            Self::Hex => 2,
        }
    }

    /// Characters that stand for so many bytes.
    const fn characters_of(self, bytes: usize) -> usize {
        match self {
            Self::Base64 => bytes * 4 / 3,
            Self::Hex => bytes * 2,
        }
    }

    fn includes(self, byte: u8) -> bool {
        match self {
            Self::Base64 => sextet(byte).is_some(),
            Self::Hex => byte.is_ascii_hexdigit(),
        }
    }

    /// Returns true if a group stands for ASCII.
    fn is_ascii(self, group: &[u8]) -> bool {
        // The highest bit of each byte.
        match (self, group) {
            (Self::Base64, [one, two, three, _]) => {
                let is_clear =
                    |byte: u8, bit: u32| sextet(byte).is_some_and(|value| value & bit == 0);
                is_clear(*one, 32) && is_clear(*two, 8) && is_clear(*three, 2)
            }
            (Self::Hex, [high, low]) => matches!(high, b'2'..=b'7') && low.is_ascii_hexdigit(),
            _ => false,
        }
    }
}

/// Returns the next place from `from` on, up to `end`, where [`SHOWN`] characters stand for ASCII.
fn next_encoded(text: &[u8], mut from: usize, end: usize) -> Option<(usize, Code)> {
    loop {
        let near = text.get(from..from + SHOWN).filter(|_| from < end)?;
        // From the end, so that what cannot be encoded is passed over at once.
        if let Some(gap) = near.iter().rposition(|byte| sextet(*byte).is_none()) {
            from += gap + 1;
            continue;
        }
        let mut passed = SHOWN;
        for code in [Code::Base64, Code::Hex] {
            for lead in 0..code.group() {
                let mut groups = near
                    .get(lead..)
                    .unwrap_or_default()
                    .chunks_exact(code.group());
                match groups.rposition(|group| !code.is_ascii(group)) {
                    // No place up to there has such groups.
                    Some(other) => passed = passed.min(lead + other * code.group() + 1),
                    None => return Some((from + lead, code)),
                }
            }
        }
        from += passed;
    }
}

/// Returns the beginning of the encoded text around a group at `shown`, and the characters in
/// between; at most as many as can matter.
fn begin_of(text: &[u8], shown: usize, code: Code) -> (usize, usize) {
    let mut at = shown;
    let mut count = 0;
    let mut begin = (shown, 0);
    while count < WHOLE {
        let before = text.get(..at).unwrap_or_default();
        at -= line_end_before(before);
        match text.get(..at).and_then(<[u8]>::last) {
            Some(byte) if code.includes(*byte) => (at, count) = (at - 1, count + 1),
            _ => break,
        }
        if count % code.group() == 0 {
            begin = (at, count);
        }
    }
    begin
}
