//! Writes a network policy into the text of a policy, and leaves the rest as it is.

use super::policy;
use crate::policy::Policy;

/// The key of the network policies.
const KEY: &str = "network_policies:";

/// The text of a policy with a further network policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// The whole text.
    pub text: String,
    /// The lines that are new or changed, each without its end.
    pub lines: Vec<String>,
    /// The number of the first of them, from 1.
    pub first: usize,
}

/// Why a network policy cannot be written into a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum NotInserted {
    #[error("it is no valid policy by now: {0}")]
    Invalid(String),
    #[error("it does not fit: {0}")]
    Unfit(String),
    #[error(
        "its network_policies are not a block with one key a line; write them so, or copy the line"
    )]
    NoPlace,
}

/// Returns `document` with `line`, which is a key and its network policy on one line, behind its
/// network policies. Comments, order and line ends stay. The result reads back as the policy of
/// `document` with exactly this addition.
///
/// # Errors
/// Fails if `document` is invalid, if the addition contradicts it, or if its network policies are
/// not written as a block.
pub fn with_line(document: &str, line: &str) -> Result<Inserted, NotInserted> {
    let read = |text: &str| policy(text).map(|(policy, _)| policy);
    let old = read(document).map_err(|error| NotInserted::Invalid(error.to_string()))?;
    let alone = format!("{KEY}\n  {line}\n");
    let alone = read(&alone).map_err(|error| NotInserted::Unfit(error.to_string()))?;
    let wanted = old
        .with_network_policies(alone.network())
        .map_err(|unfit| NotInserted::Unfit(unfit.to_string()))?;
    let inserted = insert(document, line, &old).ok_or(NotInserted::NoPlace)?;
    match read(&inserted.text) {
        Ok(new) if new == wanted => Ok(inserted),
        Ok(_) | Err(_) => Err(NotInserted::NoPlace),
    }
}

/// Writes `line` to where it belongs if the network policies are a block, or if there are none.
fn insert(document: &str, line: &str, old: &Policy) -> Option<Inserted> {
    let lines: Vec<&str> = document.split_inclusive('\n').collect();
    let is_end = |line: &&str| content(line).trim_end() == "...";
    let end = lines.iter().position(is_end).unwrap_or(lines.len());
    let mut headers = lines[..end].iter().enumerate().filter_map(|(index, text)| {
        let rest = content(text).strip_prefix(KEY)?;
        Some((index, without_comment(rest)))
    });
    let (index, value) = match (headers.next(), headers.next()) {
        (Some(header), None) => header,
        (None, None) if old.network().is_empty() => {
            let added = [KEY.to_owned(), format!("  {line}")];
            return Some(Place::new(&lines, end, end).with(&added));
        }
        _ => return None,
    };
    match value {
        "" => {
            let block = index + 1..end_of_block(&lines[..end], index);
            let first = lines[block.clone()].iter().find(|text| has_content(text));
            let indent = first.map_or(2, |text| indent(text));
            let added = [format!("{}{line}", " ".repeat(indent))];
            Some(Place::new(&lines, block.end, block.end).with(&added))
        }
        "{}" => {
            let comment = content(lines[index]).split_once('#');
            let comment = comment.map_or(String::new(), |(_, comment)| format!(" #{comment}"));
            let added = [format!("{KEY}{comment}"), format!("  {line}")];
            Some(Place::new(&lines, index, index + 1).with(&added))
        }
        _ => None,
    }
}

/// Returns the index behind the last line of the block whose header has the index `header`.
fn end_of_block(lines: &[&str], header: usize) -> usize {
    let mut end = header + 1;
    for (index, text) in lines.iter().enumerate().skip(header + 1) {
        if content(text).trim().is_empty() {
            continue;
        }
        if indent(text) > 0 {
            end = index + 1;
        } else if has_content(text) {
            break;
        }
    }
    end
}

/// A place among the lines of a text.
struct Place<'t> {
    before: &'t [&'t str],
    after: &'t [&'t str],
    /// The end of the lines.
    end: &'static str,
    /// True if the last line of the text has no end.
    is_cut: bool,
}

impl<'t> Place<'t> {
    /// Returns the place of the lines from `begin` to before `end`.
    fn new(lines: &'t [&'t str], begin: usize, end: usize) -> Self {
        Self {
            before: &lines[..begin],
            after: &lines[end..],
            end: if lines.iter().any(|line| line.ends_with("\r\n")) {
                "\r\n"
            } else {
                "\n"
            },
            is_cut: lines.last().is_some_and(|line| !line.ends_with('\n')),
        }
    }

    /// Returns the text with `added` at the place.
    fn with(&self, added: &[String]) -> Inserted {
        let end = self.end;
        let mut text: String = self.before.concat();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push_str(end);
        }
        text.push_str(&added.join(end));
        if !self.is_cut || !self.after.is_empty() {
            text.push_str(end);
        }
        text.push_str(&self.after.concat());
        Inserted {
            text,
            lines: added.to_vec(),
            first: self.before.len() + 1,
        }
    }
}

/// Returns the text of a line without its end, and without the mark at the start of a file.
fn content(line: &str) -> &str {
    line.trim_start_matches('\u{feff}')
        .trim_end_matches(['\r', '\n'])
}

fn indent(line: &str) -> usize {
    let content = content(line);
    content.len() - content.trim_start_matches(' ').len()
}

/// Returns true if a line has more than a comment.
fn has_content(line: &str) -> bool {
    let text = content(line).trim();
    !text.is_empty() && !text.starts_with('#')
}

/// Returns the `rest` of a line behind a key, without a comment.
fn without_comment(rest: &str) -> &str {
    let comment = rest.find(" #").unwrap_or(rest.len());
    rest[..comment].trim()
}

#[cfg(test)]
mod tests {
    use super::{NotInserted, with_line};

    const LINE: &str = "ask_b.test_443: {endpoints: [{host: b.test, port: 443, protocol: rest, \
                        access: read-only}], binaries: [{path: /usr/bin/curl, exact: true}]}";

    const A: &str = "  a:\n    endpoints:\n      - {host: a.test, port: 443, protocol: tcp}\n    \
                     binaries:\n      - {path: /bin/a}\n";

    #[test]
    fn a_line_comes_behind_the_others_and_all_else_stays() {
        let after = "\n# the files\nfilesystem_policy:\n  include_workdir: false\n";
        for (before, behind) in [
            (format!("# ours\nnetwork_policies:  # hosts\n{A}"), after),
            (format!("network_policies:\n{A}  # more to come\n"), after),
            (format!("---\nnetwork_policies:\n{A}"), "...\n"),
            (format!("\u{feff}network_policies:\n{A}"), ""),
            (
                format!("version: 1\n\nnetwork_policies:\n\n  # one\n{A}"),
                "",
            ),
        ] {
            let inserted = with_line(&format!("{before}{behind}"), LINE).unwrap();
            assert_eq!(inserted.text, format!("{before}  {LINE}\n{behind}"));
            assert_eq!(inserted.first, before.lines().count() + 1);
            assert_eq!(inserted.lines, [format!("  {LINE}")]);
        }
    }

    #[test]
    fn line_ends_and_a_missing_last_one_stay() {
        let document = format!("network_policies:\n{A}");
        let cut = document.trim_end();
        let inserted = with_line(cut, LINE).unwrap();
        assert_eq!(inserted.text, format!("{cut}\n  {LINE}"));
        let document = document.replace('\n', "\r\n");
        let inserted = with_line(&document, LINE).unwrap();
        assert_eq!(inserted.text, format!("{document}  {LINE}\r\n"));
        let cut = document.trim_end();
        let inserted = with_line(cut, LINE).unwrap();
        assert_eq!(inserted.text, format!("{cut}\r\n  {LINE}"));
        let inserted = with_line("network_policies: {} # none", LINE).unwrap();
        assert_eq!(inserted.text, format!("network_policies: # none\n  {LINE}"));
    }

    #[test]
    fn the_indentation_of_the_others_counts() {
        let document = format!("network_policies:\n{A}").replace("  ", "    ");
        let inserted = with_line(&document, LINE).unwrap();
        assert_eq!(inserted.lines, [format!("    {LINE}")]);
    }

    #[test]
    fn a_policy_without_hosts_gets_its_first() {
        for document in ["version: 1\n", "# nothing\nversion: 1\n"] {
            let inserted = with_line(document, LINE).unwrap();
            let wanted = format!("{document}network_policies:\n  {LINE}\n");
            assert_eq!(inserted.text, wanted);
        }
        let inserted = with_line("version: 1\nnetwork_policies: {}\n", LINE).unwrap();
        let wanted = format!("version: 1\nnetwork_policies:\n  {LINE}\n");
        assert_eq!(inserted.text, wanted);
    }

    #[test]
    fn what_is_no_block_is_left_alone() {
        let a = "a: {endpoints: [{host: a.test, port: 443, protocol: tcp}], binaries: [{path: \
                 /bin/a}]}";
        for document in [
            format!("network_policies: {{{a}}}\n"),
            format!("{{network_policies: {{{a}}}}}\n"),
            format!("\"network_policies\":\n  {a}\n"),
            format!("network_policies: &all\n  {a}\n"),
            format!("  version: 1\n  network_policies:\n    {a}\n"),
            "{}".to_owned(),
        ] {
            let inserted = with_line(&document, LINE);
            assert_eq!(inserted, Err(NotInserted::NoPlace), "{document}");
        }
    }

    #[test]
    fn a_line_that_contradicts_or_is_there_is_refused() {
        let document = format!("network_policies:\n  {LINE}\n");
        let unfit = with_line(&document, LINE).unwrap_err();
        assert!(matches!(unfit, NotInserted::Unfit(_)), "{unfit}");
        let skip = LINE
            .replace("ask_b", "other")
            .replace("protocol: rest, access: read-only", "tls: skip");
        let unfit = with_line(&document, &skip).unwrap_err();
        assert!(matches!(unfit, NotInserted::Unfit(_)), "{unfit}");
        let invalid = with_line("network_policies: 5\n", LINE).unwrap_err();
        assert!(matches!(invalid, NotInserted::Invalid(_)), "{invalid}");
        let two = with_line(&document, &format!("x: {{}}\n  {LINE}")).unwrap_err();
        assert!(matches!(two, NotInserted::Unfit(_)), "{two}");
    }
}
