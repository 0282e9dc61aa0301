//! Search for secrets of three parts with dots between, which have no beginning of their own that an anchor could hold.

use std::ops::Range;

use openshell_policy::issuers::Characters;

use super::{BEFORE, Verdict, sextet};
use crate::placeholder::decode;

/// Bytes of an encoded text without a gap that may hold a secret; lines of MIME (RFC 2045 §6.8) and PEM are not shorter.
const RUN: usize = 64;

/// Bytes of encoded text that hold a whole secret with what stands around it.
const ENCODED: usize = 192;

/// Bytes of a decoded text that make it one, and not a word that can be decoded by chance.
const DECODED: usize = 6;

/// Bytes that are no characters, beyond those that are, after which a decoded text is none.
const UNREADABLE: usize = 8;

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
    for escape in memchr::memmem::find_iter(within, "%2").map(|escape| begins.start + escape) {
        if let Some(b'E' | b'e') = text.get(escape + 2) {
            judge(escape, percent_encoded(parts, text, escape, is_whole));
        }
    }
    let mut from = begins.start;
    while let Some(run) = next_run(text, from).filter(|run| run.start < begins.end) {
        let is_begun =
            run.start.checked_sub(1).and_then(|before| text.get(before)).is_some_and(|byte| is_encoded(*byte));
        // The beginning of a run says where its groups begin.
        for lead in 0..if is_begun { 4 } else { 1 } {
            for code in [Code::Base64, Code::Hex] {
                let (at, verdict) = decoded(code, parts, text, run.start + lead..run.end, is_whole);
                judge(at, verdict);
            }
        }
        from = run.end;
    }
}

/// Judges a text of three parts, of at least as many bytes (the second of exactly as many), with dots between, the first at `dot`.
fn three_parts(parts: [usize; 3], text: &[u8], dot: usize, is_whole: bool) -> Verdict {
    let [first, second, third] = parts;
    let (before, after) = (text.get(..dot).unwrap_or_default(), text.get(dot + 1..).unwrap_or_default());
    let is_word = |byte: &&u8| Characters::Word.include(**byte);
    let run = before.iter().rev().take_while(is_word).count();
    // An account's number in Base64 begins with one of these.
    let begins = before.get(before.len() - run..).and_then(<[u8]>::first).is_some_and(|byte| b"MNO".contains(byte));
    if !(first..first + 6).contains(&run) || !begins {
        return Verdict::Other;
    }
    let middle = after.iter().take_while(is_word).count();
    let last = after.get(second + 1..).unwrap_or_default();
    let tail = last.iter().take_while(is_word).count();
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
    let end = text.len().min(escape + 3 * BEFORE);
    let (before, _) = decode(text.get(escape.saturating_sub(BEFORE)..escape).unwrap_or_default());
    let (after, _) = decode(text.get(escape..end).unwrap_or_default());
    three_parts(parts, &[&before[..], &after].concat(), before.len(), is_whole || end < text.len())
}

/// Encodings of letters and digits alone.
#[derive(Clone, Copy, Debug)]
enum Code {
    Base64,
    Hex,
}

impl Code {
    /// Bits of a character; `None` for one that ends the text.
    fn bits(self, byte: u8) -> Option<u32> {
        match self {
            Self::Base64 => sextet(byte),
            Self::Hex => char::from(byte).to_digit(16),
        }
    }

    /// Bits that every character has.
    fn width(self) -> u32 {
        match self {
            Self::Base64 => 6,
            Self::Hex => 4,
        }
    }
}

/// Decodes the `run` of `text`, and the lines after it that it may go on in, for as long as there is text in it. Returns the place and the
/// judgement of the first secret, or else of what may be one.
fn decoded(code: Code, parts: [usize; 3], text: &[u8], run: Range<usize>, is_whole: bool) -> (usize, Verdict) {
    let (mut readable, mut bits, mut count, mut unreadable) = (Vec::new(), 0_u32, 0, 0_usize);
    let end = text.len().min(run.end + ENCODED);
    let mut is_cut = end == text.len() && !is_whole;
    for byte in text.get(run.start..end).unwrap_or_default().iter().filter(|byte| !matches!(byte, b'\n' | b'\r')) {
        let Some(value) = code.bits(*byte) else {
            is_cut = false;
            break;
        };
        (bits, count) = (bits << code.width() | value, count + code.width());
        if count < 8 {
            continue;
        }
        count -= 8;
        let byte = u8::try_from(bits >> count & 0xff).unwrap_or_default();
        if matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t') {
            readable.push(byte);
            unreadable = unreadable.saturating_sub(1);
            continue;
        }
        if is_in(parts, &readable) {
            break;
        }
        readable.clear();
        unreadable += 1;
        // Images and ciphers hold characters by chance.
        if unreadable > UNREADABLE {
            return (run.start, Verdict::Other);
        }
    }
    match () {
        () if is_in(parts, &readable) => (run.start, Verdict::Secret),
        () if is_cut && readable.len() >= DECODED => {
            (run.start.max(text.len().saturating_sub(ENCODED)), Verdict::Undecided)
        }
        () => (run.start, Verdict::Other),
    }
}

/// Returns true if a decoded text holds a secret.
fn is_in(parts: [usize; 3], text: &[u8]) -> bool {
    memchr::memchr_iter(b'.', text).any(|dot| three_parts(parts, text, dot, true) == Verdict::Secret)
}

/// Returns true for the characters of Base64 in either alphabet, and so of hexadecimal numbers.
fn is_encoded(byte: u8) -> bool {
    // Without branches, it is done for many bytes at once.
    byte.is_ascii_alphanumeric() | matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// Returns the next of at least [`RUN`] characters without a gap from `from` on, or of fewer that end with the text.
fn next_run(text: &[u8], mut from: usize) -> Option<Range<usize>> {
    loop {
        let rest = text.get(from..).filter(|rest| !rest.is_empty())?;
        let near = rest.get(..RUN).unwrap_or(rest);
        match near.iter().rposition(|byte| !is_encoded(*byte)) {
            Some(gap) => from += gap + 1,
            None => {
                let blocks = rest
                    .chunks_exact(RUN)
                    .take_while(|block| block.iter().fold(true, |all, byte| all & is_encoded(*byte)));
                let whole = blocks.count() * RUN;
                let more = rest.get(whole..).unwrap_or_default().iter().take_while(|byte| is_encoded(**byte)).count();
                return Some(from..from + whole + more);
            }
        }
    }
}
