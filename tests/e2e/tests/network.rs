//! Network access of the workload: through the proxy under the policy, and no way past it.

use lab::{Finished, Lab};
use serde_json::Value;

use super::{RAW, connect, policy, python, web};

const GET: &str = "GET / HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n";

fn ask(lab: &Lab, policy: &str, target: &str) -> Finished {
    lab.sandbox(policy)
        .python(RAW, &[&connect(target), &GET.replace("web.test", target)])
}

/// Returns the status line and the body of a refusal.
#[track_caller]
fn refusal(finished: &Finished) -> (String, Value) {
    let (head, body) = finished
        .stdout
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{finished:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().to_owned();
    let headers: Vec<_> = lines.collect();
    assert!(
        headers.contains(&"Content-Type: application/json"),
        "{headers:?}"
    );
    assert!(headers.contains(&"Connection: close"), "{headers:?}");
    assert!(
        headers.contains(&format!("Content-Length: {}", body.len()).as_str()),
        "{headers:?}"
    );
    (status, serde_json::from_str(body).unwrap())
}

/// Sends a CONNECT for `target` and expects a refusal with `code` and exactly one event with it.
#[track_caller]
fn refused(policy: &str, target: &str, code: &str) -> (Value, String) {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let finished = ask(&lab, policy, target);
    let (status, body) = refusal(&finished);
    assert_eq!(
        status.split_once(' ').unwrap().1.split_once(' ').unwrap().1,
        code,
        "{finished:?}"
    );
    assert_eq!(body["reason_code"], code);
    let events = finished.logged(" OCSF NET:");
    assert!(
        events.len() == 1 && events[0].contains(&format!("[code:{code}]")),
        "{events:?}"
    );
    assert_eq!(upstream.seen().len(), 0, "something reached the upstream");
    (body, events[0].to_owned())
}

// Conformance: L4-02, LOG-03.
#[test]
fn what_the_policy_gives_is_reached_and_logged_once() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let finished = ask(&lab, &web(), "web.test:8080");
    assert!(
        finished
            .ok()
            .starts_with("HTTP/1.1 200 Connection Established\r\n\r\nHTTP/1.1 200 OK"),
        "{finished:?}"
    );
    assert!(finished.stdout.ends_with("hello"));
    assert!(upstream.seen()[0].starts_with(b"GET / HTTP/1.1\r\nHost: web.test:8080\r\n"));
    let events = finished.logged(" OCSF NET:");
    let expected = format!(
        " OCSF NET:OPEN [INFO] ALLOWED {}(2) -> web.test:8080 [policy:web engine:opa] sandbox=",
        python()
    );
    assert!(
        events.len() == 2 && events[0].contains(&expected),
        "{events:?}"
    );
    let closed = format!(
        " OCSF NET:CLOSE [INFO] {}(2) -> web.test:8080 [policy:web] [door:connect] [in:",
        python()
    );
    assert!(
        events[1].contains(&closed) && events[1].contains("] [by:"),
        "{events:?}"
    );
}

// Conformance: L4-01, L4-26, LOG-04.
#[test]
fn no_policy_refuses_with_the_line_that_would_permit() {
    let (body, event) = refused(&policy("{}"), "web.test:8080", "no_network_policies");
    assert_eq!(body["error"], "policy_denied");
    assert_eq!(
        body["detail"],
        "CONNECT web.test:8080 not permitted by policy"
    );
    assert_eq!(
        (&body["layer"], &body["host"], &body["port"]),
        (&"l4".into(), &"web.test".into(), &8080.into())
    );
    assert_eq!(body["binary"], python());
    let fix = body["fix"].as_str().unwrap();
    assert!(
        fix.contains("{host: web.test, port: 8080}") && fix.contains(&python()),
        "{fix}"
    );
    assert!(
        event.contains("NET:OPEN [MED] DENIED") && event.contains("[policy:- engine:opa]"),
        "{event}"
    );
    assert!(
        event.contains("[reason:network connections not allowed by policy]"),
        "{event}"
    );
}

// Conformance: L4-03, L4-04, L4-05.
#[test]
fn another_port_host_or_program_is_refused() {
    let (body, _) = refused(&web(), "web.test:8081", "endpoint_not_in_policy");
    assert_eq!(body["nearest_rule"], "web");
    assert_eq!(
        body["fix"],
        "network_policies.web.endpoints: add `- {host: web.test, port: 8081}`"
    );
    refused(&web(), "other.test:8080", "endpoint_not_in_policy");
    let (body, _) = refused(
        &web().replace(&python(), "/usr/bin/curl"),
        "web.test:8080",
        "binary_not_in_policy",
    );
    assert_eq!(
        body["fix"],
        format!(
            "network_policies.web.binaries: add `- {{path: {}}}`",
            python()
        )
    );
}

// Conformance: IPS-01, IPS-04, IPS-08, IPS-09, IPS-10, LOG-05.
#[test]
fn addresses_are_checked_and_never_told() {
    let plain = web().replace(", allowed_ips: [10.99.0.1]", "");
    let (body, event) = refused(&plain, "web.test:8080", "internal_address");
    assert_eq!(
        (&body["error"], &body["layer"]),
        (&"ssrf_denied".into(), &"ssrf".into())
    );
    assert!(
        body["detail"]
            .as_str()
            .unwrap()
            .ends_with("blocked: internal address")
    );
    assert!(!body.to_string().contains("10.99.0.1"), "{body}");
    assert!(
        event.contains("engine:ssrf]") && event.contains("10.99.0.1"),
        "{event}"
    );
    refused(
        &web().replace("10.99.0.1", "10.50.0.0/16"),
        "web.test:8080",
        "address_not_in_allowed_ips",
    );
    for blocked in ["127.0.0.1", "169.254.169.254", "0.0.0.0"] {
        let literal = plain.replace("web.test", blocked);
        refused(
            &literal,
            &format!("{blocked}:8080"),
            "always_blocked_address",
        );
    }
    refused(
        &plain.replace("web.test", "loop.lab.test"),
        "loop.lab.test:8080",
        "always_blocked_address",
    );
    refused(
        &plain.replace("web.test", "nowhere.invalid"),
        "nowhere.invalid:8080",
        "dns_failed",
    );
}

#[test]
fn an_address_is_told_to_the_operator_and_a_name_without_one_is_no_refusal_of_the_policy() {
    let lab = Lab::with_web();
    let endpoints = "{host: web.test, port: 8080}, {host: nowhere.invalid, port: 8080}";
    let policy = policy(&format!(
        "{{web: {{endpoints: [{endpoints}], binaries: [{{path: {}}}]}}}}",
        python()
    ));
    let proposals = lab.folder("out").join("proposals.yaml");
    let run = |target: &str| {
        let sandbox = lab
            .sandbox(&policy)
            .args(&["--proposals", proposals.to_str().unwrap()]);
        sandbox.python(RAW, &[&connect(target)])
    };
    let internal = run("web.test:8080");
    assert!(
        internal.ok().contains("403 internal_address") && !internal.stdout.contains("10.99.0.1"),
        "{internal:?}"
    );
    let expected = format!(
        "openshell-sandbox: refused by the policy:\n  1 x {} -> web.test:8080: internal_address\n      \
         web.test resolves to internal address 10.99.0.1, connection rejected\n      \
         network_policies.web.endpoints: add `allowed_ips` to web.test:8080\n",
        python()
    );
    assert_eq!(internal.stderr, expected);
    let unknown = run("nowhere.invalid:8080");
    let reason = "DNS resolution of nowhere.invalid failed: no such name";
    let expected = format!(
        "openshell-sandbox: permitted, and failed:\n  1 x {} -> nowhere.invalid:8080: dns_failed\n      {reason}\n",
        python()
    );
    assert_eq!(unknown.stderr, expected);
    assert_eq!(
        unknown
            .logged(&format!("[reason:{reason}] [code:dns_failed]"))
            .len(),
        1,
        "{}",
        unknown.log
    );
    assert!(
        std::fs::read_to_string(proposals)
            .unwrap()
            .contains("network_policies: {}")
    );
}

// Conformance: IPS-05, IPS-06, IPS-08, IPS-13.
#[test]
fn addresses_in_the_policy_are_consent() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    for (endpoint, target) in [
        ("{host: 10.99.0.1, port: 8080}", "10.99.0.1:8080"),
        (
            "{port: 8080, allowed_ips: [10.99.0.0/24], resolve: [web.test]}",
            "web.test:8080",
        ),
    ] {
        let policy = policy(&format!(
            "{{web: {{endpoints: [{endpoint}], binaries: [{{path: {}}}]}}}}",
            python()
        ));
        assert!(
            ask(&lab, &policy, target).ok().ends_with("hello"),
            "{endpoint}"
        );
        let other = ask(&lab, &policy, &target.replace("8080", "8081"));
        assert_eq!(
            refusal(&other).0,
            "HTTP/1.1 403 endpoint_not_in_policy",
            "the port counts"
        );
    }
    let broad = ask(
        &lab,
        &web().replace("10.99.0.1", "10.0.0.0/8"),
        "web.test:8080",
    );
    assert!(broad.ok().ends_with("hello"), "{broad:?}");
    assert_eq!(
        broad
            .logged("CONFIG:VALIDATED [MED] L7 policy validation warning")
            .len(),
        1,
        "{}",
        broad.log
    );
}

/// Answers every query for an IPv4 address with 10.99.0.1 and a TTL of `argv[1]` seconds, and
/// writes the queried names to the file `argv[2]`.
const NAME_SERVER: &str = r"
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('198.51.100.53', 53))
print('ready', flush=True)
while True:
    question, client = s.recvfrom(512)
    end = question.index(b'\0', 12) + 5
    kind = struct.unpack('>H', question[end - 4:end - 2])[0]
    answers = 1 if kind == 1 else 0
    head = question[:2] + struct.pack('>HHHHH', 0x8180, 1, answers, 0, 0)
    record = struct.pack('>HHHIH', 0xc00c, 1, 1, int(sys.argv[1]), 4) + bytes([10, 99, 0, 1])
    if kind == 1: open(sys.argv[2], 'a').write('asked\n')
    s.sendto(head + question[12:end] + record * answers, client)
";

/// Connects to `argv[1]` three times, `argv[2]` seconds apart.
const THRICE: &str = r"
import os, socket, sys, time
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
for n in range(3):
    s = socket.create_connection((host, int(port)), 20)
    s.sendall(f'CONNECT {sys.argv[1]} HTTP/1.1\r\n\r\n'.encode())
    print(s.recv(4096).split(b'\r\n')[0].decode()[9:12])
    time.sleep(float(sys.argv[2]))
";

#[test]
fn a_broad_range_leads_neither_to_the_supervisor_nor_into_a_sandbox() {
    let lab = Lab::with_web();
    let endpoint = "{ports: [80, 3128], allowed_ips: [10.0.0.0/8]}";
    let policy = policy(&format!(
        "{{web: {{endpoints: [{endpoint}], binaries: [{{path: {}}}]}}}}",
        python()
    ));
    // Where the proxy dials, these addresses are not the sandbox's.
    for target in ["10.200.0.1:3128", "10.200.0.1:80", "10.200.0.2:80"] {
        assert_eq!(
            refusal(&ask(&lab, &policy, target)).0,
            "HTTP/1.1 502 upstream_unreachable",
            "{target}"
        );
    }
}

#[test]
fn names_are_remembered_for_as_long_as_their_servers_say() {
    for (seconds, pause, questions) in [("60", "0", 1), ("1", "1.3", 3)] {
        let lab = Lab::new(&[("198.51.100.53", "ns.test"), ("10.99.0.1", "web.test")]);
        let _upstream = lab.http("10.99.0.1:8080");
        let asked = lab.folder("asked").join("log");
        let _server = lab.program(&[
            "/usr/bin/python3",
            "-c",
            NAME_SERVER,
            seconds,
            asked.to_str().unwrap(),
        ]);
        let policy = web().replace("web.test", "named.example");
        let finished = lab
            .sandbox(&policy)
            .python(THRICE, &["named.example:8080", pause]);
        assert_eq!(finished.ok(), "200\n200\n200", "{}", finished.log);
        assert_eq!(
            std::fs::read_to_string(asked).unwrap().lines().count(),
            questions,
            "{seconds} seconds"
        );
    }
}

#[test]
fn an_address_that_does_not_answer_holds_nobody_up_if_another_one_does() {
    let lab = Lab::new(&[("10.99.0.1", "two.test")]);
    let _upstream = lab.http("10.99.0.1:8080");
    // The first address has no host.
    let hosts = lab.file("two", "10.99.0.3 two.test\n10.99.0.1 two.test\n");
    let made = format!(
        "mount --bind {} /etc/hosts; ip link add nobody type veth peer name nowhere; ip link set \
         nobody up; ip link set nowhere up; ip route add 10.99.0.3 dev nobody; ip neigh add \
         10.99.0.3 lladdr 02:00:00:00:00:01 dev nobody",
        hosts.display()
    );
    assert_eq!(lab.shell(&made), "");
    let policy = web()
        .replace("web.test", "two.test")
        .replace("10.99.0.1", "10.99.0.0/24");
    let start = std::time::Instant::now();
    assert!(ask(&lab, &policy, "two.test:8080").ok().ends_with("hello"));
    assert!(
        start.elapsed() < std::time::Duration::from_secs(8),
        "a quarter of a second, and what a busy machine adds"
    );
}

#[test]
fn without_name_servers_the_hosts_file_is_asked_and_the_rest_refused() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let empty = lab.file("empty", "");
    assert_eq!(
        lab.shell(&format!(
            "mount --bind {} /etc/resolv.conf",
            empty.display()
        )),
        ""
    );
    assert!(ask(&lab, &web(), "web.test:8080").ok().ends_with("hello"));
    let finished = ask(
        &lab,
        &web().replace("web.test", "nowhere.invalid"),
        "nowhere.invalid:8080",
    );
    assert_eq!(refusal(&finished).0, "HTTP/1.1 403 dns_failed");
    assert!(
        finished
            .stderr
            .contains("names are looked up only in /etc/hosts"),
        "{}",
        finished.stderr
    );
}

#[test]
fn what_proves_the_fence_is_there_while_a_sandbox_runs() {
    let lab = Lab::with_web();
    let started = lab.sandbox(&policy("{}")).start(&["sleep", "60"]);
    let running = || lab.log().contains("PROC:LAUNCH");
    lab::wait_until(running, || "it did not start".to_owned());
    // Listeners on 10.200.0.1 in the landing: the proxy, the name server, and the one that each
    // command's proof tries to reach.
    let listening = format!(
        "for fd in /proc/{}/fd/*; do case $(readlink $fd) in net:*) nsenter --net=$fd cat \
         /proc/net/tcp;; esac; done | awk '$4 == \"0A\" && $2 ~ /^0100C80A:/ {{print $2}}' | sort \
         -u | wc -l",
        started.pid()
    );
    assert_eq!(lab.shell(&listening), "3\n");
    drop(started);
}

// Conformance: IPS-15.
#[test]
fn an_upstream_that_is_not_there_is_no_200() {
    let lab = Lab::with_web();
    let finished = ask(&lab, &web(), "web.test:8080");
    let (status, body) = refusal(&finished);
    assert_eq!(status, "HTTP/1.1 502 upstream_unreachable");
    assert_eq!(body["detail"], "connection to web.test:8080 failed");
    assert_eq!(finished.logged(" OCSF NET:").len(), 1);
}

// Conformance: L4-24.
#[test]
fn hosts_in_odd_notations_and_without_a_port_are_refused() {
    for target in [
        "2130706433:8080",
        "0x7f.1:8080",
        "127.1:8080",
        "0177.0.0.1:8080",
        "web.test:0",
        "web.test:+8080",
        "web.test:08080",
        "http://web.test:8080",
        "web.test:99999",
        "web.test",
        ":8080",
        "user@web.test:8080",
        "web..test:8080",
        "[::1:8080",
    ] {
        let lab = Lab::with_web();
        let upstream = lab.http("10.99.0.1:8080");
        let finished = ask(&lab, &web(), target);
        assert!(
            finished.stdout.starts_with("HTTP/1.1 400 "),
            "{target}: {finished:?}"
        );
        assert!(upstream.seen().is_empty(), "{target}");
        assert_eq!(
            finished.logged("[code:bad_request]").len(),
            1,
            "L4-24 {target}: {}",
            finished.log
        );
    }
}

// Conformance: L4-23.
#[test]
fn a_head_that_is_too_large_or_no_http_is_refused_and_the_proxy_goes_on() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let long = format!(
        "CONNECT web.test:8080 HTTP/1.1\\r\\nX: {}\\r\\n\\r\\n",
        "x".repeat(9000)
    );
    let cases = [
        (long.as_str(), "431"),
        ("\\x16\\x03\\x01\\x00\\x05hello\\r\\n\\r\\n", "400"),
        ("GET / HTTP/1.1\\r\\n\\r\\n", "400"),
    ];
    for (head, status) in cases {
        let finished = lab.sandbox(&web()).python(RAW, &[head, GET]);
        assert!(
            finished.stdout.starts_with(&format!("HTTP/1.1 {status} ")),
            "{finished:?}"
        );
    }
    assert!(upstream.seen().is_empty());
}

#[test]
fn bytes_behind_a_connect_head_reach_the_upstream_when_it_is_permitted_and_only_then() {
    let lab = Lab::with_web();
    let upstream = lab.echo("10.99.0.1:8080".parse().unwrap());
    let early = format!("{}early-", connect("web.test:8080"));
    let finished = lab.sandbox(&web()).python(RAW, &[&early, "late"]);
    assert!(
        finished.ok().ends_with("\r\n\r\nearly-late"),
        "{finished:?}"
    );
    let finished = lab.sandbox(&policy("{}")).python(RAW, &[&early, "late"]);
    assert!(finished.stdout.starts_with("HTTP/1.1 403 "), "{finished:?}");
    assert_eq!(upstream.seen().len(), 1);
}

// Conformance: L4-14, L4-16.
#[test]
fn ancestors_count_and_arguments_do_not() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let shell = std::fs::canonicalize("/bin/sh")
        .unwrap()
        .display()
        .to_string();
    let by_shell = web().replace(&python(), &shell);
    let script = format!(
        "/usr/bin/python3 -c \"$RAW\" '{}' '{GET}'; true",
        connect("web.test:8080")
    );
    let run = |policy: &str| lab.sandbox(policy).env("RAW", RAW).sh(&script);
    assert!(
        run(&by_shell).ok().ends_with("hello"),
        "the shell is its ancestor"
    );
    let by_argument = web().replace(&python(), "/sandbox/tool.py");
    let finished = lab
        .sandbox(&by_argument)
        .python(RAW, &[&connect("web.test:8080"), "/sandbox/tool.py"]);
    assert!(finished.stdout.starts_with("HTTP/1.1 403 "), "{finished:?}");
}

#[test]
fn the_supervisor_and_its_parents_are_nobodys_ancestors() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let own = std::env::current_exe().unwrap().display().to_string();
    let binary = lab.program_path().display().to_string();
    for path in [own, binary] {
        let finished = ask(&lab, &web().replace(&python(), &path), "web.test:8080");
        assert!(
            finished.stdout.starts_with("HTTP/1.1 403 "),
            "{path}: {finished:?}"
        );
    }
}

/// Copies Python to /tmp/…/tool, runs a program by it, replaces the copy by `replace`, and
/// connects.
fn replaced(replace: &str) -> Finished {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let folder = lab.folder("tools");
    let tool = folder.join("tool").display().to_string();
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{}]}}\n",
        web().replace(&python(), &tool),
        folder.display()
    );
    let script = format!(
        "cp {} {tool}; {tool} -c \"$RAW\" '{1}' '{GET}'; {replace}; {tool} -c \"$RAW\" '{1}' \
         '{GET}'",
        python(),
        connect("web.test:8080")
    );
    lab.sandbox(&policy)
        .env("RAW", RAW)
        .env("PYTHONHOME", "/usr")
        .env("TOOL", &tool)
        .sh(&script)
}

// Conformance: TOF-01, TOF-02.
#[test]
fn a_program_that_was_replaced_is_refused() {
    let finished = replaced("cp $TOOL $TOOL.new; echo >> $TOOL.new; mv $TOOL.new $TOOL");
    assert!(finished.stdout.contains("hello"), "{finished:?}");
    assert!(
        finished.stdout.contains("403 caller_changed"),
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("Binary integrity violation").len(),
        1,
        "{}",
        finished.log
    );
}

// Conformance: TOF-03.
#[test]
fn the_same_bytes_are_the_same_program() {
    let finished = replaced("cp $TOOL $TOOL.new; mv $TOOL.new $TOOL; touch $TOOL");
    assert_eq!(finished.stdout.matches("hello").count(), 2, "{finished:?}");
}

// Conformance: TOF-04.
#[test]
fn an_ancestor_that_was_replaced_is_refused_and_named() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let folder = lab.folder("tools");
    let tool = folder.join("tool").display().to_string();
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{}]}}\n",
        web(),
        folder.display()
    );
    let parent = format!(
        "import subprocess, sys; subprocess.run(['{}', '-c'] + sys.argv[1:])",
        python()
    );
    let ask = format!(
        "{tool} -c \"{parent}\" \"$RAW\" '{}' '{GET}'",
        connect("web.test:8080")
    );
    let script = format!(
        "cp {} {tool}; {ask}; cp {tool} {tool}.new; echo >> {tool}.new; mv {tool}.new {tool}; \
         {ask}",
        python()
    );
    let finished = lab
        .sandbox(&policy)
        .env("RAW", RAW)
        .env("PYTHONHOME", "/usr")
        .sh(&script);
    assert!(
        finished.stdout.contains("hello") && finished.stdout.contains("403 caller_changed"),
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("ancestor integrity check failed for").len(),
        1,
        "{}",
        finished.log
    );
}

#[test]
fn a_thread_has_no_descriptors_of_its_own() {
    let lab = Lab::with_web();
    let program = "
import ctypes, threading
libc = ctypes.CDLL(None, use_errno=True)
def hide():
    print(libc.unshare(0x400), ctypes.get_errno(), libc.close_range(100, 200, 2), ctypes.get_errno())
thread = threading.Thread(target=hide)
thread.start(); thread.join()
";
    assert_eq!(
        lab.sandbox(&policy("{}")).python(program, &[]).ok(),
        "-1 1 -1 1"
    );
}

// Conformance: NET-01.
#[test]
fn the_workload_sees_loopback_and_one_link() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&policy("{}"))
        .sh("ip -br addr | awk '{print $1, $3}'; ip route | head -1");
    assert_eq!(
        finished.ok().replace("eth0@if", "eth0 if").lines().count(),
        3,
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("10.200.0.2/24")
            && finished.stdout.contains("default via 10.200.0.1")
    );
}

// Conformance: NET-02, NET-03, NET-04.
#[test]
fn nothing_is_reached_past_the_proxy() {
    let lab = Lab::with_web();
    let _beside = lab.http("10.99.0.1:8080");
    let program = "
import errno, os, socket, time
supervisor = os.environ['HTTPS_PROXY'][7:].split(':')[0]
def attempt(kind, address, family=socket.AF_INET):
    s = socket.socket(family, kind); s.settimeout(10); start = time.monotonic()
    try:
        s.connect(address); s.send(b'x'); s.send(b'x'); result = 'reached'
    except OSError as error: result = errno.errorcode[error.errno] if error.errno else 'timeout'
    return result if time.monotonic() - start < 1 else 'slow ' + result
stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
print(attempt(stream, ('198.51.100.77', 443)), attempt(stream, (supervisor, 22)), attempt(stream, ('10.99.0.1', 8080)))
print(attempt(datagram, ('198.51.100.77', 53)), attempt(datagram, (supervisor, 54)), attempt(datagram, (supervisor, 3128)))
print(attempt(stream, ('2001:db8::1', 443), socket.AF_INET6))
own = socket.create_server(('127.0.0.1', 0))
print(attempt(stream, own.getsockname()))
";
    let finished = lab.sandbox(&policy("{}")).python(program, &[]);
    let expected =
        "ECONNREFUSED ECONNREFUSED ECONNREFUSED\nEPERM EPERM EPERM\nECONNREFUSED\nreached";
    assert_eq!(finished.ok(), expected);
    // Counterpart: with an open network the same acts succeed.
    let open = lab
        .sandbox(&policy("{}"))
        .args(&["--network", "allow"])
        .env("HTTPS_PROXY_", "")
        .python(
            "import socket; s = socket.create_connection(('10.99.0.1', 8080)); print('reached')",
            &[],
        );
    assert_eq!(open.ok(), "reached");
}

#[test]
fn without_a_network_there_are_no_internet_sockets() {
    let lab = Lab::with_web();
    let program = "
import socket
for family in (socket.AF_INET, socket.AF_INET6):
    try: socket.socket(family, socket.SOCK_STREAM); print('open')
    except PermissionError: print('refused')
socket.socketpair(); print('local')
";
    let finished = lab
        .sandbox(&policy("{}"))
        .args(&["--network", "block"])
        .python(program, &[]);
    assert_eq!(finished.ok(), "refused\nrefused\nlocal");
}

#[test]
fn a_program_that_is_not_listed_takes_the_network_from_no_listed_one() {
    let lab = Lab::with_web();
    let _echo = lab.echo("10.99.0.1:8080".parse().unwrap());
    // Silent connections of another program, by the proxy's own door and by that of a name, until
    // no more are taken.
    let silent = "
import os, resource, shutil, socket, subprocess, sys
if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(12000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    door = socket.create_connection((sys.argv[1], int(sys.argv[2]))).getpeername()
    held = []
    while len(held) < 4400:
        try: held.append(socket.create_connection(door, 5))
        except OSError: break
    print(len(held), flush=True)
    sys.stdin.read()
    sys.exit()
proxy = os.environ['HTTPS_PROXY'][7:].split(':')
other = shutil.copy(os.path.realpath(sys.executable), './other')
load = subprocess.Popen([other, '-c', open('/proc/self/cmdline', 'rb').read().split(b'\\0')[2].decode()] + proxy, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert int(load.stdout.readline()) > 100
for n in range(20):
    s = socket.create_connection((proxy[0], int(proxy[1])), 20)
    s.sendall(b'CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n')
    print(s.recv(4096).split(b'\\r\\n')[0].decode())
load.communicate()
";
    let folder = lab.folder("work").display().to_string();
    let finished = lab
        .sandbox(&web())
        .args(&["--workdir", &folder])
        .python(silent, &[]);
    assert_eq!(
        finished.ok(),
        "HTTP/1.1 200 Connection Established\n"
            .repeat(20)
            .trim_end(),
        "{finished:?}"
    );
}

// Conformance: L4-25.
#[test]
fn fifty_at_once_get_their_own_verdicts() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let program = "
import os, socket, threading
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
verdicts = {}
def ask(n):
    s = socket.create_connection((host, int(port)))
    s.sendall(b'CONNECT web.test:%d HTTP/1.1\\r\\n\\r\\n' % (8080 + n % 2))
    verdicts[n] = s.recv(4096).split(b' ')[1]
threads = [threading.Thread(target=ask, args=(n,)) for n in range(50)]
[t.start() for t in threads]; [t.join() for t in threads]
print(all(verdicts[n] == (b'200', b'403')[n % 2] for n in range(50)))
";
    let finished = lab.sandbox(&web()).python(program, &[]);
    assert_eq!(finished.ok(), "True");
    assert_eq!(
        finished.logged(" OCSF NET:OPEN").len(),
        50,
        "one event a decision"
    );
    assert_eq!(
        finished.logged(" OCSF NET:CLOSE").len(),
        25,
        "and one an end"
    );
}

// Conformance: NET-01.
#[test]
fn a_process_of_the_host_has_no_way_to_the_proxy_nor_into_a_sandbox() {
    let lab = Lab::with_web();
    let network =
        "ip -d link; ip addr; ip route show table all; ip -6 route show table all; ip neigh";
    let before = lab.shell(network);
    let folder = lab.folder("ready");
    let script = "python3 -m http.server 8000 >/dev/null 2>&1 & until curl -sf -o /dev/null \
                  http://127.0.0.1:8000; do sleep 0.05; done; touch ready; sleep 60";
    let started = lab
        .sandbox(&policy("{}"))
        .args(&["--workdir", folder.to_str().unwrap()])
        .start(&["sh", "-c", script]);
    lab::wait_until(
        || folder.join("ready").exists(),
        || "the server did not start".to_owned(),
    );
    assert_eq!(
        lab.shell(network),
        before,
        "the host has no link, address, route or neighbour more"
    );
    let reach = "for to in 10.200.0.1:3128 10.200.0.2:8000; do curl -s -m 5 http://$to >/dev/null \
                 && echo reached $to; done";
    assert_eq!(lab.shell(reach), "");
    drop(started);
}

#[test]
fn connections_that_exhaust_the_supervisor_lose_neither_refusals_nor_the_end() {
    let lab = Lab::with_web();
    let _upstream = lab.echo("10.99.0.1:8080".parse().unwrap());
    let program = "
import os, signal, socket, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
done, report = os.pipe()
for child in range(4):
    if os.fork(): continue
    held = []
    for n in range(25):
        s = socket.create_connection((host, int(port))); s.settimeout(0.2); held.append(s)
        try:
            s.sendall(b'CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n'); s.recv(4096)
        except OSError: pass
    os.write(report, b'x')
    signal.pause()
while len(os.read(done, 1)) and (child := child - 1) >= 0: pass
sys.exit(7)
";
    let file = lab.file("holder.py", program);
    let data = lab.file(
        "policy.yaml",
        format!(
            "{}filesystem_policy: {{read_only: [{}]}}\n",
            web(),
            file.display()
        ),
    );
    let script = format!(
        "ulimit -n 64; {} --policy-data {} -- /usr/bin/python3 {}; echo $?",
        lab.binary(),
        data.display(),
        file.display()
    );
    assert_eq!(lab.shell(&script).lines().last(), Some("7"));
    let shown = lab.shell(&script.replace("ulimit -n 64", "ulimit -n 63"));
    assert!(
        shown.contains("the hard limit of open files is 63, and a sandbox needs 64"),
        "{shown}"
    );
}

/// Bypasses the proxy by TCP and by UDP, keeps its sockets until `argv[1]` exists, if given, and
/// ends.
const BYPASS: &str = "
import os, socket, sys, time
held = []
for kind, address in ((1, ('198.51.100.77', 443)), (2, ('198.51.100.77', 53)), (2, ('198.51.100.77', 123))):
    s = socket.socket(socket.AF_INET, kind)
    held.append(s)
    try:
        if address[1] == 123: s.sendto(b'x', address)
        else: s.connect(address); s.send(b'x')
    except OSError: pass
while sys.argv[1:] and not os.path.exists(sys.argv[1]): time.sleep(0.01)
";

// Conformance: NET-07.
#[test]
fn attempts_to_go_past_the_proxy_are_reported_with_the_program_where_it_can_be_had() {
    let lab = Lab::with_web();
    let folder = lab.folder("reported");
    let go = folder.join("go");
    let sandbox = lab
        .sandbox(&policy("{}"))
        .args(&["--workdir", folder.to_str().unwrap()]);
    let started = sandbox.start(&["/usr/bin/python3", "-c", BYPASS, go.to_str().unwrap()]);
    let log = || lab.log();
    let python = python();
    let expected = [
        format!(
            "NET:REFUSE [MED] DENIED {python}(2) -> 198.51.100.77:443 [policy:bypass-detect \
             engine:nftables] [reason:direct connection bypassed HTTP CONNECT proxy] \
             [code:direct_connection]"
        ),
        format!("NET:REFUSE [MED] DENIED {python}(2) -> 198.51.100.77:53 "),
        // A datagram without a connection has no program.
        "NET:REFUSE [MED] DENIED -(0) -> 198.51.100.77:123 ".to_owned(),
        format!(
            "FINDING:BLOCKED [MED] \"Proxy Bypass Detected\" [confidence:high] BYPASS_DETECT \
             198.51.100.77:53 proto=udp binary={python} binary_pid=2 ancestors=- action=reject \
             reason=direct connection bypassed HTTP CONNECT proxy hint=DNS queries should"
        ),
    ];
    lab::wait_until(|| expected.iter().all(|line| log().contains(line)), log);
    assert_eq!(
        log().matches("NET:REFUSE").count(),
        3,
        "the fence's own proof is no attempt: {}",
        log()
    );
    std::fs::write(go, "").unwrap();
    let finished = started.wait();
    let summary = format!("1 x {python} -> 198.51.100.77:53: direct_connection");
    assert!(finished.stderr.contains(&summary), "{}", finished.stderr);
}

#[test]
fn attempts_right_before_the_end_are_reported_too() {
    let lab = Lab::with_web();
    let finished = lab.sandbox(&policy("{}")).python(BYPASS, &[]);
    assert_eq!(finished.logged("NET:REFUSE").len(), 3, "{}", finished.log);
}

#[test]
fn a_refusal_is_summed_up_at_the_end_with_the_line_that_would_allow_it() {
    let lab = Lab::with_web();
    let script = "for n in 1 2; do curl -s https://web.test:8080; done; exit 4";
    let finished = lab.sandbox(&policy("{}")).sh(script);
    let expected = "openshell-sandbox: refused by the policy:\n  2 x /usr/bin/curl -> \
                    web.test:8080: no_network_policies\n      network_policies: add `NAME: \
                    {endpoints: [{host: web.test, port: 8080}], binaries: [{path: \
                    /usr/bin/curl}]}`\n";
    assert_eq!((finished.code(), finished.stderr.as_str()), (4, expected));
    let quiet = lab
        .sandbox(&policy("{}"))
        .args(&["--log-level", "error"])
        .sh(script);
    assert_eq!(quiet.stderr, "");
}

/// Opens `argv[1]` connections to the proxy and keeps them. Prints the decision on a CONNECT that
/// no policy permits meanwhile, and whether a permitted one succeeds within five seconds after they
/// are closed.
const CROWD: &str = "
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
def ask(target):
    s = socket.create_connection((host, int(port)), 2)
    try:
        s.sendall(b'CONNECT ' + target + b' HTTP/1.1\\r\\n\\r\\n')
        return s.recv(4096).split(b'\\r\\n')[0].decode()
    except OSError: return ''
print(ask(b'web.test:8080'))
held = [socket.create_connection((host, int(port)), 20) for n in range(int(sys.argv[1]))]
print('permitted' if ' 200 ' in ask(b'web.test:8081') else 'refused')
for s in held: s.close()
start = time.monotonic()
while ' 200 ' not in ask(b'web.test:8080'): pass
print('again', time.monotonic() - start < 5)
";

#[test]
fn five_thousand_connections_are_refused_and_the_proxy_serves_at_once_when_they_are_gone() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let finished = lab.sandbox(&web()).python(CROWD, &["5000"]);
    assert_eq!(
        finished.ok(),
        "HTTP/1.1 200 Connection Established\nrefused\nagain True"
    );
}

#[test]
fn a_supervisor_that_runs_out_of_descriptors_serves_at_once_when_it_has_some() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let file = lab.file("crowd.py", CROWD);
    let data = lab.file(
        "policy.yaml",
        format!(
            "{}filesystem_policy: {{read_only: [{}]}}\n",
            web(),
            file.display()
        ),
    );
    // The workload has nearly the same limit, and uses fewer descriptors for other purposes.
    let script = format!(
        "ulimit -n 200; {} --policy-data {} -- /usr/bin/python3 {} 180; echo $?",
        lab.binary(),
        data.display(),
        file.display()
    );
    let printed = lab.shell(&script);
    assert!(
        printed.contains("Too many open files"),
        "it ran out: {printed}"
    );
    let said: Vec<_> = printed
        .lines()
        .filter(|line| ["refused", "again True", "0"].contains(line))
        .collect();
    assert_eq!(said, ["refused", "again True", "0"], "{printed}");
}

#[test]
fn a_policy_of_no_hosts_has_loopback_and_no_network_has_none() {
    let lab = Lab::with_web();
    let program = "
import socket
try:
    server = socket.create_server(('127.0.0.1', 0))
    socket.create_connection(server.getsockname())
    print('connected')
except PermissionError: print('refused')
";
    for (mode, expected) in [("proxy", "connected"), ("block", "refused")] {
        let finished = lab
            .sandbox(&policy("{}"))
            .args(&["--network", mode])
            .python(program, &[]);
        assert_eq!(finished.ok(), expected, "{mode}");
    }
}
