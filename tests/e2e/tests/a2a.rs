//! A service of JSON-RPC that is no MCP: agents that speak A2A.

use std::net::TcpStream;

use lab::Lab;

use super::sdks::installed;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/a2a");

#[test]
fn a_client_of_an_agent_calls_the_methods_that_the_policy_permits() {
    let packages = installed(
        "a2a",
        "/usr/bin/pip3 install -q --no-cache-dir --target \"$FOLDER\" 'a2a-sdk[http-server]==1.3.0' uvicorn",
    );
    let folder = packages.0.display();
    let python = super::python();
    let lab = Lab::with_web();
    let path = format!("PYTHONPATH={folder}");
    let [server, client] = ["server", "client"].map(|name| format!("{SCRIPTS}/{name}.py"));
    let url = "http://web.test:8080/rpc";
    let _server = lab.program(&["env", &path, &python, &server, "10.99.0.1", "8080", url]);
    lab::wait_until(
        || lab.inside(|| TcpStream::connect("10.99.0.1:8080").is_ok()),
        || "the agent does not listen".to_owned(),
    );
    let place = "host: web.test, port: 8080, allowed_ips: [10.99.0.1], enforcement: enforce";
    let network = format!(
        "{{agent: {{endpoints: [{{{place}, protocol: rest, rules: [{{allow: {{method: GET, path: \
         /.well-known/agent-card.json}}}}]}}, {{{place}, path: /rpc, protocol: json-rpc, rules: [{{allow: {{method: \
         SendMessage}}}}, {{allow: {{method: SendStreamingMessage}}}}, {{allow: {{method: ListTasks}}}}]}}], binaries: \
         [{{path: {python}}}]}}}}"
    );
    let files = format!("filesystem_policy: {{read_only: [{folder}, {SCRIPTS}]}}\n");
    let finished = lab
        .sandbox(&(super::policy(&network) + &files))
        .env("PYTHONPATH", &folder.to_string())
        .run(&[&python, &client, "http://web.test:8080"]);
    let once = "answer: heard hi\nlist -> page_size: 50\n\nget refused: ";
    assert_eq!(finished.ok().matches(once).count(), 2, "{finished:?}");
    assert!(finished.stdout.ends_with("end\n"), "{finished:?}");
    let refused = "method GetTask is not permitted by policy (request_not_in_rules)";
    assert_eq!(finished.stdout.matches(refused).count(), 2, "{finished:?}");
    assert_eq!(
        finished.logged("RPC:CALL [MED] DENIED").len(),
        2,
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("RPC:CALL [INFO] ALLOWED").len(),
        4,
        "{finished:?}"
    );
}
