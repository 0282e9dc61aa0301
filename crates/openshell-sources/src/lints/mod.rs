//! Parts of a policy that are valid but probably not intended, each with a remedy.

pub mod credentials;
pub mod files;
mod findings;
mod messages;
mod programs;

use std::path::Path;

use openshell_policy::address::CONTROL_PLANE_PORTS;
use openshell_policy::address::never_reachable;
use openshell_policy::network::endpoint::{Endpoint, Enforcement};
use openshell_policy::network::overlap::{EndpointAt, overlaps};
use openshell_policy::network::rule::{Glob, Specificity};
use openshell_policy::network::{NetworkPolicies, NetworkPolicy};
use openshell_policy::policy::Policy;

use findings::Findings;

/// A function that returns true if the workload may write in a folder.
type IsWritable<'w> = &'w dyn Fn(&Path) -> bool;

/// Returns the findings about `policy`, whose workload may write where `is_writable` is true.
pub fn lints(policy: &Policy, is_writable: IsWritable<'_>) -> Findings {
    let mut found = Findings::default();
    found
        .warnings
        .extend(files::of_filesystem(policy.filesystem()));
    if policy.permits_debugging() {
        found.warnings.push(
            "process.debug: each process of the sandbox can act as any other (ptrace), so rules by \
             program mean nothing among them"
                .to_owned(),
        );
    }
    of_overlaps(policy.network(), &mut found);
    messages::of_messages(policy.network(), &mut found);
    for (name, network) in policy.network() {
        of_network(
            &format!("network_policies.{}", name.as_str()),
            network,
            is_writable,
            &mut found,
        );
    }
    found
}

/// Warns of endpoints of one host and port, one of them with a path, of which only one enforces what
/// the other matches too.
fn of_overlaps(network: &NetworkPolicies, found: &mut Findings) {
    let enforcement = |at: &EndpointAt<'_>| at.endpoint.l7().map(|l7| l7.enforcement);
    for overlap in overlaps(network) {
        let mut audited = overlap
            .iter()
            .filter(|at| enforcement(at) == Some(Enforcement::Audit));
        let pair = audited.find_map(|one| {
            let enforces = |other: &&EndpointAt<'_>| {
                enforcement(other) == Some(Enforcement::Enforce)
                    && may_match_one_path(one.endpoint, other.endpoint)
            };
            Some((one, overlap.iter().find(enforces)?))
        });
        if let Some((audited, other)) = pair {
            found.place = audited.to_string();
            found.warn(format!(
                "`enforcement: audit` has no effect on requests that {other} matches too, because it \
                 says `enforce`"
            ));
        }
    }
}

/// Returns false if the paths of two endpoints are texts without wildcards, or one is and the other
/// does not match it.
fn may_match_one_path(one: &Endpoint, other: &Endpoint) -> bool {
    let (Some(one), Some(other)) = (one.path(), other.path()) else {
        return true;
    };
    match (one.specificity(), other.specificity()) {
        (Specificity::Exact, _) => other.compiled().is_match(one.as_str()),
        (_, Specificity::Exact) => one.compiled().is_match(other.as_str()),
        _ => true,
    }
}

fn of_network(
    place: &str,
    network: &NetworkPolicy,
    is_writable: IsWritable<'_>,
    found: &mut Findings,
) {
    found.place = place.to_owned();
    for (what, is_empty) in [
        ("endpoints", network.endpoints.is_empty()),
        ("binaries", network.binaries.is_empty()),
    ] {
        if is_empty {
            found.warn(format!("it has no {what}, so it permits nothing"));
        }
    }
    for (index, binary) in network.binaries.iter().enumerate() {
        found.place = format!("{place}.binaries[{index}]");
        programs::of_binary(&binary.to_string(), binary.exact, is_writable, found);
    }
    for (index, endpoint) in network.endpoints.iter().enumerate() {
        found.place = format!("{place}.endpoints[{index}]");
        of_endpoint(endpoint, found);
    }
}

fn of_endpoint(endpoint: &Endpoint, found: &mut Findings) {
    if let Some(host) = endpoint.host() {
        of_host(&host.to_string(), found);
    }
    if endpoint.is_tcp() {
        found.note(
            "`protocol: tcp` relays bytes as they are, so no credential can be used there"
                .to_owned(),
        );
    }
    let ports = endpoint.ports().iter().map(|port| port.get());
    for port in ports.filter(|port| CONTROL_PLANE_PORTS.contains(port)) {
        found.warn(format!(
            "port {port} is never reachable, whatever a policy says: control planes listen there"
        ));
    }
    let rules = endpoint.l7().into_iter().flat_map(|l7| {
        l7.rules
            .iter()
            .chain(l7.deny_rules.iter().map(|deny| &deny.rule))
    });
    let paths = endpoint
        .path()
        .into_iter()
        .chain(rules.map(|rule| &rule.path));
    for path in paths.map(Glob::as_str) {
        if path == "*" {
            found.warn(
                "`path: \"*\"` matches no path, because `*` stays within a segment; write `**` for \
                 every path"
                    .to_owned(),
            );
        } else if !path.starts_with(['/', '*', '?', '[', '{', '\\']) {
            found.warn(format!(
                "`path: \"{path}\"` matches no path, because every path begins with `/`; write \
                 \"/{path}\""
            ));
        }
    }
}

fn of_host(host: &str, found: &mut Findings) {
    if let Some(why) = never_reachable(host) {
        found.warn(format!(
            "{host} is never reachable, whatever a policy says: {why}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::lints;

    fn of(policies: &str) -> Vec<String> {
        let (policy, _) =
            openshell_policy::yaml::policy(&format!("network_policies: {policies}")).unwrap();
        lints(&policy, &|_| true).warnings
    }

    #[test]
    fn what_matches_nothing_is_named_with_a_remedy() {
        let found = of(
            "{a: {endpoints: [{host: 127.0.0.1, port: 1}], binaries: [{path: /no/such}]}, b: \
             {endpoints: [{host: x.test, port: 1}]}}",
        );
        let expected = [
            (
                "network_policies.a.binaries[0]: /no/such does not exist",
                "until it does",
            ),
            (
                "network_policies.a.endpoints[0]: 127.0.0.1 is never reachable",
                "needs neither a proxy nor a policy",
            ),
            ("network_policies.b: it has no binaries", "permits nothing"),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (line, (start, end)) in found.iter().zip(expected) {
            assert!(line.starts_with(start) && line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn an_endpoint_that_audits_beside_one_that_enforces_is_named_if_one_has_a_path() {
        let both = |one: &str, other: &str| {
            let endpoint = |parts: &str| {
                format!("{{host: x.test, port: 1, protocol: rest, access: full, {parts}}}")
            };
            let found = of(&format!(
                "{{a: {{endpoints: [{}, {}], binaries: []}}}}",
                endpoint(one),
                endpoint(other)
            ));
            let about = |line: &String| line.contains("enforcement");
            found.into_iter().filter(about).collect::<Vec<_>>()
        };
        let path = "path: /x, enforcement: enforce";
        assert_eq!(
            both("enforcement: audit", path),
            [
                "network_policies.a.endpoints[0]: `enforcement: audit` has no effect on requests that \
                 network_policies.a.endpoints[1] matches too, because it says `enforce`"
            ]
        );
        assert_eq!(both("enforcement: enforce", path), [""; 0]);
        assert_eq!(both("enforcement: audit", "enforcement: enforce"), [""; 0]);
    }

    #[test]
    fn a_path_that_no_request_has_is_named_with_the_form_that_is_meant() {
        let of = |path: &str| {
            let rules = format!(
                "protocol: rest, enforcement: enforce, rules: [{{allow: {{method: GET, path: \
                 \"{path}\"}}}}]"
            );
            of(&format!(
                "{{a: {{endpoints: [{{host: x.test, port: 1, {rules}}}], binaries: [{{path: \
                 \"/**\"}}]}}}}"
            ))
        };
        let expected = "network_policies.a.endpoints[0]: `path: \"v1/**\"` matches no path, \
                        because every path begins with `/`; write \"/v1/**\"";
        assert!(
            of("v1/**").contains(&expected.to_owned()),
            "{:?}",
            of("v1/**")
        );
        for path in ["/v1/**", "**", "*/x", "{/a,/b}", "[/]x"] {
            assert!(
                !of(path).iter().any(|line| line.contains("matches no path")),
                "{path}"
            );
        }
    }

    #[test]
    fn a_writable_file_is_named_with_what_its_program_cannot_do() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "filesystem_policy: {{read_write: [{}, /tmp]}}",
            file.path().display()
        );
        let (policy, _) = openshell_policy::yaml::policy(&text).unwrap();
        let found: Vec<_> = super::files::single_files(policy.filesystem()).collect();
        let expected = format!(
            "filesystem_policy.read_write: {} is a single file",
            file.path().display()
        );
        assert!(
            found.len() == 1 && found[0].starts_with(&expected),
            "{found:?}"
        );
    }

    #[test]
    fn a_script_is_named_with_its_interpreter() {
        let folder = std::env::temp_dir().join(format!("openshell-lints-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, first, expected) in [
            (
                "sh",
                "#!/bin/sh -e\n",
                std::fs::canonicalize("/bin/sh")
                    .unwrap()
                    .display()
                    .to_string(),
            ),
            (
                "env",
                "#!/usr/bin/env node\n",
                "the `node` in PATH".to_owned(),
            ),
            ("gone", "#! /no/such\n", "/no/such".to_owned()),
        ] {
            let script = folder.join(name);
            std::fs::write(&script, first).unwrap();
            let found = of(&format!(
                "{{a: {{endpoints: [{{host: x.test, port: 1}}], binaries: [{{path: {}}}]}}}}",
                script.display()
            ));
            assert!(
                found[0].contains(&format!("is a script, and what runs is {expected};")),
                "{found:?}"
            );
        }
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(
            of(
                "{a: {endpoints: [{host: x.test, port: 1}], binaries: [{path: /usr/bin/curl}, \
                 {path: \"/usr/**\"}]}}"
            ),
            Vec::<String>::new()
        );
    }

    #[test]
    fn programs_that_run_others_are_named_with_what_to_list_instead() {
        let of = |path: &str| {
            of(&format!(
                "{{a: {{endpoints: [{{host: x.test, port: 1}}], binaries: [{{path: {path}}}]}}}}"
            ))
        };
        for (path, expected) in [
            ("/bin/sh", "is a shell"),
            ("/usr/bin/bash", "is a shell"),
            (
                "/usr/bin/git",
                "list what connects: `- {path: /usr/lib/git-core/git-remote-http, exact: true}`",
            ),
            ("/usr/bin/env", "starts other programs"),
            ("/usr/bin/find", "starts other programs"),
            ("/usr/bin/xargs", "starts other programs"),
            ("/usr/bin/tar", "starts other programs"),
            ("'*'", "matches no program"),
            ("'**'", "is every program"),
            ("'/usr/{bin,sbin}/curl'", "is taken literally"),
        ] {
            let found = of(path);
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{path}: {found:?}"
            );
        }
        for path in [
            "/usr/bin/curl",
            "/usr/lib/git-core/git-remote-http",
            "'/usr/lib/git-core/*'",
            "/usr/bin/python3",
            "'/**'",
        ] {
            assert_eq!(of(path), Vec::<String>::new(), "{path}");
        }
    }

    #[test]
    fn an_exact_entry_of_a_program_that_does_what_it_is_told_is_a_note() {
        for (path, is_told) in [
            ("/usr/bin/git", true),
            ("/usr/bin/bash", true),
            ("/usr/bin/python3", true),
            ("/usr/bin/curl", false),
        ] {
            let policies = format!(
                "{{a: {{endpoints: [{{host: x.test, port: 1}}], binaries: [{{path: {path}, exact: \
                 true}}]}}}}"
            );
            let (policy, _) =
                openshell_policy::yaml::policy(&format!("network_policies: {policies}")).unwrap();
            let found = lints(&policy, &|_| true);
            assert!(found.warnings.is_empty(), "{found:?}");
            assert_eq!(
                found
                    .notes
                    .concat()
                    .contains("so what runs it can reach what it can reach"),
                is_told,
                "{path}: {found:?}"
            );
        }
    }

    #[test]
    fn what_makes_rules_by_program_meaningless_is_named() {
        for (document, expected) in [
            ("process: {debug: true}", "process.debug: each process"),
            (
                "filesystem_policy: {read_write: [/proc/self]}",
                "read_write: /proc/self lets processes write",
            ),
        ] {
            let (policy, _) = openshell_policy::yaml::policy(document).unwrap();
            let found = lints(&policy, &|_| true).warnings;
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn an_interpreter_is_a_note_as_there_may_be_no_other_program_to_list() {
        let document = "network_policies: {a: {endpoints: [{host: x.test, port: 1}], binaries: \
                        [{path: /usr/bin/python3}]}}";
        let (policy, _) = openshell_policy::yaml::policy(document).unwrap();
        let found = lints(&policy, &|_| true);
        assert!(
            found.warnings.is_empty() && found.notes.len() == 1,
            "{found:?}"
        );
        assert!(
            found.notes[0].contains("binaries[0]: /usr/bin/python3 runs any script"),
            "{found:?}"
        );
    }

    #[test]
    fn endpoints_that_nothing_reaches_are_named() {
        for (endpoint, expected) in [
            (
                "{host: localhost, port: 80}",
                "localhost is never reachable",
            ),
            (
                "{host: a.localhost, port: 80}",
                "a.localhost is never reachable",
            ),
            (
                "{host: metadata.google.internal, port: 80}",
                "instance metadata",
            ),
            (
                "{host: x.test, ports: [443, 6443]}",
                "port 6443 is never reachable",
            ),
            (
                "{host: x.test, port: 1, protocol: rest, enforcement: enforce, rules: [{allow: \
                 {method: GET, path: '*'}}]}",
                "matches no path",
            ),
        ] {
            let found = of(&format!(
                "{{a: {{endpoints: [{endpoint}], binaries: [{{path: /usr/bin/curl}}]}}}}"
            ));
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{endpoint}: {found:?}"
            );
        }
        let (policy, _) =
            openshell_policy::yaml::policy("filesystem_policy: {read_write: [/]}").unwrap();
        assert!(
            lints(&policy, &|_| true)
                .warnings
                .concat()
                .contains("read_write: `/` grants writing")
        );
    }
}
