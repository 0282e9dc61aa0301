//! `openshell-sandbox cp`: files into a running sandbox and out of it.

use std::process::ExitCode;

use openshell_access::control::copy::{Copy, copy};
use openshell_telemetry::logging::print_stderr;

use crate::cli::subcommands::CpArgs;
use crate::subcommands::exec::places;
use crate::terminal::HELD_LINES;

/// Copies what `args` say.
///
/// # Errors
/// As for [`copy`].
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
