//! JSON texts (RFC 8259), read so strictly that a server can hardly read them in another way. A text
//! is checked once as a whole; afterwards its values are looked up in it, and nothing is copied.

mod check;
mod text;

use std::borrow::Cow;
use std::iter;

use crate::wire::http::target::without_case;
use crate::wire::json::text::{after, unescaped};

/// The number of arrays and objects that may lie in each other.
pub const NESTING: usize = 64;

/// The number of characters that a number may have.
pub const NUMBER: usize = 100;

/// The fault of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum JsonError {
    #[error("it is not UTF-8")]
    Encoding,
    #[error("it begins with a byte order mark")]
    ByteOrderMark,
    #[error("it is not JSON from byte {0} on")]
    Syntax(usize),
    #[error("it is nested more than {NESTING} deep")]
    Nesting,
    #[error("a number has more than {NUMBER} characters")]
    Number,
    #[error("a string holds half of a surrogate pair")]
    Surrogate,
    #[error("an object has a key twice")]
    KeyTwice,
}

/// A key that differs from one that is looked up only in the case of its letters. Some servers take
/// the one for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInAnotherCase;

/// A value in a text that has no fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<'t>(&'t str);

impl<'t> Json<'t> {
    /// An object without entries.
    pub const EMPTY_OBJECT: Self = Self("{}");

    /// Checks that `bytes` are one JSON text without a fault.
    ///
    /// # Errors
    /// Fails with the first fault.
    pub fn read(bytes: &'t [u8]) -> Result<Self, JsonError> {
        if bytes.starts_with("\u{feff}".as_bytes()) {
            return Err(JsonError::ByteOrderMark);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| JsonError::Encoding)?;
        check::check(text)?;
        Ok(Self(text.trim_matches(is_blank)))
    }

    /// Returns the text of the value.
    #[must_use]
    pub fn as_str(self) -> &'t str {
        self.0
    }

    /// Returns true for an object.
    #[must_use]
    pub fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    /// Returns true for an array.
    #[must_use]
    pub fn is_array(self) -> bool {
        self.0.starts_with('[')
    }

    /// Returns true for null.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Returns the value of true and false.
    #[must_use]
    pub fn boolean(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// Returns the text of a number.
    #[must_use]
    pub fn number(self) -> Option<&'t str> {
        let is_number = |first: char| first == '-' || first.is_ascii_digit();
        self.0.starts_with(is_number).then_some(self.0)
    }

    /// Returns the characters of a string.
    #[must_use]
    pub fn text(self) -> Option<Cow<'t, str>> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        Some(unescaped(inner))
    }

    /// Returns the items of an array; none of another value.
    pub fn items(self) -> impl Iterator<Item = Json<'t>> {
        let mut rest = self.inside('[', ']');
        iter::from_fn(move || next(&mut rest))
    }

    /// Returns the keys and values of an object; none of another value.
    pub fn entries(self) -> impl Iterator<Item = (Cow<'t, str>, Json<'t>)> {
        let mut rest = self.inside('{', '}');
        iter::from_fn(move || {
            let key = next(&mut rest)?;
            let value = next(&mut rest)?;
            Some((key.text().unwrap_or_default(), value))
        })
    }

    /// Returns the first value of `key` of an object.
    pub fn get(self, key: &str) -> Option<Json<'t>> {
        let mut entries = self.entries();
        entries.find_map(|(known, value)| (known == key).then_some(value))
    }

    /// Returns the values of the keys `known` of an object.
    ///
    /// # Errors
    /// Fails if the object has a key that differs from one of them only in the case of its letters.
    pub fn fields<const N: usize>(
        self,
        known: [&str; N],
    ) -> Result<[Option<Json<'t>>; N], KeyInAnotherCase> {
        let mut fields = [None; N];
        for (key, value) in self.entries() {
            for (known, field) in known.iter().zip(&mut fields) {
                if key == *known {
                    *field = Some(value);
                } else if is_same_word(&key, known) {
                    return Err(KeyInAnotherCase);
                }
            }
        }
        Ok(fields)
    }

    /// Returns the value of `key` of an object.
    ///
    /// # Errors
    /// As for [`Self::fields`].
    pub fn field(self, key: &str) -> Result<Option<Json<'t>>, KeyInAnotherCase> {
        self.fields([key]).map(|[field]| field)
    }

    /// Returns what lies between `open` and `close`.
    fn inside(self, open: char, close: char) -> &'t str {
        let inside = self.0.strip_prefix(open).unwrap_or_default();
        inside.strip_suffix(close).unwrap_or_default()
    }
}

/// Takes the next value out of `rest`, which is the inside of an array or object.
fn next<'t>(rest: &mut &'t str) -> Option<Json<'t>> {
    let between = |character: char| is_blank(character) || matches!(character, ',' | ':');
    let text = rest.trim_start_matches(between);
    let (value, behind) = text.split_at(after(text));
    *rest = behind;
    (!value.is_empty()).then_some(Json(value))
}

/// Returns true for a character that may stand between values (RFC 8259 §2).
fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

/// Returns true if the words differ only in the case of their letters.
fn is_same_word(one: &str, other: &str) -> bool {
    if one.is_ascii() && other.is_ascii() {
        one.eq_ignore_ascii_case(other)
    } else {
        without_case(one) == without_case(other)
    }
}

#[cfg(test)]
mod tests;
