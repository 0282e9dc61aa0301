use super::{merged, policy};
use crate::network::endpoint::{Endpoint, TlsMode};

/// Returns the messages of the violations of `document`; empty if it loads.
fn messages(document: &str) -> Vec<String> {
    match policy(document) {
        Ok(_) => Vec::new(),
        Err(violations) => violations.0.iter().map(ToString::to_string).collect(),
    }
}

/// Returns a policy that has only `endpoint`.
fn with_endpoint(endpoint: &str) -> String {
    format!(
        "network_policies:\n  web:\n    endpoints:\n      - {endpoint}\n    binaries: [{{path: \
         /usr/bin/curl}}]\n"
    )
}

#[track_caller]
fn check(endpoint: &str, expected: &[&str]) {
    let found = messages(&with_endpoint(endpoint));
    assert_eq!(found.len(), expected.len(), "{endpoint}: {found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{endpoint}: {found}");
    }
}

#[test]
fn everything_the_schema_names_loads() {
    let document = r#"
version: 1
filesystem_policy:
  include_workdir: true
  read_only: [/usr, /lib, /etc]
  read_write: [/sandbox, /tmp]
landlock: { compatibility: best_effort }
process: { run_as_user: sandbox, run_as_group: sandbox, debug: true }
network_policies:
  github:
    name: GitHub
    endpoints:
      - host: api.github.com
        port: 443
        protocol: rest
        enforcement: enforce
        rules:
          - allow: { method: GET, path: "/repos/**", query: { ref: "main", tag: { any: ["v1*", "v2*"] } } }
        deny_rules:
          - { method: "*", path: "/repos/*/*/hooks/**" }
        allowed_ips: ["10.0.5.0/24"]
        allow_encoded_slash: false
        leaks: allow
      - { host: raw.example.com, ports: [80, 443], tls: skip }
    binaries:
      - { path: /usr/bin/git }
      - { path: "/usr/lib/**", harness: true }
      - { path: /usr/bin/tool, exact: true, pinned: false }
"#;
    let (policy, warnings) = policy(document).unwrap_or_else(|violations| panic!("{violations}"));
    assert_eq!(warnings, []);
    let github = policy
        .network()
        .values()
        .next()
        .unwrap_or_else(|| panic!("a policy"));
    assert_eq!(github.endpoints.len(), 2);
    let flags: Vec<_> = github
        .binaries
        .iter()
        .map(|binary| (binary.exact, binary.pinned))
        .collect();
    assert_eq!(flags, [(false, true), (false, true), (true, false)]);
    assert!(policy.permits_debugging());
}

// Conformance: POL-24.
#[test]
fn every_violation_is_reported_at_once_with_its_line() {
    let document = "version: 2\nfilesystem_policy:\n  read_only: [usr, /a/../b]\nprocess: \
                    {run_as_user: root}\nnetwork:\n  x: 1\n";
    assert_eq!(
        messages(document),
        [
            "line 1: version: version 2 is unknown; 1 is the only one",
            "line 3: filesystem_policy.read_only[0]: `usr` is not an absolute path",
            "line 3: filesystem_policy.read_only[1]: `/a/../b` contains `..`",
            "line 4: process.run_as_user: the workload never runs as root; name an unprivileged \
             user or group",
            "line 6: network: unknown key `network`: did you mean `network_policies`? known here: \
             version, filesystem_policy, landlock, process, network_policies, approvals",
        ]
    );
}

// Conformance: POL-05.
#[test]
fn what_is_not_yaml_is_refused_with_its_line() {
    for document in ["a: [", "a: 1\na: 2\n", "", "- 1", "a: &x [*x]"] {
        assert_eq!(messages(document).len(), 1, "{document:?}");
    }
    assert!(messages("a: 1\nb: [\n")[0].starts_with("line "));
}

#[test]
fn what_is_wrong_with_the_yaml_is_said_in_the_words_of_its_author() {
    let many = format!("network_policies: [{}]", "a,".repeat(251_000));
    let deep = "[".repeat(3000);
    for (document, expected) in [
        (
            "a: 1\na: 2\n",
            "line 2: the key `a` is given twice; keep one",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "a second document begins; a file can hold only one",
        ),
        (
            "a: &x [*x]",
            "line 1: an alias repeats the value that contains it; write the value out",
        ),
        (&many, "line 1: the document has too many values"),
        (&deep, "line 1: the document is nested too deeply"),
        ("a: [", "line 1: unclosed bracket '['"),
    ] {
        let found = messages(document).concat();
        assert!(found.ends_with(expected), "{found}");
    }
}

// Conformance: L7-32.
#[test]
fn every_violation_of_an_endpoint_is_reported_at_once() {
    check(
        "{host: \"*\", port: 0, protocol: rest, tls: skip, rules: [{allow: {method: \"a b\", path: \
         /}}], access: full}",
        &[
            "matches all hosts",
            "a port is",
            "is not an HTTP method",
            "`tls: skip` hides",
            "`rules` and `access`",
        ],
    );
    check(
        "{host: \"*\", port: 0, ports: [1], access: full}",
        &["matches all", "a port is", "needs a", "`port` and"],
    );
    check(
        "{hosts: a.test, port: 1}",
        &["unknown key `hosts`", "an endpoint needs a `host`"],
    );
    // A key with an invalid value is not reported as missing.
    check("{host: \"*\", port: 1}", &["matches all hosts"]);
    check("{host: a.test, port: 0}", &["a port is"]);
    check(
        "{host: a.test, port: 1, protocol: rest, access: fool}",
        &["`fool`"],
    );
    check(
        "{host: a.test, port: 1, protocol: rust, access: full}",
        &["`rust`"],
    );
    check(
        "{host: a.test, port: 1, protocol: rest, rules: [{allow: {method: \"a b\", path: /}}]}",
        &["HTTP method"],
    );
}

#[test]
fn a_read_only_path_that_may_be_written_is_named_with_both_lines() {
    let document = "filesystem_policy:\n  read_only: [/usr, /a/b, /a/b/c,\n    /tmp, /tmp/x]\n  \
                    read_write:\n    - /c\n    - /a/b\n";
    let (_, warnings) = policy(document).unwrap_or_else(|violations| panic!("{violations}"));
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    let expected = [
        "line 2: filesystem_policy.read_only[1]: `/a/b` is not read-only: `read_write` lists \
         `/a/b` too (line 6); list it once",
        "line 3: filesystem_policy.read_only[3]: `/tmp` is not read-only: every sandbox may write \
         in `/tmp`; keep it elsewhere",
    ];
    assert_eq!(warnings, expected);
    assert_eq!(
        messages(&format!(
            "{document}landlock: {{compatibility: hard_requirement}}"
        )),
        expected
    );
    assert_eq!(
        policy("filesystem_policy: {read_only: [/ab], read_write: [/a]}")
            .unwrap()
            .1,
        []
    );
}

#[test]
fn unknown_words_never_mean_the_weaker_mode() {
    assert!(
        messages("landlock: {compatibility: hard}")[0].contains("`hard` is not one of best_effort")
    );
    check(
        "{host: a.test, port: 1, protocol: http, access: full}",
        &["`http` is not one of rest, json-rpc, mcp, sql"],
    );
    check("{host: a.test, port: 1, protocol: REST, access: full}", &[]);
    check(
        "{host: a.test, port: 1, protocol: rest, enforcement: Enforce, access: full}",
        &["`Enforce`"],
    );
    check("{host: a.test, port: 1, tls: none}", &["`none`"]);
}

#[test]
fn root_is_refused_in_every_spelling() {
    for user in ["root", "0", "\"0\"", "\"00\""] {
        assert_eq!(
            messages(&format!("process: {{run_as_user: {user}}}")).len(),
            1,
            "{user}"
        );
        assert_eq!(
            messages(&format!(
                "process: {{run_as_user: \"7\", run_as_group: {user}}}"
            ))
            .len(),
            1,
            "{user}"
        );
    }
    assert_eq!(messages("process: {run_as_user: 61184}"), [] as [&str; 0]);
    assert_eq!(messages("process: {run_as_user: 4294967295}").len(), 1);
}

// Conformance: POL-07, POL-08, POL-09, POL-10, POL-11.
#[test]
fn protocols_need_rules() {
    check(
        "{host: a.test, port: 1, protocol: rest}",
        &["web.endpoints[0]: `protocol` needs `rules` or `access`"],
    );
    check(
        "{host: a.test, port: 1, protocol: rest, access: full, rules: [{allow: {method: GET, path: \
         /}}]}",
        &["`rules` and `access` are mutually exclusive"],
    );
    check(
        "{host: a.test, port: 1, rules: []}",
        &["an empty list", "needs a `protocol`"],
    );
    check(
        "{host: a.test, port: 1, protocol: sql, enforcement: enforce, access: full}",
        &["SQL enforcement"],
    );
    check(
        "{host: a.test, port: 1, protocol: sql, enforcement: audit, access: full}",
        &[],
    );
    for key in ["access: full", "enforcement: audit", "deny_rules: []"] {
        check(
            &format!("{{host: a.test, port: 1, {key}}}"),
            &["needs a `protocol`"],
        );
    }
}

// Conformance: L7-13.
#[test]
fn a_rule_needs_a_method_and_a_path() {
    let rule = |allow: &str| {
        format!(
            "{{host: a.test, port: 1, protocol: rest, enforcement: audit, rules: [{{allow: \
             {allow}}}]}}"
        )
    };
    check(
        &rule("{method: GET}"),
        &["web.endpoints[0].rules[0].allow: `path` is missing"],
    );
    check(
        &rule("{path: /}"),
        &["web.endpoints[0].rules[0].allow: `method` is missing"],
    );
    check(&rule("{method: GET, path: /}"), &[]);
}

// Conformance: POL-12, POL-13, POL-14, POL-15.
#[test]
fn wildcards_are_narrow() {
    check("{host: \"*\", port: 1}", &["matches all hosts"]);
    check("{host: \"**\", port: 1}", &["matches all hosts"]);
    check("{host: \"*.*\", port: 1}", &["matches all hosts"]);
    check("{host: \"*.com\", port: 1}", &["TLD wildcard"]);
    check("{host: \"*.com.\", port: 1}", &["TLD wildcard"]);
    for (host, problem) in [
        ("a.*", "TLD wildcard"),
        ("a.*.com", "TLD wildcard"),
        ("api*.com", "TLD wildcard"),
        ("x.**.example.com", "whole first label"),
        ("a**.example.com", "whole first label"),
        ("***.example.com", "whole first label"),
        ("*..example.com", "empty label"),
        ("ж*.example.com", "in ASCII"),
        ("*.{a.b,8.8.8}", "last two labels"),
        ("*.{x.example,com}", "last two labels"),
        ("*.8.8.\\\\8", "last two labels"),
    ] {
        check(&format!("{{host: \"{host}\", port: 1}}"), &[problem]);
    }
    for host in [
        "api*.example.com",
        "*-aiplatform.googleapis.com",
        "s3.*.amazonaws.com",
        "*.s3.*.amazonaws.com",
    ] {
        check(&format!("{{host: \"{host}\", port: 1}}"), &[]);
    }
    check("{host: \"*.[unclosed.a.test\", port: 1}", &["unclosed"]);
    check("{host: \"*.99.0.1\", port: 1}", &["must not be a number"]);
    check("{host: \"*.example.*\", port: 1}", &["TLD wildcard"]);
    check("{host: \"*.example.com\", port: 1}", &[]);
    check("{host: \"**.example.com\", port: 1}", &[]);
    check("{host: \"a b.test\", port: 1}", &["letters, digits"]);
    check("{host: \"127.1\", port: 1}", &["ends in a number"]);
}

// Conformance: POL-16, POL-17, POL-18, POL-19, POL-23.
#[test]
fn query_matchers_have_one_shape() {
    let rule = |query: &str| {
        format!(
            "{{host: a.test, port: 1, protocol: rest, enforcement: audit, rules: [{{allow: \
             {{method: GET, path: /, query: {query}}}}}]}}"
        )
    };
    check(
        &rule("{v: {glob: a, any: [b]}}"),
        &["web.endpoints[0].rules[0].allow.query.v: `glob` and `any`"],
    );
    check(
        &rule("{v: {regex: a}}"),
        &["unknown key `regex`", "a query matcher is"],
    );
    for matcher in ["1", "[]", "{}"] {
        check(&rule(&format!("{{v: {matcher}}}")), &["a query matcher is"]);
    }
    check(&rule("\"v=1\""), &["expected a map"]);
    check(&rule("{v: {any: []}}"), &["at least one glob"]);
    check(&rule("{v: \"[unclosed\"}"), &["query.v: glob `[unclosed`"]);
}

// Conformance: POL-20, POL-21.
#[test]
fn doubtful_words_load_with_a_warning() {
    let document = with_endpoint(
        "{host: a.test, port: 1, tls: passthrough, protocol: rest, rules: [{allow: {method: BREW, \
         path: /}}]}",
    );
    let (_, warnings) = policy(&document).unwrap_or_else(|violations| panic!("{violations}"));
    let texts: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 3);
    assert!(
        texts
            .iter()
            .any(|text| text.contains("Unknown HTTP method `BREW`")),
        "{texts:?}"
    );
    assert!(
        texts.iter().any(|text| text.contains("deprecated")),
        "{texts:?}"
    );
    let refuses_nothing = "`enforcement` is left out, so the rules refuse nothing at a.test:1 and";
    assert!(
        texts.iter().any(|text| text.contains(refuses_nothing)),
        "{texts:?}"
    );
}

// Conformance: POL-21.
#[test]
fn deprecated_tls_modes_mean_automatic() {
    for word in ["terminate", "passthrough"] {
        let document = with_endpoint(&format!("{{host: a.test, port: 1, tls: {word}}}"));
        let (policy, warnings) =
            policy(&document).unwrap_or_else(|violations| panic!("{violations}"));
        let modes: Vec<_> = policy
            .network()
            .values()
            .flat_map(|web| &web.endpoints)
            .map(Endpoint::tls)
            .collect();
        assert_eq!(modes, [TlsMode::Automatic], "{word}");
        assert!(
            warnings.len() == 1 && warnings[0].to_string().contains("deprecated"),
            "{word}: {warnings:?}"
        );
    }
}

// Conformance: POL-22.
#[test]
fn skipping_what_is_judged_is_an_error_across_policies() {
    check(
        "{host: a.test, port: 443, tls: skip, protocol: rest, enforcement: audit, access: full}",
        &["tls: skip"],
    );
    let document = "network_policies:\n  a: {endpoints: [{host: x.test, ports: [80, 443], tls: \
                    skip}]}\n  b:\n    endpoints:\n      - {host: X.test, port: 443, protocol: \
                    rest, enforcement: audit, access: full}\n";
    assert_eq!(messages(document).len(), 1);
    assert!(
        messages(document)[0].starts_with("line 2: network_policies.a.endpoints[0]: "),
        "{:?}",
        messages(document)
    );
}

#[test]
fn a_path_needs_a_protocol_with_requests_and_endpoints_beside_it_agree() {
    let l7 = "protocol: rest, enforcement: enforce, access: full";
    check(&format!("{{host: a.test, port: 1, path: /x, {l7}}}"), &[]);
    check(
        &format!("{{host: a.test, port: 1, path: \"/[x\", {l7}}}"),
        &["endpoints[0].path: glob `/[x`"],
    );
    for (other, problem) in [
        ("", "`path` needs a `protocol`"),
        (", protocol: tcp", "`path` needs a protocol whose requests"),
        (
            ", protocol: sql, enforcement: audit, access: full",
            "`path` needs a protocol whose requests",
        ),
    ] {
        check(
            &format!("{{host: a.test, port: 1, path: /x{other}}}"),
            &[problem],
        );
    }
    let both = |one: &str, other: &str| {
        format!(
            "network_policies:\n  a: {{endpoints: [{{host: X.test, ports: [80, 443]{one}}}]}}\n  b: \
             {{endpoints: [{{host: x.test, port: 443, {l7}{other}}}]}}\n"
        )
    };
    assert_eq!(
        messages(&both(", allowed_ips: [10.0.0.0/24]", ", path: /x")),
        [
            "line 3: network_policies.b.endpoints[0]: it has the host and port of \
             `network_policies.a.endpoints[0]`, and one of them has a `path`; so both need the same \
             `allowed_ips`, because no path is known when a connection begins"
        ]
    );
    assert_eq!(messages(&both("", ", path: /x")), [""; 0]);
    assert_eq!(messages(&both(", allowed_ips: [10.0.0.0/24]", "")), [""; 0]);
    for one in [", allowed_ips: [10.0.0.0/24]", ", tls: skip"] {
        assert_eq!(messages(&both(one, ", path: /x")).len(), 1, "{one}");
        let of_gateway = both(one, ", path: /x");
        let (_, warnings) = crate::yaml::policy_of_gateway(&of_gateway).unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }
}

#[test]
fn ports_are_whole_numbers_in_one_key() {
    check(
        "{host: a.test, port: 1, ports: [2]}",
        &["mutually exclusive"],
    );
    check("{host: a.test}", &["`port` or `ports`"]);
    check("{host: a.test, ports: []}", &["`port` or `ports`"]);
    for port in ["0", "-1", "65536", "\"443\"", "1.5", "[1]"] {
        check(
            &format!("{{host: a.test, port: {port}}}"),
            &["a port is a whole number"],
        );
    }
}

// Conformance: IPS-07.
#[test]
fn an_endpoint_names_a_host_or_its_addresses() {
    check("{port: 1}", &["an endpoint needs a `host`"]);
    check("{port: 1, allowed_ips: [10.0.0.1]}", &[]);
    check(
        "{host: a.test, port: 1, allowed_ips: [127.0.0.1]}",
        &["allowed_ips[0]: `127.0.0.1` overlaps"],
    );
}

#[test]
fn documents_have_bounds() {
    let long = format!(
        "network_policies: {{a: {{name: \"{}\"}}}}",
        "x".repeat(super::reader::MAX_TEXT_BYTES + 1)
    );
    assert!(messages(&long)[0].contains("at most 65536"));
    let huge = " ".repeat(super::MAX_DOCUMENT_BYTES + 1);
    assert!(messages(&huge)[0].contains("at most 4194304"));
    let endpoint = "{host: a.test, port: 1},";
    let many = format!(
        "network_policies: {{a: {{endpoints: [{}]}}}}",
        endpoint.repeat(10_001)
    );
    assert!(
        messages(&many)[0].contains("10001 endpoints"),
        "{:?}",
        messages(&many).first()
    );
}

#[test]
fn lists_join_single_values_stay_and_policies_of_one_name_are_kept_apart() {
    let one = "process: {run_as_user: \"1000\"}\nfilesystem_policy: {include_workdir: false, \
               read_write: [/a], hidden: [\"~\"]}\nnetwork_policies: {web: {endpoints: [{host: \
               a.test, port: 1}], binaries: [{path: /bin/a}]}}\n";
    let other = "filesystem_policy: {include_workdir: true, read_write: [/a, /b], read_only: \
                 [\"**/x: y\"]}\nnetwork_policies: {web: {endpoints: [{host: b.test, port: 1}], \
                 binaries: [{path: \"/**\"}]}, n: {endpoints: [{host: \"*.c.test\", port: 2, \
                 protocol: tcp}], binaries: [{path: /bin/c}]}}\n";
    let text = merged(&[one, other]).unwrap();
    let expected = "process: {run_as_user: \"1000\"}\nfilesystem_policy: {include_workdir: false, \
                    read_write: [/a, /b], hidden: [\"~\"], read_only: [\"**/x: \
                    y\"]}\nnetwork_policies: {web: {endpoints: [{host: a.test, port: 1}], \
                    binaries: [{path: /bin/a}]}, web-2: {endpoints: [{host: b.test, port: 1}], \
                    binaries: [{path: \"/**\"}]}, n: {endpoints: [{host: \"*.c.test\", port: 2, \
                    protocol: tcp}], binaries: [{path: /bin/c}]}}\n";
    assert_eq!(
        policy(&text).unwrap().0,
        policy(expected).unwrap().0,
        "{text}"
    );
    assert_eq!(merged(&[&text]).unwrap(), text);
    assert!(merged(&[one, "a: ["]).is_err());
}

#[test]
fn a_policy_says_how_long_a_request_waits_for_a_person() {
    let hold = |text: &str| {
        let read = policy(&format!("approvals: {text}\n"));
        read.map(|(policy, _)| policy.approvals().map(|approvals| approvals.hold))
    };
    for (text, seconds) in [
        ("{hold: 5}", 5),
        ("{hold: 90s}", 90),
        ("{hold: \"1h\"}", 3600),
    ] {
        assert_eq!(hold(text).unwrap(), Some(seconds));
    }
    assert_eq!(policy("version: 1\n").unwrap().0.approvals(), None);
    for (text, said) in [
        ("{}", "`hold` is missing"),
        ("{hold: 4}", "from 5 seconds to 1 hour"),
        ("{hold: [5]}", "expected a text"),
        ("{hold: 5, rate: 1}", "unknown key `rate`"),
        ("5", "expected a map"),
    ] {
        let refused = hold(text).unwrap_err().to_string();
        assert!(refused.contains(said), "{text}: {refused}");
    }
}
