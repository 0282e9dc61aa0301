//! The check of a text for faults.

use std::hash::{BuildHasher, RandomState};

use memchr::memchr2;

use crate::wire::json::text::unescaped;
use crate::wire::json::{JsonError, NESTING, NUMBER};

/// Checks that `text` is one JSON text without a fault.
pub(super) fn check(text: &str) -> Result<(), JsonError> {
    let mut checker = Checker {
        text,
        at: 0,
        keys: Vec::new(),
        hasher: RandomState::new(),
    };
    checker.value(0)?;
    checker.blanks();
    if checker.peek().is_some() {
        return Err(checker.syntax());
    }
    Ok(())
}

struct Checker<'t> {
    text: &'t str,
    /// The number of bytes that were read.
    at: usize,
    /// The keys of the objects around this place, by their hashes: as many keys as fit into the
    /// largest body would need several times its memory. Two keys with the same hash count as one
    /// key, so no repeated key is missed.
    keys: Vec<u64>,
    hasher: RandomState,
}

impl<'t> Checker<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn syntax(&self) -> JsonError {
        JsonError::Syntax(self.at)
    }

    /// Reads `byte`, if it is next.
    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.takes(byte) {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Reads a value, and the blanks before it, inside `depth` arrays and objects.
    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        self.blanks();
        match self.peek() {
            Some(b'{' | b'[') if depth == NESTING => Err(JsonError::Nesting),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => Err(self.syntax()),
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.expect(b'[')?;
        self.blanks();
        if self.takes(b']') {
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.blanks();
            if self.takes(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        let outer = self.keys.len();
        self.expect(b'{')?;
        self.blanks();
        if self.takes(b'}') {
            return Ok(());
        }
        loop {
            self.blanks();
            let key = self.string()?;
            self.keys
                .push(self.hasher.hash_one(unescaped(key).as_ref()));
            self.blanks();
            self.expect(b':')?;
            self.value(depth)?;
            self.blanks();
            if self.takes(b'}') {
                break;
            }
            self.expect(b',')?;
        }
        let mut keys = self.keys.split_off(outer);
        keys.sort_unstable();
        let is_twice = |pair: &[u64]| pair.first() == pair.last();
        if keys.windows(2).any(is_twice) {
            return Err(JsonError::KeyTwice);
        }
        Ok(())
    }

    /// Reads a string; returns its inside.
    fn string(&mut self) -> Result<&'t str, JsonError> {
        self.expect(b'"')?;
        let begin = self.at;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            let length = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            let plain = rest.get(..length).unwrap_or_default();
            if let Some(control) = plain.iter().position(|byte| *byte < 0x20) {
                self.at += control;
                return Err(self.syntax());
            }
            self.at += length;
            let end = self.at;
            if self.takes(b'"') {
                return Ok(self.text.get(begin..end).unwrap_or_default());
            }
            self.expect(b'\\')?;
            self.escape()?;
        }
    }

    /// Reads an escape without its backslash.
    fn escape(&mut self) -> Result<(), JsonError> {
        if self.takes(b'u') {
            return match self.unit()? {
                0xdc00..=0xdfff => Err(JsonError::Surrogate),
                0xd800..=0xdbff => self.low_surrogate(),
                _ => Ok(()),
            };
        }
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.syntax()),
        }
    }

    fn low_surrogate(&mut self) -> Result<(), JsonError> {
        if self.takes(b'\\') && self.takes(b'u') && matches!(self.unit()?, 0xdc00..=0xdfff) {
            Ok(())
        } else {
            Err(JsonError::Surrogate)
        }
    }

    /// Reads four hexadecimal digits.
    fn unit(&mut self) -> Result<u16, JsonError> {
        let digits = self.text.get(self.at..self.at + 4).unwrap_or_default();
        // The standard library would also take a sign.
        let is_hexadecimal =
            digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let unit = u16::from_str_radix(digits, 16).ok();
        let unit = unit
            .filter(|_| is_hexadecimal)
            .ok_or_else(|| self.syntax())?;
        self.at += 4;
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let begin = self.at;
        self.takes(b'-');
        if !self.takes(b'0') {
            self.digits()?;
        }
        if self.takes(b'.') {
            self.digits()?;
        }
        if self.takes(b'e') || self.takes(b'E') {
            let _ = self.takes(b'+') || self.takes(b'-');
            self.digits()?;
        }
        if self.at - begin > NUMBER {
            return Err(JsonError::Number);
        }
        Ok(())
    }

    /// Reads digits, of which there must be one.
    fn digits(&mut self) -> Result<(), JsonError> {
        let begin = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == begin {
            return Err(self.syntax());
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), JsonError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with(word) {
            return Err(self.syntax());
        }
        self.at += word.len();
        Ok(())
    }
}
