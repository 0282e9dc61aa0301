//! Text for people: safe to print on a terminal, and with singular or plural as the count demands.

use std::borrow::Cow;

/// Returns `text` on one line, with those characters escaped that control a terminal or reorder
/// text.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    // Directional formatting (UAX 9) would show the characters in another order than the text has.
    let reorders = |c: char| matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
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

/// Returns `text` in printable ASCII, with every other character, and the backslash that escapes
/// begin with, escaped. No two texts look the same.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| matches!(c, ' '..='~') && c != '\\';
    if text.chars().all(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_shown(c) {
            line.push(c);
        } else {
            line.extend(c.escape_default());
        }
    }
    Cow::Owned(line)
}

/// Returns `text` with each of its lines made printable.
pub fn printable_lines(text: &str) -> String {
    text.split('\n')
        .map(printable)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns an error message of which only the first line begins at the margin, so that a name that
/// contains a line feed cannot forge a message.
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

/// Returns `text` as one word of a shell, quoted if it needs that: somebody may paste it, and the
/// workload may have chosen it.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=@:".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::{indented, printable, printable_lines, shell_word, visible};

    #[test]
    fn what_is_visible_is_ascii_and_no_two_texts_look_the_same() {
        for (text, shown) in [
            ("/v1/items ~", "/v1/items ~"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\\u{202e}b", "a\\\\u{202e}b"),
            ("\u{430}\n\u{7f}", "\\u{430}\\n\\u{7f}"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }

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

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        for (path, word) in [
            ("policy.yaml", "policy.yaml"),
            ("a b.yaml", "'a b.yaml'"),
            ("$(id).yaml", "'$(id).yaml'"),
            ("it's.yaml", r"'it'\''s.yaml'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(path), word);
        }
    }
}
