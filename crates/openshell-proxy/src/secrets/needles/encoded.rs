//! Finds texts in Base64 or hexadecimal within a text: runs of characters that decode to ASCII.

use std::ops::Range;

use zeroize::Zeroizing;

use super::coding::{Coding, line_end_before, sextet};

/// Number of characters in one line by which an encoded text is recognized; common encoders make
/// longer lines.
pub(super) const SHOWN: usize = 32;

/// Number of encoded characters that can hold a whole secret.
const WHOLE: usize = 192;

/// Bytes of a part of an encoded text, when it is decoded.
const DECODED: usize = 1024;

/// A part of an encoded text.
pub(super) struct Encoded {
    /// The offset at which it begins.
    pub(super) begin: usize,
    pub(super) decoded: Zeroizing<Vec<u8>>,
    /// True if more of the encoded text follows.
    pub(super) goes_on: bool,
    /// If the text ends within this part: the offset from which more text could show a secret.
    pub(super) undecided: Option<usize>,
}

/// Returns the encoded texts that begin in the range `begins` of `text`; long ones come in
/// overlapping parts.
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
        // What was decoded is skipped, except for an end that may hold the beginning of a secret.
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

    /// Returns the number of characters in a group, which stands for whole bytes.
    const fn group(self) -> usize {
        match self {
            Self::Base64 => 4,
            Self::Hex => 2,
        }
    }

    /// Returns the number of characters that stand for so many bytes.
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

    /// Returns true if `group` stands for ASCII.
    fn is_ascii(self, group: &[u8]) -> bool {
        // This tests the highest bit of each byte.
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

/// Returns the next place from `from` on, up to `end`, where [`SHOWN`] characters stand for ASCII,
/// and their encoding.
fn next_encoded(text: &[u8], mut from: usize, end: usize) -> Option<(usize, Code)> {
    loop {
        let near = text.get(from..from + SHOWN).filter(|_| from < end)?;
        // The search begins at the end, to skip everything before a character that no encoding has.
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
                    // No place up to this group can have such a run.
                    Some(other) => passed = passed.min(lead + other * code.group() + 1),
                    None => return Some((from + lead, code)),
                }
            }
        }
        from += passed;
    }
}

/// Returns the beginning of the encoded text around the group at `shown`, and the number of
/// characters between them. It looks back over at most [`WHOLE`] characters.
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
