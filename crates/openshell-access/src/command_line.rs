//! Command lines of clients: which shell runs them, how they are split without a shell, and how
//! logs show them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A program to start, with what the command line sets for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Program and arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Variables that are set in front of the command.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Directory to change to first.
    pub(crate) directory: Option<PathBuf>,
}

/// Shells, the preferred ones first.
const BASH: [&str; 2] = ["/bin/bash", "/usr/bin/bash"];
const SH: &str = "/bin/sh";

/// Returns the first shell of the image, and true if it is bash.
fn shell() -> Option<(&'static str, bool)> {
    let bash = BASH
        .into_iter()
        .find(|path| Path::new(path).exists())
        .map(|path| (path, true));
    bash.or_else(|| Path::new(SH).exists().then_some((SH, false)))
}

/// Returns the interactive shell, which reads the user's profile if `is_login`; `None` if the image
/// has no shell.
pub(crate) fn interactive(is_login: bool) -> Option<Parsed> {
    let (path, _) = shell()?;
    let option = if is_login { "-l" } else { "-i" };
    Some(Parsed {
        arguments: [path, option].map(OsString::from).to_vec(),
        ..Parsed::default()
    })
}

/// Returns what runs `text`: a shell, or if there is none, the program that `text` names. Bash
/// first reads the user's profile if `is_login`.
///
/// # Errors
/// Fails, with a reason for people, if there is no shell and `text` needs one or cannot be split.
pub(crate) fn parse(text: Vec<u8>, is_login: bool) -> Result<Parsed, String> {
    match shell() {
        Some((path, is_bash)) => {
            let option = if is_bash && is_login { "-lc" } else { "-c" };
            let arguments = vec![path.into(), option.into(), OsString::from_vec(text)];
            Ok(Parsed {
                arguments,
                ..Parsed::default()
            })
        }
        None => without_shell(&text),
    }
}

/// Splits `text` into words as a shell does. Understands quotes, `NAME=value` in front of the
/// command, and one `cd DIR &&` before everything.
fn without_shell(text: &[u8]) -> Result<Parsed, String> {
    let mut words = words(text)?;
    let mut parsed = Parsed::default();
    if let [cd, directory, and, rest @ ..] = &words[..]
        && (&cd.text[..], &and.text[..]) == (b"cd", b"&&")
    {
        parsed.directory = Some(PathBuf::from(OsString::from_vec(directory.text.clone())));
        words = rest.to_vec();
    }
    let is_plain = |word: &Word| word.text != b"&&" || word.is_quoted;
    if !words.iter().all(is_plain) {
        return Err(needs_shell('&'));
    }
    let count = words
        .iter()
        .take_while(|word| word.assigned.is_some())
        .count();
    for Word { text, assigned, .. } in words.drain(..count) {
        let (name, value) = text.split_at(assigned.unwrap_or(text.len()));
        let value = value.get(1..).unwrap_or_default();
        parsed.variables.push((
            OsString::from_vec(name.to_vec()),
            OsString::from_vec(value.to_vec()),
        ));
    }
    parsed.arguments = words
        .into_iter()
        .map(|word| OsString::from_vec(word.text))
        .collect();
    if parsed.arguments.is_empty() {
        return Err(
            "this sandbox has no shell, and the command line does not name a program".to_owned(),
        );
    }
    Ok(parsed)
}

#[derive(Clone, Debug, Default)]
struct Word {
    text: Vec<u8>,
    /// Position of the `=` behind the name of a variable.
    assigned: Option<usize>,
    is_quoted: bool,
}

fn needs_shell(character: char) -> String {
    format!("this sandbox has no shell, and the command line needs one for its `{character}`")
}

/// Returns the words of `text` (POSIX.1-2024, XCU 2.3).
fn words(text: &[u8]) -> Result<Vec<Word>, String> {
    let (mut words, mut word): (Vec<Word>, Option<Word>) = (Vec::new(), None);
    let mut bytes = text.iter().copied().peekable();
    let unclosed = || "a quote in the command line is not closed".to_owned();
    while let Some(byte) = bytes.next() {
        if matches!(byte, b' ' | b'\t') {
            words.extend(word.take());
            continue;
        }
        // This `&&` stands between `cd DIR` and the command.
        if byte == b'&' && word.is_none() && bytes.next_if_eq(&b'&').is_some() {
            words.push(Word {
                text: b"&&".to_vec(),
                ..Word::default()
            });
            continue;
        }
        let word = word.get_or_insert_default();
        match byte {
            b'\'' => {
                word.is_quoted = true;
                loop {
                    match bytes.next().ok_or_else(unclosed)? {
                        b'\'' => break,
                        byte => word.text.push(byte),
                    }
                }
            }
            b'"' => {
                word.is_quoted = true;
                loop {
                    match bytes.next().ok_or_else(unclosed)? {
                        b'"' => break,
                        b'$' | b'`' => return Err(needs_shell('$')),
                        b'\\' => match bytes.next().ok_or_else(unclosed)? {
                            byte @ (b'"' | b'\\' | b'$' | b'`') => word.text.push(byte),
                            byte => word.text.extend([b'\\', byte]),
                        },
                        byte => word.text.push(byte),
                    }
                }
            }
            b'\\' => word.text.extend(bytes.next()),
            b'|' | b'&' | b';' | b'<' | b'>' | b'(' | b')' | b'$' | b'`' | b'*' | b'?' | b'['
            | b'~' | b'{' | b'\n' | b'#' => return Err(needs_shell(char::from(byte))),
            b'=' if word.assigned.is_none() && !word.is_quoted && is_name(&word.text) => {
                word.assigned = Some(word.text.len());
                word.text.push(byte);
            }
            byte => word.text.push(byte),
        }
    }
    words.extend(word);
    Ok(words)
}

fn is_name(text: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    text.first().is_some_and(is_letter)
        && text
            .iter()
            .all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

/// Returns the text of a command line for logs. Gateways put secrets into variables in front of the
/// command, so their values are replaced by `…`.
pub(crate) fn redacted(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        shown.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            shown.push(char::REPLACEMENT_CHARACTER);
        }
    }
    let mut kept = String::new();
    let mut rest = shown.as_str();
    if let Some(directory) = rest.strip_prefix("cd ")
        && let Some((_, command)) = directory
            .split_at(word_length(directory))
            .1
            .split_once("&& ")
    {
        kept.push_str(&rest[..rest.len() - command.len()]);
        rest = command;
    }
    loop {
        let trimmed = rest.trim_start();
        kept.push_str(&rest[..rest.len() - trimmed.len()]);
        rest = trimmed;
        match rest.split_once('=') {
            Some((name, value)) if is_name(name.as_bytes()) => {
                kept.push_str(name);
                kept.push_str("=…");
                rest = &value[word_length(value)..];
            }
            _ => break kept + rest,
        }
    }
}

/// Returns the words of a command for logs, separated by spaces. Values of variables, for example
/// those of `env NAME=value`, are replaced by `…`.
pub fn redacted_words(words: &[OsString]) -> String {
    let shown = words.iter().map(|word| {
        let word = word.to_string_lossy();
        match word.split_once('=') {
            Some((name, _)) if is_name(name.as_bytes()) => format!("{name}=…"),
            _ => word.into_owned(),
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Returns the length of the shell word at the start of `text`.
fn word_length(text: &str) -> usize {
    let mut quote = None;
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => drop(characters.next()),
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, ' ' | '\t' | '\n' | ';' | '&' | '|') => return at,
            (None, _) => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::{Parsed, redacted, without_shell};

    /// Arguments, variables and directory as text.
    type Texts = (Vec<String>, Vec<String>, Option<String>);

    fn parsed(text: &str) -> Result<Texts, String> {
        let Parsed {
            arguments,
            variables,
            directory,
        } = without_shell(text.as_bytes())?;
        let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
        let arguments = arguments.iter().map(|word| text(word)).collect();
        let variables = variables
            .iter()
            .map(|(name, value)| format!("{}={}", text(name), text(value)))
            .collect();
        Ok((
            arguments,
            variables,
            directory.map(|path| text(path.as_os_str())),
        ))
    }

    #[test]
    fn without_a_shell_the_forms_of_gateways_are_split_as_one_would() {
        let (arguments, variables, directory) =
            parsed("cd '/my dir' && K='v w' K2=x cmd 'a b' \"c\" d\\ e ''").unwrap();
        assert_eq!(arguments, ["cmd", "a b", "c", "d e", ""]);
        assert_eq!(variables, ["K=v w", "K2=x"]);
        assert_eq!(directory.as_deref(), Some("/my dir"));
        assert!(parsed("a=b").unwrap_err().contains("not name a program"));
        assert_eq!(parsed("cmd K=v '&&'").unwrap().0, ["cmd", "K=v", "&&"]);
    }

    #[test]
    fn what_needs_a_shell_is_refused_with_the_character() {
        for text in [
            "a | b", "a && b", "a; b", "a > b", "a $B", "a \"$B\"", "a *", "a ~", "(a)", "a 'b",
            "a &",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
        assert!(parsed("a | b").unwrap_err().contains("`|`"));
    }

    #[test]
    fn logs_have_no_values_of_variables_in_front() {
        for (text, shown) in [
            ("TOKEN='s3 cret' A=b\\ c cmd X=y", "TOKEN=… A=… cmd X=y"),
            (
                "cd '/a b' && TOKEN=\"s\\\" t\" cmd",
                "cd '/a b' && TOKEN=… cmd",
            ),
            ("ls -l", "ls -l"),
            ("A=b;C=d", "A=…;C=d"),
            ("", ""),
            ("A='open", "A=…"),
        ] {
            assert_eq!(redacted(text.as_bytes()), shown);
        }
        assert_eq!(redacted(b"echo \xff x"), "echo \u{fffd} x");
    }
}
