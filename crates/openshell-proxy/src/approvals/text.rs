//! The parts of a question's text that all kinds of questions have.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use openshell_events::text::visible;
use serde_json::{Value, json};

use crate::approvals::line::Proposed;
use crate::approvals::marks::Mark;

/// Returns the words of `marks`.
pub(super) fn words(marks: &BTreeSet<Mark>) -> Vec<String> {
    marks.iter().map(Mark::word).collect()
}

/// Returns what programs are told of `lines`.
pub(super) fn facts_of(lines: &[Proposed]) -> Value {
    lines
        .iter()
        .map(|line| json!({"yaml": line.yaml, "flag": line.flags, "permits": line.permits}))
        .collect()
}

/// Returns `texts` as they are shown.
pub(super) fn all_visible(texts: &[String]) -> Vec<String> {
    texts
        .iter()
        .map(|text| visible(text).into_owned())
        .collect()
}

/// Writes the marks of a question, and the first of its lines. Writing to a String cannot fail.
pub(super) fn write_line(text: &mut String, marks: &BTreeSet<Mark>, lines: &[Proposed]) {
    let marks: Vec<_> = marks
        .iter()
        .map(|mark| {
            let is_dangerous = if mark.is_dangerous() { "!" } else { "" };
            format!("{}{is_dangerous}", mark.word())
        })
        .collect();
    if !marks.is_empty() {
        let _ = writeln!(text, "marks      {}", marks.join(", "));
    }
    if let Some(line) = lines.first() {
        let _ = writeln!(text, "line       {}", line.yaml);
        for permits in &line.permits {
            let _ = writeln!(text, "permits    {permits}");
        }
        if let Some(flags) = &line.flags {
            let _ = writeln!(text, "next run   {flags} (for every program)");
        }
    }
}

/// Returns `text` as one visible word, with quotes if it holds more than plain characters.
#[must_use]
pub fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=@:~%".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("\"{}\"", visible(text).replace('"', "\\\""))
    }
}
