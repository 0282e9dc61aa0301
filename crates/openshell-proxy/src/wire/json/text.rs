//! The text of values that have no fault: where they end, and what their strings say.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// Returns the number of bytes of the value with which `text` begins.
pub(super) fn after(text: &str) -> usize {
    match text.as_bytes().first() {
        Some(b'"') => after_string(text),
        Some(b'{' | b'[') => after_container(text),
        Some(_) => {
            let is_behind = |character: char| {
                matches!(character, ',' | ':' | ']' | '}' | ' ' | '\t' | '\n' | '\r')
            };
            text.find(is_behind).unwrap_or(text.len())
        }
        None => 0,
    }
}

/// Returns the number of bytes of the string with which `text` begins.
fn after_string(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    text.len()
}

/// Returns the number of bytes of the array or object with which `text` begins.
fn after_container(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'"' => {
                at += text.get(at..).map_or(1, after_string);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the characters for which `inner`, the inside of a string, stands.
pub(super) fn unescaped(inner: &str) -> Cow<'_, str> {
    if memchr(b'\\', inner.as_bytes()).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((before, escape)) = rest.split_once('\\') {
        text.push_str(before);
        let mut characters = escape.chars();
        let character = match characters.next() {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let (character, length) = code_point(escape);
                text.push(character);
                rest = escape.get(length..).unwrap_or_default();
                continue;
            }
            Some(character) => character,
            None => break,
        };
        text.push(character);
        rest = characters.as_str();
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Returns the character for which `escape`, an escape without its backslash, stands, and the number
/// of its bytes: `uXXXX`, or a surrogate pair `uXXXX\uXXXX`.
fn code_point(escape: &str) -> (char, usize) {
    let first = unit(escape.get(1..5));
    let second = unit(escape.get(7..11));
    match char::decode_utf16([first]).next() {
        Some(Ok(character)) => (character, 5),
        _ => {
            let pair = char::decode_utf16([first, second]).next();
            let character = pair.and_then(Result::ok);
            (character.unwrap_or(char::REPLACEMENT_CHARACTER), 11)
        }
    }
}

fn unit(digits: Option<&str>) -> u16 {
    let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    unit.unwrap_or_default()
}
