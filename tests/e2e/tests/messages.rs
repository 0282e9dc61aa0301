//! Messages of MCP and JSON-RPC in the bodies of requests: what the policy permits reaches the server as
//! it was judged, and what it refuses is answered in the protocol.

use lab::{Finished, Lab};

use super::origin::{self, Origin};
use super::reload::{LOADED, Running};

/// A policy for curl, Python and Node: messages of `protocol` at web.test:8080 under /mcp, and reading of
/// everything else.
pub(crate) fn policy(protocol: &str, keys: &str) -> String {
    let endpoint = "host: web.test, port: 8080, allowed_ips: [10.99.0.1], enforcement: enforce";
    super::policy(&format!(
        "{{web: {{endpoints: [{{{endpoint}, protocol: rest, access: read-only}}, {{{endpoint}, path: /mcp, protocol: \
         {protocol}, {keys}}}], binaries: [{{path: /usr/bin/curl}}, {{path: /usr/bin/node}}, {{path: \"/**/rmcp-pair\"}}, {{path: {}}}]}}}}",
        super::python()
    ))
}

fn mcp(keys: &str) -> String {
    policy("mcp", keys)
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

const RULES: &str = "protocol: mcp, enforcement: enforce, mcp: {max_body_bytes: 2048}, rules: [{allow: {method: ping}}]";
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}"#;

#[test]
fn messages_are_judged_by_every_door_inside_tls_and_over_http2() {
    let lab = Lab::with_web();
    let policy = origin::policy(&["/usr/bin/curl"], RULES);
    let one = Origin::start(&lab);
    let ask = |origin: &Origin, how: &str, url: &str| {
        let post = format!(
            "curl -sS {how} -o /dev/null -w '%{{http_code}}\\n' -H 'content-type: application/json' {url}/hello"
        );
        let script = format!(
            "{post} -d '{PING}'; {post} -d '{CALL}'; curl -sS {how} -H 'content-type: application/json' {url}/hello -d '{CALL}'"
        );
        let finished = lab
            .sandbox(&policy)
            .args(&["--upstream-ca-file", &origin.authority()])
            .sh(&script);
        let out = finished.ok();
        assert!(
            out.starts_with("200\n200\n{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-31403"),
            "{how} {url}: {finished:?}"
        );
        assert!(
            !finished.logged("MCP:TOOLS/CALL [MED] DENIED").is_empty(),
            "{finished:?}"
        );
        assert!(
            !finished.logged("MCP:PING [INFO] ALLOWED").is_empty(),
            "{finished:?}"
        );
    };
    let ways = [
        ("", "http://web.test:8080"),
        ("-p", "http://web.test:8080"),
        ("--noproxy '*'", "http://web.test:8080"),
        ("--http1.1", "https://web.test"),
        ("--http1.1 --noproxy '*'", "https://web.test"),
    ];
    for (how, url) in ways {
        ask(&one, how, url);
    }
    assert_eq!(one.asked(), vec!["POST /hello"; ways.len()]);
    drop(one);
    let two = Origin::http2(&lab);
    for (how, url) in [
        ("--http2", "https://web.test"),
        ("-p --http2-prior-knowledge", "http://web.test:8080"),
    ] {
        ask(&two, how, url);
    }
    assert_eq!(two.asked().len(), ways.len() + 2, "their files are one");
}

#[test]
fn a_body_is_sent_as_it_was_judged_and_what_cannot_be_judged_is_not_sent() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let policy = origin::policy(&["/usr/bin/curl"], RULES);
    let finished = lab.sandbox(&policy).sh(&format!(
        r#"
        cd /tmp; printf '%s' '{PING}' > ping; gzip -k ping; cat ping.gz ping.gz > twice.gz; (cat ping.gz; echo x) > behind.gz
        head -c 20 ping.gz > cut.gz; head -c 300000 /dev/zero | gzip > bomb.gz; head -c 2049 /dev/zero > large
        (printf '%s' '{PING}'; head -c 2008 /dev/zero | tr '\0' ' ') > fits
        post() {{ curl -sS -o /dev/null -w '%{{http_code}}\n' -H 'content-type: application/json' "$@" http://web.test:8080/hello; }}
        post --data-binary @ping.gz -H 'content-encoding: gzip' -H 'digest: x'
        post --data-binary @ping -H 'content-encoding: identity' -H 'transfer-encoding: chunked'
        post --data-binary @fits
        for file in twice behind cut; do post --data-binary @$file.gz -H 'content-encoding: gzip'; done
        post --data-binary @ping.gz -H 'content-encoding: gzip, gzip'
        post --data-binary @ping.gz -H 'content-encoding: gzip' -H 'content-encoding: gzip'
        post --data-binary @ping -H 'content-encoding: compress'
        post --data-binary @bomb.gz -H 'content-encoding: gzip'
        post --data-binary @large
        post --data-binary @large -H 'transfer-encoding: chunked'
        post --data-binary @ping -H 'content-type: application/json'
        post --data-binary @ping -H 'connection: content-type'
        post --data-binary @ping -X PUT
        curl -sS -o /dev/null -w '%{{http_code}}\n' -H 'accept: text/event-stream' -H 'connection: upgrade' -H 'upgrade: websocket' \
            -H 'sec-websocket-version: 13' -H 'sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==' http://web.test:8080/hello
        "#
    ));
    let statuses: Vec<_> = finished.ok().lines().collect();
    let expected = [
        "200", "200", "200", "400", "400", "400", "400", "400", "400", "413", "413", "413", "400",
        "400", "405", "200",
    ];
    assert_eq!(statuses, expected, "{finished:?}");
    let seen = origin.seen();
    assert_eq!(seen.len(), 4, "{seen:?}");
    for (request, length) in seen.iter().zip([PING.len(), PING.len(), 2048]) {
        let headers = &request[2];
        for name in ["content-encoding", "transfer-encoding", "digest"] {
            assert!(headers.get(name).is_none(), "{name}: {seen:?}");
        }
        assert_eq!(headers["content-length"], length.to_string(), "{seen:?}");
    }
    let stream = &seen[3][2];
    assert!(
        stream.get("upgrade").is_none(),
        "nobody would judge what follows: {seen:?}"
    );
}

#[test]
fn a_reload_changes_the_next_verdict_in_a_session() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let program = format!(
        r#"
import http.client, os, pathlib, time
proxy = os.environ['HTTP_PROXY'][7:].rstrip('/')
connection = http.client.HTTPConnection(proxy)
def ask():
    # A connection whose last message is no longer permitted ends.
    while True:
        try:
            connection.request('POST', 'http://web.test:8080/mcp', '{CALL}', {{'Content-Type': 'application/json'}})
            return connection.getresponse().read().decode()
        except (http.client.HTTPException, ConnectionError):
            connection.close()
first = ask()
pathlib.Path('ready').touch()
while 'error' not in (second := ask()): time.sleep(0.01)
print(first, second)
"#
    );
    let allowing = mcp("rules: [{allow: {method: tools/call, tool: x}}]");
    let running = Running::start_under(&lab, &allowing, &program, 0);
    running.reload(
        &mcp("rules: [{allow: {method: tools/call, tool: y}}]"),
        LOADED,
    );
    let finished = running.finish();
    let out = finished.ok();
    assert!(
        out.starts_with("hello {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-31403"),
        "{finished:?}"
    );
}

#[test]
fn a_json_rpc_service_is_judged_by_its_methods() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let policy = policy(
        "json-rpc",
        "rules: [{allow: {method: sum}}], deny_rules: [{method: wipe}]",
    );
    let finished = posted(
        &lab,
        &policy,
        &[
            r#"[{"jsonrpc":"2.0","id":"a","method":"sum","params":[1,2]},{"jsonrpc":"2.0","id":"b","method":"wipe"}]"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"sum"}"#,
        ],
    );
    let answer = finished.ok().lines().next().unwrap_or_default();
    assert!(answer.starts_with("[{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"error\":{\"code\":-31403,\"message\":\"not sent: another"), "{answer}");
    assert!(
        answer.contains("method wipe is not permitted by policy (request_in_deny_rules)"),
        "{answer}"
    );
    assert_eq!(
        finished.logged("RPC:CALL [MED] DENIED").len(),
        2,
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("RPC:CALL [INFO] ALLOWED").len(),
        1,
        "{finished:?}"
    );
    assert_eq!(
        upstream
            .seen()
            .concat()
            .windows(4)
            .filter(|bytes| bytes == b"POST")
            .count(),
        1
    );
}

#[test]
fn explain_says_of_a_message_what_the_proxy_says() {
    let lab = Lab::with_web();
    let policy = mcp(
        "mcp: {versions: [\"2025-11-25\"]}, rules: [{allow: {method: tools/call, tool: put, arguments: {n: {range: [1, 2]}}}}]",
    );
    let file = lab.file("explained.yaml", &policy);
    let nowhere = lab.file("nowhere.yaml", policy.replace("web.test", "none.test"));
    let body = lab.file(
        "body.json",
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"x"}"#,
    );
    let explain = |words: &str| {
        lab.shell(&format!(
            "{} explain {} --binary /usr/bin/curl --host web.test --port 8080 --path /mcp {words} || true",
            lab.binary(),
            file.display()
        ))
    };
    let allowed = explain("--tool put --arguments '{\"n\": 1.5}'");
    assert!(
        allowed.starts_with("allowed: POST web.test:8080/mcp put by /usr/bin/curl, policy web"),
        "{allowed}"
    );
    let refused = explain("--tool put --arguments '{\"n\": 3}'");
    assert!(
        refused.contains("reason: tool put is not permitted by policy with these arguments"),
        "{refused}"
    );
    let without_address = lab.shell(&format!(
        "{} explain {} --binary /usr/bin/curl --host none.test --port 8080 --path /mcp --tool put --arguments '{{\"n\": 1}}' \
         || true",
        lab.binary(),
        nowhere.display()
    ));
    assert!(
        without_address.starts_with("refused: POST none.test:8080/mcp put by /usr/bin/curl: ")
            && without_address.contains("\n  the rules permit the request"),
        "{without_address}"
    );
    let invalid = explain(&format!("--message {}", body.display()));
    assert!(
        invalid.contains("message_invalid") && invalid.contains("an object has a key twice"),
        "{invalid}"
    );
    let stream = explain("--method GET");
    assert!(
        stream.starts_with("allowed: GET web.test:8080/mcp"),
        "{stream}"
    );
}

#[test]
fn an_observed_run_gives_the_rules_for_its_messages() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let file = lab.folder("out").join("observed.yaml");
    let written = file.display().to_string();
    let get = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_issue","arguments":{"n":"a-value"}}}"#;
    let started = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let other = r#"{"jsonrpc":"2.0","id":1,"method":"sum"}"#;
    let post = |path: &str, body: &str| {
        format!(
            "curl -sS -o /dev/null -w '%{{http_code}}\\n' -H 'content-type: application/json' -d '{body}' http://web.test:8080{path}"
        )
    };
    let stream = "curl -sS -o /dev/null -w '%{http_code}\\n' -H 'accept: text/event-stream' http://web.test:8080/mcp";
    let all = [
        post("/mcp", get),
        post("/mcp", started),
        stream.to_owned(),
        post("/rpc", other),
        post("/mcp", "{ no JSON"),
    ];
    let observed = lab
        .sandbox(&super::policy("{}"))
        .args(&["--observe", &written])
        .sh(&all.join("; "));
    assert_eq!(observed.ok(), "200\n".repeat(5).trim_end(), "{observed:?}");
    assert_eq!(
        String::from_utf8(upstream.seen().concat())
            .unwrap()
            .matches(get)
            .count(),
        1
    );
    let policy = std::fs::read_to_string(&file).unwrap();
    assert!(!policy.contains("a-value"), "{policy}");
    for endpoint in [
        "- {host: \"web.test\", port: 8080, allowed_ips: [\"10.99.0.1\"], protocol: rest, enforcement: enforce, rules: [{allow: \
         {method: \"POST\", path: \"**\"}}]}\n",
        "- {host: \"web.test\", port: 8080, allowed_ips: [\"10.99.0.1\"], path: \"/mcp\", protocol: mcp, enforcement: enforce, \
         rules: [{allow: {method: \"notifications/initialized\"}}, {allow: {method: \"tools/call\", tool: \"get_issue\"}}]}\n",
    ] {
        assert!(policy.contains(endpoint), "{endpoint}: {policy}");
    }
    let mut again = all.to_vec();
    again[4] = post("/mcp", &get.replace("get_issue", "delete_repo"));
    let enforced = lab.sandbox(&policy).sh(&again.join("; "));
    assert_eq!(enforced.ok(), "200\n200\n200\n200\n200", "{enforced:?}");
    assert_eq!(
        enforced.logged("MCP:TOOLS/CALL [MED] DENIED").len(),
        1,
        "{enforced:?}"
    );
}

/// Shows that it is ready, and waits for the end.
const READY_AND_WAIT: &str = "
import pathlib, time
pathlib.Path('ready').touch()
while not pathlib.Path('go').exists(): time.sleep(0.01)
";

/// Returns the most memory that the supervisor of `running` had, in KiB.
fn peak(lab: &Lab, running: &Running<'_>) -> u64 {
    let peak = lab.shell(&format!(
        "awk '/^VmHWM/ {{print $2}}' /proc/{}/status",
        running.pid()
    ));
    peak.trim().parse().unwrap()
}

/// Asks the odd server for lists, and prints what it gets.
const ODD: &str = r#"
import http.client, json, os, re
proxy = os.environ['HTTP_PROXY'][7:].rstrip('/')
connection = http.client.HTTPConnection(proxy)
def post(method, params):
    body = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': method, 'params': params})
    fields = {'Content-Type': 'application/json', 'Accept': 'application/json, text/event-stream'}
    connection.request('POST', 'http://web.test:8080/mcp', body, fields)
    return connection.getresponse().read().decode()
for cursor in ['many', 'long', 'endless', 'other', 'broken', 'gzip', 'plain']:
    answer = post('tools/list', {'cursor': cursor})
    print(cursor, len(answer) >> 20, *re.findall('"name": "([a-z_0-9]*)"', answer))
print(post('tools/call', {'name': 'delete_repo'})[:60])
"#;

#[test]
fn odd_lists_of_a_server_have_a_bound_and_the_rest_passes_as_it_is() {
    let lab = Lab::with_web();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mcp/odd.py");
    let _server = lab.program(&["python3", script, "10.99.0.1", "8080"]);
    let program = [ODD, READY_AND_WAIT].concat();
    let running = Running::start_under(&lab, &mcp(TWO_TOOLS), &program, 0);
    let peak = peak(&lab, &running);
    let finished = running.finish();
    let expected = [
        "many 0 get_issue",
        "long 17 get_issue",
        "endless 40",
        "other 0 delete_repo get_issue",
        "broken 0 get_issue delete_repo",
        "gzip 0 get_issue",
        "plain 0 get_issue",
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-31403,"message":"to"#,
    ];
    let lines: Vec<_> = finished.ok().lines().collect();
    assert_eq!(lines, expected, "{finished:?}");
    assert!(peak < 160_000, "{peak} KiB");
}

/// Sends half of 16 MiB over each of 64 connections, and asks by another program beside them.
const HALVES: &str = r#"
import os, socket, subprocess
host, port = os.environ['HTTP_PROXY'][7:].rstrip('/').split(':')
def half():
    s = socket.create_connection((host, int(port)))
    length = 16 << 20
    s.sendall(b'POST http://web.test:8080/mcp HTTP/1.1\r\nHost: web.test:8080\r\nContent-Type: application/json\r\n'
        b'Content-Length: %d\r\n\r\n' % length)
    s.setblocking(False)
    sent = 0
    try:
        while sent < length // 2: sent += s.send(bytes(length // 2 - sent))
    except BlockingIOError: pass
    return s
held = [half() for _ in range(64)]
body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_issue"}}'
for _ in range(20):
    words = ['curl', '-sS', '-w', ' %{http_code}', '-H', 'content-type: application/json', '-d', body, 'http://web.test:8080/mcp']
    print(subprocess.run(words, capture_output=True, text=True).stdout)
"#;

#[test]
fn halves_of_large_messages_hold_up_no_other_program() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let policy = mcp(&format!("mcp: {{max_body_bytes: 16777216}}, {TWO_TOOLS}"));
    let program = [HALVES, READY_AND_WAIT].concat();
    let running = Running::start_under(&lab, &policy, &program, 0);
    let peak = peak(&lab, &running);
    let finished = running.finish();
    assert_eq!(finished.ok(), ["hello 200"; 20].join("\n"), "{finished:?}");
    assert!(peak < 320_000, "{peak} KiB");
}

/// Calls a tool with 1 MiB of arguments over each of 200 connections, and keeps them open.
const KEPT: &str = r#"
import http.client, json, os
host, port = os.environ['HTTP_PROXY'][7:].rstrip('/').split(':')
params = {'name': 'get_issue', 'arguments': {'text': 'x' * ((1 << 20) - 200)}}
body = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': params})
def call(connection):
    connection.request('POST', 'http://web.test:8080/mcp', body, {'Content-Type': 'application/json'})
    return connection.getresponse().read()
kept = [http.client.HTTPConnection(host, int(port)) for _ in range(200)]
print({call(connection) for connection in kept}, all(connection.sock for connection in kept))
"#;

#[test]
fn a_connection_that_waits_for_its_next_request_keeps_nothing_of_the_last_message() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let program = [KEPT, READY_AND_WAIT].concat();
    let running = Running::start_under(&lab, &mcp(TWO_TOOLS), &program, 0);
    let peak = peak(&lab, &running);
    let finished = running.finish();
    assert_eq!(finished.ok(), "{b'hello'} True", "{finished:?}");
    assert!(peak < 140_000, "{peak} KiB");
}

#[test]
fn a_secret_in_the_arguments_of_a_tool_is_not_sent() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let token = ["gh", "p_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat();
    let call = |text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"get_issue","arguments":{{"text":"{text}"}}}}}}"#
        )
    };
    let post = |body: &str| {
        format!(
            "curl -sS -w ' %{{http_code}}\\n' -H 'content-type: application/json' -d '{body}' http://web.test:8080/mcp; "
        )
    };
    let finished = lab
        .sandbox(&mcp(TWO_TOOLS))
        .args(&["--leaks", "block"])
        .env("TOKEN", &token)
        .sh(&[post(&call(&token)), post(&call("harmless"))].concat());
    let out = finished.ok();
    assert!(
        out.contains("secret") && out.contains("403"),
        "{finished:?}"
    );
    assert!(out.ends_with("hello 200"), "{finished:?}");
    let seen = String::from_utf8(upstream.seen().concat()).unwrap();
    assert!(!seen.contains(&token), "{seen}");
    assert!(!finished.log.contains(&token), "{}", finished.log);
}

#[test]
fn recorded_messages_are_judged_by_another_policy() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let before = mcp(
        "rules: [{allow: {method: initialize}}, {allow: {method: tools/call, tool: get_issue}}, {allow: {method: \
         resources/read, uri: \"docs://*\"}}]",
    );
    let post = |method: &str, params: &str| {
        format!(
            "curl -p -sS -o /dev/null -H 'content-type: application/json' -d \
             '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{{{params}}}}}' http://web.test:8080/mcp; "
        )
    };
    let asked = [
        post("initialize", ""),
        post(
            "tools/call",
            r#""name":"get_issue","arguments":{"n":"a-value"}"#,
        ),
        post("tools/call", r#""name":"delete_repo""#),
        post("resources/read", r#""uri":"docs://a""#),
        "curl -p -sS -o /dev/null -H 'accept: text/event-stream' http://web.test:8080/mcp"
            .to_owned(),
    ];
    let run = lab
        .sandbox(&before)
        .args(&["--log-format", "json"])
        .sh(&asked.concat());
    assert_eq!(run.code(), 0, "{run:?}");
    let logs = lab.logs().replace("openshell.*", "openshell-ocsf.*");
    let log = lab.file("run.log", lab.shell(&format!("cat {logs}")));
    let replayed = |name: &str, policy: &str| {
        lab.shell(&format!(
            "{} check {} --replay {} 2>&1",
            lab.binary(),
            lab.file(name, policy).display(),
            log.display()
        ))
    };
    let same = replayed("same.yaml", &before);
    assert!(same.contains(" decisions, 0 changes\n"), "{same}");
    let other = before
        .replace("get_issue", "delete_repo")
        .replace("docs://*", "notes://*");
    let changed = replayed("other.yaml", &other);
    for line in [
        "- /usr/bin/curl -> {\"id\":1,\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{\"name\":\"get_issue\"}} \
         web.test:8080/mcp: refused now, request_not_in_rules (1 x)\n",
        "+ /usr/bin/curl -> {\"id\":1,\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{\"name\":\"delete_repo\"}} \
         web.test:8080/mcp: permitted now (1 x)\n",
        "\"params\":{\"uri\":\"docs://a\"}} web.test:8080/mcp: refused now",
        " 3 changes\n",
    ] {
        assert!(changed.contains(line), "{line}: {changed}");
    }
}
