use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hyper::Method;
use openshell_events::reason::ReasonCode;
use openshell_policy::network::host::Host;
use serde_json::{Value, json};

use super::connection::judge;
use super::engine::{BUILT_IN, Decision, Engine, Query};
use super::message::Message;
use super::permit::{Inspection, Permit};
use super::rego_data::rego_data;
use super::snapshot::{LoadError, Snapshot};
use super::verdict::{self, Judged};
use crate::denial::refusal::Refusal;
use crate::ground::peer::{Caller, Program};
use crate::ground::target::Target;

fn snapshot(policies: &str) -> Snapshot {
    load(&format!("network_policies: {policies}"), None).unwrap()
}

/// Loads a document as the first generation.
fn load(data: &str, rules: Option<&str>) -> Result<Snapshot, LoadError> {
    let (policy, _) = openshell_policy::yaml::policy(data).unwrap();
    Snapshot::new(1, policy, rules, &|_| None)
}

fn caller(executable: &str, ancestors: &[&str]) -> Caller {
    let ancestors = ancestors.iter().map(|path| (*path).to_owned()).collect();
    let cmdline_paths = vec!["/sandbox/tool.py".to_owned()];
    let program = Program {
        executable: executable.into(),
        ancestors,
        cmdline_paths,
        is_modified: false,
    };
    Caller {
        pid: 7,
        program: program.into(),
    }
}

fn target(text: &str) -> Target {
    let (host, port) = text.rsplit_once(':').unwrap();
    Target {
        host: Host::parse(host).unwrap(),
        port: port.parse().unwrap(),
    }
}

fn decide(snapshot: &Snapshot, caller: Caller, to: &str) -> Result<Permit, Refusal> {
    judge(snapshot, &caller, &target(to), || Ok(()))
}

fn by_curl(policies: &str, to: &str) -> Result<Permit, Refusal> {
    decide(
        &snapshot(policies),
        caller("/usr/bin/curl", &["/usr/bin/bash"]),
        to,
    )
}

#[track_caller]
fn check(policies: &str, to: &str, expected: Result<&str, ReasonCode>) {
    let result = by_curl(policies, to);
    let result = result
        .as_ref()
        .map(|permit| permit.policy().unwrap())
        .map_err(Refusal::code);
    assert_eq!(result, expected, "{to} under {policies}");
}

fn reason(result: Result<Permit, Refusal>) -> String {
    result.unwrap_err().reason().to_owned()
}

const CURL: &str = "binaries: [{path: /usr/bin/curl}]";

fn web(endpoint: &str) -> String {
    format!("{{web: {{endpoints: [{endpoint}], {CURL}}}}}")
}

use ReasonCode::{BinaryNotInPolicy, EndpointNotInPolicy, NoNetworkPolicies};

// Conformance: L4-01.
#[test]
fn no_policies_refuse_everything() {
    check("{}", "example.com:443", Err(NoNetworkPolicies));
    assert_eq!(
        reason(by_curl("{}", "example.com:443")),
        "network connections not allowed by policy"
    );
}

// Conformance: L4-02, L4-03, L4-04, L4-06.
#[test]
fn host_and_port_both_count() {
    let one = web("{host: web.test, port: 8080}");
    check(&one, "web.test:8080", Ok("web"));
    check(&one, "web.test:8081", Err(EndpointNotInPolicy));
    check(&one, "other.test:8080", Err(EndpointNotInPolicy));
    let two = web("{host: web.test, ports: [8080, 9090]}");
    check(&two, "web.test:8080", Ok("web"));
    check(&two, "web.test:9090", Ok("web"));
    check(&two, "web.test:80", Err(EndpointNotInPolicy));
}

// Conformance: L4-07.
#[test]
fn case_and_a_final_dot_do_not_matter() {
    let policy = web("{host: Web.TEST, port: 8080}");
    check(&policy, "wEB.test:8080", Ok("web"));
    check(&policy, "web.test.:8080", Ok("web"));
}

// Conformance: L4-08, L4-09, L4-10.
#[test]
fn wildcards_stand_for_labels() {
    let one = web("{host: \"*.APPS.test\", port: 1}");
    check(&one, "a.apps.TEST:1", Ok("web"));
    check(&one, "a.b.apps.test:1", Err(EndpointNotInPolicy));
    check(&one, "apps.test:1", Err(EndpointNotInPolicy));
    check(&one, "evilapps.test:1", Err(EndpointNotInPolicy));
    let many = web("{host: \"**.apps.test\", port: 1}");
    check(&many, "a.b.apps.test:1", Ok("web"));
    check(&many, "apps.test:1", Err(EndpointNotInPolicy));
}

#[test]
fn a_wildcard_inside_a_label_stands_for_one_or_more_characters() {
    let parts = web("{host: \"*-ai.*.apps.test\", port: 1}");
    check(&parts, "eu-ai.x.apps.test:1", Ok("web"));
    check(&parts, "EU-ai.x.apps.TEST.:1", Ok("web"));
    for other in [
        "-ai.x.apps.test:1",
        "eu-ai.apps.test:1",
        "eu-ai.x.y.apps.test:1",
        "a.eu-ai.x.apps.test:1",
        "10.0.0.1:1",
    ] {
        check(&parts, other, Err(EndpointNotInPolicy));
    }
    let address = web("{host: \"1*.0.0.test\", port: 1}");
    check(&address, "10.0.0.1:1", Err(EndpointNotInPolicy));
}

// Conformance: L4-11, L4-12, L4-13, L4-14, L4-15.
#[test]
fn binaries_match_the_program_and_its_ancestors() {
    let with = |path: &str| {
        format!(
            "{{web: {{endpoints: [{{host: a.test, port: 1}}], binaries: [{{path: \"{path}\"}}]}}}}"
        )
    };
    for path in [
        "/usr/bin/cur*",
        "/usr/**",
        "/**",
        "/usr/bin/bash",
        "/usr/bin/ba*",
    ] {
        check(&with(path), "a.test:1", Ok("web"));
    }
    for path in ["/usr/*", "/usr/bin/CURL", "/usr/bin/cur?", "/usr/bin"] {
        check(&with(path), "a.test:1", Err(BinaryNotInPolicy));
    }
}

// Conformance: L4-16, L4-05.
#[test]
fn arguments_explain_and_never_grant() {
    let policy =
        "{web: {endpoints: [{host: a.test, port: 1}], binaries: [{path: /sandbox/tool.py}]}}";
    check(policy, "a.test:1", Err(BinaryNotInPolicy));
    let reason = reason(by_curl(policy, "a.test:1"));
    let expected = "binary '/usr/bin/curl' not allowed in policy 'web' (ancestors: \
                    [/usr/bin/bash], cmdline: [/sandbox/tool.py]). SYMLINK HINT:";
    assert!(reason.starts_with(expected), "L4-05: {reason}");
}

// Conformance: L4-17, L4-18.
#[test]
fn a_symlink_of_the_policy_means_its_target_too() {
    let data = "network_policies: {web: {endpoints: [{host: web.test, port: 80}], binaries: \
                [{path: /usr/bin/python3}]}}";
    let links = |path: &str| (path == "/usr/bin/python3").then(|| "/usr/bin/python3.11".to_owned());
    for (links, expected) in [
        (&links as &dyn Fn(&str) -> Option<String>, true),
        (&|_| None, false),
    ] {
        let (policy, _) = openshell_policy::yaml::policy(data).unwrap();
        let snapshot = Snapshot::new(1, policy, None, links).unwrap();
        let decided = decide(&snapshot, caller("/usr/bin/python3.11", &[]), "web.test:80");
        assert_eq!(decided.is_ok(), expected);
    }
}

// Conformance: L4-19.
#[test]
fn a_policy_without_binaries_permits_no_program() {
    check(
        "{web: {endpoints: [{host: a.test, port: 1}]}}",
        "a.test:1",
        Err(BinaryNotInPolicy),
    );
    check(
        "{web: {endpoints: [{host: a.test, port: 1}], binaries: []}}",
        "a.test:1",
        Err(BinaryNotInPolicy),
    );
}

// Conformance: L4-20, L4-21.
#[test]
fn the_smallest_key_names_the_decision() {
    let endpoint = "endpoints: [{host: a.test, port: 1}]";
    check(
        &format!("{{zeta: {{{endpoint}, {CURL}}}, alpha: {{name: Pretty, {endpoint}, {CURL}}}}}"),
        "a.test:1",
        Ok("alpha"),
    );
}

// Conformance: L4-22.
#[test]
fn the_reason_names_every_policy() {
    let policies = format!(
        "{{a: {{endpoints: [{{host: a.test, port: 1}}], {CURL}}}, b: {{endpoints: [{{host: b.test, \
         port: 1}}], {CURL}}}}}"
    );
    let expected = "endpoint c.test:1 not in policy 'a'; endpoint c.test:1 not in policy 'b'";
    assert_eq!(reason(by_curl(&policies, "c.test:1")), expected);
}

#[test]
fn a_refusal_names_the_line_that_would_permit_and_it_does() {
    let python = "binaries: [{path: /usr/bin/python3}]";
    let cases = [
        (
            web("{host: a.test, port: 1}"),
            "network_policies.web.endpoints: add `- {host: b.test, port: 2}`",
            "web",
        ),
        (
            web("{host: b.test, port: 1}"),
            "network_policies.web.endpoints: add `- {host: b.test, port: 2}`",
            "web",
        ),
        (
            format!("{{web: {{endpoints: [{{host: b.test, port: 2}}], {python}}}}}"),
            "network_policies.web.binaries: add `- {path: /usr/bin/curl}`",
            "web",
        ),
        (
            format!("{{web: {{endpoints: [{{host: b.test, port: 1}}], {python}}}}}"),
            "network_policies: add `NAME: {endpoints: [{host: b.test, port: 2}], binaries: [{path: \
             /usr/bin/curl}]}`",
            "web",
        ),
    ];
    for (policies, fix, nearest) in cases {
        let curl = caller("/usr/bin/curl", &["/usr/bin/bash"]);
        let refusal = by_curl(&policies, "b.test:2").unwrap_err();
        assert_eq!(
            refusal.fix(&target("b.test:2"), Some(&curl)).as_deref(),
            Some(fix),
            "{policies}"
        );
        assert_eq!(refusal.nearest_rule(), Some(nearest), "{policies}");
    }
    let added = web("{host: a.test, port: 1}, {host: b.test, port: 2}");
    check(&added, "b.test:2", Ok("web"));
}

#[test]
fn no_fix_is_offered_where_none_would_help_and_why_is_said() {
    let snapshot = snapshot("{}");
    let own = rustix::system::uname()
        .nodename()
        .to_str()
        .unwrap()
        .to_owned();
    let own = format!("{own}:80");
    for to in [
        "127.0.0.1:80",
        "localhost:80",
        "x.localhost:80",
        "169.254.169.254:80",
        "metadata.google.internal:80",
        "a.test:6443",
        &own,
    ] {
        let refusal = decide(&snapshot, caller("/usr/bin/curl", &[]), to).unwrap_err();
        let caller = caller("/usr/bin/curl", &[]);
        assert_eq!(refusal.fix(&target(to), Some(&caller)), None, "{to}");
        let why = refusal.no_fix(&target(to)).unwrap();
        assert!(
            why.starts_with(&format!("no policy permits {}: ", target(to))),
            "{why}"
        );
    }
    let refusal = decide(&snapshot, caller("/usr/bin/curl", &[]), "a.test:80").unwrap_err();
    assert_eq!(refusal.no_fix(&target("a.test:80")), None);
}

#[test]
fn a_refused_fetch_of_git_is_told_the_rule_for_it_and_that_permits_it() {
    let endpoint = |rules: &str| {
        web(&format!(
            "{{host: a.test, port: 1, protocol: rest, enforcement: enforce, {rules}}}"
        ))
    };
    let permit = by_curl(&endpoint("access: read-only"), "a.test:1").unwrap();
    let path = "/owner/repo.git/git-upload-pack";
    let refusal = verdict::ask(&permit, "POST", path).unwrap_err();
    let rule = "{method: POST, path: \"/**/git-upload-pack\"}";
    let fix = refusal.fix(&target("a.test:1"), None).unwrap();
    assert!(
        fix.contains(&format!("`- allow: {rule}`")) && fix.contains("git fetches by POST"),
        "{fix}"
    );
    let rules = format!("rules: [{{allow: {{method: GET, path: \"**\"}}}}, {{allow: {rule}}}]");
    let permit = by_curl(&endpoint(&rules), "a.test:1").unwrap();
    assert_eq!(asked(&permit, "POST", path), allowed("web"));
    assert_eq!(
        asked(
            &permit,
            "GET",
            "/owner/repo.git/info/refs?service=git-upload-pack"
        ),
        allowed("web")
    );
    assert!(asked(&permit, "POST", "/owner/repo.git/git-receive-pack").is_err());
}

#[test]
fn a_path_that_yaml_would_read_otherwise_is_quoted_in_the_fix() {
    let odd = caller("/tmp/a, b: c", &[]);
    let fix = decide(&snapshot("{}"), odd.clone(), "a.test:1")
        .unwrap_err()
        .fix(&target("a.test:1"), Some(&odd));
    assert!(fix.unwrap().contains(r#"path: "/tmp/a, b: c""#));
}

#[test]
fn what_skips_tls_cannot_have_rules_by_another_endpoint() {
    let judged = "{host: a.test, port: 1, protocol: rest, enforcement: audit, access: full}";
    check(&web(judged), "a.test:1", Ok("web"));
    let twin = web(&format!(
        "{{host: \"*.a.test\", port: 1, tls: skip}}, {}",
        judged.replace("a.test", "b.a.test")
    ));
    check(&twin, "b.a.test:1", Err(ReasonCode::UnsupportedL7Protocol));
    check(&twin, "c.a.test:1", Ok("web"));
}

/// Returns the outcome of a request under `permit`, and the policy that it names.
fn asked(
    permit: &Permit,
    method: &str,
    target: &str,
) -> Result<(Option<String>, Judged), ReasonCode> {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let message = Message::of_head(method, target.parse().unwrap());
    let leave = verdict::judge_read(permit, &message).map_err(|refusal| refusal.code())?;
    Ok((leave.policy().map(str::to_owned), leave.judged().clone()))
}

fn allowed(policy: &str) -> Result<(Option<String>, Judged), ReasonCode> {
    Ok((Some(policy.to_owned()), Judged::Allowed))
}

/// Returns the permit of curl for a.test:1 under `endpoints`, each with `host`, `port`, `protocol` and
/// what it is given here.
fn at_paths(endpoints: &[&str]) -> Permit {
    let endpoint = |parts: &&str| format!("{{host: a.test, port: 1, protocol: rest, {parts}}}");
    let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
    by_curl(&web(&endpoints.join(", ")), "a.test:1").unwrap()
}

#[test]
fn an_endpoint_with_a_path_counts_only_for_requests_of_that_path() {
    let permit = at_paths(&[
        "path: \"/api/**\", enforcement: enforce, access: full",
        "path: /one, enforcement: enforce, access: read-only",
    ]);
    assert_eq!(asked(&permit, "POST", "/api/x"), allowed("web"));
    assert_eq!(asked(&permit, "POST", "/a/../api/x?q=1"), allowed("web"));
    assert_eq!(asked(&permit, "GET", "/one"), allowed("web"));
    for (method, path) in [
        ("POST", "/one"),
        ("GET", "/"),
        ("GET", "/two"),
        ("GET", "/apix"),
    ] {
        let outcome = asked(&permit, method, path);
        assert_eq!(
            outcome,
            Err(ReasonCode::RequestNotInRules),
            "{method} {path}"
        );
    }
}

#[test]
fn of_the_endpoints_that_match_the_most_specific_allows_and_equal_ones_unite() {
    let permit = at_paths(&[
        "enforcement: enforce, access: full",
        "path: \"/a/**\", enforcement: enforce, access: read-only",
        "path: \"/a/b/**\", enforcement: enforce, access: read-write",
        "path: /a/b/c, enforcement: enforce, rules: [{allow: {method: DELETE, path: \"**\"}}]",
        "path: /a/b/c, enforcement: enforce, rules: [{allow: {method: PUT, path: /a/b/c}}]",
    ]);
    for (method, path, is_allowed) in [
        ("DELETE", "/x", true),
        ("GET", "/a/x", true),
        ("POST", "/a/x", false),
        ("POST", "/a/b/x", true),
        ("DELETE", "/a/b/x", false),
        ("DELETE", "/a/b/c", true),
        ("PUT", "/a/b/c", true),
        ("GET", "/a/b/c", false),
    ] {
        let expected = if is_allowed {
            allowed("web")
        } else {
            Err(ReasonCode::RequestNotInRules)
        };
        assert_eq!(asked(&permit, method, path), expected, "{method} {path}");
    }
}

#[test]
fn deny_rules_of_every_endpoint_that_matches_hold_and_of_no_other() {
    let permit = at_paths(&[
        "enforcement: enforce, access: full, deny_rules: [{method: PUT, path: \"**\"}]",
        "path: \"/a/**\", enforcement: enforce, access: full, deny_rules: [{method: DELETE, path: \
         \"**\"}]",
    ]);
    assert_eq!(asked(&permit, "POST", "/a/x"), allowed("web"));
    assert_eq!(asked(&permit, "DELETE", "/x"), allowed("web"));
    for (method, path) in [("PUT", "/a/x"), ("DELETE", "/a/x"), ("PUT", "/x")] {
        let outcome = asked(&permit, method, path);
        assert_eq!(
            outcome,
            Err(ReasonCode::RequestInDenyRules),
            "{method} {path}"
        );
    }
}

#[test]
fn a_request_is_enforced_where_any_endpoint_that_matches_says_so() {
    let audited = |outcome: Result<(Option<String>, Judged), ReasonCode>| {
        matches!(outcome, Ok((_, Judged::Audited { .. })))
    };
    let permit = at_paths(&[
        "enforcement: audit, access: read-only",
        "path: /strict, enforcement: enforce, access: read-only",
    ]);
    assert!(audited(asked(&permit, "POST", "/loose")));
    let strict = asked(&permit, "POST", "/strict");
    assert_eq!(strict, Err(ReasonCode::RequestNotInRules));
    let permit = at_paths(&[
        "enforcement: enforce, access: read-only",
        "path: /loose, enforcement: audit, access: read-only",
    ]);
    let loose = asked(&permit, "POST", "/loose");
    assert_eq!(
        loose,
        Err(ReasonCode::RequestNotInRules),
        "the other matches too"
    );
    let permit = at_paths(&["path: /loose, enforcement: audit, access: read-only"]);
    assert!(audited(asked(&permit, "POST", "/loose")));
    let elsewhere = asked(&permit, "GET", "/elsewhere");
    assert_eq!(
        elsewhere,
        Err(ReasonCode::RequestNotInRules),
        "no endpoint matches"
    );
}

#[test]
fn a_path_that_a_server_may_read_as_one_for_another_endpoint_is_refused_and_that_one_named() {
    let permit = at_paths(&[
        "enforcement: enforce, access: full, allow_encoded_slash: true",
        "path: /mcp, enforcement: enforce, access: read-only, allow_encoded_slash: true",
        "path: \"/v1/*/keys\", enforcement: enforce, access: read-only, allow_encoded_slash: true",
    ]);
    assert_eq!(asked(&permit, "GET", "/mcp"), allowed("web"));
    assert_eq!(
        asked(&permit, "GET", "//mcp"),
        allowed("web"),
        "it is sent as /mcp"
    );
    assert_eq!(asked(&permit, "POST", "/x/mcp"), allowed("web"));
    assert_eq!(asked(&permit, "POST", "/mcpx"), allowed("web"));
    for path in [
        "/MCP",
        "/mcp/",
        "/mcp;x",
        "/mcp;x/",
        "/Mcp%2f",
        "/%6dc%50",
        "/v1/a/KEYS",
        "/v1/a/keys/",
        "/v1/a/keys;x=1",
        "/v1/a%2fkeys",
    ] {
        for method in ["GET", "POST"] {
            let outcome = asked(&permit, method, path);
            assert_eq!(
                outcome,
                Err(ReasonCode::EndpointsAmbiguous),
                "{method} {path}"
            );
        }
    }
    let message = Message::of_head(Method::POST, "/MCP".parse().unwrap());
    let refusal = verdict::judge_read(&permit, &message).unwrap_err();
    assert_eq!(
        refusal.reason(),
        "a server may read its path as one for the endpoint with `path: /mcp`"
    );
}

#[test]
fn what_denies_or_enforces_does_so_for_every_reading_of_a_path() {
    let permit = at_paths(&[
        "path: \"/files/**\", enforcement: enforce, access: full",
        "path: \"/**/secret/**\", enforcement: enforce, access: full, deny_rules: [{method: DELETE, \
         path: \"**\"}]",
    ]);
    assert_eq!(asked(&permit, "DELETE", "/files/x"), allowed("web"));
    for path in ["/files/secret/x", "/files/Secret/x", "/files/secret;y/x"] {
        let outcome = asked(&permit, "DELETE", path);
        assert_eq!(outcome, Err(ReasonCode::RequestInDenyRules), "{path}");
    }
    let permit = at_paths(&[
        "path: \"/files/**\", enforcement: audit, access: read-only",
        "path: \"/**/secret/**\", enforcement: enforce, access: read-only",
    ]);
    assert!(asked(&permit, "POST", "/files/x").is_ok());
    for path in ["/files/secret/x", "/files/SECRET/x"] {
        let outcome = asked(&permit, "POST", path);
        assert_eq!(outcome, Err(ReasonCode::RequestNotInRules), "{path}");
    }
    let slash = "enforcement: enforce, allow_encoded_slash: true";
    let permit = at_paths(&[
        &format!("path: \"/v1/*\", access: full, {slash}"),
        &format!("access: read-only, {slash}"),
    ]);
    assert_eq!(asked(&permit, "POST", "/v1/a"), allowed("web"));
    let decoded = asked(&permit, "POST", "/v1/a%2Fkeys");
    assert_eq!(decoded, Err(ReasonCode::EndpointsAmbiguous));
}

#[test]
fn the_rules_of_a_protocol_that_is_not_inspected_allow_no_request_beside_a_path() {
    let policy = web(
        "{host: a.test, port: 1, path: \"/v1/**\", protocol: rest, enforcement: enforce, access: \
         read-only}, {host: a.test, port: 1, protocol: sql, enforcement: audit, access: full}",
    );
    let permit = by_curl(&policy, "a.test:1").unwrap();
    assert_eq!(asked(&permit, "GET", "/v1/x"), allowed("web"));
    for (method, path) in [("POST", "/v1/x"), ("POST", "/admin"), ("GET", "/admin")] {
        let outcome = asked(&permit, method, path);
        assert_eq!(
            outcome,
            Err(ReasonCode::RequestNotInRules),
            "{method} {path}"
        );
    }
}

#[test]
fn where_no_endpoint_matches_rules_of_ones_own_are_not_asked() {
    let data = format!(
        "network_policies: {}",
        web(
            "{host: a.test, port: 1, path: \"/v1/**\", protocol: rest, enforcement: enforce, access: \
             full}"
        )
    );
    let rules = format!("{BUILT_IN}\n# of one's own\nallow_request if true\n");
    let snapshot = load(&data, Some(&rules)).unwrap();
    let permit = decide(&snapshot, caller("/usr/bin/curl", &[]), "a.test:1").unwrap();
    assert!(asked(&permit, "POST", "/v1/x").is_ok());
    let elsewhere = asked(&permit, "POST", "/admin");
    assert_eq!(elsewhere, Err(ReasonCode::RequestNotInRules));
}

#[test]
fn an_endpoint_without_rules_adds_no_requests_beside_one_with_a_path() {
    let policy = web(
        "{host: a.apps.test, port: 1}, {host: \"*.apps.test\", port: 1, path: /x, protocol: rest, enforcement: \
         enforce, access: read-only}",
    );
    let permit = by_curl(&policy, "a.apps.test:1").unwrap();
    assert_eq!(asked(&permit, "GET", "/x"), allowed("web"));
    assert_eq!(
        asked(&permit, "GET", "/y"),
        Err(ReasonCode::RequestNotInRules)
    );
}

#[test]
fn endpoints_of_which_one_has_a_path_agree_in_what_a_connection_needs() {
    let path = "path: /x, protocol: rest, enforcement: enforce, access: full";
    for other in ["tls: skip", "allowed_ips: [10.0.0.0/24]", "protocol: tcp"] {
        let both = web(&format!(
            "{{host: \"*.apps.test\", port: 1, {other}}}, {{host: a.apps.test, port: 1, {path}}}"
        ));
        check(&both, "a.apps.test:1", Err(ReasonCode::EndpointsAmbiguous));
        let allowed_elsewhere = by_curl(&both, "b.apps.test:1");
        assert!(allowed_elsewhere.is_ok(), "{other}");
    }
    let same = web(&format!(
        "{{host: \"*.apps.test\", port: 1, allowed_ips: [10.0.0.0/24, 10.1.0.0/24]}}, {{host: a.apps.test, \
         port: 1, allowed_ips: [10.1.0.0/24, 10.0.0.0/24], {path}}}"
    ));
    check(&same, "a.apps.test:1", Ok("web"));
    let other_program = format!(
        "{{web: {{endpoints: [{{host: a.apps.test, port: 1, {path}}}], {CURL}}}, wget: {{endpoints: \
         [{{host: \"*.apps.test\", port: 1, tls: skip}}], binaries: [{{path: /usr/bin/wget}}]}}}}"
    );
    check(&other_program, "a.apps.test:1", Ok("web"));
}

// Conformance: L7-23, L7-24.
#[test]
fn rules_of_all_matching_endpoints_unite_and_the_rule_that_matched_is_named() {
    let l7 = "host: a.test, port: 1, protocol: rest, enforcement: enforce";
    let policies = format!(
        "{{a: {{endpoints: [{{host: a.test, port: 1}}], {CURL}}}, b: {{endpoints: [{{{l7}, rules: \
         [{{allow: {{method: GET, path: \"**\"}}}}]}}], {CURL}}}, c: {{endpoints: [{{{l7}, rules: \
         [{{allow: {{method: POST, path: \"**\"}}}}], deny_rules: [{{method: GET, path: /x}}]}}], \
         {CURL}}}, d: {{endpoints: [{{{l7}, access: full}}], binaries: [{{path: \
         /usr/bin/wget}}]}}, e: {{endpoints: [{{{l2}, access: full}}], {CURL}}}}}",
        l2 = l7.replace("port: 1", "port: 2"),
    );
    let permit = by_curl(&policies, "a.test:1").unwrap();
    assert_eq!(permit.policy(), Some("a"));
    assert_eq!(asked(&permit, "GET", "/y"), allowed("b"));
    assert_eq!(asked(&permit, "POST", "/y"), allowed("c"));
    assert_eq!(
        asked(&permit, "DELETE", "/y"),
        Err(ReasonCode::RequestNotInRules),
        "other programs' rules do not count"
    );
    assert_eq!(
        asked(&permit, "GET", "/x"),
        Err(ReasonCode::RequestInDenyRules)
    );
    assert_eq!(
        asked(&permit, "GET", "/y/../x"),
        Err(ReasonCode::RequestInDenyRules)
    );
    assert_eq!(
        asked(&permit, "GET", "/x;v=1"),
        Err(ReasonCode::RequestInDenyRules),
        "as some servers read it"
    );
}

// Conformance: L7-14, L7-15.
#[test]
fn what_is_audited_passes_with_its_reason() {
    let permit = by_curl(
        &web("{host: a.test, port: 1, protocol: rest, access: read-only}"),
        "a.test:1",
    )
    .unwrap();
    let (policy, judged) = asked(&permit, "POST", "/a").unwrap();
    assert_eq!(policy.as_deref(), Some("web"));
    let reason = "POST /a not permitted by policy".to_owned();
    assert_eq!(
        judged,
        Judged::Audited {
            code: ReasonCode::RequestNotInRules,
            reason
        }
    );
}

// Conformance: L7-16, L7-17, L7-18, L7-19, L7-20.
#[test]
fn queries_are_judged_by_every_value() {
    let endpoint = |query: &str| {
        format!(
            "{{host: a.test, port: 1, protocol: rest, enforcement: enforce, rules: [{{allow: \
             {{method: GET, path: /a, query: {query}}}}}]}}"
        )
    };
    let versions = by_curl(&web(&endpoint("{ver: \"1*\"}")), "a.test:1").unwrap();
    for (target, expected) in [
        ("/a?ver=12", true),
        ("/a?ver=2", false),
        ("/a", false),
        ("/a?ver=12&other=x", true),
        ("/a?ver=12&ver=2", false),
    ] {
        assert_eq!(
            asked(&versions, "GET", target).is_ok(),
            expected,
            "{target}"
        );
    }
    let letters = by_curl(&web(&endpoint("{q: {any: [\"a*\", \"b*\"]}}")), "a.test:1").unwrap();
    for (target, expected) in [
        ("/a?q=apple", true),
        ("/a?q=cherry", false),
        ("/a?q=a%00", false),
        ("/a?q=b%61", true),
    ] {
        assert_eq!(asked(&letters, "GET", target).is_ok(), expected, "{target}");
    }
}

#[test]
fn an_encoded_slash_is_allowed_only_where_all_endpoints_allow_it() {
    let endpoint = |slash| {
        format!(
            "{{host: a.test, port: 1, protocol: rest, enforcement: enforce, rules: [{{allow: \
             {{method: GET, path: \"/@*\"}}}}], allow_encoded_slash: {slash}}}"
        )
    };
    let permit = by_curl(&web(&endpoint(true)), "a.test:1").unwrap();
    assert_eq!(asked(&permit, "GET", "/@types%2fnode"), allowed("web"));
    let both = by_curl(
        &web(&format!("{}, {}", endpoint(true), endpoint(false))),
        "a.test:1",
    )
    .unwrap();
    assert_eq!(
        asked(&both, "GET", "/@types%2fnode"),
        Err(ReasonCode::BadRequest)
    );
    let refusal = verdict::ask(&both, "GET", "/@types%2fnode").unwrap_err();
    let fix = refusal.fix(&target("a.test:1"), None).unwrap();
    assert_eq!(
        fix,
        "network_policies.web.endpoints: add `allow_encoded_slash: true` to each of a.test:1 that \
         has rules"
    );
}

#[test]
fn an_encoded_slash_is_taken_where_rules_say_nothing_of_paths() {
    let judged = |rules: &str| {
        let policy = web(&format!(
            "{{host: a.test, port: 1, protocol: rest, enforcement: enforce, {rules}}}"
        ));
        let permit = by_curl(&policy, "a.test:1").unwrap();
        asked(&permit, "GET", "/@types%2Fnode").map(drop)
    };
    for rules in [
        "access: full",
        "rules: [{allow: {method: GET, path: \"**\"}}]",
        "access: read-only",
    ] {
        assert_eq!(judged(rules), Ok(()), "{rules}");
    }
    for rules in [
        "rules: [{allow: {method: GET, path: \"**\"}}, {allow: {method: GET, path: /x}}]",
        "access: full, deny_rules: [{method: GET, path: /x}]",
    ] {
        assert_eq!(judged(rules), Err(ReasonCode::BadRequest), "{rules}");
    }
}

#[test]
fn a_deny_rule_matches_every_reading_of_a_path() {
    let permit = |deny: &str| {
        let rules = format!("access: full, allow_encoded_slash: true, deny_rules: [{deny}]");
        let policy = web(&format!(
            "{{host: a.test, port: 1, protocol: rest, enforcement: enforce, {rules}}}"
        ));
        by_curl(&policy, "a.test:1").unwrap()
    };
    let refused = Err(ReasonCode::RequestInDenyRules);
    let admin = permit("{method: \"*\", path: /Admin/users}");
    for path in [
        "/Admin/users",
        "/admin/USERS",
        "/admin/users/",
        "//admin///users//",
        "/admin%2Fusers",
        "/admin%2f%2Fusers%2f",
        "/%61dmin/users",
        "/admin;x/users;y=1",
        "/admin%3Bx/users%3b",
        "/admin%2Fusers%3Bx",
        "/admin;a%2Fusers",
        "/admin%3ba%2Fusers",
        "/admin%2F%3bx%2Fusers",
        "/admin./users%20",
        "/%2561dmin/users",
        "/adm%C4%B1n/u%C5%BFers",
        "/ADM%c4%b0N/users",
        "/%20admin/users%C2%A0",
        "/admin%E3%80%80/users",
    ] {
        assert_eq!(asked(&admin, "GET", path), refused, "{path}");
    }
    for path in ["/admin", "/admin/users/7", "/admins/users"] {
        assert!(asked(&admin, "GET", path).is_ok(), "{path}");
    }
    let below = permit("{method: \"*\", path: \"/caf%c3%a9/**\"}");
    for path in ["/caf%C3%A9/x", "/CAF%c3%89/x", "/caf%C3%A9", "/caf%C3%A9/"] {
        assert_eq!(asked(&below, "GET", path), refused, "{path}");
    }
    assert_eq!(
        asked(
            &permit("{method: \"*\", path: \"//a b//\"}"),
            "GET",
            "/A%20b"
        ),
        refused
    );
    let street = permit("{method: \"*\", path: /Strasse}");
    for path in ["/%c5%bftrasse", "/stra%C3%9Fe", "/STRA%E1%BA%9EE"] {
        assert_eq!(asked(&street, "GET", path), refused, "{path}");
    }
    let star = permit("{method: \"*\", path: \"/a%2ab%\"}");
    assert_eq!(asked(&star, "GET", "/a*b%25"), refused);
    assert!(asked(&star, "GET", "/axb%25").is_ok());
    let exact = permit("{method: \"*\", path: /Admin, case_sensitive: true}");
    assert_eq!(asked(&exact, "GET", "/Admin/"), refused);
    assert!(asked(&exact, "GET", "/admin").is_ok());
}

#[test]
fn an_endpoint_without_a_host_permits_addresses_and_the_names_that_it_lists() {
    let listed = web("{port: 1, allowed_ips: [10.1.0.0/16], resolve: [\"*.corp.test\", one.test]}");
    for (target, expected) in [
        ("10.1.2.3:1", Ok("web")),
        ("[fd00::1]:1", Ok("web")),
        ("a.corp.test:1", Ok("web")),
        ("one.test:1", Ok("web")),
        ("a.b.corp.test:1", Err(EndpointNotInPolicy)),
        ("secret.evil.test:1", Err(EndpointNotInPolicy)),
    ] {
        check(&listed, target, expected);
    }
    check(
        &web("{port: 1, allowed_ips: [10.1.0.0/16]}"),
        "a.corp.test:1",
        Err(EndpointNotInPolicy),
    );
}

#[test]
fn a_tcp_endpoint_is_never_looked_into_and_contradicts_rules() {
    for extra in ["", ", enforcement: enforce", ", access: full"] {
        let policy = web(&format!(
            "{{host: db.test, port: 5432, protocol: tcp{extra}}}"
        ));
        let permit = by_curl(&policy, "db.test:5432").unwrap();
        assert!(
            matches!(permit.inspection(), Inspection::Passthrough),
            "{extra}"
        );
    }
    let both = web(
        "{host: db.test, port: 1, protocol: tcp}, {host: db.test, port: 1, protocol: rest, access: \
         full}",
    );
    let refusal = by_curl(&both, "db.test:1").unwrap_err();
    assert_eq!(refusal.code(), ReasonCode::UnsupportedL7Protocol);
    assert!(
        refusal.reason().contains("`protocol: tcp`"),
        "{}",
        refusal.reason()
    );
}

#[test]
fn foreign_rules_judge_requests_too() {
    let rules = r#"
package openshell.sandbox
import rego.v1
network_action := "allow"
matched_network_policy := "mine"
matched_endpoint_config := {"host": "a.test", "ports": [1], "protocol": "rest", "enforcement": "enforce", "rules": [{"allow": {"method": "*", "path": "**"}}]}
allow_request if { input.request.path == "/open"; input.exec.path == "/usr/bin/curl" }
"#;
    let snapshot = load("network_policies: {}", Some(rules)).unwrap();
    let permit = decide(&snapshot, caller("/usr/bin/curl", &[]), "a.test:1").unwrap();
    assert_eq!(asked(&permit, "GET", "/open"), allowed("mine"));
    assert_eq!(
        asked(&permit, "GET", "/other"),
        Err(ReasonCode::RequestNotInRules)
    );
}

#[test]
fn an_exact_entry_counts_for_the_program_itself_and_only_unmodified() {
    let entry = |binaries: &str| {
        format!("{{web: {{endpoints: [{{host: a.test, port: 1}}], binaries: [{binaries}]}}}}")
    };
    let exact = snapshot(&entry(
        "{path: /usr/bin/curl, exact: true}, {path: \"/opt/**\", exact: true}",
    ));
    let both = snapshot(&entry(
        "{path: /usr/bin/curl, exact: true}, {path: /usr/bin/curl}",
    ));
    let curl = caller("/usr/bin/curl", &["/usr/bin/bash"]);
    let modified = |caller: &Caller| {
        let program = Program {
            is_modified: true,
            ..Program::clone(&caller.program)
        };
        Caller {
            program: program.into(),
            ..caller.clone()
        }
    };
    decide(&exact, curl.clone(), "a.test:1").unwrap();
    decide(&exact, caller("/opt/a/b", &[]), "a.test:1").unwrap();
    for other in [
        caller("/usr/bin/nc", &["/usr/bin/curl"]),
        caller("/usr/bin/nc", &["/opt/a"]),
        modified(&curl),
    ] {
        assert_eq!(
            decide(&exact, other, "a.test:1").unwrap_err().code(),
            BinaryNotInPolicy
        );
    }
    decide(&both, modified(&curl), "a.test:1").unwrap();
    for (path, is_exact) in [
        ("/usr/bin/curl", true),
        ("/opt/a/b", true),
        ("/usr/bin/nc", false),
    ] {
        assert_eq!(
            exact.has_exact_entry(&caller(path, &[]).program),
            is_exact,
            "{path}"
        );
    }
}

#[test]
fn a_program_is_pinned_unless_an_entry_excepts_it() {
    let policy = "{web: {endpoints: [{host: a.test, port: 1}], binaries: [{path: \"/opt/*\", \
                  pinned: false}, {path: /usr/bin/curl}]}}";
    let snapshot = snapshot(policy);
    let pinned = ["/opt/tool", "/opt/a/b", "/usr/bin/curl", "/usr/bin/other"]
        .map(|path| snapshot.is_pinned(path));
    assert_eq!(pinned, [false, true, true, true]);
}

// Conformance: TOF-02.
#[test]
fn who_is_permitted_is_verified_and_who_is_refused_costs_nothing() {
    let snapshot = snapshot(&web("{host: a.test, port: 1}"));
    let caller = caller("/usr/bin/curl", &[]);
    let changed = || {
        Err(Refusal::caller_changed(
            "another file".to_owned(),
            "/usr/bin/curl".to_owned(),
        ))
    };
    let refusal = judge(&snapshot, &caller, &target("a.test:1"), changed).unwrap_err();
    assert_eq!(refusal.code(), ReasonCode::CallerChanged);
    let unread = || panic!("a program that the policy refuses was hashed");
    let refusal = judge(&snapshot, &caller, &target("a.test:2"), unread).unwrap_err();
    assert_eq!(refusal.code(), EndpointNotInPolicy);
}

#[test]
fn the_same_question_is_evaluated_once() {
    let snapshot = snapshot(&web("{host: a.test, port: 1}"));
    let program = caller("/usr/bin/curl", &[]).program;
    let first = snapshot.judge(&program, &target("a.test:1")).unwrap();
    assert!(Arc::ptr_eq(
        &first,
        &snapshot.judge(&program, &target("a.test:1")).unwrap()
    ));
    let other_arguments = Program {
        cmdline_paths: vec!["/tmp/7".to_owned()],
        ..(*program).clone()
    };
    assert!(Arc::ptr_eq(
        &first,
        &snapshot
            .judge(&other_arguments, &target("a.test:1"))
            .unwrap()
    ));
}

#[test]
fn foreign_rules_decide_alone_and_what_they_leave_undefined_permits_nothing_more() {
    let rules = "package openshell.sandbox\nimport rego.v1\nnetwork_action := \"allow\" if \
                 input.network.port == 1\n";
    let snapshot = load("network_policies: {}", Some(rules)).unwrap();
    let curl = || caller("/usr/bin/curl", &[]);
    let permit = decide(&snapshot, curl(), "a.test:1").unwrap();
    assert!(
        permit.policy().is_none()
            && permit.addresses().public
            && permit.addresses().listed.is_empty()
    );
    assert!(decide(&snapshot, curl(), "a.test:2").is_err());
}

#[test]
fn foreign_rules_are_held_to_the_schema() {
    let rules = |body: &str| format!("package openshell.sandbox\nimport rego.v1\n{body}\n");
    let with = |body: &str| {
        load("version: 1", Some(&rules(body)))
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert!(
        with("process_policy := {\"run_as_user\": \"root\"}")
            .unwrap_err()
            .contains("process_policy")
    );
    assert!(with("filesystem_policy := {\"read_only\": [\"x\"]}").is_err());
    assert!(with("network_action := 1").is_ok());
    assert!(load("version: 1", Some("package other\nx := 1")).is_err());
    assert!(load("version: 1", Some("package openshell.sandbox\nx := :=")).is_err());
    let odd =
        rules("network_action := \"allow\"\nmatched_endpoint_config := {\"protocol\": \"gopher\"}");
    let snapshot = load("version: 1", Some(&odd)).unwrap();
    let refusal = decide(&snapshot, caller("/usr/bin/curl", &[]), "a.test:1").unwrap_err();
    assert_eq!(refusal.code(), ReasonCode::PolicyEngineError);
}

#[test]
fn foreign_rules_have_the_functions_that_policies_use_and_neither_a_clock_nor_a_network() {
    let load = |condition: &str| {
        let rules = format!(
            "package openshell.sandbox\nimport rego.v1\nnetwork_action := \"allow\" if \
             {condition}\n"
        );
        load("network_policies: {}", Some(&rules))
    };
    for (condition, is_permitted) in [
        (r#"regex.match("^a[.]", input.network.host)"#, true),
        (r#"regex.match("^b", input.network.host)"#, false),
        (r#"net.cidr_contains("10.0.0.0/8", "10.1.1.1")"#, true),
        (r#"base64.decode("YQ==") == "a""#, true),
        (r#"base64url.decode("_w==") != "a""#, true),
        (r#"json.unmarshal("[1]")[0] == input.network.port"#, true),
        (r#"glob.match("*.test", ["."], input.network.host)"#, true),
        (
            r#"sprintf("%s:%d", [input.network.host, input.network.port]) == "a.test:1""#,
            true,
        ),
    ] {
        let decided = decide(
            &load(condition).unwrap(),
            caller("/usr/bin/curl", &[]),
            "a.test:1",
        );
        assert_eq!(decided.is_ok(), is_permitted, "{condition}: {decided:?}");
    }
    for missing in [
        "time.now_ns() > 0",
        "http.send({\"method\": \"get\", \"url\": \"http://a\"}).status_code == 200",
    ] {
        let error = load(missing).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("cannot compile the policy rules"),
            "{missing}: {error}"
        );
    }
}

#[test]
fn an_evaluation_that_takes_too_long_refuses() {
    let rules = "package openshell.sandbox\nimport rego.v1\nnetwork_action := \"allow\" if {\nsome \
                 i in numbers.range(1, 10000)\nsome j in numbers.range(1, 10000)\ni + j == \
                 20000\n}\n";
    let snapshot = load("network_policies: {}", Some(rules)).unwrap();
    let refusal = decide(&snapshot, caller("/usr/bin/curl", &[]), "a.test:1").unwrap_err();
    assert_eq!(refusal.code(), ReasonCode::PolicyEngineError, "{refusal:?}");
    assert!(
        refusal.reason().starts_with("policy evaluation error"),
        "{}",
        refusal.reason()
    );
}

/// Returns the answer of the built-in rules about a request to a.test:1.
fn request(endpoint: &str, method: &str, path: &str, query: Value) -> (bool, Option<String>) {
    let (policy, _) =
        openshell_policy::yaml::policy(&format!("network_policies: {}", web(endpoint))).unwrap();
    let engine = Engine::new(BUILT_IN, rego_data(&policy, &BTreeMap::new()).unwrap()).unwrap();
    let input = json!({
        "exec": {"path": "/usr/bin/curl", "ancestors": [], "cmdline_paths": []},
        "network": {"host": "a.test", "port": 1},
        "request": {"method": method, "path": path, "query_params": query},
    });
    let mut session = engine.about(regorus::Value::from(input)).unwrap();
    let decided = session.decide(Decision::Request).unwrap();
    (decided.is_permitted, decided.reason)
}

#[test]
fn requests_are_judged_by_method_path_and_query() {
    let endpoint = |rules: &str| {
        format!("{{host: a.test, port: 1, protocol: rest, enforcement: enforce, {rules}}}")
    };
    let rule = |rule: &str| endpoint(&format!("rules: [{{allow: {rule}}}]"));
    let none = || json!({});
    let cases = [
        (endpoint("access: read-only"), "GET", "/a", none(), true),
        (endpoint("access: read-only"), "POST", "/a", none(), false),
        (endpoint("access: read-write"), "PATCH", "/a", none(), true),
        (
            endpoint("access: read-write"),
            "DELETE",
            "/a",
            none(),
            false,
        ),
        (endpoint("access: full"), "BREW", "/a/b", none(), true),
        (rule("{method: GET, path: /a}"), "HEAD", "/a", none(), true),
        (rule("{method: HEAD, path: /a}"), "GET", "/a", none(), false),
        (
            rule("{method: GET, path: \"/repos/**\"}"),
            "GET",
            "/repos/x/y",
            none(),
            true,
        ),
        (
            rule("{method: GET, path: \"/repos/**\"}"),
            "GET",
            "/repos",
            none(),
            false,
        ),
        (
            rule("{method: GET, path: \"/users/*/keys\"}"),
            "GET",
            "/users/a/b/keys",
            none(),
            false,
        ),
        (
            rule("{method: GET, path: /a, query: {v: \"1*\"}}"),
            "GET",
            "/a",
            json!({"v": ["12"]}),
            true,
        ),
        (
            rule("{method: GET, path: /a, query: {v: \"1*\"}}"),
            "GET",
            "/a",
            json!({"v": ["12", "2"]}),
            false,
        ),
        (
            rule("{method: GET, path: /a, query: {v: \"1*\"}}"),
            "GET",
            "/a",
            none(),
            false,
        ),
        (
            endpoint("access: full, deny_rules: [{method: \"*\", path: \"/x/**\"}]"),
            "GET",
            "/x/y",
            none(),
            false,
        ),
        (
            endpoint("access: full, deny_rules: [{method: \"*\", path: \"/x/**\"}]"),
            "GET",
            "/y",
            none(),
            true,
        ),
        (
            endpoint("access: full, deny_rules: [{method: GET, path: \"**\", query: {v: bad}}]"),
            "GET",
            "/",
            json!({"v": ["good", "bad"]}),
            false,
        ),
    ];
    for (endpoint, method, path, query, expected) in cases {
        let (allowed, reason) = request(&endpoint, method, path, query.clone());
        assert_eq!(
            allowed, expected,
            "{method} {path} {query} under {endpoint}"
        );
        let refused = format!("{method} {path} not permitted by policy");
        assert_eq!(reason, (!expected).then_some(refused));
    }
}

/// Returns the answer of the engine's interpreter, which shares only the parser with the machine
/// that answers otherwise.
fn interpreted(policy: &str, input: &Value) -> (bool, bool, Value) {
    let (policy, _) = openshell_policy::yaml::policy(policy).unwrap();
    let mut engine = regorus::Engine::new();
    engine.set_strict_builtin_errors(true);
    engine
        .add_policy("rules".to_owned(), BUILT_IN.to_owned())
        .unwrap();
    engine
        .add_data(regorus::Value::from(
            rego_data(&policy, &BTreeMap::new()).unwrap(),
        ))
        .unwrap();
    engine.set_input(regorus::Value::from(input.clone()));
    let mut ask = |name: &str| {
        let value = engine
            .eval_rule(format!("data.openshell.sandbox.{name}"))
            .unwrap();
        serde_json::to_value(&value).unwrap_or(Value::Null)
    };
    let names = [
        ask("request_allowed_by"),
        ask("request_denied_by"),
        ask("matching_policies"),
    ];
    (
        ask("allow_network") == json!(true),
        ask("allow_request") == json!(true),
        json!(names),
    )
}

#[test]
fn the_machine_and_the_interpreter_agree_on_every_combination() {
    let rules = [
        "access: read-only",
        "rules: [{allow: {method: GET, path: \"/q/**\", query: {a: \"1\"}}}]",
        "rules: [{allow: {method: \"*\", path: \"/q/*\", query: {a: {any: [\"1*\", \"2\"]}, b: \
         \"x\"}}}, {allow: {method: POST, path: /p}}]",
        "access: full, deny_rules: [{method: \"*\", path: \"/q/**\", query: {a: \"1\"}}]",
        "access: full, deny_rules: [{method: GET, path: \"**\", query: {a: \"1\", b: \"x\"}}, \
         {method: DELETE, path: /p}]",
        "path: \"/q/*\", access: read-write, deny_rules: [{method: HEAD, path: \"**\"}]",
        "path: /q, access: full",
    ];
    let queries = [
        json!({}),
        json!({"a": ["1"]}),
        json!({"A": ["1"]}),
        json!({"b": ["1"]}),
        json!({"a[]": ["1"], " a": ["1"]}),
        json!({"a": ["1", "2"]}),
        json!({"a": ["12"], "b": ["x"]}),
        json!({"a": ["1"], "b": ["x", "y"]}),
        json!({"a": []}),
    ];
    let mut count = 0;
    for (index, one) in rules.iter().enumerate() {
        for other in rules.iter().skip(index) {
            let endpoint = |host, rules: &str| {
                format!("{{host: {host}, port: 1, protocol: rest, enforcement: enforce, {rules}}}")
            };
            let policy = format!(
                "network_policies: {{a: {{endpoints: [{}], {CURL}}}, b: {{endpoints: [{}, {{host: \
                 a.test, port: 2}}], binaries: [{{path: \"/usr/bin/*\"}}]}}}}",
                endpoint("a.test", one),
                endpoint("\"*.a.test\"", other)
            );
            let (parsed, _) = openshell_policy::yaml::policy(&policy).unwrap();
            let document = rego_data(&parsed, &BTreeMap::new()).unwrap();
            let engine = Engine::new(BUILT_IN, document).unwrap();
            for host in ["a.test", "x.a.test", "b.test"] {
                for (method, path) in [
                    ("GET", "/q/a"),
                    ("HEAD", "/q/a"),
                    ("POST", "/p"),
                    ("DELETE", "/p"),
                    ("GET", "/q"),
                ] {
                    for query in &queries {
                        let input = json!({
                            "exec": {"path": "/usr/bin/curl", "ancestors": [], "cmdline_paths": []},
                            "network": {"host": host, "port": 1},
                            "request": {"method": method, "path": path, "query_params": query},
                        });
                        let mut session =
                            engine.about(regorus::Value::from(input.clone())).unwrap();
                        let connection = session.decide(Decision::Connection).unwrap();
                        let decided = session.decide(Decision::Request).unwrap();
                        let machine = (
                            connection.is_permitted,
                            decided.is_permitted,
                            decided.policy,
                        );
                        let (network, request, names) = interpreted(&policy, &input);
                        let smallest = |names: &Value| {
                            names
                                .as_array()
                                .and_then(|names| names.first()?.as_str().map(str::to_owned))
                        };
                        let named = smallest(if request { &names[0] } else { &names[1] });
                        let expected = (network, request, named);
                        assert_eq!(machine, expected, "{input} under {policy}");
                        let places = session.ask(Query::MatchedEndpoints).unwrap().unwrap();
                        let configs = session.ask(Query::MatchedEndpointConfigs).unwrap().unwrap();
                        let policies = &engine.data()["network_policies"];
                        let at = |place: &regorus::Value| {
                            policies[&place[0]]["endpoints"][&place[1]].clone()
                        };
                        let named: BTreeSet<_> = places.as_set().unwrap().iter().map(at).collect();
                        assert!(
                            named.iter().eq(configs.as_set().unwrap().iter()),
                            "{input} under {policy}"
                        );
                        count += 1;
                    }
                }
            }
        }
    }
    assert_eq!(count, 28 * 3 * 5 * 9);
}
