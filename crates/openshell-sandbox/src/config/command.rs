//! The command, its terminal, and its time limits.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use openshell_access::control::console::Keyboard;
use openshell_sources::gateway::launcher::MainProcess;
use openshell_sources::policy::policy_file::RunFolders;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::command::signals;
use rustix::process::Signal;

use crate::cli::Args;

/// The command of a run.
#[derive(Debug)]
pub(crate) struct CommandOptions {
    pub(crate) words: Vec<OsString>,
    pub(crate) workdir: Option<PathBuf>,
    pub(crate) current_dir: Option<PathBuf>,
    /// Variables from which the command's environment is made.
    pub(crate) environment: Environment,
    pub(crate) terminal: CommandTerminal,
    /// True if the caller ignores stops by its terminal (SIGTSTP).
    pub(crate) ignores_stops: bool,
    pub(crate) timeout: Option<Duration>,
    /// Time between asking the command to end and killing it.
    pub(crate) grace: Duration,
    /// Time between receiving a signal to end and passing it on.
    pub(crate) drain: Duration,
    /// True if the sandbox stays after its command has ended.
    pub(crate) keep: bool,
}

/// The command's terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandTerminal {
    /// A terminal whose output is shown on the caller's, if one of the command's outputs is a
    /// terminal. The command gets this much of what is typed there.
    Callers(Keyboard),
    /// A terminal that clients attach to.
    Own,
}

/// The type (`TERM`) of a terminal that clients attach to.
const DEFAULT_TERM: &str = "xterm-256color";

impl CommandTerminal {
    /// Chooses the terminal that `args` ask for. With `wants_own`, the command gets its own
    /// terminal if the caller has none.
    ///
    /// # Errors
    /// Fails if `--interactive` was given and the caller has no terminal.
    pub(super) fn read(args: &Args, wants_own: bool) -> anyhow::Result<Self> {
        if args.interactive && !std::io::stdin().is_terminal() {
            bail!(
                "--interactive needs a terminal as standard input; start from a terminal, or leave \
                 the flag out"
            );
        }
        let keyboard = if args.no_interactive {
            Keyboard::None
        } else {
            Keyboard::of_caller(args.interactive)
        };
        if args.interactive && keyboard == Keyboard::None {
            bail!(
                "--interactive needs the controlling terminal of this process as standard input; \
                 start from a shell in that terminal, or leave the flag out"
            );
        }
        Ok(match keyboard {
            Keyboard::None if wants_own => Self::Own,
            keyboard => Self::Callers(keyboard),
        })
    }
}

/// The words of a command.
pub(super) struct Words {
    pub(super) words: Vec<OsString>,
    /// True if the command wants its own terminal.
    pub(super) wants_terminal: bool,
}

impl CommandOptions {
    /// Returns the options of a command with these `words` and this `environment`.
    pub(super) fn new(
        args: &Args,
        words: Words,
        terminal: CommandTerminal,
        folders: &RunFolders,
        mut environment: Environment,
    ) -> Self {
        if words.wants_terminal && environment.get("TERM").is_none() {
            environment.set("TERM", DEFAULT_TERM);
        }
        Self {
            words: words.words,
            workdir: folders.workdir.clone(),
            current_dir: folders.current.clone(),
            environment,
            terminal,
            ignores_stops: signals::is_ignored(Signal::TSTP.as_raw()),
            timeout: Some(args.timeout).filter(|timeout| !timeout.is_zero()),
            grace: args.grace,
            drain: args.drain,
            keep: args.keep,
        }
    }
}

/// Returns the words of the command: the first of the words given, those that the launcher
/// describes, those of the variable, and a shell.
pub(super) fn words_of(
    words: Vec<OsString>,
    described: Option<MainProcess>,
    variable: Option<OsString>,
    is_launched: bool,
) -> anyhow::Result<Words> {
    if !words.is_empty() {
        return Ok(Words::plain(words));
    }
    if let Some(described) = described {
        return Ok(Words {
            words: described.words(),
            wants_terminal: described.tty,
        });
    }
    let text = variable.map(|text| {
        text.into_string()
            .ok()
            .context("OPENSHELL_SANDBOX_COMMAND is not UTF-8")
    });
    let text = text.transpose()?.unwrap_or_default();
    let words: Vec<_> = text.split_whitespace().map(OsString::from).collect();
    match (words.is_empty(), is_launched) {
        (false, _) => Ok(Words::plain(words)),
        (true, true) => {
            let shell = if Path::new("/bin/bash").exists() {
                "/bin/bash"
            } else {
                "/bin/sh"
            };
            Ok(Words {
                words: [shell, "-l"].map(OsString::from).to_vec(),
                wants_terminal: true,
            })
        }
        (true, false) => Ok(Words::plain(vec![OsString::from("/bin/bash")])),
    }
}

impl Words {
    /// Returns the words of a command that wants no terminal of its own.
    fn plain(words: Vec<OsString>) -> Self {
        Self {
            words,
            wants_terminal: false,
        }
    }
}
