//! Reads the git settings that lead to programs, from a configuration and everything that it
//! includes (git-config(1)).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::git_files::content_of;

/// The largest number of files that one configuration may include, at any depth.
const INCLUDED: usize = 64;

/// The settings in a configuration.
#[derive(Debug, Default)]
pub(super) struct GitSettings {
    /// The values of `core.hooksPath`, of which the last counts.
    pub(super) hooks: Vec<PathBuf>,
    /// The last value of `core.worktree`.
    pub(super) worktree: Option<PathBuf>,
    /// The values of `init.templateDir`. Git copies the content of that folder, including hooks,
    /// into each new repository.
    pub(super) templates: Vec<PathBuf>,
    /// The files that the configuration includes, whatever the condition and whether or not they
    /// exist.
    pub(super) included: Vec<PathBuf>,
}

impl GitSettings {
    /// Reads `file` and what it includes. Without that file there are no settings. `home` stands
    /// for `~`.
    ///
    /// # Errors
    /// Fails with a message if a file cannot be read or understood, or if there are too many.
    pub(super) fn read(file: &Path, home: Option<&Path>) -> Result<Self, String> {
        let mut settings = Self::default();
        settings.add(file, home)?;
        Ok(settings)
    }

    fn add(&mut self, file: &Path, home: Option<&Path>) -> Result<(), String> {
        let Some(content) = content_of(file)? else {
            return Ok(());
        };
        let entries = entries(&content)
            .ok_or_else(|| format!("{} is not a git configuration", file.display()))?;
        for (key, value) in entries {
            let path = || {
                expanded(&value, home).ok_or_else(|| {
                    format!(
                        "{}: the path {} is not understood",
                        file.display(),
                        value.escape_ascii()
                    )
                })
            };
            match key.as_str() {
                "core.hookspath" => self.hooks.push(path()?),
                "init.templatedir" => self.templates.push(path()?),
                "core.worktree" => self.worktree = Some(path()?),
                "include.path" | "includeif.path" => {
                    let included = file.parent().unwrap_or(file).join(path()?);
                    if self.included.contains(&included) {
                        continue;
                    }
                    if self.included.len() >= INCLUDED {
                        return Err(format!(
                            "{}: more than {INCLUDED} files are included",
                            file.display()
                        ));
                    }
                    self.included.push(included.clone());
                    self.add(&included, home)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the path that a value stands for; `None` if the path depends on more than the home.
pub(super) fn expanded(value: &[u8], home: Option<&Path>) -> Option<PathBuf> {
    // Versions of git differ in how they read a tab in a value: 2.39 as a blank, 2.47 as a tab.
    if value.iter().any(u8::is_ascii_control) {
        return None;
    }
    match value {
        [b'~', b'/', rest @ ..] => home.map(|home| home.join(OsStr::from_bytes(rest))),
        [b'~' | b'%', ..] => None,
        path => Some(PathBuf::from(OsStr::from_bytes(path))),
    }
}

/// Returns the keys, in lower case and without subsections, each with its value; `None` if the text
/// is not a configuration.
fn entries(text: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let text = with_unix_line_ends(text);
    let mut found = Vec::new();
    let mut section = String::new();
    let mut rest = &*text;
    while let Some((first, after)) = rest.split_first() {
        match first {
            b' ' | b'\t' | b'\n' => rest = after,
            b'#' | b';' => rest = line_end(after),
            b'[' => (section, rest) = section_of(after)?,
            byte if byte.is_ascii_alphabetic() => {
                let length = rest
                    .iter()
                    .position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'-'));
                let (key, after) = rest.split_at(length.unwrap_or(rest.len()));
                let after = after.trim_ascii_start_but_lines();
                let (value, after) = match after.split_first() {
                    Some((b'=', after)) => value_of(after)?,
                    Some((b'\n' | b'#' | b';', _)) | None => (Vec::new(), after),
                    Some(_) => return None,
                };
                let key = String::from_utf8(key.to_ascii_lowercase()).ok()?;
                found.push((format!("{section}.{key}"), value));
                rest = after;
            }
            _ => return None,
        }
    }
    Some(found)
}

/// Replaces each CRLF by LF, as git does; a CR elsewhere stays.
fn with_unix_line_ends(text: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match line {
            [line @ .., b'\r', b'\n'] => {
                lines.extend(line);
                lines.push(b'\n');
            }
            line => lines.extend(line),
        }
    }
    lines
}

trait Blanks {
    /// Returns the text without the blanks and tabs at its start.
    fn trim_ascii_start_but_lines(&self) -> &[u8];
}

impl Blanks for [u8] {
    fn trim_ascii_start_but_lines(&self) -> &[u8] {
        let begin = self
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t'))
            .unwrap_or(self.len());
        self.get(begin..).unwrap_or_default()
    }
}

fn line_end(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

/// Reads a section's name up to the closing bracket. A subsection is left out.
fn section_of(text: &[u8]) -> Option<(String, &[u8])> {
    let length = text
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')))?;
    let (name, rest) = text.split_at(length);
    let name = name
        .split(|byte| *byte == b'.')
        .next()?
        .to_ascii_lowercase();
    let mut rest = rest.trim_ascii_start_but_lines();
    if let Some((b'"', quoted)) = rest.split_first() {
        rest = quoted;
        loop {
            match rest {
                [b'"', after @ ..] => break rest = after,
                [b'\\', _, after @ ..] => rest = after,
                [b'\n', ..] | [] => return None,
                [_, after @ ..] => rest = after,
            }
        }
    }
    Some((String::from_utf8(name).ok()?, rest.strip_prefix(b"]")?))
}

/// Reads a value up to the end of its line. A backslash continues the line.
fn value_of(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut kept = 0;
    let mut is_quoted = false;
    let mut rest = text.trim_ascii_start_but_lines();
    loop {
        rest = match rest {
            [b'\\', b'\n', after @ ..] => after,
            [b'\\', escape, after @ ..] => {
                value.push(match escape {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'b' => 8,
                    b'"' | b'\\' => *escape,
                    _ => return None,
                });
                kept = value.len();
                after
            }
            [b'"', after @ ..] => {
                is_quoted = !is_quoted;
                kept = value.len();
                after
            }
            [b'#' | b';', after @ ..] if !is_quoted => break rest = line_end(after),
            [] | [b'\n', ..] => break,
            [byte, after @ ..] => {
                value.push(*byte);
                // Blanks at the end are not part of the value.
                if is_quoted || !matches!(byte, b' ' | b'\t') {
                    kept = value.len();
                }
                after
            }
        };
    }
    value.truncate(kept);
    (!is_quoted).then_some((value, rest))
}

#[expect(clippy::disallowed_methods, reason = "the tests ask git itself")]
#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::{GitSettings, entries};

    /// Replaces tabs by blanks, because versions of git differ in how they read tabs.
    fn blanks_for_tabs(value: &[u8]) -> Vec<u8> {
        value
            .iter()
            .map(|byte| if *byte == b'\t' { b' ' } else { *byte })
            .collect()
    }

    #[test]
    fn values_are_those_that_git_reads_but_for_tabs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        for value in [
            "hooks",
            "  hooks  ",
            "\"ho oks\" ",
            "ho\\\noks",
            "\"a;b\" ; comment",
            "a#b",
            "a\\\\b\\\"c\\td",
            "a b \t c",
            "\"a\" \"b\"",
            "é",
        ] {
            for begin in [
                "[core]\n\thooksPath = ",
                "[CORE] HOOKSPATH=",
                "# x\n[a \"b]\\\"\"]\nc\n[core]\r\n hookspath= ",
            ] {
                std::fs::write(&file, format!("{begin}{value}\n[other]\nx = y\n")).unwrap();
                let mut asked = Command::new("git");
                asked
                    .args(["config", "-z", "-f"])
                    .arg(&file)
                    .arg("core.hooksPath");
                let told = asked.output().unwrap();
                assert!(told.status.success(), "{value:?} {told:?}");
                let told = blanks_for_tabs(told.stdout.strip_suffix(b"\0").unwrap());
                let read = entries(&std::fs::read(&file).unwrap()).unwrap();
                let mut own = read.iter().filter(|(key, _)| key == "core.hookspath");
                assert_eq!(
                    own.next().map(|(_, value)| blanks_for_tabs(value)),
                    Some(told),
                    "{begin:?} {value:?}"
                );
                assert_eq!(own.next(), None);
            }
        }
        for wrong in [
            "[core",
            "[core]\n= x",
            "[core]\nhooksPath = \"x\n",
            "[core]\nhooksPath = \\x\n",
            "[a \"b\n\"]",
        ] {
            assert_eq!(entries(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_included_counts_wherever_it_is_and_what_is_not_understood_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        let config = "[include]\npath = one\n[includeIf \"gitdir:~/x\"]\npath = \
                      sub/two\n[core]\nhooksPath = own\n[include]\npath = config\n";
        std::fs::write(at("config"), config).unwrap();
        std::fs::write(at("one"), "[core]\nhooksPath = ~/first\n").unwrap();
        std::fs::write(
            at("sub/two"),
            "[include]\npath = missing\n[core]\nworktree = ..\nhooksPath = second",
        )
        .unwrap();
        let read = GitSettings::read(&at("config"), Some(Path::new("/home/u"))).unwrap();
        assert_eq!(
            read.hooks,
            ["/home/u/first", "second", "own", "own"].map(PathBuf::from)
        );
        assert_eq!(read.worktree, Some(PathBuf::from("..")));
        assert_eq!(
            read.included,
            [at("one"), at("sub/two"), at("sub/missing"), at("config")]
        );
        for odd in [
            "hooksPath = ~other/x",
            "hooksPath = %(prefix)/x",
            "hooksPath = a\tb",
            "hooksPath = a\rb",
        ] {
            std::fs::write(at("config"), format!("[core]\n{odd}\n")).unwrap();
            assert!(
                GitSettings::read(&at("config"), None)
                    .unwrap_err()
                    .contains("is not understood")
            );
        }
        std::fs::write(at("config"), "no configuration").unwrap();
        assert!(GitSettings::read(&at("config"), None).is_err());
        assert!(
            GitSettings::read(&at("missing"), None)
                .unwrap()
                .hooks
                .is_empty()
        );
    }
}
