//! `openshell-sandbox exec`: runs a further command in a running sandbox.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use openshell_access::control::client::Places;
use openshell_access::control::run::{self, Outcome};
use openshell_access::control::wire::Exec;
use openshell_events::text::indented;
use openshell_telemetry::logging::print_stderr;

use crate::cli::parse_as;
use crate::config;
use crate::process::terminal::HELD_LINES;

/// Runs another command in a running sandbox, confined as its main command is.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(override_usage = "openshell-sandbox exec [OPTIONS] NAME|PID [OPTIONS] [--] COMMAND...")]
#[command(after_help = "\
Exit codes:
  the command's own; 128+N if signal N ended it
  126 if the command is not executable; 127 if it does not exist
  1 for an error before the command ran

Examples:
  openshell-sandbox exec --tty web -- bash
  openshell-sandbox exec web -- sh -c 'id; pwd'")]
pub(crate) struct ExecArgs {
    /// Give the command a terminal of its own [default: when standard input and output are one]
    #[arg(short, long = "tty")]
    pub(crate) terminal: bool,

    /// Set a variable of the command, or pass yours on; may be repeated
    #[arg(short = 'e', long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) variables: Vec<String>,

    /// Working directory inside [default: the one of the main command]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// The --run-dir that the sandboxes were started with
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// Name or id of the sandbox, or the PID of its supervisor, as `openshell-sandbox ps` lists
    /// them; the command and its arguments
    #[arg(
        trailing_var_arg = true,
        value_name = "NAME|PID COMMAND",
        required = true
    )]
    pub(crate) words: Vec<OsString>,

    /// The first of the words, once it is taken from them.
    #[arg(skip)]
    pub(crate) sandbox: OsString,
}

// The words after the sandbox's name. This is no doc comment, because that would be in the help.
#[derive(Debug, Parser)]
#[command(name = "exec", bin_name = "openshell-sandbox exec")]
struct Behind {
    #[command(flatten)]
    args: ExecArgs,
}

impl ExecArgs {
    /// Takes the name of the sandbox from the words. Options may stand before and after it; the
    /// remaining words are the command.
    ///
    /// # Errors
    /// Fails if the words after the name are not a valid command line.
    pub(super) fn with_name(mut self) -> Result<Self, clap::Error> {
        let sandbox = self.words.remove(0);
        let rest = std::iter::once(OsString::from("exec")).chain(self.words);
        let Behind { mut args } = parse_as(rest)?;
        args.sandbox = sandbox;
        args.terminal |= self.terminal;
        args.variables.splice(..0, self.variables);
        args.workdir = args.workdir.or(self.workdir);
        args.run_dir = args.run_dir.or(self.run_dir);
        Ok(args)
    }
}

/// Returns the places of this user's sandboxes: `run_dir` if it is given, otherwise the defaults.
///
/// # Errors
/// Fails as [`Places::new`] does.
pub(crate) fn places(run_dir: Option<&Path>) -> anyhow::Result<Places> {
    let runtime_dir = config::variable_of_client("XDG_RUNTIME_DIR").map(PathBuf::from);
    Places::new(run_dir, runtime_dir.as_deref())
}

/// Runs a further command, and returns its exit code.
///
/// # Errors
/// Fails if there is no such sandbox, or if it ends.
pub(crate) fn exec(args: ExecArgs) -> anyhow::Result<ExitCode> {
    let sandbox = args.sandbox;
    let variables = args
        .variables
        .iter()
        .map(|text| variable(text))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let socket = places(args.run_dir.as_deref())?.connect(sandbox.to_str().unwrap_or_default())?;
    let terminal = run::terminal(args.terminal, config::variable_of_client("TERM"));
    let exec = Exec {
        arguments: args.words,
        variables,
        directory: args.workdir,
        terminal,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run::run(socket, exec, None, HELD_LINES));
    // Not waited for, because a thread may still be reading input.
    runtime.shutdown_background();
    let code = match ended? {
        Outcome::Ended(code) => code,
        Outcome::Refused { code, reason } => {
            print_stderr(&indented(&format!("openshell-sandbox: {reason}")));
            code
        }
    };
    Ok(ExitCode::from(code))
}

/// Parses `NAME=VALUE`, or `NAME` for a variable of this process.
fn variable(text: &str) -> anyhow::Result<(String, OsString)> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.into()));
    }
    let value = config::variable_of_client(text);
    Ok((
        text.to_owned(),
        value.with_context(|| {
            format!("-e {text}: there is no such variable; write NAME=VALUE to set one")
        })?,
    ))
}
