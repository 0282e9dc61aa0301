//! `openshell-sandbox cp`: copies files into a running sandbox and out of it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use openshell_access::control::copy::{Copy, copy};
use openshell_telemetry::logging::print_stderr;

use crate::process::terminal::HELD_LINES;
use crate::subcommands::exec::places;

/// Copies a file or folder into a running sandbox, or out of it. Out of it come no links that leave
/// the copy, no devices, no set-id bits and no hooks of git repositories.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
A folder that is there gets the copy under its own name; else the copy gets the name that is given.

Exit codes: 0; 1 if something could not be copied.

Example: openshell-sandbox cp web:/sandbox/results .")]
pub(crate) struct CpArgs {
    /// The source: a path, or NAME:PATH in the sandbox NAME
    #[arg(value_name = "SRC")]
    pub(crate) from: OsString,

    /// The destination: NAME:PATH, or a path
    #[arg(value_name = "DEST")]
    pub(crate) to: OsString,

    /// Copy hooks of git repositories out too, which git runs
    #[arg(long)]
    pub(crate) git_hooks: bool,

    /// Directory of the sandboxes' own files, if they were started with one
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// Makes the copy that `args` ask for.
///
/// # Errors
/// Fails as [`copy`] does.
pub(crate) fn cp(args: &CpArgs) -> anyhow::Result<ExitCode> {
    let code = copy(&Copy {
        from: &args.from,
        to: &args.to,
        git_hooks: args.git_hooks,
        places: &places(args.run_dir.as_deref())?,
        print: print_stderr,
        lines: HELD_LINES,
    })?;
    Ok(ExitCode::from(code))
}
