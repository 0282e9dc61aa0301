//! Messages of MCP and JSON-RPC in the bodies of requests: what the policy permits reaches the server as
//! it was judged, and what it refuses is answered in the protocol.

use std::net::TcpStream;

use lab::host::Program;
use lab::{Finished, Lab};

use super::policy;
use super::sdks::{Packages, installed};

/// A policy for curl and Python: MCP at web.test:8080 under /mcp, and reading of everything else.
fn mcp(keys: &str) -> String {
    let endpoint = "host: web.test, port: 8080, allowed_ips: [10.99.0.1], enforcement: enforce";
    policy(&format!(
        "{{web: {{endpoints: [{{{endpoint}, protocol: rest, access: read-only}}, {{{endpoint}, path: /mcp, protocol: \
         mcp, {keys}}}], binaries: [{{path: /usr/bin/curl}}, {{path: {}}}]}}}}",
        super::python()
    ))
}

const TWO_TOOLS: &str = "rules: [{allow: {method: initialize}}, {allow: {method: tools/list}}, {allow: {method: \
                         tools/call, tool: {any: [get_issue, \"search_*\"]}}}]";

/// Bodies that are posted to /mcp, one after the other over one connection. Prints statuses, the numbers
/// of new connections, and answers.
fn posted(lab: &Lab, policy: &str, bodies: &[&str]) -> Finished {
    let one = |body: &&str| {
        format!(
            "-sS -w '\\n%{{http_code}} %{{num_connects}}\\n' -H 'Content-Type: application/json' -d '{body}' \
             http://web.test:8080/mcp"
        )
    };
    let all: Vec<_> = bodies.iter().map(one).collect();
    lab.sandbox(policy)
        .sh(&format!("curl {}", all.join(" --next ")))
}

#[test]
fn a_refused_call_is_an_answer_of_the_protocol_and_its_connection_goes_on() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let call = |id: u8, tool: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}"}}}}"#
        )
    };
    let allowed = call(8, "get_issue");
    let finished = posted(
        &lab,
        &mcp(TWO_TOOLS),
        &[
            &call(7, "delete_repo"),
            &allowed,
            r#"{"jsonrpc":"2.0","method":"tools/list","method":"x"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
            &call(9, "search_code"),
        ],
    );
    let lines: Vec<_> = finished
        .ok()
        .lines()
        .filter(|line| !line.is_empty())
        .collect();
    let [
        refused,
        first,
        _,
        second,
        invalid,
        third,
        notification,
        fourth,
        _,
        fifth,
    ] = lines.as_slice()
    else {
        panic!("{finished:?}")
    };
    assert_eq!(
        [*first, *second, *third, *fourth, *fifth],
        ["200 1", "200 0", "400 0", "403 0", "200 0"],
        "{finished:?}"
    );
    assert!(
        refused.starts_with(
            "{\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-31403,\"message\":\"tool delete_repo is not permitted by \
             policy (request_not_in_rules)\",\"data\":{"
        ),
        "{refused}"
    );
    assert!(
        refused.contains("- allow: {method: tools/call, tool: delete_repo}"),
        "{refused}"
    );
    assert!(
        invalid.contains("\"reason_code\":\"message_invalid\""),
        "{invalid}"
    );
    assert!(
        notification.contains("\"reason_code\":\"request_not_in_rules\""),
        "{notification}"
    );
    let seen = upstream.seen().concat();
    let seen = String::from_utf8(seen).unwrap();
    assert_eq!(seen.matches("POST /mcp").count(), 2, "{seen}");
    assert!(
        seen.contains(&allowed) && !seen.contains("delete_repo"),
        "{seen}"
    );
    for line in [
        "MCP:TOOLS/CALL [MED] DENIED /usr/bin/curl",
        "-> web.test:8080/mcp delete_repo [policy:web engine:l7] [id:7]",
        "MCP:TOOLS/CALL [INFO] ALLOWED /usr/bin/curl",
        "-> web.test:8080/mcp get_issue [policy:web engine:l7] [id:8]",
        "MCP:NOTIFICATIONS/ROOTS/LIST_CHANGED [MED] DENIED",
    ] {
        assert!(!finished.logged(line).is_empty(), "{line}: {finished:?}");
    }
    assert!(
        finished.logged("HTTP:POST [INFO]").is_empty(),
        "a judged message has no line of HTTP"
    );
}

/// The packages of the SDK in Python.
fn python_sdk() -> Packages {
    installed(
        "mcp",
        "/usr/bin/pip3 install -q --no-cache-dir --target \"$FOLDER\" mcp==2.3.0",
    )
}

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mcp");

/// Starts a server of MCP at 10.99.0.1:8080.
fn server(lab: &Lab, packages: &Packages, words: &[&str]) -> Program {
    let python = super::python();
    let path = format!("PYTHONPATH={}", packages.0.display());
    let script = format!("{SCRIPTS}/server.py");
    let mut all = vec!["env", &path, &python, &script, "10.99.0.1", "8080"];
    all.extend(words);
    let program = lab.program(&all);
    lab::wait_until(
        || lab.inside(|| TcpStream::connect("10.99.0.1:8080").is_ok()),
        || "the server does not listen".to_owned(),
    );
    program
}

/// Runs a client of MCP under a policy for `keys`.
fn client(lab: &Lab, packages: &Packages, keys: &str, mode: &str) -> Finished {
    let folder = packages.0.display();
    let files = format!("filesystem_policy: {{read_only: [{folder}, {SCRIPTS}]}}\n");
    let script = format!("{SCRIPTS}/client.py");
    lab.sandbox(&(mcp(keys) + &files))
        .env("PYTHONPATH", &folder.to_string())
        .run(&[&super::python(), &script, "http://web.test:8080/mcp", mode])
}

const REVIEWED: &str = "rules: [{allow: {method: initialize}}, {allow: {method: server/discover}}, {allow: {method: \
                        tools/list}}, {allow: {method: resources/list}}, {allow: {method: prompts/list}}, {allow: \
                        {method: tools/call, tool: {any: [get_issue, \"search_*\", ask_name]}}}, {allow: {method: \
                        resources/read, uri: \"docs://*\"}}, {allow: {method: prompts/get, name: \"rev*\"}}]";

#[test]
fn the_python_sdk_sees_and_calls_only_what_the_policy_permits_in_every_revision() {
    let packages = python_sdk();
    for (words, mode, name) in [
        (&[][..], "legacy", "ask_name -> hello agent"),
        (&["json"], "legacy", ""),
        (&[], "auto", ""),
        (&["json"], "2026-07-28", ""),
    ] {
        let lab = Lab::with_web();
        let _server = server(&lab, &packages, words);
        let finished = client(&lab, &packages, REVIEWED, mode);
        for line in [
            "tools: ask_name get_issue search_code",
            "resources: docs://one",
            "prompts: review",
            "get_issue -> issue 7",
            "delete_repo refused: -31403 tool delete_repo is not permitted by policy (request_not_in_rules)",
            "search_code -> found y",
            name,
            "docs -> the first",
            "secret refused: -31403 resource secret://two is not permitted by policy (request_not_in_rules)",
            "get_issue -> issue 8",
            "end",
        ] {
            assert!(
                finished.stdout.contains(line),
                "{mode} {words:?}: {line}: {finished:?}"
            );
        }
    }
}
