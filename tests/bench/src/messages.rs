//! Costs of judging messages of MCP, to the same requests under rules for requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use lab::Lab;

use super::client::{Connection, TARGET, dial, median_of, timed, wait};
use super::results::{self, MIB, MICRO};
use super::{host, inside, pairs, policy_with, policy_with_programs, resident};

/// A policy with rules for requests.
fn requests() -> String {
    let rules = "{allow: {method: POST, path: \"/**\"}}";
    policy_with(
        10,
        &format!("protocol: rest, enforcement: enforce, rules: [{rules}]"),
    )
}

/// A policy with `rules` for messages, and further `keys`.
fn messages(rules: &str, keys: &str) -> String {
    policy_with(
        10,
        &format!("protocol: mcp, enforcement: enforce, {keys}rules: [{rules}]"),
    )
}

/// Rules for `count` tools, of which one is called, and with a condition on its arguments if asked for.
fn tools(count: usize, has_condition: bool) -> String {
    let condition = if has_condition {
        ", arguments: {n: {range: [0, 1000000]}, text: {glob: \"x**\"}}"
    } else {
        ""
    };
    let others = (1..count).map(|n| format!("{{allow: {{method: tools/call, tool: tool_{n}}}}}, "));
    let others: String = others.collect();
    format!("{others}{{allow: {{method: tools/call, tool: called{condition}}}}}")
}

/// Calls of a tool with this many bytes, to requests with the same bodies.
pub(crate) fn calls(name: &str, bytes: usize) {
    let (lab, _server) = host();
    let task = ["posts", "2000", &bytes.to_string(), "same"];
    let [requests, messages] = [requests(), messages(&tools(1, false), "")];
    pairs(
        name,
        MICRO,
        || inside(&lab, &requests, &task),
        || inside(&lab, &messages, &task),
    );
}

/// Calls with other arguments each time, which a rule has conditions on, to requests for other paths.
pub(crate) fn conditions(name: &str) {
    let (lab, _server) = host();
    let [requests, messages] = [requests(), messages(&tools(1, true), "")];
    pairs(
        name,
        MICRO,
        || inside(&lab, &requests, &["posts", "2000", "1024", "paths"]),
        || inside(&lab, &messages, &["posts", "2000", "1024", "arguments"]),
    );
}

/// Calls under a thousand rules, to those under ten.
pub(crate) fn rules(name: &str) {
    let (lab, _server) = host();
    let task = ["posts", "2000", "1024", "same"];
    let [few, many] = [10, 1000].map(|count| messages(&tools(count, false), ""));
    pairs(
        name,
        MICRO,
        || inside(&lab, &few, &task),
        || inside(&lab, &many, &task),
    );
}

/// A list of 200 tools, of which the client sees half, to the same one whole.
pub(crate) fn lists(name: &str) {
    let (lab, _server) = host();
    let rules = "{allow: {method: tools/list}}, {allow: {method: tools/call, tool: \"even_*\"}}";
    let whole = messages(rules, "mcp: {filter_lists: false}, ");
    let filtered = messages(rules, "");
    let task = ["lists", "500"];
    pairs(
        name,
        MICRO,
        || inside(&lab, &whole, &task),
        || inside(&lab, &filtered, &task),
    );
}

/// The delay of events of a tool's answer, to that under rules for requests.
pub(crate) fn events(name: &str) {
    let (lab, _server) = host();
    let [requests, messages] = [requests(), messages(&tools(1, false), "")];
    let task = ["call-events", "500"];
    pairs(
        name,
        MICRO,
        || inside(&lab, &requests, &task),
        || inside(&lab, &messages, &task),
    );
}

/// The number of programs that hold half of a body, and of their connections.
const PROGRAMS: usize = 8;
const HALVES: usize = 125;

/// Memory of the supervisor while programs hold half of their bodies, above that of one at rest.
pub(crate) fn halves(name: &str) {
    let (lab, _server) = host();
    let programs: Vec<_> = (0..PROGRAMS).map(|n| copied(&lab, n)).collect();
    let rules = tools(1, false);
    let endpoint = format!("protocol: mcp, enforcement: enforce, rules: [{rules}]");
    let policy = policy_with_programs(10, &endpoint, &programs);
    let rest = resident(&lab, &policy, &["waiting", "100"]);
    let names: Vec<_> = programs
        .iter()
        .map(|program| program.to_str().unwrap())
        .collect();
    let held = resident(&lab, &policy, &[&["halves"], names.as_slice()].concat());
    results::figure(name, (held - rest) / 1024.0, MIB);
}

/// Copies this program, so that its copy is another one for policies.
fn copied(lab: &Lab, number: usize) -> PathBuf {
    let copy = lab.folder("programs").join(format!("client-{number}"));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    copy
}

/// The body of a call with this many bytes; `n` is an argument.
fn call(bytes: usize, n: usize) -> Vec<u8> {
    let begin = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"called","arguments":{{"n":{n},"text":""#
    );
    let end = r#""}}}"#;
    let text = "x".repeat(bytes.saturating_sub(begin.len() + end.len()));
    format!("{begin}{text}{end}").into_bytes()
}

/// Posts calls over one connection: the same one, one to another path each time, or with other
/// arguments. Returns the median of their times.
pub(crate) fn posts(words: &[String]) -> f64 {
    let [count, bytes] = [1, 2].map(|index| words[index].parse::<usize>().unwrap());
    let mut connection = Connection::new(dial(TARGET));
    let same = call(bytes, 0);
    connection.post("/mcp", &same);
    let mut times = Vec::new();
    for n in 0..count {
        let (path, body) = match words[3].as_str() {
            "paths" => (format!("/mcp/{n}"), same.clone()),
            "arguments" => ("/mcp".to_owned(), call(bytes, n)),
            _ => ("/mcp".to_owned(), same.clone()),
        };
        times.push(timed(|| connection.post(&path, &body)).as_secs_f64());
    }
    median_of(times)
}

/// Asks for lists of tools over one connection. Returns the median of their times.
pub(crate) fn listed(count: usize) -> f64 {
    let mut connection = Connection::new(dial(TARGET));
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let mut times = Vec::new();
    for _ in 0..count {
        times.push(timed(|| connection.post("/list", body)).as_secs_f64());
    }
    median_of(times)
}

/// The answer to a request for the list of 200 tools, 150 KiB.
pub(crate) fn list() -> String {
    let tool = |n: usize| {
        let name = if n.is_multiple_of(2) { "even" } else { "odd" };
        let text = "what it does and how to use it ".repeat(21);
        format!(
            r#"{{"name":"{name}_{n}","description":"{text}","inputSchema":{{"type":"object","properties":{{"q":{{"type":"string"}}}}}}}}"#
        )
    };
    let tools: Vec<_> = (0..200).map(tool).collect();
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{}]}}}}"#,
        tools.join(",")
    )
}

/// Starts `programs`, each of which opens connections and sends half of a body over each of them, and
/// waits.
pub(crate) fn hold_halves(programs: &[String]) {
    let mut running = Vec::new();
    for program in programs {
        let mut child = std::process::Command::new(program)
            .args(["client", "half"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 6];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        running.push(child);
    }
    wait();
    for mut child in running {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}

/// Sends half of a body of 1 MiB over each of many connections, and waits.
pub(crate) fn half() {
    let body = call(1 << 20, 0);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {TARGET}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let connections: Vec<TcpStream> = (0..HALVES)
        .map(|_| {
            let mut stream = dial(TARGET);
            stream.write_all(head.as_bytes()).unwrap();
            // What the proxy does not read yet stays in the sockets.
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(&body[..body.len() / 2]);
            stream
        })
        .collect();
    wait();
    drop(connections);
}
