//! `openshell-sandbox cp`: copies files into a running sandbox and out of it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use openshell_access::control::copy::{Copy, copy};
use openshell_telemetry::logging::print_stderr;
use openshell_telemetry::logging::progress::Progress;

use crate::process::terminal::HELD_LINES;
use crate::subcommands::exec::places;

/// Copies a file or folder into a running sandbox, or out of it. A copy out of it leaves out
/// symlinks that point outside the copy, devices, set-id bits and hooks of git repositories.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
If DEST is an existing folder, the copy keeps its name in it. Otherwise DEST is the name of the copy.

Exit codes: 0, also if the copy leaves something out; 1 if something cannot be copied.

Examples:
  openshell-sandbox cp web:results .
  openshell-sandbox cp data.csv web:data/")]
pub(crate) struct CpArgs {
    /// The source: a path, or NAME:PATH in the sandbox NAME
    #[arg(value_name = "SRC")]
    pub(crate) from: OsString,

    /// The destination: NAME:PATH, or a path
    #[arg(value_name = "DEST")]
    pub(crate) to: OsString,

    /// Also copy hooks of git repositories out; git executes them
    #[arg(long)]
    pub(crate) git_hooks: bool,

    /// The --run-dir that the sandboxes were started with
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// Makes the copy that `args` ask for.
///
/// # Errors
/// Fails as [`copy`] does.
pub(crate) fn cp(args: &CpArgs) -> anyhow::Result<ExitCode> {
    let _progress = Progress::start("copying");
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
