//! Whether a person is asked about what is refused.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, bail};
use openshell_policy::approvals::Approvals;
use openshell_proxy::approvals::desk::Settings;
use openshell_sources::policy::Compile as _;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::helpers::program::executing;

use crate::activation::Origin;
use crate::cli::{Args, NetworkMode};

/// How a person is asked.
#[derive(Debug)]
pub(crate) struct ApprovalOptions {
    pub(crate) settings: Settings,
    /// True if the command may propose lines of policy.
    pub(crate) takes_proposals: bool,
    /// True if answers are given on this host.
    pub(crate) decides_here: bool,
    /// The program that gets each question.
    pub(crate) command: Option<HelperCommand>,
}

/// A program that helps the supervisor from outside of the sandbox.
#[derive(Debug)]
pub(crate) struct HelperCommand {
    /// Its name and its arguments.
    pub(crate) words: Vec<String>,
    /// The caller's variables that name what is executed.
    pub(crate) variables: Vec<(&'static str, OsString)>,
}

/// The most new questions in a minute, by default.
const RATE: u8 = 10;

/// The time for an answer where only proposals are asked about, in seconds.
const HOLD: u16 = 120;

/// Reads how a person is asked about what the policy of `origin` refuses; `None` if nobody is.
///
/// # Errors
/// Fails beside an option under which nobody can say what an answer would permit.
pub(super) fn read(
    args: &Args,
    origin: &Origin,
    environment: &Environment,
) -> anyhow::Result<Option<ApprovalOptions>> {
    let asks = match (args.approvals.ask, of_policy(origin)) {
        (Some(hold), _) => Some(("--ask", hold)),
        // What refuses nothing asks about nothing.
        (None, _) if args.network != NetworkMode::Proxy || args.observe.is_some() => None,
        (None, Some(Approvals { hold })) => Some(("`approvals` of the policy", hold)),
        (None, None) => None,
    };
    let takes_proposals = args.approvals.policy_local;
    let flags = [
        asks.map(|(flag, _)| flag),
        takes_proposals.then_some("--policy-local"),
    ];
    let Some(flag) = flags.into_iter().flatten().next() else {
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
            has_own_rules(origin),
            "--policy-rules or OPENSHELL_POLICY_RULES",
            "nobody can say what a line of policy means to rules of your own",
        ),
    ];
    for (is_given, other, why) in excluding {
        if is_given {
            bail!("{flag} does not go with {other}: {why}");
        }
    }
    if takes_proposals && origin.place().is_some() {
        bail!(
            "--policy-local does not go with --sandbox-id: the gateway's setting \
             agent_policy_proposals_enabled says whether agents may propose"
        );
    }
    let decides_here = origin.place().is_none() || args.approvals.ask_local;
    if args.approvals.ask_local && origin.place().is_none() {
        bail!(
            "--ask-local goes with a gateway (--sandbox-id); without one every answer is given here"
        );
    }
    if args.approvals.ask_command.is_some() && !decides_here {
        bail!("--ask-command needs --ask-local at a gateway, because there the gateway decides");
    }
    let rate = args.approvals.ask_rate.unwrap_or(RATE);
    let command = args.approvals.ask_command.as_deref();
    let command = command.map(|text| helper(text, environment)).transpose();
    Ok(Some(ApprovalOptions {
        settings: Settings {
            hold: Duration::from_secs(asks.map_or(HOLD, |(_, hold)| hold).into()),
            rate: rate.into(),
            asks_of_refusals: asks.is_some(),
        },
        takes_proposals,
        decides_here,
        command: command.context("--ask-command")?,
    }))
}

/// Returns how the policy of `origin` has a person asked, if it is known and says so.
fn of_policy(origin: &Origin) -> Option<Approvals> {
    match origin {
        Origin::Files(policy) => policy.version.as_ref().ok()?.compiled.policy().approvals(),
        Origin::Gateway { .. } => None,
    }
}

/// Returns true if the policy of `origin` is decided by other rules than the built-in ones.
fn has_own_rules(origin: &Origin) -> bool {
    let Origin::Files(policy) = origin else {
        return false;
    };
    match &policy.version {
        Ok(version) => !version.compiled.0.is_built_in(),
        Err(_) => policy.files.rules.is_some(),
    }
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
    let variables = executing().filter_map(|name| Some((name, environment.get(name)?.to_owned())));
    Ok(HelperCommand {
        words,
        variables: variables.collect(),
    })
}
