//! Finds a secret in text that comes in parts, however encoders write it: as it is, percent-encoded, escaped as in JSON or HTML, each
//! byte or any of them, and in Base64.

use std::collections::VecDeque;
use std::ops::Range;

use memchr::{memchr, memchr2, memmem};
use zeroize::Zeroizing;

use crate::credentials::placeholder::base64_forms;

/// A part of Base64 that is shorter is met by chance.
const BASE64_BYTES: usize = 8;

/// Bytes of the longest escape that is known: two of JSON's for one character outside of the Basic Multilingual Plane, or a character
/// reference of HTML's with some leading zeros.
const ESCAPE_BYTES: usize = 12;

/// A text to be found.
#[derive(Debug)]
struct Needle {
    bytes: Zeroizing<Vec<u8>>,
    /// For each length of a beginning, how much of its end is a beginning again (Knuth, Morris, Pratt 1977).
    borders: Vec<u32>,
}

impl Needle {
    fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        let mut needle = Self { borders: vec![0; bytes.len() + 1], bytes };
        let mut border = 0;
        for index in 1..needle.bytes.len() {
            border = needle.step(border, needle.bytes.get(index).copied());
            if let Some(slot) = needle.borders.get_mut(index + 1) {
                *slot = u32::try_from(border).unwrap_or(0);
            }
        }
        needle
    }

    /// How much of it is matched when `byte` comes behind what `matched` before.
    fn step(&self, mut matched: usize, byte: Option<u8>) -> usize {
        loop {
            match self.bytes.get(matched) {
                Some(next) if Some(*next) == byte => return matched + 1,
                _ if matched == 0 => return 0,
                _ => matched = self.border(matched),
            }
        }
    }

    fn border(&self, matched: usize) -> usize {
        self.borders.get(matched).map_or(0, |border| *border as usize)
    }

    /// Calls `found` with where it ends in `text`, each time, if `matched` of it came before; and returns how much of it is matched at
    /// the end. Takes time by the length of `text`, whatever is in it.
    fn ends_in(&self, text: &[u8], mut matched: usize, mut found: impl FnMut(usize)) -> usize {
        let (length, mut at) = (self.bytes.len(), 0);
        while at < text.len() {
            let rest = text.get(at..).unwrap_or_default();
            // Where nothing is matched the next beginning is found faster.
            if matched == 0 && rest.len() >= length {
                match memmem::find(rest, &self.bytes) {
                    Some(offset) => {
                        at += offset + length;
                        matched = self.border(length);
                        found(at);
                        continue;
                    }
                    None => at = text.len() - (length - 1),
                }
            }
            matched = self.step(matched, text.get(at).copied());
            at += 1;
            if matched == length {
                found(at);
                matched = self.border(length);
            }
        }
        matched
    }
}

/// A secret, prepared to be found.
#[derive(Debug)]
pub struct Forms {
    plain: Needle,
    base64: Vec<Needle>,
}

impl Forms {
    /// Those of `secret`.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        let base64 = base64_forms(secret).into_iter().filter(|form| form.len() >= BASE64_BYTES).map(Needle::new);
        Self { plain: Needle::new(Zeroizing::new(secret.to_vec())), base64: base64.collect() }
    }

    /// Bytes of the longest form that encoders write: six for a letter or digit (`\u0061`, `&#x61;`), nine for anything else
    /// (`&#x0002b;`, `&lbrack;`).
    #[must_use]
    pub fn longest(&self) -> usize {
        let base64 = self.base64.iter().map(|needle| needle.bytes.len()).max().unwrap_or(0);
        let escaped = self.plain.bytes.iter().map(|byte| if byte.is_ascii_alphanumeric() { 6 } else { 9 });
        base64.max(escaped.sum())
    }

    /// Whether the name of a field, which has no case, holds the secret. What is short is met by chance.
    #[must_use]
    pub fn are_in_name(&self, name: &str) -> bool {
        let decoded: Vec<u8> = Escapes::Percent.decoded(name.as_bytes()).to_ascii_lowercase();
        let is_in = |text: &[u8], needle: &Needle| {
            let lower = Zeroizing::new(needle.bytes.to_ascii_lowercase());
            lower.len() >= BASE64_BYTES && memmem::find(text, &lower).is_some()
        };
        let texts = [name.as_bytes(), &decoded];
        texts.iter().any(|text| is_in(text, &self.plain)) || self.base64.iter().any(|form| is_in(name.as_bytes(), form))
    }
}

/// How far each form of a secret is matched at the end of what came.
#[derive(Debug)]
pub struct Matcher {
    plain: usize,
    base64: Vec<usize>,
    escaped: [Decoder; 4],
}

impl Matcher {
    /// For the secret with these `forms`, before anything came.
    #[must_use]
    pub fn new(forms: &Forms) -> Self {
        let escaped = [Escapes::Percent, Escapes::Form, Escapes::Backslash, Escapes::Reference].map(Decoder::new);
        Self { plain: 0, base64: vec![0; forms.base64.len()], escaped }
    }

    /// Calls `found` with the place of each form of the secret that ends in `part`, which comes next and begins at `at`.
    pub fn push(&mut self, forms: &Forms, part: &[u8], at: usize, mut found: impl FnMut(Range<usize>)) {
        let before = self.plain;
        let length = forms.plain.bytes.len();
        self.plain = forms.plain.ends_in(part, before, |end| found((at + end).saturating_sub(length)..at + end));
        for (needle, matched) in forms.base64.iter().zip(&mut self.base64) {
            let length = needle.bytes.len();
            *matched = needle.ends_in(part, *matched, |end| found((at + end).saturating_sub(length)..at + end));
        }
        for decoder in &mut self.escaped {
            // Without an escape nearby it would find the same.
            if decoder.is_idle() && decoder.matched == before && decoder.escapes.next(part).is_none() {
                decoder.matched = self.plain;
                decoder.decoded += part.len() as u64;
            } else {
                decoder.push(&forms.plain, part, at, &mut found);
            }
        }
    }
}

/// How texts are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escapes {
    /// `%2B` (RFC 3986 §2.1).
    Percent,
    /// The same, and `+` for a space (URL Standard, application/x-www-form-urlencoded).
    Form,
    /// `\u002b`, `\x2b`, `\"` (RFC 8259 §7, ECMA-262 §12.9.4).
    Backslash,
    /// `&#x2b;`, `&#43;`, `&plus;` (HTML Standard, Character references).
    Reference,
}

/// What an escape stands for.
enum Escape {
    /// `length` bytes stand for some others.
    Whole { length: usize, bytes: Vec<u8> },
    /// What follows decides.
    Begun,
    /// It is none.
    None,
}

impl Escapes {
    /// Where the next escape may begin.
    fn next(self, text: &[u8]) -> Option<usize> {
        match self {
            Self::Percent => memchr(b'%', text),
            Self::Form => memchr2(b'%', b'+', text),
            Self::Backslash => memchr(b'\\', text),
            Self::Reference => memchr(b'&', text),
        }
    }

    /// The escape at the beginning of `text`, as far as that is there.
    fn read(self, text: &[u8]) -> Escape {
        let read = match (self, text) {
            (Self::Form, [b'+', ..]) => Some(Some((1, vec![b' ']))),
            (Self::Percent | Self::Form, [_, digits @ ..]) => hexadecimal(digits, 2)
                .map(|value| value.map(|value| (3, vec![u8::try_from(value).unwrap_or_default()]))),
            (Self::Backslash, [_, rest @ ..]) => backslash(rest),
            (Self::Reference, [_, rest @ ..]) => reference(rest),
            (_, []) => None,
        };
        match read {
            Some(Some((length, bytes))) => Escape::Whole { length, bytes },
            Some(None) => Escape::None,
            None if text.len() < ESCAPE_BYTES => Escape::Begun,
            None => Escape::None,
        }
    }

    /// `text` with every escape undone.
    fn decoded(self, text: &[u8]) -> Vec<u8> {
        let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text);
        while let Some(next) = self.next(rest) {
            let (before, escape) = rest.split_at(next);
            decoded.extend_from_slice(before);
            let length = match self.read(escape) {
                Escape::Whole { length, bytes } => {
                    decoded.extend(bytes);
                    length
                }
                Escape::Begun | Escape::None => {
                    decoded.extend(escape.first());
                    1
                }
            };
            rest = escape.get(length..).unwrap_or_default();
        }
        decoded.extend_from_slice(rest);
        decoded
    }
}

/// The bytes that an escape takes and stands for; inside, `None` where it is none; outside, where what follows decides.
type Read = Option<Option<(usize, Vec<u8>)>>;

/// The value of `count` hexadecimal digits; inside, `None` where there are others; outside, where there are too few.
fn hexadecimal(digits: &[u8], count: usize) -> Option<Option<u32>> {
    let mut value = 0;
    for place in 0..count {
        match char::from(*digits.get(place)?).to_digit(16) {
            Some(digit) => value = value << 4 | digit,
            None => return Some(None),
        }
    }
    Some(Some(value))
}

fn utf8(character: u32) -> Vec<u8> {
    let character = char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
    character.encode_utf8(&mut [0; 4]).as_bytes().to_vec()
}

/// What stands behind a backslash.
fn backslash(rest: &[u8]) -> Read {
    let simple = |byte| Some(Some((2, vec![byte])));
    match rest.split_first()? {
        (b'u', digits) => {
            let Some(high) = hexadecimal(digits, 4)? else { return Some(None) };
            if !(0xd800..0xdc00).contains(&high) {
                return Some(Some((6, utf8(high))));
            }
            let behind = digits.get(4..).unwrap_or_default();
            let low = match behind {
                [b'\\', b'u', digits @ ..] => hexadecimal(digits, 4)?,
                [] | [b'\\'] => return None,
                _ => None,
            };
            match low.filter(|low| (0xdc00..0xe000).contains(low)) {
                Some(low) => Some(Some((12, utf8(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))))),
                None => Some(Some((6, utf8(high)))),
            }
        }
        (b'x', digits) => hexadecimal(digits, 2).map(|value| value.map(|value| (4, utf8(value)))),
        (b't', _) => simple(b'\t'),
        (byte @ (b'"' | b'\'' | b'\\' | b'/'), _) => simple(*byte),
        _ => Some(None),
    }
}

/// What stands behind an ampersand.
fn reference(rest: &[u8]) -> Read {
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'#';
    let length = rest.iter().take_while(is_part).count();
    match rest.get(length) {
        None => return None,
        Some(b';') => {}
        Some(_) => return Some(None),
    }
    let name = rest.get(..length).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default();
    let number = match name.strip_prefix('#') {
        Some(digits) => match digits.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        },
        None => NAMES.iter().find(|(known, _)| *known == name).map(|(_, character)| u32::from(*character)),
    };
    Some(number.map(|number| (length + 2, utf8(number))))
}

/// The named character references for what secrets are made of (HTML Standard, Named character references).
const NAMES: &[(&str, char)] = &[
    ("Hat", '^'),
    ("Tab", '\t'),
    ("amp", '&'),
    ("AMP", '&'),
    ("apos", '\''),
    ("ast", '*'),
    ("bsol", '\\'),
    ("colon", ':'),
    ("comma", ','),
    ("commat", '@'),
    ("dollar", '$'),
    ("equals", '='),
    ("excl", '!'),
    ("grave", '`'),
    ("gt", '>'),
    ("GT", '>'),
    ("lbrace", '{'),
    ("lbrack", '['),
    ("lcub", '{'),
    ("lowbar", '_'),
    ("lpar", '('),
    ("lsqb", '['),
    ("lt", '<'),
    ("LT", '<'),
    ("num", '#'),
    ("percnt", '%'),
    ("period", '.'),
    ("plus", '+'),
    ("quest", '?'),
    ("quot", '"'),
    ("QUOT", '"'),
    ("rbrace", '}'),
    ("rbrack", ']'),
    ("rcub", '}'),
    ("rpar", ')'),
    ("rsqb", ']'),
    ("semi", ';'),
    ("sol", '/'),
    ("verbar", '|'),
    ("vert", '|'),
];

/// Finds a text in what it stands for where it is escaped in one way.
#[derive(Debug)]
struct Decoder {
    escapes: Escapes,
    /// How much of the text is matched.
    matched: usize,
    /// The beginning of an escape, until what it is is known: less than [`ESCAPE_BYTES`].
    begun: Vec<u8>,
    /// How many bytes came, decoded.
    decoded: u64,
    /// The escapes among the last ones, as many as the text may hold: behind which byte, and how many more bytes each took than it
    /// stands for.
    recent: VecDeque<(u64, usize)>,
}

impl Decoder {
    fn new(escapes: Escapes) -> Self {
        Self { escapes, matched: 0, begun: Vec::new(), decoded: 0, recent: VecDeque::new() }
    }

    /// Whether nothing escaped is under way.
    fn is_idle(&self) -> bool {
        self.begun.is_empty() && (self.recent.is_empty() || self.matched == 0)
    }

    fn push(&mut self, needle: &Needle, part: &[u8], at: usize, found: &mut impl FnMut(Range<usize>)) {
        let at = at.cast_signed();
        let begun = std::mem::take(&mut self.begun);
        let mut read = 0;
        if !begun.is_empty() {
            // Far enough for what has begun to be decided.
            let joined = [&begun, part.get(..ESCAPE_BYTES).unwrap_or(part)].concat();
            read = self.run(needle, &joined, (at - begun.len().cast_signed(), begun.len()), found) - begun.len();
        }
        let rest = part.get(read..).unwrap_or_default();
        self.run(needle, rest, (at + read.cast_signed(), rest.len()), found);
    }

    /// Reads `text`, which begins at `at`, up to `until` in it or further, to the end of an escape, and says how far.
    fn run(
        &mut self,
        needle: &Needle,
        text: &[u8],
        (at, until): (isize, usize),
        found: &mut impl FnMut(Range<usize>),
    ) -> usize {
        let mut read = 0;
        while read < until {
            let here = at + read.cast_signed();
            let rest = text.get(read..).unwrap_or_default();
            let plain = self.escapes.next(rest).unwrap_or(rest.len()).min(until - read);
            if plain > 0 {
                self.advance(needle, rest.get(..plain).unwrap_or_default(), here, found);
                read += plain;
                continue;
            }
            match self.escapes.read(rest) {
                Escape::Whole { length, bytes } => {
                    let longer = length.saturating_sub(bytes.len());
                    self.recent.push_back((self.decoded + bytes.len() as u64, longer));
                    // What it stands for ends where it ends.
                    self.advance(needle, &bytes, here + longer.cast_signed(), found);
                    read += length;
                    let kept = self.decoded.saturating_sub(needle.bytes.len() as u64);
                    while self.recent.front().is_some_and(|(end, _)| *end < kept) {
                        self.recent.pop_front();
                    }
                }
                Escape::Begun => {
                    self.begun = rest.to_vec();
                    return text.len();
                }
                Escape::None => {
                    self.advance(needle, rest.get(..1).unwrap_or_default(), here, found);
                    read += 1;
                }
            }
        }
        read
    }

    /// Goes on by `bytes`, decoded, which begin at `at`.
    fn advance(&mut self, needle: &Needle, bytes: &[u8], at: isize, found: &mut impl FnMut(Range<usize>)) {
        let (decoded, recent, length) = (self.decoded, &self.recent, needle.bytes.len());
        self.matched = needle.ends_in(bytes, self.matched, |end| {
            let begins = (decoded + end as u64).saturating_sub(length as u64);
            let longer: usize = recent.iter().filter(|(end, _)| *end > begins).map(|(_, longer)| longer).sum();
            let end = at + end.cast_signed();
            let begin = end - (length + longer).cast_signed();
            // What was sent on already cannot be masked any more.
            found(usize::try_from(begin).unwrap_or(0)..usize::try_from(end).unwrap_or(0));
        });
        self.decoded += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests;
