//! Whether a person is asked about what is refused.

use anyhow::bail;
use openshell_proxy::approvals::desk::Settings;
use openshell_sources::policy::policy_file::PolicyFiles;

use crate::cli::{Args, NetworkMode};

/// The most new questions in a minute, by default.
const RATE: u8 = 10;

/// Reads how a person is asked about what `policy` refuses; `None` if nobody is.
///
/// # Errors
/// Fails beside an option under which nobody can say what an answer would permit.
pub(super) fn read(
    args: &Args,
    policy: &PolicyFiles,
    is_launched: bool,
) -> anyhow::Result<Option<Settings>> {
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
    Ok(Some(Settings {
        hold,
        rate: rate.into(),
    }))
}
