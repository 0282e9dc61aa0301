//! Clients and servers of MCP, by the SDKs from the package registries: what the policy permits works in
//! every revision, and an agent gets an answer that it understands for the rest.

use std::net::TcpStream;
use std::path::PathBuf;

use lab::host::Program;
use lab::{Finished, Lab};

use super::approvals::Asking;
use super::messages::policy;
use super::sdks::{Packages, installed};

/// The packages of the SDK in JavaScript that [`Server::Javascript`] and [`Client::Javascript`] need.
pub(crate) const JAVASCRIPT: &str = "@modelcontextprotocol/client@2.4.0 @modelcontextprotocol/server@2.4.0 \
                                     @modelcontextprotocol/node@2.1.2 zod@4.6.7";
/// Those of its first version.
const FIRST: &str = "@modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/server-everything@2026.8.31 \
                     @modelcontextprotocol/server-filesystem@2026.8.31";
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mcp");

fn python() -> Packages {
    installed(
        "mcp-python",
        "/usr/bin/pip3 install -q --no-cache-dir --target \"$FOLDER\" mcp==2.3.0",
    )
}

fn javascript(name: &str, packages: &str) -> Packages {
    installed(
        name,
        &format!("cd \"$FOLDER\" && npm install --silent --no-audit --no-fund {packages}"),
    )
}

/// The program of the SDK in Rust, which is compiled once for both tiers.
fn rust() -> Packages {
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/rmcp");
    installed(
        "mcp-rust",
        &format!(
            "cargo build --quiet --locked --manifest-path {SCRIPTS}/rmcp/Cargo.toml --target-dir {target}
             cp {target}/debug/rmcp-pair \"$FOLDER\""
        ),
    )
}

/// Servers with the same tools; those in scripting languages also with resources and prompts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Server {
    Javascript,
    Python,
    Rust,
}

/// A server of MCP at 10.99.0.1:8080.
pub(crate) struct Running {
    record: PathBuf,
    _program: Program,
}

impl Running {
    /// Starts what `words` say once the lab has `RECORD`.
    fn start(lab: &Lab, words: &[&str]) -> Self {
        let record = lab.file("called", "");
        let variable = format!("RECORD={}", record.display());
        let program = lab.program(&[&["env", &variable], words].concat());
        lab::wait_until(
            || lab.inside(|| TcpStream::connect("10.99.0.1:8080").is_ok()),
            || "the server does not listen".to_owned(),
        );
        Self {
            record,
            _program: program,
        }
    }

    /// Returns the names of the tools that were called, a line each.
    pub(crate) fn called(&self) -> String {
        std::fs::read_to_string(&self.record).unwrap()
    }
}

/// Starts a server; `words` may be `json`, for answers that are no event streams.
pub(crate) fn server(lab: &Lab, packages: &Packages, server: Server, words: &[&str]) -> Running {
    let folder = packages.0.display();
    let (program, script) = match server {
        Server::Javascript => ("/usr/bin/node".to_owned(), "server.mjs"),
        Server::Python => (super::python(), "server.py"),
        Server::Rust => {
            let program = format!("{folder}/rmcp-pair");
            return Running::start(lab, &[&program, "serve", "10.99.0.1:8080", "web.test"]);
        }
    };
    let [node, python] = ["PACKAGES", "PYTHONPATH"].map(|name| format!("{name}={folder}"));
    let script = format!("{SCRIPTS}/{script}");
    let mut all = vec![
        "env",
        &node,
        &python,
        &program,
        &script,
        "10.99.0.1",
        "8080",
    ];
    all.extend(words);
    Running::start(lab, &all)
}

/// Runs a client of `packages` by `words` under an endpoint of MCP with `keys`.
fn client(lab: &Lab, packages: &Packages, keys: &str, words: &[&str]) -> Finished {
    let folder = packages.0.display().to_string();
    let files = format!("filesystem_policy: {{read_only: [{folder}, {SCRIPTS}]}}\n");
    lab.sandbox(&(policy("mcp", keys) + &files))
        .env("PYTHONPATH", &folder)
        .env("PACKAGES", &folder)
        .run(words)
}

const URL: &str = "http://web.test:8080/mcp";

fn python_client(lab: &Lab, packages: &Packages, keys: &str, mode: &str) -> Finished {
    let script = format!("{SCRIPTS}/client.py");
    client(lab, packages, keys, &[&super::python(), &script, URL, mode])
}

fn javascript_client(lab: &Lab, packages: &Packages, keys: &str, mode: &str) -> Finished {
    let script = format!("{SCRIPTS}/client.mjs");
    client(lab, packages, keys, &["/usr/bin/node", &script, URL, mode])
}

const REVIEWED: &str = "rules: [{allow: {method: initialize}}, {allow: {method: server/discover}}, {allow: {method: \
                        tools/list}}, {allow: {method: resources/list}}, {allow: {method: prompts/list}}, {allow: \
                        {method: tools/call, tool: {any: [get_issue, \"search_*\", ask_name]}}}, {allow: {method: \
                        resources/read, uri: \"docs://*\"}}, {allow: {method: resources/subscribe, uri: \"docs://*\"}}, \
                        {allow: {method: subscriptions/listen}}, {allow: {method: prompts/get, name: \"rev*\"}}]";
/// The same, where the revision of 2026 is not permitted.
const OLDER: &str = "mcp: {versions: [\"2025-06-18\", \"2025-11-25\"]}, ";

/// What each client prints under [`REVIEWED`], beside its tools.
const SEEN: [&str; 9] = [
    "resources: docs://one\n",
    "prompts: review\n",
    "get_issue -> issue 7\n",
    "delete_repo refused: -31403 tool delete_repo is not permitted by policy (request_not_in_rules)\n",
    "search_code -> found y\n",
    "docs -> the first\n",
    "secret refused: -31403 resource secret://two is not permitted by policy (request_not_in_rules)\n",
    "get_issue -> issue 8\n",
    "end\n",
];

fn check(finished: &Finished, server: &Running, about: &str, more: &[&str]) {
    for line in SEEN.iter().chain(more) {
        assert!(
            finished.stdout.contains(line),
            "{about}: {line}: {finished:?}"
        );
    }
    let called = server.called();
    assert!(called.contains("get_issue"), "{about}: {called}");
    assert!(!called.contains("delete_repo"), "{about}: {called}");
}

const ASKED: &str = "ask_name -> hello agent\n";
const CHANGED: &str = "subscription -> docs://one\n";

#[test]
fn the_python_sdk_sees_and_calls_only_what_the_policy_permits_in_every_revision() {
    let packages = python();
    for (words, mode, older, more) in [
        (&[][..], "legacy", "", ASKED),
        (&["json"], "legacy", "", ""),
        (&[], "auto", "", CHANGED),
        (&[], "auto", OLDER, ASKED),
        (&["json"], "2026-07-28", "", CHANGED),
    ] {
        let lab = Lab::with_web();
        let server = server(&lab, &packages, Server::Python, words);
        let finished = python_client(&lab, &packages, &format!("{older}{REVIEWED}"), mode);
        let about = format!("{mode} {words:?} {older}");
        check(
            &finished,
            &server,
            &about,
            &["tools: ask_name get_issue search_anew search_code\n", more],
        );
    }
}

#[test]
fn the_javascript_sdk_sees_and_calls_only_what_the_policy_permits_in_every_revision() {
    let packages = javascript("mcp-javascript", JAVASCRIPT);
    for (words, mode, older, revision) in [
        (&[][..], "legacy", "", "2025-11-25"),
        (&[], "auto", "", "2026-07-28"),
        (&[], "auto", OLDER, "2025-11-25"),
        (&["json"], "2026-07-28", "", "2026-07-28"),
    ] {
        let lab = Lab::with_web();
        let server = server(&lab, &packages, Server::Javascript, words);
        let finished = javascript_client(&lab, &packages, &format!("{older}{REVIEWED}"), mode);
        let more = [
            "tools: ask_name get_issue search_anew search_code\n",
            ASKED,
            CHANGED,
            &format!("revision: {revision}\n"),
        ];
        let about = format!("{mode} {words:?} {older}");
        check(&finished, &server, &about, &more);
        assert!(
            words.contains(&"json")
                || finished
                    .stdout
                    .contains("progress 1 of 2\nprogress 2 of 2\n"),
            "{about}: {finished:?}"
        );
    }
}

#[test]
fn the_rust_sdk_calls_only_what_the_policy_permits_in_every_revision() {
    let packages = rust();
    let scripts = javascript("mcp-javascript-rust", JAVASCRIPT);
    let program = format!("{}/rmcp-pair", packages.0.display());
    let expected = [
        "get_issue -> issue 7\n",
        "delete_repo refused: -31403 tool delete_repo is not permitted by policy (request_not_in_rules)\n",
        "search_code -> found y\n",
        "get_issue -> issue 8\nend\n",
    ];
    for (of, mode, older, more) in [
        (Server::Rust, "legacy", "", ""),
        (Server::Rust, "auto", "", ASKED),
        (Server::Rust, "auto", OLDER, ""),
        (Server::Rust, "new", "", ASKED),
        (Server::Javascript, "legacy", "", ASKED),
        (Server::Javascript, "auto", "", ASKED),
    ] {
        let lab = Lab::with_web();
        let of_server = match of {
            Server::Rust => &packages,
            Server::Javascript | Server::Python => &scripts,
        };
        let server = server(&lab, of_server, of, &[]);
        let keys = format!("{older}{REVIEWED}");
        let finished = client(&lab, &packages, &keys, &[&program, URL, mode]);
        let about = format!("{of:?} {mode} {older}");
        for line in expected.iter().chain([&more]) {
            assert!(
                finished.stdout.contains(line),
                "{about}: {line}: {finished:?}"
            );
        }
        let tools = finished.stdout.lines().next().unwrap();
        assert!(!tools.contains("delete_repo"), "{about}: {tools}");
        assert!(!server.called().contains("delete_repo"), "{about}");
    }
}

#[test]
fn every_sdk_calls_the_tools_of_the_servers_of_the_others() {
    let [python, javascript, rust] = [
        python(),
        javascript("mcp-javascript-all", JAVASCRIPT),
        rust(),
    ];
    let program = format!("{}/rmcp-pair", rust.0.display());
    for (of_client, of_server) in [
        (Server::Python, Server::Javascript),
        (Server::Python, Server::Rust),
        (Server::Javascript, Server::Python),
        (Server::Javascript, Server::Rust),
        (Server::Rust, Server::Python),
    ] {
        for mode in ["legacy", "auto"] {
            let lab = Lab::with_web();
            let packages = match of_server {
                Server::Javascript => &javascript,
                Server::Python => &python,
                Server::Rust => &rust,
            };
            let server = server(&lab, packages, of_server, &[]);
            let finished = match of_client {
                Server::Javascript => javascript_client(&lab, &javascript, REVIEWED, mode),
                Server::Python => python_client(&lab, &python, REVIEWED, mode),
                Server::Rust => client(&lab, &rust, REVIEWED, &[&program, URL, mode]),
            };
            let about = format!("{of_client:?} {of_server:?} {mode}");
            for line in [
                "get_issue -> issue 7\n",
                "search_code -> found y\n",
                "end\n",
            ] {
                assert!(
                    finished.stdout.contains(line),
                    "{about}: {line}: {finished:?}"
                );
            }
            let refused = "delete_repo refused: -31403 tool delete_repo is not permitted";
            assert!(finished.stdout.contains(refused), "{about}: {finished:?}");
            // The server in Rust asks only in the new revision.
            let asks = mode == "auto" || !matches!(of_server, Server::Rust);
            assert!(
                !asks || finished.stdout.contains(ASKED),
                "{about}: {finished:?}"
            );
            assert!(!server.called().contains("delete_repo"), "{about}");
        }
    }
}

#[test]
fn the_first_javascript_sdk_works_with_the_servers_of_its_project() {
    let packages = javascript("mcp-javascript-1", FIRST);
    let run = |lab: &Lab, keys: &str, words: &[&str]| {
        let script = format!("{SCRIPTS}/client1.mjs");
        client(
            lab,
            &packages,
            keys,
            &[&["/usr/bin/node", &script, URL], words].concat(),
        )
    };
    let modules = format!("{}/node_modules", packages.0.display());
    let variable = format!("PACKAGES={}", packages.0.display());
    let listed = "rules: [{allow: {method: initialize}}, {allow: {method: tools/list}}, {allow: {method: tools/call, \
                  tool: {any: [echo, \"trigger-*\", \"toggle-*\", \"list_*\"]}}}, {allow: {method: tools/call, tool: \
                  read_text_file, arguments: {path: {glob: \"**/one.txt\"}}}}, {allow: {method: \
                  resources/subscribe, uri: \"demo://**\"}}]";

    let lab = Lab::with_web();
    let folder = lab.folder("files");
    std::fs::write(folder.join("one.txt"), "the first").unwrap();
    std::fs::write(folder.join("two.txt"), "the second").unwrap();
    let folder = folder.display().to_string();
    let bridge = format!("{SCRIPTS}/bridge.mjs");
    let script = format!("{modules}/@modelcontextprotocol/server-filesystem/dist/index.js");
    let _files = Running::start(
        &lab,
        &[
            "env",
            &variable,
            "node",
            &bridge,
            "10.99.0.1",
            "8080",
            "node",
            &script,
            &folder,
        ],
    );
    let calls = format!(
        r#"[["list_directory", {{"path": "{folder}"}}], ["read_text_file", {{"path": "{folder}/one.txt"}}], ["read_text_file",
            {{"path": "{folder}/two.txt"}}], ["write_file", {{"path": "{folder}/one.txt", "content": ""}}]]"#
    );
    let finished = run(&lab, listed, &[&calls]);
    for line in [
        "tools: list_allowed_directories list_directory list_directory_with_sizes read_text_file\n",
        "list_directory -> [FILE] one.txt\n[FILE] two.txt\n",
        "read_text_file -> the first\n",
        "read_text_file refused: MCP error -31403: tool read_text_file is not permitted by policy with these arguments \
         (request_not_in_rules)\n",
        "write_file refused: MCP error -31403: tool write_file is not permitted by policy (request_not_in_rules)\n",
        "end\n",
    ] {
        assert!(finished.stdout.contains(line), "{line}: {finished:?}");
    }

    let lab = Lab::with_web();
    let script = format!("{modules}/@modelcontextprotocol/server-everything/dist/index.js");
    let start = format!("PORT=8080 exec node {script} streamableHttp 2>&1");
    let _everything = Running::start(&lab, &["sh", "-c", &start]);
    let calls = r#"[["echo", {"message": "x"}], ["trigger-elicitation-request", {}], ["trigger-long-running-operation",
                   {"duration": 1, "steps": 2}], ["toggle-subscriber-updates", {}], ["get-env", {}]]"#;
    let uri = "demo://resource/static/document/architecture.md";
    let finished = run(&lab, listed, &[calls, uri]);
    for line in [
        "tools: echo toggle-simulated-logging toggle-subscriber-updates trigger-elicitation-request \
         trigger-long-running-operation\n",
        "echo -> Echo: x\n",
        "User provided the requested information",
        "progress 1 of 2\nprogress 2 of 2\ntrigger-long-running-operation -> Long running operation completed",
        "get-env refused: MCP error -31403: tool get-env is not permitted by policy (request_not_in_rules)\n",
        "subscription -> demo://resource/static/document/architecture.md\nend\n",
    ] {
        assert!(finished.stdout.contains(line), "{line}: {finished:?}");
    }
}

#[test]
fn a_field_of_a_head_repeats_the_argument_that_the_servers_schema_says() {
    let packages = javascript("mcp-javascript-fields", JAVASCRIPT);
    let lab = Lab::with_web();
    let _server = server(&lab, &packages, Server::Javascript, &[]);
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"lab","version":"1"}}"#;
    let post = |method: &str, fields: &str, params: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{meta}}}}}"#
        );
        format!(
            "curl -sS -w ' %{{http_code}}\\n' -H 'content-type: application/json' -H 'accept: application/json, \
             text/event-stream' -H 'mcp-protocol-version: 2026-07-28' -H 'mcp-method: {method}' {fields} -d '{body}' {URL}; "
        )
    };
    let list = post("tools/list", "", "");
    let call = |field: &str| {
        let fields = format!("-H 'mcp-name: search_code' -H '{field}'");
        let arguments = r#""name":"search_code","arguments":{"query":"y","other":"z"},"#;
        post("tools/call", &fields, arguments)
    };
    let script = [
        call("Mcp-Param-Query: z"),
        list,
        call("Mcp-Param-Query: z"),
        call("Mcp-Param-QUERY: =?base64?eQ==?="),
        call("Mcp-Param-Other: z"),
    ];
    let words = ["sh", "-c", &script.concat()];
    let finished = client(&lab, &packages, REVIEWED, &words);
    let answers = finished.ok().replace("\n ", " ");
    let lines: Vec<_> = answers
        .lines()
        .filter(|line| line.ends_with("00"))
        .collect();
    let [before, listed, refused, right, unknown] = lines.as_slice() else {
        panic!("{finished:?}")
    };
    // What no list has said passes to the server, which knows its schema.
    assert!(
        before.contains("-32020") && !before.contains("reason_code"),
        "{before}"
    );
    assert!(listed.contains("x-mcp-header"), "{listed}");
    assert!(
        refused.contains("-32020")
            && refused.contains("message_invalid")
            && refused.ends_with("400"),
        "{refused}"
    );
    assert!(right.contains("found y"), "{right}");
    assert!(
        unknown.contains("-32020") || unknown.contains("found y"),
        "{unknown}"
    );
}

#[test]
fn one_call_waits_for_a_person_while_the_others_go_on() {
    let packages = javascript("mcp-held", JAVASCRIPT);
    let lab = Lab::with_web();
    let server = server(&lab, &packages, Server::Javascript, &[]);
    let folder = packages.0.display().to_string();
    let files = format!("filesystem_policy: {{read_only: [{folder}, {SCRIPTS}]}}\n");
    let sandbox = lab
        .sandbox(&(policy("mcp", &format!("mcp: {{filter_lists: false}}, {REVIEWED}")) + &files))
        .env("PACKAGES", &folder);
    let script = format!("{SCRIPTS}/held.mjs");
    let asking = Asking::of(sandbox, &lab, &["/usr/bin/node", &script, URL]);
    let question = asking.held();
    assert_eq!(question["kind"], "message");
    assert_eq!(question["tool"], "delete_repo");
    let arguments = question["arguments"].as_str().unwrap();
    assert!(
        arguments.contains(r#""arguments":{"name":"x"}"#),
        "{arguments}"
    );
    lab::wait_until(
        || server.called() == "get_issue\n".repeat(3),
        || server.called(),
    );
    asking.decide(&question, "once");
    let finished = asking.wait();
    assert_eq!(
        finished.stdout, "issue 1\nissue 2\nissue 3\ndeleted\n",
        "{finished:?}"
    );
}
