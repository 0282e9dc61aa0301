//! Decodes the escapes of common software in text that is searched for secrets.

use memchr::{memchr, memchr2, memchr3};

/// Length in bytes of the longest known escape: a surrogate pair of JSON, or an HTML character
/// reference with some leading zeros.
pub(crate) const ESCAPE_BYTES: usize = 12;

/// Kinds of escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Escapes {
    /// `%2B` (RFC 3986 §2.1).
    Percent,
    /// Like [`Self::Percent`], and `+` for a space (URL Standard,
    /// application/x-www-form-urlencoded).
    Form,
    /// `\u002b`, `\x2b`, `\"` (RFC 8259 §7, ECMA-262 §12.9.4).
    Backslash,
    /// `&#x2b;`, `&#43;`, `&plus;` (HTML Standard, Character references).
    Reference,
    /// Percent, backslash and reference escapes mixed, for example a percent-encoded path in a web
    /// page.
    Mixed,
    /// Zeros between bytes, as in UTF-16 and UTF-32 in either byte order.
    Zeros,
    /// Line ends within Base64 (RFC 2045 §6.8), raw or escaped as in JSON.
    Lines,
}

/// What an escape stands for: a character in UTF-8, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meaning {
    bytes: [u8; 4],
    length: usize,
}

impl Meaning {
    fn byte(byte: u8) -> Self {
        Self {
            bytes: [byte, 0, 0, 0],
            length: 1,
        }
    }

    fn character(character: u32) -> Self {
        let mut bytes = [0; 4];
        let character = char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
        let length = character.encode_utf8(&mut bytes).len();
        Self { bytes, length }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Result of reading an escape.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Escape {
    /// `length` bytes stand for `meaning`.
    Complete { length: usize, meaning: Meaning },
    /// The text ends within the escape.
    Begun,
    /// It is not an escape.
    None,
}

impl Escapes {
    /// Returns the offset of the next possible escape.
    pub(crate) fn next(self, text: &[u8]) -> Option<usize> {
        match self {
            Self::Percent => memchr(b'%', text),
            Self::Form => memchr2(b'%', b'+', text),
            Self::Backslash => memchr(b'\\', text),
            Self::Reference => memchr(b'&', text),
            Self::Mixed => memchr3(b'%', b'\\', b'&', text),
            Self::Zeros => few_zeros(text),
            Self::Lines => memchr3(b'\n', b'\r', b'\\', text),
        }
    }

    /// Reads the escape at the beginning of `text`.
    pub(crate) fn read(self, text: &[u8]) -> Escape {
        let read = match (self, text) {
            (Self::Form, [b'+', ..]) => Some(Some((1, Meaning::byte(b' ')))),
            (Self::Zeros, [0, 0, 0, 0, ..]) => Some(None),
            (Self::Zeros, zeros) if zeros.len() < 4 && zeros.iter().all(|byte| *byte == 0) => None,
            (Self::Zeros, [_, ..]) | (Self::Lines, [b'\n' | b'\r', ..]) => {
                Some(Some((1, Meaning::default())))
            }
            (Self::Lines, [b'\\', b'n' | b'r', ..]) => Some(Some((2, Meaning::default()))),
            (Self::Lines, [b'\\']) => None,
            (Self::Lines, [_, ..]) => Some(None),
            (Self::Percent | Self::Form, [_, digits @ ..]) | (Self::Mixed, [b'%', digits @ ..]) => {
                hexadecimal(digits, 2).map(|value| {
                    value.map(|value| (3, Meaning::byte(u8::try_from(value).unwrap_or_default())))
                })
            }
            (Self::Backslash, [_, rest @ ..]) | (Self::Mixed, [b'\\', rest @ ..]) => {
                backslash(rest)
            }
            (Self::Reference | Self::Mixed, [_, rest @ ..]) => reference(rest),
            (_, []) => None,
        };
        match read {
            Some(Some((length, meaning))) => Escape::Complete { length, meaning },
            Some(None) => Escape::None,
            None if text.len() < ESCAPE_BYTES => Escape::Begun,
            None => Escape::None,
        }
    }

    /// Decodes every escape in `text`. What only looks like an escape is kept.
    pub(crate) fn decoded(self, text: &[u8]) -> Vec<u8> {
        let mut decoded = Vec::with_capacity(text.len());
        self.read_all(text, |_, meaning, _| decoded.extend_from_slice(meaning));
        decoded
    }

    /// Decodes like [`Self::decoded`]; also returns the offset in `text` of each decoded byte, and
    /// of the end.
    pub(crate) fn decoded_with_places(self, text: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let mut decoded = Vec::with_capacity(text.len());
        let mut places = Vec::with_capacity(text.len() + 1);
        self.read_all(text, |at, meaning, is_escape| {
            decoded.extend_from_slice(meaning);
            let step = if is_escape { 0 } else { 1 };
            places.extend((0..meaning.len()).map(|offset| at + offset * step));
        });
        places.push(text.len());
        (decoded, places)
    }

    /// Calls `take` with each stretch of `text`: where it begins, what it stands for, and whether
    /// it is an escape.
    fn read_all(self, text: &[u8], mut take: impl FnMut(usize, &[u8], bool)) {
        let mut at = 0;
        let mut rest = text;
        while let Some(next) = self.next(rest) {
            let (before, escape) = rest.split_at(next);
            take(at, before, false);
            at += next;
            let length = match self.read(escape) {
                Escape::Complete { length, meaning } => {
                    take(at, meaning.bytes(), true);
                    length
                }
                Escape::Begun | Escape::None => {
                    take(at, escape.get(..1).unwrap_or_default(), false);
                    1
                }
            };
            at += length;
            rest = escape.get(length..).unwrap_or_default();
        }
        take(at, rest, false);
    }
}

/// Returns the byte that two hexadecimal digits stand for.
pub(crate) fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let value = hexadecimal(&[high, low], 2)??;
    u8::try_from(value).ok()
}

/// Number of zeros in a row that no text contains.
const MANY_ZEROS: usize = 4;

/// Returns the offset of the next run of fewer than [`MANY_ZEROS`] zeros.
fn few_zeros(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr(0, text.get(at..)?)?;
        let count = zeros(text.get(at..)?);
        if count < MANY_ZEROS {
            return Some(at);
        }
        at += count;
    }
}

/// Counts the zeros that `text` begins with.
fn zeros(text: &[u8]) -> usize {
    let blocks = text
        .chunks_exact(64)
        .take_while(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
        .count()
        * 64;
    blocks
        + text
            .get(blocks..)
            .unwrap_or_default()
            .iter()
            .take_while(|byte| **byte == 0)
            .count()
}

/// Length and meaning of an escape. The inner `None` means that this is no escape, the outer one
/// that the text ends within it.
type Read = Option<Option<(usize, Meaning)>>;

/// Parses `count` hexadecimal digits. The inner `None` means that another character stands among
/// them, the outer one that the text ends before the last.
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

/// Reads the rest of an escape after its backslash.
fn backslash(rest: &[u8]) -> Read {
    let simple = |byte| Some(Some((2, Meaning::byte(byte))));
    match rest.split_first()? {
        (b'u', digits) => {
            let Some(high) = hexadecimal(digits, 4)? else {
                return Some(None);
            };
            if !(0xd800..0xdc00).contains(&high) {
                return Some(Some((6, Meaning::character(high))));
            }
            let after = digits.get(4..).unwrap_or_default();
            let low = match after {
                [b'\\', b'u', digits @ ..] => hexadecimal(digits, 4)?,
                [] | [b'\\'] => return None,
                _ => None,
            };
            match low.filter(|low| (0xdc00..0xe000).contains(low)) {
                Some(low) => Some(Some((
                    12,
                    Meaning::character(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)),
                ))),
                None => Some(Some((6, Meaning::character(high)))),
            }
        }
        (b'x', digits) => {
            hexadecimal(digits, 2).map(|value| value.map(|value| (4, Meaning::character(value))))
        }
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
    let name = rest
        .get(..length)
        .and_then(|name| std::str::from_utf8(name).ok())
        .unwrap_or_default();
    let number = match name.strip_prefix('#') {
        Some(digits) => match digits.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        },
        None => NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, character)| u32::from(*character)),
    };
    Some(number.map(|number| (length + 2, Meaning::character(number))))
}

/// Named character references for characters of secrets (HTML Standard, Named character
/// references).
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
