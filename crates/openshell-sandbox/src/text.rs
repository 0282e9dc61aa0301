//! Text for people: safe to print, with its nouns in the right number.

use std::borrow::Cow;

/// Returns `text` on one line, with characters that act on a terminal or reorder the line escaped.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    // Directional formatting (UAX 9) would show a line in another order than it has.
    let reorders =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || reorders(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    Cow::Owned(line)
}

/// Returns a count with its noun: `1 warning`, `2 warnings`.
pub(crate) fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}
