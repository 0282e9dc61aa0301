//! Text on lines of a screen.

/// The columns of the labels of a question.
const LABEL: usize = 11;

/// Returns `text` on lines of at most `width` characters. Nothing is left out: what does not fit goes
/// on in the next line, below the text of its label.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = if width > 2 * LABEL { LABEL } else { 0 };
        let mut rest: Vec<char> = line.chars().collect();
        let mut before = 0;
        loop {
            let room = width.saturating_sub(before).max(1);
            let taken: String = rest.drain(..room.min(rest.len())).collect();
            lines.push(format!("{}{taken}", " ".repeat(before)));
            if rest.is_empty() {
                break;
            }
            before = indent;
        }
    }
    lines
}

/// Returns the beginning of `text` that fits into `width`, with a mark if it is not all.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}~")
}

#[cfg(test)]
mod tests {
    use super::{cut, wrapped};

    #[test]
    fn a_long_line_goes_on_below_and_nothing_of_it_is_lost() {
        let text = "line       abcdefghijklmnopqrstuvwxyz\nb";
        let lines = wrapped(text, 24);
        assert_eq!(
            lines,
            ["line       abcdefghijklm", "           nopqrstuvwxyz", "b"]
        );
        for width in 1..40 {
            let all: String = wrapped(text, width).concat().split(' ').collect();
            assert_eq!(all, "lineabcdefghijklmnopqrstuvwxyzb", "{width}");
        }
    }

    #[test]
    fn what_is_cut_has_a_mark() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab~");
    }
}
