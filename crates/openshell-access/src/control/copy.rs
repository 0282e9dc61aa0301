//! Copies of files into a running sandbox and out of it. The half inside runs confined like any
//! command.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, BufReader, PipeReader, PipeWriter, Read as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use openshell_events::text::indented;

use super::client::Places;
use super::console::Lines;
use super::run::{Outcome, run};
use super::wire::Exec;
use crate::transfer::outcome::{LeftOut, TransferError};
use crate::transfer::pack::pack;
use crate::transfer::unpack::{Links, Options, unpack};

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Here(PathBuf),
    In { sandbox: String, path: OsString },
}

/// A copy between this host and a sandbox.
#[derive(Debug)]
pub struct Copy<'c> {
    /// The source: a path, or `NAME:PATH`.
    pub from: &'c OsStr,
    /// The destination, written in the same form.
    pub to: &'c OsStr,
    /// True if hooks of git repositories, which git would run, are copied out too.
    pub git_hooks: bool,
    /// Where to look for sandboxes.
    pub places: &'c Places,
    /// Prints a line of a message.
    pub print: fn(&str),
    /// How this process keeps its own lines off a terminal.
    pub lines: Lines,
}

/// Copies as `args` say; returns the exit code.
///
/// # Errors
/// Fails unless exactly one of the ends is in a sandbox, and also if the copy breaks off.
pub fn copy(args: &Copy<'_>) -> anyhow::Result<u8> {
    match (end(args.from), end(args.to)) {
        (End::In { sandbox, path }, End::Here(to)) => copy_out(args, &sandbox, path, &to),
        (End::Here(from), End::In { sandbox, path }) => copy_in(args, &sandbox, &from, path),
        _ => {
            bail!(
                "one end must be in a sandbox, as NAME:PATH, and the other must not; write a path \
                 with a colon as ./a:b"
            )
        }
    }
}

/// Parses `NAME:PATH`, or a path.
fn end(text: &OsStr) -> End {
    let bytes = text.as_bytes();
    let colon = bytes
        .iter()
        .position(|byte| *byte == b':')
        .filter(|at| *at > 0);
    let named = colon
        .and_then(|at| bytes.split_at_checked(at))
        .and_then(|(name, path)| {
            let name = std::str::from_utf8(name)
                .ok()
                .filter(|name| !name.contains('/'))?;
            Some((name.to_owned(), path.get(1..).unwrap_or_default().to_vec()))
        });
    match named {
        Some((sandbox, path)) if path.is_empty() => End::In {
            sandbox,
            path: OsString::from("."),
        },
        Some((sandbox, path)) => End::In {
            sandbox,
            path: OsString::from_vec(path),
        },
        None => End::Here(PathBuf::from(text)),
    }
}

fn copy_out(args: &Copy<'_>, sandbox: &str, path: OsString, to: &Path) -> anyhow::Result<u8> {
    let (reader, writer) = io::pipe()?;
    let options = Options {
        links: Links::Within,
        git_hooks: args.git_hooks,
        follows_links: false,
    };
    // The sandbox must not choose the name; if the path has no last component, the copy gets the
    // name of the sandbox.
    let name = Path::new(&path)
        .file_name()
        .unwrap_or(sandbox.as_ref())
        .to_owned();
    let to = to.to_owned();
    let half = Half::start(move || unpack(reader, &to, &name, options))?;
    let inside = run_inside(args, sandbox, &["send".into(), path], null()?, writer);
    half.finish(inside, args.print)
}

fn copy_in(args: &Copy<'_>, sandbox: &str, from: &Path, path: OsString) -> anyhow::Result<u8> {
    // A missing source is reported before anything is started.
    std::fs::symlink_metadata(from).with_context(|| format!("cannot read {}", from.display()))?;
    let name = match from.file_name() {
        Some(name) => name.to_owned(),
        None => std::fs::canonicalize(from)?
            .file_name()
            .context(
                "cannot copy the root of the host, because it has no name; copy folders in it",
            )?
            .to_owned(),
    };
    let (reader, writer) = io::pipe()?;
    let from = from.to_owned();
    let half = Half::start(move || pack(&from, false, writer))?;
    let (_nothing, output) = io::pipe()?;
    let words = ["receive".into(), path, name];
    let inside = run_inside(args, sandbox, &words, reader, output);
    half.finish(inside, args.print)
}

/// Returns an input that is already at its end.
fn null() -> anyhow::Result<PipeReader> {
    let (reader, writer) = io::pipe()?;
    drop(writer);
    Ok(reader)
}

/// Runs the inner half of a copy; returns its exit code.
fn run_inside(
    args: &Copy<'_>,
    sandbox: &str,
    words: &[OsString],
    input: PipeReader,
    output: PipeWriter,
) -> anyhow::Result<u8> {
    let socket = args.places.connect(sandbox)?;
    let arguments = ["/proc/self/exe", "--internal"]
        .map(OsString::from)
        .into_iter()
        .chain(words.iter().cloned())
        .collect();
    let exec = Exec {
        arguments,
        variables: Vec::new(),
        directory: None,
        terminal: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (errors, inside) = io::pipe()?;
    let printed = print_lines(errors, args.print)?;
    let streams = [input.into(), output.into(), inside.into()];
    let ended = runtime.block_on(run(socket, exec, Some(streams), args.lines));
    // Another program in the sandbox may hold the stream open.
    let _ = printed.recv_timeout(PATIENCE);
    match ended? {
        Outcome::Ended(code) => Ok(code),
        Outcome::Refused { code, reason } => {
            (args.print)(&indented(&format!("openshell-sandbox: {reason}")));
            Ok(code)
        }
    }
}

/// Most bytes that the inner half may print.
const PRINTED_BYTES: u64 = 64 * 1024;

/// Prints each line of `errors` through `print`, so that nothing from inside reaches a terminal
/// unchanged. The receiver ends after the last line.
fn print_lines(errors: PipeReader, print: fn(&str)) -> io::Result<Receiver<()>> {
    let (done, end) = mpsc::sync_channel(1);
    let print_all = move || {
        for line in BufReader::new(errors.take(PRINTED_BYTES))
            .split(b'\n')
            .map_while(Result::ok)
        {
            print(&OsStr::from_bytes(&line).to_string_lossy());
        }
        drop(done);
    };
    std::thread::Builder::new()
        .name("errors of the copy".to_owned())
        .spawn(print_all)?;
    Ok(end)
}

/// Longest wait for the outer half after the inner one has ended, because a program inside may hold
/// the stream open.
const PATIENCE: Duration = Duration::from_secs(10);

/// The outer half of a copy.
struct Half(Receiver<Result<LeftOut, TransferError>>);

impl Half {
    fn start(
        half: impl FnOnce() -> Result<LeftOut, TransferError> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (done, result) = mpsc::sync_channel(1);
        // The thread ends with the process at the latest.
        std::thread::Builder::new()
            .name("copy".to_owned())
            .spawn(move || drop(done.send(half())))?;
        Ok(Self(result))
    }

    /// Waits for the outer half; `inside` is the result of the inner one. Prints what was left out.
    fn finish(self, inside: anyhow::Result<u8>, print: fn(&str)) -> anyhow::Result<u8> {
        let done = self.0.recv_timeout(PATIENCE);
        let code = inside?;
        let done = done.map_err(|_| {
            anyhow!("the copy did not end, because a process in the sandbox holds its stream open")
        })?;
        // The inner half has already said why it ended; the outer one sees only that it did.
        let left_out = match done {
            Err(TransferError::Stream { .. }) if code != 0 => return Ok(code),
            done => done?,
        };
        for line in left_out.lines() {
            print(&indented(&format!("openshell-sandbox: {line}")));
        }
        if code == 0 {
            Ok(u8::from(left_out.has_failures))
        } else {
            Ok(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{End, end};

    #[test]
    fn an_end_with_a_colon_in_its_first_component_is_in_a_sandbox() {
        let inside = |sandbox: &str, path: &str| End::In {
            sandbox: sandbox.to_owned(),
            path: path.into(),
        };
        assert_eq!(end("web:/a:b".as_ref()), inside("web", "/a:b"));
        assert_eq!(end("web:".as_ref()), inside("web", "."));
        for here in ["./web:x", "/a/web:x", ":x", "plain", ""] {
            assert_eq!(end(here.as_ref()), End::Here(here.into()));
        }
    }
}
