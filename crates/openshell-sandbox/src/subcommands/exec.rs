//! `openshell-sandbox exec`: a further command in a running sandbox.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use openshell_access::control::client::Places;
use openshell_access::control::run::{self, Outcome};
use openshell_access::control::wire::Exec;
use openshell_events::text::indented;
use openshell_telemetry::logging::print_stderr;

use crate::cli::subcommands::ExecArgs;
use crate::config;
use crate::terminal::HELD_LINES;

/// Returns the places of this user's sandboxes: `run_dir` if given, else the defaults.
///
/// # Errors
/// As for [`Places::new`].
pub(crate) fn places(run_dir: Option<&Path>) -> anyhow::Result<Places> {
    let runtime_dir = config::variable_of_client("XDG_RUNTIME_DIR").map(PathBuf::from);
    Places::new(run_dir, runtime_dir.as_deref())
}

/// Runs a command in `sandbox`; returns its exit code.
///
/// # Errors
/// There is no such sandbox, or it goes away.
pub(crate) fn exec(sandbox: &OsStr, args: ExecArgs) -> anyhow::Result<ExitCode> {
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
    // A thread may still wait for input.
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

/// Parses `NAME=VALUE`, or the NAME of a variable of this process.
fn variable(text: &str) -> anyhow::Result<(String, OsString)> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.into()));
    }
    let value = config::variable_of_client(text);
    Ok((
        text.to_owned(),
        value.with_context(|| {
            format!("-e {text}: there is no such variable; set one by NAME=VALUE")
        })?,
    ))
}
