//! `diff`: what one policy permits more and less than another.

use std::path::PathBuf;
use std::process::ExitCode;

use openshell_policy::comparison;
use openshell_policy::policy::Policy;
use openshell_sources::input::Phase;
use openshell_sources::policy::policy_file::PolicyFiles;
use openshell_telemetry::logging::print_line;

use crate::config::origin;

/// Prints what one policy permits more (+) and less (-) than another.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
It compares hosts, requests, programs, files and the user. It may name a pattern that means the same
but is written in another way.

Exit codes: 0 if the second policy permits nothing more; 3 if it does; 1 if a policy cannot be used.

Example:
  openshell-sandbox diff before.yaml after.yaml")]
pub(crate) struct DiffArgs {
    /// The policy before (YAML)
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,

    /// The policy after (YAML)
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
}

/// The exit code if the policy after permits more.
const MORE: u8 = 3;

/// Prints the differences, one per line: `+` for what the policy after permits more, `-` for what
/// it permits less.
///
/// # Errors
/// Fails if a policy cannot be read or is invalid, with every violation.
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
    PolicyFiles::to_look_at(file, None, origin::caller_of_sudo())
        .read(Phase::Start)?
        .validate()
}
