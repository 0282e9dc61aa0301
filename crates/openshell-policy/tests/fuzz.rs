//! Fuzz tests of the readers of the operator's files.

use fuzz::fuzz;
use openshell_policy::network::host::Host;
use openshell_policy::yaml;

const WORDS: [&[u8]; 16] = [
    b"\n", b": ", b"  ", b"- ", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"<<: ", b"|\n", b"\"",
    b"~", b"!!str ", b"? ",
];

const POLICY: &[u8] = b"
version: 1
process: {run_as_user: sandbox}
filesystem_policy: {read_only: [/usr], read_write: [/tmp], include_workdir: true}
landlock: {compatibility: best_effort}
network_policies:
  web:
    name: web
    endpoints:
      - {host: '*.web.test', ports: [443, 8443], allowed_ips: [10.0.0.0/8, \"::1\"], protocol: rest, enforcement: enforce, access: read-only}
      - host: api.test
        port: 443
        tls: skip
      - {host: x.test, port: 80, protocol: rest, rules: [{allow: {method: GET, path: /a/**, query: {v: '1*'}}}], deny_rules: [{method: '*', path: /b}]}
    binaries: [{path: /usr/bin/curl}, {path: /usr/bin/**}]
";

const CREDENTIALS: &[u8] =
    b"credentials: {API_KEY: {value: s3cret, hosts: [web.test, \"web.test:8080/v1\"]}, B: {env: \
      NAME}, C: {file: /x}}";

const ROUTES: &[u8] =
    b"routes: [{name: ok, endpoint: https://web.test/v1, model: m, api_key: k, protocols: \
      [openai_chat_completions]}]";

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

#[test]
fn fuzzed_policies_are_read_or_refused_with_what_is_wrong() {
    fuzz("policies", &[POLICY], &WORDS, |input| {
        let Some(text) = text(input) else { return };
        match yaml::policy(text) {
            // Reading is deterministic.
            Ok((policy, _)) => assert_eq!(
                format!("{:?}", yaml::policy(text).unwrap().0),
                format!("{policy:?}")
            ),
            Err(violations) => assert!(!violations.to_string().is_empty()),
        }
    });
}

#[test]
fn fuzzed_credentials_and_routes_are_read_or_refused_and_never_told() {
    fuzz(
        "credentials and routes",
        &[CREDENTIALS, ROUTES],
        &WORDS,
        |input| {
            let Some(text) = text(input) else { return };
            if let Ok((credentials, _)) = yaml::credentials(text, |name| name == "PATH") {
                assert!(!format!("{credentials:?}").contains("s3cret"));
            }
            if let Err(violations) = yaml::routes(text) {
                assert!(!violations.to_string().is_empty());
            }
        },
    );
}

#[test]
fn fuzzed_hosts_have_one_form() {
    let samples: [&[u8]; 8] = [
        b"web.test",
        b"WEB.Test.",
        b"10.99.0.1",
        b"[::1]",
        b"::ffff:10.0.0.1",
        b"0x7f.1",
        b"xn--bcher-kva.test",
        b"*.web.test",
    ];
    let words: [&[u8]; 8] = [b".", b":", b"[", b"]", b"0x", b"%", b"-", b"*"];
    fuzz("hosts", &samples, &words, |input| {
        let Some(host) = text(input).and_then(|text| Host::parse(text).ok()) else {
            return;
        };
        let shown = host.to_string();
        assert_eq!(Host::parse(&shown), Ok(host), "{shown}");
    });
}
