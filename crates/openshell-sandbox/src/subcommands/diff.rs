//! `diff`: what one policy permits more and less than another.

use std::path::PathBuf;
use std::process::ExitCode;

use openshell_policy::comparison;
use openshell_policy::policy::Policy;
use openshell_sources::input::Phase;
use openshell_sources::policy::policy_file::PolicyFiles;
use openshell_telemetry::logging::print_line;

use crate::cli::subcommands::DiffArgs;

/// Exit code if the policy after permits more.
const MORE: u8 = 3;

/// Prints the differences, a line each: `+` for what the policy after permits more, `-` for what it
/// permits less.
///
/// # Errors
/// A policy cannot be read or is invalid, with every violation.
pub(crate) fn diff(args: DiffArgs) -> anyhow::Result<ExitCode> {
    let before = policy(args.before)?;
    let after = policy(args.after)?;
    let differences = comparison::differences(&before, &after);
    for difference in &differences {
        print_line(&format!(
            "{} {}",
            if difference.is_more { '+' } else { '-' },
            difference.words
        ));
    }
    let is_more = differences.iter().any(|difference| difference.is_more);
    Ok(ExitCode::from(if is_more { MORE } else { 0 }))
}

fn policy(file: PathBuf) -> anyhow::Result<Policy> {
    PolicyFiles::to_look_at(file, None)
        .read(Phase::Start)?
        .validate()
}
