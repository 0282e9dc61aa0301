//! Variables that a command line gives to the command.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::{Context as _, bail};
use openshell_policy::variable;
use openshell_supervisor::command::environment::{self, Environment};

use crate::input::{self, Phase};

/// The most bytes of a file of variables.
const BYTES: u64 = 1024 * 1024;

/// Returns the variables that `words` (`NAME=VALUE`, or `NAME` for the caller's value) and the
/// lines of `file` give.
///
/// # Errors
/// Fails if a name is refused or unknown, or the file cannot be read.
pub fn given(
    words: &[OsString],
    file: Option<&Path>,
    caller: &Environment,
) -> anyhow::Result<Vec<(OsString, OsString)>> {
    let mut given = Vec::new();
    if let Some(file) = file {
        let at = || format!("--env-file {}", file.display());
        let mut text = Vec::new();
        let opened = input::open(file, Phase::Start)
            .map(|opened| opened.take(BYTES + 1))
            .with_context(at)?;
        let mut opened = opened;
        opened.read_to_end(&mut text).with_context(at)?;
        if text.len() as u64 > BYTES {
            bail!("{}: it has more than {BYTES} bytes", at());
        }
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            let word = OsStr::from_bytes(line);
            given.push(
                variable(word, caller).with_context(|| format!("{}, line {}", at(), index + 1))?,
            );
        }
    }
    for word in words {
        given.push(variable(word, caller).with_context(|| "--env")?);
    }
    Ok(given)
}

fn variable(word: &OsStr, caller: &Environment) -> anyhow::Result<(OsString, OsString)> {
    let bytes = word.as_bytes();
    let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(end) => (
            bytes.get(..end),
            bytes
                .get(end + 1..)
                .map(|value| OsString::from_vec(value.to_vec())),
        ),
        None => (
            Some(bytes),
            caller.get(&word.to_string_lossy()).map(OsStr::to_owned),
        ),
    };
    // The text is not shown, because a line may be part of a secret.
    let name = name
        .and_then(|name| std::str::from_utf8(name).ok())
        .context("expected NAME=VALUE or NAME")?;
    if variable::is_refused(name) && !name.is_empty()
        || environment::is_reserved(name) && name != "PATH"
    {
        bail!(
            "cannot set {name}: it makes programs run other code or bypass the proxy or its \
             certificates, or only the sandbox sets it; leave it out"
        );
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        bail!("expected NAME=VALUE or NAME, with letters, digits and `_` in the name");
    }
    Ok((
        name.into(),
        value.context("there is no such variable; write NAME=VALUE to set one")?,
    ))
}
