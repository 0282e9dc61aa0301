//! `ca`: shows or replaces a kept certificate authority.

use std::path::PathBuf;
use std::process::ExitCode;

use openshell_telemetry::logging;
use time::UtcOffset;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use crate::ca_dir;

/// Shows or replaces the certificate authority that a folder keeps (--ca-dir).
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0; 1 if the folder has no authority, or it cannot be replaced.

Examples:
  openshell-sandbox ca show /var/lib/openshell/ca
  openshell-sandbox ca rotate /var/lib/openshell/ca")]
pub(crate) struct CaArgs {
    /// `show` prints the certificates that programs inside trust; `rotate` replaces the authority
    #[arg(value_name = "ACTION")]
    pub(crate) action: CaAction,

    /// The folder
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Action on a kept authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CaAction {
    Show,
    Rotate,
}

/// The form of a moment.
const MOMENT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");

/// Prints the certificates of the authority, after replacing it if that is asked for.
///
/// # Errors
/// Fails if there is no authority, or if it cannot be used or replaced.
pub(crate) fn ca(args: &CaArgs) -> anyhow::Result<ExitCode> {
    let authority = match args.action {
        CaAction::Show => ca_dir::show(&args.folder)?,
        CaAction::Rotate => ca_dir::rotate(&args.folder)?,
    };
    let ends = authority.ends().to_offset(UtcOffset::UTC).format(MOMENT)?;
    logging::print_line(&format!("# valid until {ends}"));
    for line in authority.pem().lines() {
        logging::print_line(line);
    }
    Ok(ExitCode::SUCCESS)
}
