//! Programs that a network policy should not list, because what they start may reach the same.

use std::io::Read;
use std::path::Path;

use openshell_supervisor::paths::regular_files;
use openshell_supervisor::paths::trusted_symlinks::{resolve, resolve_unwritable};

use super::findings::Findings;

/// Shells: nearly every program of a workload has one as its ancestor.
const SHELLS: &[&str] = &[
    "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "nu", "rbash", "sh",
    "tcsh", "toybox", "zsh",
];

/// Programs that start others if their arguments, configuration or input say so.
const RUNNERS: &[&str] = &[
    "chroot", "doas", "emacs", "env", "expect", "find", "flock", "gdb", "git", "gmake", "ionice",
    "less", "make", "man", "more", "ncdu", "nice", "ninja", "nohup", "nsenter", "nvim", "parallel",
    "rsync", "runuser", "scp", "screen", "script", "setpriv", "setsid", "sftp", "ssh", "stdbuf",
    "strace", "su", "sudo", "tar", "time", "timeout", "tmux", "unshare", "vi", "vim", "watch",
    "xargs",
];

/// Programs that run scripts; a digit or dot may follow (`python3.13`).
const INTERPRETERS: &[&str] = &[
    "awk", "bun", "deno", "gawk", "guile", "java", "julia", "lua", "luajit", "mawk", "node",
    "nodejs", "perl", "php", "pwsh", "python", "ruby", "tclsh", "wish",
];

/// The program that opens git's connections.
const GIT_REMOTE: &str = "/usr/lib/git-core/git-remote-http";

/// Adds the findings about the program `path` of a policy; `exact` excludes what it starts.
pub(super) fn of_binary(
    path: &str,
    exact: bool,
    is_writable: super::IsWritable<'_>,
    found: &mut Findings,
) {
    if path.contains('*') {
        return of_glob(path, found);
    }
    let file = match resolve_unwritable(Path::new(path), is_writable) {
        Ok(file) => file,
        Err(_) if path.contains(['{', '[', '?']) => {
            return found.warn(format!(
                "{path} is taken literally: {{a,b}}, [ab] and ? need a `*` in the path; list each \
                 program"
            ));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return found.warn(format!(
                "{path} does not exist; it matches nothing until it does"
            ));
        }
        Err(error) => {
            return found.warn(format!(
                "{path} matches only as it is written, because its symlinks cannot be followed: \
                 {error}"
            ));
        }
    };
    if let Some(interpreter) = interpreter(&file) {
        return found.warn(format!(
            "{path} is a script, and what runs is {interpreter}; list that, or the command that \
             starts it"
        ));
    }
    of_program(path, &file, exact, found);
}

/// Adds the findings about `path`, which leads to the program `file`.
fn of_program(path: &str, file: &Path, exact: bool, found: &mut Findings) {
    let names = [path, file.to_str().unwrap_or_default()]
        .map(|path| path.rsplit('/').next().unwrap_or_default());
    let is_one_of = |known: &[&str]| names.iter().any(|name| known.contains(name));
    let version = |name: &str| {
        name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
            .to_owned()
    };
    let is_interpreter = || {
        names.iter().any(|name| {
            INTERPRETERS.contains(&version(name).as_str()) || INTERPRETERS.contains(name)
        })
    };
    if exact {
        if is_one_of(SHELLS) || is_one_of(RUNNERS) || is_interpreter() {
            found.note(format!(
                "{path} does what its arguments, configuration or input say, so what runs it can \
                 reach what it can reach"
            ));
        }
    } else if is_one_of(SHELLS) {
        found.warn(format!(
            "{path} is a shell, and what it starts may reach the same: nearly every program of the \
             workload; list the program that connects, as `- {{path: …, exact: true}}`"
        ));
    } else if names.contains(&"git") {
        found.warn(format!(
            "{path} starts what its configuration says (aliases, hooks, helpers), which may reach \
             the same; list what connects: `- {{path: {GIT_REMOTE}, exact: true}}`"
        ));
    } else if is_one_of(RUNNERS) {
        found.warn(format!(
            "{path} starts other programs, and they may reach the same; list the \
                           program that connects, as `- {{path: …, exact: true}}`"
        ));
    } else if is_interpreter() {
        found.note(format!(
            "{path} runs any script that the workload writes; all of them may reach what is listed \
             here"
        ));
    }
}

/// Adds the findings about a glob, in which `*` stays within a folder.
fn of_glob(path: &str, found: &mut Findings) {
    match path {
        "*" => found.warn(
            "`*` matches no program, because it stays within a folder; list the programs that \
             connect"
                .to_owned(),
        ),
        "/**" => found
            .note("`/**` is every program, including those that the workload writes".to_owned()),
        "**" | "/**/*" => found.warn(format!(
            "`{path}` is every program, including those that the workload writes; list the \
             programs that connect, or write `/**` if you mean every program"
        )),
        _ => {}
    }
}

/// Returns the interpreter of a script: the first word after its `#!`.
fn interpreter(path: &Path) -> Option<String> {
    let mut head = [0; 256];
    let mut file = regular_files::open(path).ok()?;
    let filled = file.read(&mut head).ok()?;
    let line = head
        .get(..filled)?
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let words = std::str::from_utf8(line)
        .ok()?
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    match words.as_slice() {
        // `env` searches the workload's PATH.
        [env, name, ..] if env.ends_with("/env") && !name.starts_with('-') => {
            Some(format!("the `{name}` in PATH"))
        }
        [first, ..] => Some(
            resolve(Path::new(first))
                .map_or_else(|_| first.clone(), |file| file.display().to_string()),
        ),
        [] => None,
    }
}
