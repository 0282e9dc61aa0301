//! Search for secrets of three parts with dots between, which have no beginning of their own that an anchor could hold.

use std::ops::Range;

use openshell_policy::issuers::Characters;
use zeroize::Zeroizing;

use super::coding::{Coding, line_end_before, sextet};
use super::{BEFORE, Verdict};
use crate::placeholder::decode;

/// Lengths that the first part may have.
const LONGER: usize = 6;

/// Characters of an encoded text in one line that show it to be one; lines of usual encoders are longer.
pub(super) const SHOWN: usize = 32;

/// Characters of an encoded text that hold a whole secret.
const WHOLE: usize = 192;

/// Bytes of an encoded text that are decoded at once.
const DECODED: usize = 1024;

/// Calls `judge` with each place in the range `begins` of `text` where a secret of these `parts` is, or may be.
pub(super) fn search(
    parts: [usize; 3],
    text: &[u8],
    begins: &Range<usize>,
    is_whole: bool,
    mut judge: impl FnMut(usize, Verdict),
) {
    let within = text.get(begins.clone()).unwrap_or_default();
    for dot in memchr::memchr_iter(b'.', within).map(|dot| begins.start + dot) {
        judge(dot, three_parts(parts, text, dot, is_whole));
    }
    for escape in memchr::memchr_iter(b'%', within).map(|escape| begins.start + escape) {
        if let Some(b"%2E" | b"%2e") = text.get(escape..escape + 3) {
            judge(escape, percent_encoded(parts, text, escape, is_whole));
        }
    }
    let mut from = begins.start;
    while let Some((shown, code)) = next_encoded(text, from, begins.end + WHOLE) {
        let (begin, characters) = begin_of(text, shown, code);
        if begin >= begins.end {
            break;
        }
        let (decoded, is_cut) = code.coding().decoded(text, begin, DECODED);
        let decoded = Zeroizing::new(decoded.into_owned());
        let is_cut = is_cut && !is_whole;
        if is_in(parts, &decoded) {
            judge(begin, Verdict::Secret);
        } else if is_cut {
            judge(begin.max(text.len().saturating_sub(WHOLE)), Verdict::Undecided);
        }
        // What was decoded is not looked at again, but for a secret that it holds the beginning of.
        let read = code.characters_of(decoded.len()).saturating_sub(characters + WHOLE);
        from = shown + read.max(SHOWN);
    }
}

/// Judges a text of three parts, of at least as many bytes (the second of exactly as many), with dots between, the first at `dot`.
fn three_parts(parts: [usize; 3], text: &[u8], dot: usize, is_whole: bool) -> Verdict {
    let (before, after) = (text.get(..dot).unwrap_or_default(), text.get(dot + 1..).unwrap_or_default());
    let first = words(before.iter().rev(), parts[0] + LONGER);
    let begins = before.get(before.len() - first..).and_then(<[u8]>::first).is_some_and(|byte| is_first(*byte));
    if !(parts[0]..parts[0] + LONGER).contains(&first) || !begins {
        Verdict::Other
    } else {
        rest(parts, after, is_whole)
    }
}

/// Returns true if a decoded text holds a secret. What stands before it may have been no encoded text, and so be any bytes.
fn is_in(parts: [usize; 3], text: &[u8]) -> bool {
    memchr::memchr_iter(b'.', text).any(|dot| {
        let (before, after) = (text.get(..dot).unwrap_or_default(), text.get(dot + 1..).unwrap_or_default());
        let first = words(before.iter().rev(), parts[0] + LONGER - 1);
        let begins = before.iter().rev().take(first).skip(parts[0] - 1).any(|byte| is_first(*byte));
        begins && rest(parts, after, true) == Verdict::Secret
    })
}

/// Returns true for a byte that an account's number begins with in Base64.
fn is_first(byte: u8) -> bool {
    b"MNO".contains(&byte)
}

/// Counts the characters of a word that `bytes` begin with, up to `most`.
fn words<'b>(bytes: impl Iterator<Item = &'b u8>, most: usize) -> usize {
    bytes.take(most).take_while(|byte| Characters::Word.include(**byte)).count()
}

/// Judges what stands after the first dot.
fn rest([_, second, third]: [usize; 3], after: &[u8], is_whole: bool) -> Verdict {
    let middle = words(after.iter(), second + 1);
    let last = after.get(second + 1..).unwrap_or_default();
    let tail = words(last.iter(), third);
    match () {
        () if middle == second && after.get(second) == Some(&b'.') && tail >= third => Verdict::Secret,
        () if !is_whole && middle <= second && after.len() <= second + 1 + third && tail == last.len() => {
            Verdict::Undecided
        }
        () => Verdict::Other,
    }
}

/// Judges percent-encoded text around the escape of a dot.
fn percent_encoded(parts: [usize; 3], text: &[u8], escape: usize, is_whole: bool) -> Verdict {
    let before = text.get(escape.saturating_sub(BEFORE)..escape).unwrap_or_default();
    // The first part has nothing to escape.
    if !before.iter().rev().take(parts[0]).all(|byte| Characters::Word.include(*byte)) {
        return Verdict::Other;
    }
    let end = text.len().min(escape + 3 * BEFORE);
    let (after, _) = decode(text.get(escape..end).unwrap_or_default());
    let around = Zeroizing::new([before, &Zeroizing::new(after)].concat());
    three_parts(parts, &around, before.len(), is_whole || end < text.len())
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
            Self::Base64 => Coding::Base64 { lead: 0, skipped: 0 },
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
                let is_clear = |byte: u8, bit: u32| sextet(byte).is_some_and(|value| value & bit == 0);
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
                let mut groups = near.get(lead..).unwrap_or_default().chunks_exact(code.group());
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

/// Returns the beginning of the encoded text around a group at `shown`, and the characters in between; at most as many as can matter.
fn begin_of(text: &[u8], shown: usize, code: Code) -> (usize, usize) {
    let (mut at, mut count, mut begin) = (shown, 0, (shown, 0));
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
