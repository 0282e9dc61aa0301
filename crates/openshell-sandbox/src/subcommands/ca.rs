//! `ca`: shows or replaces a kept certificate authority.

use std::process::ExitCode;

use openshell_telemetry::logging;

use crate::ca_dir;
use crate::cli::subcommands::{CaAction, CaArgs};

/// Prints the certificates of the authority, after it was replaced if that is asked for.
///
/// # Errors
/// There is no authority, or it cannot be used or replaced.
pub(crate) fn ca(args: &CaArgs) -> anyhow::Result<ExitCode> {
    let authority = match args.action {
        CaAction::Show => ca_dir::show(&args.folder)?,
        CaAction::Rotate => ca_dir::rotate(&args.folder)?,
    };
    let ends = authority.ends().truncate_to_second();
    logging::print_line(&format!("# valid until {ends}"));
    for line in authority.pem().lines() {
        logging::print_line(line);
    }
    Ok(ExitCode::SUCCESS)
}
