//! The line with which a sandbox greets a person at a terminal.

use std::collections::BTreeSet;
use std::path::PathBuf;

use openshell_events::text;
use openshell_policy::policy::Policy;
use openshell_telemetry::logging;
use tracing::Level;

use crate::cli::NetworkMode;
use crate::config::Config;
use crate::startup::plan::Plan;

/// The most paths that the line names.
const PATHS: usize = 3;

/// Says what the sandbox is, what it may write and what it may reach, `has_models` included, unless
/// the command is not interactive, or only errors are logged.
pub(super) fn greet(config: &Config, plan: &Plan, policy: &Policy, has_models: bool) {
    if !config.is_interactive() || config.log.level < Level::WARN {
        return;
    }
    let tier = match plan.privilege.caller() {
        Some(_) => " in a user namespace",
        None => "",
    };
    let reach = match config.network.mode {
        NetworkMode::Allow => "the network of the host".to_owned(),
        NetworkMode::Block => "no network".to_owned(),
        NetworkMode::Proxy if config.reports.observe.is_some() => {
            "every host that a policy could permit".to_owned()
        }
        NetworkMode::Proxy if config.inputs.policy.rules.is_some() => {
            "what your rules permit".to_owned()
        }
        NetworkMode::Proxy => hosts(policy),
    };
    let models = if has_models { ", and models" } else { "" };
    let asks = match config.approvals {
        Some(_) => format!("; it asks: {}", answering(&config.sandbox)),
        None => String::new(),
    };
    let line = format!(
        "openshell-sandbox: {}: user {}{tier}; may write {}; may reach {reach}{models}{asks}",
        config.sandbox,
        plan.user.name,
        paths(&plan.writable)
    );
    logging::print_stderr(&text::printable(&line));
}

/// Returns the command that answers what the sandbox of this name asks.
pub(super) fn answering(name: &str) -> String {
    format!("openshell-sandbox approvals {name}")
}

/// Returns the first `paths` in words, and the number of the others.
fn paths(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "nothing".to_owned();
    }
    let mut named: Vec<_> = paths
        .iter()
        .take(PATHS)
        .map(|path| path.display().to_string())
        .collect();
    if let Some(more) = paths.len().checked_sub(PATHS).filter(|more| *more > 0) {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

/// Returns the number of hosts and patterns that `policy` names, in words.
fn hosts(policy: &Policy) -> String {
    let policies = policy.network().values();
    let endpoints = policies.flat_map(|policy| &policy.endpoints);
    // An endpoint without a host is for addresses, which count as one.
    let hosts: BTreeSet<_> = endpoints
        .map(|endpoint| endpoint.host().map(ToString::to_string))
        .collect();
    match hosts.len() {
        0 => "no host".to_owned(),
        count => text::counted(count as u64, "host or pattern", "hosts or patterns"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use openshell_policy::yaml;

    use super::{hosts, paths};

    #[test]
    fn paths_and_hosts_are_few_words() {
        assert_eq!(paths(&[]), "nothing");
        let five: Vec<_> = ["/a", "/b", "/c", "/d", "/e"].map(PathBuf::from).into();
        assert_eq!(paths(&five[..1]), "/a");
        assert_eq!(paths(&five[..3]), "/a, /b, /c");
        assert_eq!(paths(&five), "/a, /b, /c, 2 more");
        for (endpoints, words) in [
            ("[]", "no host"),
            (
                "[{host: a.test, port: 1}, {host: a.test, port: 2}]",
                "1 host or pattern",
            ),
            (
                "[{host: a.test, port: 1}, {host: \"*.b.test\", port: 2}]",
                "2 hosts or patterns",
            ),
        ] {
            let text = format!(
                "network_policies: {{p: {{endpoints: {endpoints}, binaries: [{{path: \"/**\"}}]}}}}"
            );
            let text = if endpoints == "[]" {
                "network_policies: {}"
            } else {
                &text
            };
            let (policy, _) = yaml::policy(text).unwrap();
            assert_eq!(hosts(&policy), words);
        }
    }
}
