//! Search for a secret in text that arrives in parts, in the encodings of common software: plain, in Base64, and
//! percent-encoded or escaped as in JSON or HTML, all of it or single bytes, each in its own way; and in UTF-16.

use std::collections::VecDeque;
use std::ops::Range;

use memchr::{memchr, memchr2, memchr3, memmem};
use zeroize::Zeroizing;

use crate::placeholder::base64_forms;

/// Bytes of the shortest Base64 form that is searched for; shorter ones match by chance.
const BASE64_BYTES: usize = 8;

/// Bytes of the longest known escape: a surrogate pair of JSON, or an HTML character reference with some leading zeros.
const ESCAPE_BYTES: usize = 12;

/// A text to be found.
#[derive(Debug)]
struct Needle {
    bytes: Zeroizing<Vec<u8>>,
    /// Length of the longest border of each prefix: a proper prefix that is also its suffix (Knuth, Morris, Pratt
    /// 1977).
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

    /// Bytes matched after `byte`, if `matched` were before it.
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

    /// Calls `found` with each end of the needle in `text`, after `matched` bytes of it; returns the bytes matched at
    /// the end. Takes linear time for any text.
    fn find_ends(&self, text: &[u8], mut matched: usize, mut found: impl FnMut(usize)) -> usize {
        let (length, mut at) = (self.bytes.len(), 0);
        while at < text.len() {
            let rest = text.get(at..).unwrap_or_default();
            // A search for the whole needle is faster.
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
            if matched == 0 {
                let rest = text.get(at..).unwrap_or_default();
                match self.bytes.first().and_then(|first| memchr(*first, rest)) {
                    Some(offset) => at += offset,
                    None => return 0,
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

/// Encodings of a secret.
#[derive(Debug)]
pub struct Forms {
    /// The secret itself first, then its Base64 forms.
    needles: Vec<Needle>,
}

impl Forms {
    /// Encodes `secret`.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        let base64 = base64_forms(secret).into_iter().filter(|form| form.len() >= BASE64_BYTES);
        Self { needles: std::iter::once(Zeroizing::new(secret.to_vec())).chain(base64).map(Needle::new).collect() }
    }

    /// Bytes of the longest encoding in use: six for a letter or digit (`\u0061`, `&#x61;`), nine for any other byte
    /// (`&#x0002b;`, `&lbrack;`).
    #[must_use]
    pub fn longest(&self) -> usize {
        let escaped = |byte: &u8| if byte.is_ascii_alphanumeric() { 6 } else { 9 };
        // Escaping changes only the signs of Base64.
        let in_base64 = |byte: &u8| if byte.is_ascii_alphanumeric() { 1 } else { 9 };
        let length = |(place, needle): (usize, &Needle)| match place {
            0 => needle.bytes.iter().map(escaped).sum::<usize>(),
            _ => needle.bytes.iter().map(in_base64).sum(),
        };
        self.needles.iter().enumerate().map(length).max().unwrap_or(0)
    }

    /// Returns true if the name of a field, in any case, holds the secret. Short secrets match by chance and are not
    /// searched for.
    #[must_use]
    pub fn are_in_name(&self, name: &str) -> bool {
        let decoded: Vec<u8> = Escapes::Percent.decoded(name.as_bytes()).to_ascii_lowercase();
        let is_in = |text: &[u8], needle: &Needle| {
            let lower = Zeroizing::new(needle.bytes.to_ascii_lowercase());
            lower.len() >= BASE64_BYTES && memmem::find(text, &lower).is_some()
        };
        let texts = [name.as_bytes(), &decoded];
        texts.iter().any(|text| self.needles.iter().any(|needle| is_in(text, needle)))
    }
}

/// Progress of each form of a secret through a text.
#[derive(Debug)]
pub struct Matcher {
    /// Bytes matched of each form in the text as it is.
    plain: Vec<usize>,
    /// Progress in the text with each kind of escape decoded.
    escaped: [Decoder; 6],
}

impl Matcher {
    /// Begins a search for the secret of `forms`.
    #[must_use]
    pub fn new(forms: &Forms) -> Self {
        let escapes =
            [Escapes::Percent, Escapes::Form, Escapes::Backslash, Escapes::Reference, Escapes::Mixed, Escapes::Zeros];
        Self { plain: vec![0; forms.needles.len()], escaped: escapes.map(|escapes| Decoder::new(escapes, forms)) }
    }

    /// Calls `found` with the range of each form that ends in `part`, the next one, which begins at `at`.
    pub fn push(&mut self, forms: &Forms, part: &[u8], at: usize, mut found: impl FnMut(Range<usize>)) {
        let before = self.plain.clone();
        for (needle, matched) in forms.needles.iter().zip(&mut self.plain) {
            let length = needle.bytes.len();
            *matched = needle.find_ends(part, *matched, |end| found((at + end).saturating_sub(length)..at + end));
        }
        for decoder in &mut self.escaped {
            // Without an escape nearby the result is that of the plain text.
            if decoder.is_idle(&before) && decoder.escapes.next(part).is_none() {
                decoder.skip(part.len(), &self.plain);
            } else {
                decoder.push(forms, part, at, &mut found);
            }
        }
    }
}

/// Kinds of escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escapes {
    /// `%2B` (RFC 3986 §2.1).
    Percent,
    /// As [`Self::Percent`], and `+` for a space (URL Standard, application/x-www-form-urlencoded).
    Form,
    /// `\u002b`, `\x2b`, `\"` (RFC 8259 §7, ECMA-262 §12.9.4).
    Backslash,
    /// `&#x2b;`, `&#43;`, `&plus;` (HTML Standard, Character references).
    Reference,
    /// Any of them, as where a percent-encoded path stands in a page.
    Mixed,
    /// Zeros between bytes: UTF-16 and UTF-32 in either order of bytes.
    Zeros,
}

/// Result of reading an escape.
enum Escape {
    /// `length` bytes stand for `bytes`.
    Complete { length: usize, bytes: Vec<u8> },
    /// The text ends within it.
    Begun,
    /// It is not an escape.
    None,
}

impl Escapes {
    /// Offset of the next possible escape.
    fn next(self, text: &[u8]) -> Option<usize> {
        match self {
            Self::Percent => memchr(b'%', text),
            Self::Form => memchr2(b'%', b'+', text),
            Self::Backslash => memchr(b'\\', text),
            Self::Reference => memchr(b'&', text),
            Self::Mixed => memchr3(b'%', b'\\', b'&', text),
            Self::Zeros => memchr(0, text),
        }
    }

    /// Reads the escape at the beginning of `text`.
    fn read(self, text: &[u8]) -> Escape {
        let read = match (self, text) {
            (Self::Form, [b'+', ..]) => Some(Some((1, vec![b' ']))),
            (Self::Zeros, [0, 0, 0, 0, ..]) => Some(None),
            (Self::Zeros, zeros) if zeros.len() < 4 && zeros.iter().all(|byte| *byte == 0) => None,
            (Self::Zeros, [_, ..]) => Some(Some((1, Vec::new()))),
            (Self::Percent | Self::Form, [_, digits @ ..]) | (Self::Mixed, [b'%', digits @ ..]) => {
                hexadecimal(digits, 2)
                    .map(|value| value.map(|value| (3, vec![u8::try_from(value).unwrap_or_default()])))
            }
            (Self::Backslash, [_, rest @ ..]) | (Self::Mixed, [b'\\', rest @ ..]) => backslash(rest),
            (Self::Reference | Self::Mixed, [_, rest @ ..]) => reference(rest),
            (_, []) => None,
        };
        match read {
            Some(Some((length, bytes))) => Escape::Complete { length, bytes },
            Some(None) => Escape::None,
            None if text.len() < ESCAPE_BYTES => Escape::Begun,
            None => Escape::None,
        }
    }

    /// Decodes every escape in `text`.
    fn decoded(self, text: &[u8]) -> Vec<u8> {
        let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text);
        while let Some(next) = self.next(rest) {
            let (before, escape) = rest.split_at(next);
            decoded.extend_from_slice(before);
            let length = match self.read(escape) {
                Escape::Complete { length, bytes } => {
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

/// Length and meaning of an escape. The inner `None` means that it is none, the outer that the text ends within it.
type Read = Option<Option<(usize, Vec<u8>)>>;

/// Parses `count` hexadecimal digits; the inner `None` means other characters, the outer too few.
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

/// Reads the rest of an escape after its backslash.
fn backslash(rest: &[u8]) -> Read {
    let simple = |byte| Some(Some((2, vec![byte])));
    match rest.split_first()? {
        (b'u', digits) => {
            let Some(high) = hexadecimal(digits, 4)? else { return Some(None) };
            if !(0xd800..0xdc00).contains(&high) {
                return Some(Some((6, utf8(high))));
            }
            let after = digits.get(4..).unwrap_or_default();
            let low = match after {
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

/// Reads the rest of a character reference after its ampersand.
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

/// Named character references for characters of secrets (HTML Standard, Named character references).
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

/// Searches a text with one kind of escape decoded.
#[derive(Debug)]
struct Decoder {
    escapes: Escapes,
    /// Progress of each form.
    matches: Vec<Match>,
    /// A begun escape at the end of the text: less than [`ESCAPE_BYTES`].
    partial: Vec<u8>,
    /// Bytes of decoded text so far.
    decoded: u64,
}

/// Progress of one form through a decoded text.
#[derive(Debug, Default)]
struct Match {
    matched: usize,
    /// Escapes within the match: the decoded offset of each one's end, and the bytes by which it is longer than its
    /// meaning.
    escapes: VecDeque<(u64, usize)>,
    /// Sum of these bytes.
    longer: usize,
}

/// Decoded text: a stretch without escapes, or the meaning of one.
#[derive(Clone, Copy)]
struct Chunk<'t> {
    bytes: &'t [u8],
    /// Bytes by which the escape is longer than its meaning.
    longer: usize,
    /// Offset in the text.
    at: isize,
}

impl Match {
    /// Forgets the escapes that end at or before `decoded`.
    fn forget(&mut self, decoded: u64) {
        while let Some((_, longer)) = self.escapes.front().copied().filter(|(end, _)| *end <= decoded) {
            self.longer -= longer;
            self.escapes.pop_front();
        }
    }

    /// Advances by `chunk`, which follows `decoded` bytes.
    fn advance(&mut self, needle: &Needle, decoded: u64, chunk: &Chunk<'_>, found: &mut impl FnMut(Range<usize>)) {
        let Chunk { bytes, longer, at } = *chunk;
        let (length, end) = (needle.bytes.len(), decoded + bytes.len() as u64);
        if longer > 0 {
            self.escapes.push_back((end, longer));
            self.longer += longer;
        }
        let mut ends = Vec::new();
        self.matched = needle.find_ends(bytes, self.matched, |end| ends.push(end));
        for end in ends {
            self.forget((decoded + end as u64).saturating_sub(length as u64));
            let end = at + end.cast_signed();
            let begin = end - (length + self.longer).cast_signed();
            // A part that was sent on can no longer be masked.
            found(usize::try_from(begin).unwrap_or(0)..usize::try_from(end).unwrap_or(0));
        }
        self.forget(end.saturating_sub(self.matched as u64));
    }
}

impl Decoder {
    fn new(escapes: Escapes, forms: &Forms) -> Self {
        let matches = forms.needles.iter().map(|_| Match::default()).collect();
        Self { escapes, matches, partial: Vec::new(), decoded: 0 }
    }

    /// Returns true if no escape is begun or matched, and each form is matched as far as `plain` says.
    fn is_idle(&self, plain: &[usize]) -> bool {
        let same = |(own, plain): (&Match, &usize)| own.matched == *plain && own.escapes.is_empty();
        self.partial.is_empty() && self.matches.iter().zip(plain).all(same)
    }

    /// Skips `length` bytes without an escape, after which each form is matched as far as `plain` says.
    fn skip(&mut self, length: usize, plain: &[usize]) {
        self.matches.iter_mut().zip(plain).for_each(|(own, plain)| own.matched = *plain);
        self.decoded += length as u64;
    }

    fn push(&mut self, forms: &Forms, part: &[u8], at: usize, found: &mut impl FnMut(Range<usize>)) {
        let at = at.cast_signed();
        let partial = std::mem::take(&mut self.partial);
        let mut read = 0;
        if !partial.is_empty() {
            // Enough bytes to decide a begun escape.
            let joined = [&partial, part.get(..ESCAPE_BYTES).unwrap_or(part)].concat();
            let begin = at - partial.len().cast_signed();
            read = self.run(forms, &joined, begin, partial.len(), found) - partial.len();
        }
        let rest = part.get(read..).unwrap_or_default();
        self.run(forms, rest, at + read.cast_signed(), rest.len(), found);
    }

    /// Reads `text`, which begins at `at`, up to `until` or the end of the escape there; returns the bytes read.
    fn run(
        &mut self,
        forms: &Forms,
        text: &[u8],
        at: isize,
        until: usize,
        found: &mut impl FnMut(Range<usize>),
    ) -> usize {
        let mut read = 0;
        while read < until {
            let here = at + read.cast_signed();
            let rest = text.get(read..).unwrap_or_default();
            let plain = self.escapes.next(rest).unwrap_or(rest.len()).min(until - read);
            if plain > 0 {
                let bytes = rest.get(..plain).unwrap_or_default();
                self.advance(forms, &Chunk { bytes, longer: 0, at: here }, found);
                read += plain;
                continue;
            }
            match self.escapes.read(rest) {
                Escape::Complete { length, bytes } => {
                    let longer = length.saturating_sub(bytes.len());
                    // The meaning ends where the escape ends.
                    self.advance(forms, &Chunk { bytes: &bytes, longer, at: here + longer.cast_signed() }, found);
                    read += length;
                }
                Escape::Begun => {
                    self.partial = rest.to_vec();
                    return text.len();
                }
                Escape::None => {
                    let bytes = rest.get(..1).unwrap_or_default();
                    self.advance(forms, &Chunk { bytes, longer: 0, at: here }, found);
                    read += 1;
                }
            }
        }
        read
    }

    /// Advances by `chunk`.
    fn advance(&mut self, forms: &Forms, chunk: &Chunk<'_>, found: &mut impl FnMut(Range<usize>)) {
        for (needle, own) in forms.needles.iter().zip(&mut self.matches) {
            own.advance(needle, self.decoded, chunk, found);
        }
        self.decoded += chunk.bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests;
