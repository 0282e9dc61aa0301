//! Text that the workload may have chosen, in a form that cannot forge other parts of a line.

use std::fmt::{self, Write};

use openshell_events::words::REDACTED;

/// Maximum bytes of a name in a line: longer than any host, and than any path that people use.
const WORD_BYTES: usize = 512;

/// A name that the workload may have chosen, as one word: characters that end a field or reorder a
/// line are escaped.
pub(super) struct Word<'t> {
    text: &'t str,
    /// True if the mark of a redacted credential is shown unescaped.
    is_redacted: bool,
}

impl<'t> Word<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        Self {
            text,
            is_redacted: false,
        }
    }

    pub(super) fn redacted(text: &'t str) -> Self {
        Self {
            text,
            is_redacted: true,
        }
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'[' | b']' | b'"');
        if self.text.len() <= WORD_BYTES && self.text.bytes().all(is_plain) {
            return f.write_str(self.text);
        }
        let mut rest = self.text;
        let mut left = WORD_BYTES;
        while let Some(c) = rest.chars().next() {
            let is_kept = c.is_alphanumeric() || u8::try_from(c).is_ok_and(is_plain);
            let (part, length) = match rest.strip_prefix(REDACTED) {
                Some(_) if self.is_redacted => (REDACTED.len(), REDACTED.len()),
                _ if is_kept => (c.len_utf8(), c.len_utf8()),
                _ => (c.len_utf8(), c.escape_unicode().len()),
            };
            let Some(still) = left.checked_sub(length) else {
                return f.write_str("...");
            };
            let (shown, behind) = rest.split_at(part);
            if length == part {
                f.write_str(shown)?
            } else {
                write!(f, "{}", c.escape_unicode())?
            }
            (rest, left) = (behind, still);
        }
        Ok(())
    }
}

/// The value of a field in a line below `info`: one word, or several words in quotes.
pub(super) struct FieldValue<'t>(pub(super) &'t str);

impl fmt::Display for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.contains(' ') || self.0.len() > WORD_BYTES {
            return Word::of(self.0).fmt(f);
        }
        let mut separator = '"';
        for word in self.0.split(' ') {
            write!(f, "{separator}{}", Word::of(word))?;
            separator = ' ';
        }
        f.write_char('"')
    }
}

/// A text, cut to at most `limit` bytes of whole characters.
pub(super) struct Cut<'t> {
    text: &'t str,
    limit: usize,
}

impl<'t> Cut<'t> {
    pub(super) fn of(text: &'t str, limit: usize) -> Self {
        Self { text, limit }
    }
}

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.get(..self.text.floor_char_boundary(self.limit)) {
            Some(kept) if kept.len() < self.text.len() => write!(f, "{kept}..."),
            _ => f.write_str(self.text),
        }
    }
}
