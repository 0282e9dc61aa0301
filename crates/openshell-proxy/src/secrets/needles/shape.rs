//! Recognizes secrets of issuers by their shapes: a beginning, a length, and what follows or is
//! near.

use crate::secrets::decode::Escapes;
use openshell_policy::issuers::{Characters, Shape};

/// Number of bytes before an anchor that are considered when it is judged.
pub(crate) const BEFORE: usize = 40;

/// Number of bytes after a secret's least length that are compared with its shape.
pub(super) const BEYOND: usize = 64;

/// Number of bytes after the beginning of a secret within which the text must begin that its shape
/// demands next (`then`).
pub(super) const NEAR: usize = 40;

/// Number of bytes after that text within which [`BODY_RUN`] characters of Base64 must follow each
/// other: the first line of a key, which may have headers before it.
pub(super) const BODY: usize = 160;

pub(super) const BODY_RUN: usize = 32;

/// Number of bytes after a secret within which the text must begin that its shape demands near it
/// (`beside`).
pub(super) const BESIDE: usize = 200;

/// The verdict on a text at an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Secret,
    Other,
    /// More text is needed to decide.
    Undecided,
}

/// Returns how many bytes, from the beginning of a secret on, are compared with its shape.
pub(super) fn compared_bytes(shape: &Shape) -> usize {
    let then = shape
        .then
        .as_ref()
        .map(|then| shape.begins.len() + NEAR + then.len() + BODY);
    let beside = shape.beside.map(|length| shape.length + BESIDE + length);
    then.or(beside).unwrap_or(shape.length + BEYOND)
}

/// Returns after how many bytes a text can be ruled out early: after its beginning, and after what
/// its shape demands before it looks at what follows or is near.
pub(super) fn first_bytes(shape: &Shape) -> impl Iterator<Item = usize> {
    let begins = shape.begins.len();
    let then = shape.then.as_ref().map(|then| begins + NEAR + then.len());
    let token = shape.beside.map(|_| shape.length + 1);
    [Some(begins), then.or(token)].into_iter().flatten()
}

/// Returns true if a secret of this shape can begin after `before`: after the digits that the shape
/// demands, or else not in the middle of a word.
pub(super) fn begins_at(shape: &Shape, before: &[u8]) -> bool {
    if shape.digits > 0 {
        let before = before
            .get(before.len().saturating_sub(BEFORE)..)
            .unwrap_or(before);
        return Escapes::Percent
            .decoded(before)
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
            >= shape.digits;
    }
    match before {
        // An escape of JSON or of a URL.
        [.., b'\\', b'n' | b'r' | b't'] => true,
        [.., b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => true,
        [.., b'\\', b'u', b'0', b'0', high, low]
            if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
        {
            true
        }
        // A colour sequence of a terminal (ECMA-48 §8.3.117).
        [before @ .., b'm'] if is_in_colour(before) => true,
        [.., last] => !Characters::Word.include(*last),
        [] => true,
    }
}

/// Returns true if `before` ends with the `[` and the numbers of a control sequence.
fn is_in_colour(before: &[u8]) -> bool {
    let number = before
        .iter()
        .rev()
        .take(8)
        .take_while(|byte| byte.is_ascii_digit() || **byte == b';')
        .count();
    before
        .get(..before.len() - number)
        .is_some_and(|before| before.ends_with(b"["))
}

/// Returns the runs of Base64 characters in a text.
fn base64_runs(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| !byte.is_ascii_alphanumeric() && !b"+/".contains(byte))
}

/// Compares a text with a shape. If it `is_cut`, more text may follow.
pub(super) fn compared(shape: &Shape, text: &[u8], is_cut: bool) -> Verdict {
    let other = |is_short: bool| other(is_short && is_cut);
    let begins = shape.begins.as_bytes();
    let is_same = |(one, other): (&u8, &u8)| one == other || (*one == b'+' && *other == b' ');
    if !text.iter().zip(begins).all(is_same) {
        return Verdict::Other;
    }
    let Some(rest) = text.get(begins.len()..) else {
        return other(true);
    };
    if let Some(then) = &shape.then {
        return followed(then, rest, is_cut);
    }
    let wanted = shape.length.saturating_sub(shape.begins.len());
    let run = rest
        .iter()
        .take_while(|byte| shape.of.include(**byte))
        .count();
    let (token, after) = rest.split_at(run);
    if run < wanted || (shape.exact && run == wanted && after.is_empty() && is_cut) {
        return other(after.is_empty());
    }
    // Random Base64 contains such runs too, but there the text goes on. After a longer beginning, a
    // slash more likely belongs to a path.
    let goes_on = match after {
        [b'+', ..] => true,
        [b'/', ..] => shape.begins.len() <= 3 && shape.digits == 0,
        _ => false,
    };
    if shape.exact && (run > wanted || goes_on) {
        return Verdict::Other;
    }
    let is_random =
        token.iter().any(u8::is_ascii_digit) && token.iter().any(u8::is_ascii_alphabetic);
    let Some(length) = shape.beside else {
        return if is_random {
            Verdict::Secret
        } else {
            other(after.is_empty())
        };
    };
    let near = after.get(..BESIDE + length).unwrap_or(after);
    // The letters of a digest all have the same case.
    let is_mixed = |run: &[u8]| {
        run.iter().any(u8::is_ascii_uppercase) && run.iter().any(u8::is_ascii_lowercase)
    };
    if base64_runs(near).any(|run| run.len() == length && is_mixed(run)) {
        Verdict::Secret
    } else {
        other(near.len() < BESIDE + length)
    }
}

/// Judges a beginning that `then` and the first line of a key must follow in `rest`.
fn followed(then: &str, rest: &[u8], is_cut: bool) -> Verdict {
    // A form encodes a space as `+`.
    let near: Vec<u8> = rest
        .iter()
        .take(NEAR + then.len())
        .map(|byte| if *byte == b'+' { b' ' } else { *byte })
        .collect();
    let found = memchr::memmem::find(&near, then.as_bytes());
    let Some(body) = found.and_then(|at| rest.get(at + then.len()..)) else {
        return other(near.len() < NEAR + then.len() && is_cut);
    };
    // Source code and documentation contain only the beginning.
    let body = body.get(..BODY).unwrap_or(body);
    if base64_runs(body).any(|run| run.len() >= BODY_RUN) {
        Verdict::Secret
    } else {
        other(body.len() < BODY && is_cut)
    }
}

/// Returns the verdict on what is no secret so far.
fn other(may_go_on: bool) -> Verdict {
    if may_go_on {
        Verdict::Undecided
    } else {
        Verdict::Other
    }
}
