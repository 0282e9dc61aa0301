//! Whether a person is asked about what is refused.

use std::ffi::OsString;

use anyhow::{Context as _, bail};
use openshell_proxy::approvals::desk::Settings;
use openshell_sources::policy::policy_file::PolicyFiles;
use openshell_supervisor::command::environment::Environment;

use crate::cli::{Args, NetworkMode};

/// How a person is asked.
#[derive(Debug)]
pub(crate) struct ApprovalOptions {
    pub(crate) settings: Settings,
    /// The program that gets each question.
    pub(crate) command: Option<HelperCommand>,
}

/// A program that helps the supervisor from outside of the sandbox.
#[derive(Debug)]
pub(crate) struct HelperCommand {
    /// Its name and its arguments.
    pub(crate) words: Vec<String>,
    /// The caller's PATH.
    pub(crate) search_path: OsString,
}

/// The most new questions in a minute, by default.
const RATE: u8 = 10;

/// Reads how a person is asked about what `policy` refuses; `None` if nobody is.
///
/// # Errors
/// Fails beside an option under which nobody can say what an answer would permit.
pub(super) fn read(
    args: &Args,
    policy: &PolicyFiles,
    environment: &Environment,
    is_launched: bool,
) -> anyhow::Result<Option<ApprovalOptions>> {
    let Some(hold) = args.approvals.ask else {
        return Ok(None);
    };
    let excluding = [
        (
            args.network == NetworkMode::Allow,
            "--network allow",
            "nothing is refused",
        ),
        (
            args.network == NetworkMode::Block,
            "--network block",
            "there is no network",
        ),
        (
            args.observe.is_some(),
            "--observe",
            "nothing is refused that a policy could permit",
        ),
        (
            policy.rules.is_some(),
            "--policy-rules or OPENSHELL_POLICY_RULES",
            "nobody can say what a line of policy means to rules of your own",
        ),
        (
            is_launched,
            "--sandbox-id",
            "at a gateway only the gateway decides",
        ),
    ];
    for (is_given, flag, why) in excluding {
        if is_given {
            bail!("--ask does not go with {flag}: {why}");
        }
    }
    let rate = args.approvals.ask_rate.unwrap_or(RATE);
    let command = args.approvals.ask_command.as_deref();
    let command = command.map(|text| helper(text, environment)).transpose();
    Ok(Some(ApprovalOptions {
        settings: Settings {
            hold,
            rate: rate.into(),
        },
        command: command.context("--ask-command")?,
    }))
}

/// Splits the command line `text` as a shell does, but expands nothing.
///
/// # Errors
/// Fails if a quote is not closed, or if there is no word.
fn helper(text: &str, environment: &Environment) -> anyhow::Result<HelperCommand> {
    let words = shlex::split(text).context("a quote is not closed")?;
    if words.is_empty() {
        bail!("it names no program");
    }
    let search_path = environment.get("PATH").unwrap_or_default();
    Ok(HelperCommand {
        words,
        search_path: search_path.to_owned(),
    })
}
