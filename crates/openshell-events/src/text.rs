//! Text for people: safe to print, with its nouns in the right number.

use std::borrow::Cow;

/// Returns `text` on one line, with characters that act on a terminal or reorder the line escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    // Directional formatting (UAX 9) would show a line in another order than it has.
    let reorders = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || reorders(c) {
            line.extend(c.escape_default())
        } else {
            line.push(c)
        }
    }
    Cow::Owned(line)
}

/// Returns `text` with each of its lines printable.
pub fn printable_lines(text: &str) -> String {
    text.split('\n')
        .map(printable)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns a message of an error on lines of which only the first begins at the margin: a name with
/// a line feed begins none of its own.
pub fn indented(text: &str) -> String {
    let mut lines = text.split('\n').map(printable);
    let mut message = lines.next().unwrap_or_default().into_owned();
    for line in lines {
        message.push_str(if line.starts_with(' ') { "\n" } else { "\n  " });
        message.push_str(&line);
    }
    message
}

/// Returns a count with its noun: `1 warning`, `2 warnings`.
pub fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::{indented, printable, printable_lines};

    #[test]
    fn text_of_the_commands_neither_acts_on_a_terminal_nor_begins_a_line() {
        assert_eq!(
            printable("a\x1b]52;c;eA\x07\u{9b}2J\r\n"),
            "a\\u{1b}]52;c;eA\\u{7}\\u{9b}2J\\r\\n"
        );
        assert_eq!(printable_lines("one\n  \x1btwo"), "one\n  \\u{1b}two");
        assert_eq!(
            indented("cannot read x\nopenshell-sandbox: forged\n  - a"),
            "cannot read x\n  openshell-sandbox: forged\n  - a"
        );
    }
}
