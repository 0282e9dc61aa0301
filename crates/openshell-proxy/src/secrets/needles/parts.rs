//! Searches for secrets that consist of three parts with dots between them. They have no fixed
//! beginning that could be an anchor, so each dot is looked at.

use std::ops::Range;

use openshell_policy::issuers::Characters;
use zeroize::Zeroizing;

use super::{BEFORE, Verdict};
use crate::secrets::decode::Escapes;

/// Number of lengths that the first part may have.
const LONGER: usize = 6;

/// Calls `judge` with each dot in the range `begins` of `text`, plain or percent-encoded, and with
/// the verdict on the text around it.
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
}

/// Judges the text around the dot at `dot`, which ends the first of three parts. The second part
/// has exactly the length in `parts`; the first and the third have at least that.
fn three_parts(parts: [usize; 3], text: &[u8], dot: usize, is_whole: bool) -> Verdict {
    let before = text.get(..dot).unwrap_or_default();
    let after = text.get(dot + 1..).unwrap_or_default();
    let first = words(before.iter().rev(), parts[0] + LONGER);
    let begins = before
        .get(before.len() - first..)
        .and_then(<[u8]>::first)
        .is_some_and(|byte| is_first(*byte));
    if !(parts[0]..parts[0] + LONGER).contains(&first) || !begins {
        Verdict::Other
    } else {
        rest(parts, after, is_whole)
    }
}

/// Returns true if a decoded text holds a secret. Any bytes may stand before it, because what was
/// decoded there may not have been encoded text.
pub(super) fn is_in(parts: [usize; 3], text: &[u8]) -> bool {
    memchr::memchr_iter(b'.', text).any(|dot| {
        let before = text.get(..dot).unwrap_or_default();
        let after = text.get(dot + 1..).unwrap_or_default();
        let first = words(before.iter().rev(), parts[0] + LONGER - 1);
        let begins = before
            .iter()
            .rev()
            .take(first)
            .skip(parts[0] - 1)
            .any(|byte| is_first(*byte));
        begins && rest(parts, after, true) == Verdict::Secret
    })
}

/// Returns true if an account's number in Base64 can begin with `byte`.
fn is_first(byte: u8) -> bool {
    b"MNO".contains(&byte)
}

/// Counts the characters of a word at the beginning of `bytes`, up to `most`.
fn words<'b>(bytes: impl Iterator<Item = &'b u8>, most: usize) -> usize {
    bytes
        .take(most)
        .take_while(|byte| Characters::Word.include(**byte))
        .count()
}

/// Judges what stands after the first dot.
fn rest([_, second, third]: [usize; 3], after: &[u8], is_whole: bool) -> Verdict {
    let middle = words(after.iter(), second + 1);
    let last = after.get(second + 1..).unwrap_or_default();
    let tail = words(last.iter(), third);
    match () {
        () if middle == second && after.get(second) == Some(&b'.') && tail >= third => {
            Verdict::Secret
        }
        () if !is_whole
            && middle <= second
            && after.len() <= second + 1 + third
            && tail == last.len() =>
        {
            Verdict::Undecided
        }
        () => Verdict::Other,
    }
}

/// Judges the percent-encoded text around an escaped dot.
fn percent_encoded(parts: [usize; 3], text: &[u8], escape: usize, is_whole: bool) -> Verdict {
    let before = text
        .get(escape.saturating_sub(BEFORE)..escape)
        .unwrap_or_default();
    // The first part has no characters that need an escape.
    if !before
        .iter()
        .rev()
        .take(parts[0])
        .all(|byte| Characters::Word.include(*byte))
    {
        return Verdict::Other;
    }
    let end = text.len().min(escape + 3 * BEFORE);
    let after = Escapes::Percent.decoded(text.get(escape..end).unwrap_or_default());
    let around = Zeroizing::new([before, &Zeroizing::new(after)].concat());
    three_parts(parts, &around, before.len(), is_whole || end < text.len())
}
