//! Requests inside a connection, each judged on its own: allowed requests reach the upstream as
//! judged, and no others do.

use lab::{Finished, Lab, Upstream};

use super::origin::Origin;
use super::{connect, web};

/// A Python program: for each argument, opens a tunnel to web.test:8080, sends the argument and
/// ends its output; prints the statuses received, one line a tunnel, and the bytes after the last
/// head if `BODY` is set.
const TUNNELS: &str = r#"
import os, re, socket, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
unescape = lambda text: text.encode('latin-1').decode('unicode_escape').encode('latin-1')
for argument in sys.argv[1:]:
    s = socket.create_connection((host, int(port)))
    s.settimeout(20)
    s.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
    out = b''
    while b'\r\n\r\n' not in out: out += s.recv(65536)
    head, out = out.split(b'\r\n\r\n', 1)
    assert b' 200 ' in head, head
    s.sendall(unescape(argument))
    s.shutdown(socket.SHUT_WR)
    try:
        while data := s.recv(65536): out += data
    except (ConnectionError, TimeoutError) as error: out += b'HTTP/1.1 ' + type(error).__name__.encode()
    print(' '.join(status.decode() for status in re.findall(rb'HTTP/1\.1 (\w+)', out)) or 'nothing', flush=True)
    if 'BODY' in os.environ: print(out.decode('latin-1'))
"#;

/// Returns the policy `web` with `rules` for requests.
fn judged(rules: &str) -> String {
    web().replace(
        "port: 8080,",
        &format!("port: 8080, protocol: rest, enforcement: enforce, {rules},"),
    )
}

fn rule(rule: &str) -> String {
    judged(&format!("rules: [{{allow: {rule}}}]"))
}

/// Returns a request with the request line `line`, without a body.
fn request(line: &str) -> String {
    format!("{line} HTTP/1.1\\r\\nHost: web.test:8080\\r\\n\\r\\n")
}

fn ask(lab: &Lab, policy: &str, tunnels: &[&str]) -> Finished {
    lab.sandbox(policy).python(TUNNELS, tunnels)
}

fn seen(upstream: &Upstream) -> Vec<String> {
    upstream
        .seen()
        .iter()
        .map(|bytes| bytes.escape_ascii().to_string().replace("\\r\\n", "\r\n"))
        .collect()
}

#[track_caller]
fn check(policy: &str, cases: &[(&str, &str)]) {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let tunnels: Vec<_> = cases.iter().map(|(line, _)| request(line)).collect();
    let finished = ask(
        &lab,
        policy,
        &tunnels.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let statuses: Vec<_> = finished.stdout.lines().collect();
    let expected: Vec<_> = cases.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, expected, "{cases:?} under {policy}\n{finished:?}");
    // Each tunnel has its own connection, which stays empty if the request is refused.
    let reached: Vec<_> = upstream
        .seen()
        .iter()
        .map(|bytes| !bytes.is_empty())
        .collect();
    assert_eq!(
        reached,
        expected
            .iter()
            .map(|status| *status == "200")
            .collect::<Vec<_>>(),
        "{cases:?}"
    );
}

// Conformance: L7-01, L7-02, L7-03, L7-04.
#[test]
fn presets_allow_their_methods() {
    check(
        &judged("access: read-only"),
        &[
            ("GET /a", "200"),
            ("HEAD /a", "200"),
            ("OPTIONS /a", "200"),
            ("OPTIONS *", "200"),
            ("POST /a", "403"),
        ],
    );
    let writes = [
        ("POST /a", "200"),
        ("PUT /a", "200"),
        ("PATCH /a", "200"),
        ("DELETE /a", "403"),
    ];
    check(&judged("access: read-write"), &writes);
    check(
        &judged("access: full"),
        &[("DELETE /a", "200"), ("BREW /a", "200")],
    );
}

// Conformance: L7-06, L7-07, L7-08, L7-09, L7-10, L7-11, L7-12, L7-30.
#[test]
fn rules_match_methods_and_paths() {
    let repos = [
        ("GET /repos/x", "200"),
        ("GET /repos/x/y", "200"),
        ("GET /repos/", "200"),
        ("GET /repos", "403"),
    ];
    check(&rule("{method: GET, path: \"/repos/**\"}"), &repos);
    let keys = [
        ("GET /users/ann/keys", "200"),
        ("GET /users/a/b/keys", "403"),
    ];
    check(&rule("{method: GET, path: \"/users/*/keys\"}"), &keys);
    check(
        &rule("{method: GET, path: \"**\"}"),
        &[("GET /any/path", "200"), ("GET /", "200")],
    );
    check(
        &rule("{method: GET, path: /Api}"),
        &[
            ("GET /api", "403"),
            ("GET /Api", "200"),
            ("HEAD /Api", "200"),
        ],
    );
    check(
        &rule("{method: get, path: \"**\"}"),
        &[("GET /", "200"), ("gEt /", "200")],
    );
    check(
        &rule("{method: \"*\", path: \"/open/**\"}"),
        &[("DELETE /open/x", "200"), ("DELETE /x", "403")],
    );
    let denied = [
        ("GET /a", "200"),
        ("GET /hooks/x", "403"),
        ("GET /a/../hooks/x", "403"),
    ];
    check(
        &judged("access: full, deny_rules: [{method: \"*\", path: \"/hooks/**\"}]"),
        &denied,
    );
}

// Conformance: L7-16, L7-17, L7-18, L7-19, L7-20, L7-21, L7-22, LOG-06, LOG-08.
#[test]
fn queries_are_matched_and_sent_byte_for_byte() {
    let cases = [
        ("GET /?ver=12", "200"),
        ("GET /?ver=2", "403"),
        ("GET /", "403"),
        ("GET /?ver=12&other=x", "200"),
        ("GET /?ver=12&ver=2", "403"),
        ("GET /?v%65r=1%32", "200"),
        ("GET /?VER=12", "403"),
        ("GET /?other=12", "403"),
        ("GET /?ver[]=12", "403"),
        ("GET /?ver=1%zz", "400"),
        ("GET /?ver=1%00", "400"),
    ];
    check(
        &rule("{method: GET, path: \"**\", query: {ver: \"1*\"}}"),
        &cases,
    );
    let any = [("GET /?q=apple", "200"), ("GET /?q=cherry", "403")];
    check(
        &rule("{method: GET, path: \"**\", query: {q: {any: [\"a*\", \"b*\"]}}}"),
        &any,
    );
    check(
        &rule("{method: GET, path: \"**\", query: {q: {glob: \"a*\"}}}"),
        &[("GET /?q=apple", "200")],
    );
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let finished = ask(
        &lab,
        &rule("{method: GET, path: /x}"),
        &[&request("GET /x?y=1&Z=%7e+%2F..&&")],
    );
    assert_eq!(finished.ok(), "200");
    assert!(
        seen(&upstream)[0].starts_with("GET /x?y=1&Z=%7e+%2F..&& HTTP/1.1\r\n"),
        "{:?}",
        seen(&upstream)
    );
    let line =
        "HTTP:GET [INFO] ALLOWED GET http://web.test:8080/x [policy:web engine:l7] [request:1]";
    assert_eq!(
        finished.logged(line).len(),
        1,
        "LOG-06, LOG-08: {}",
        finished.log
    );
    assert!(!finished.log.contains("y=1"), "{}", finished.log);
}

// Conformance: L7-02, L7-05, LOG-06.
#[test]
fn a_refused_request_says_what_would_allow_it_and_ends_the_connection() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let post =
        "POST /a?secret=1 HTTP/1.1\\r\\nHost: web.test:8080\\r\\nContent-Length: 4\\r\\n\\r\\nbody";
    let tunnels = [post, &request("GET /later")].concat();
    let finished = lab
        .sandbox(&judged("access: read-only"))
        .env("BODY", "1")
        .python(TUNNELS, &[&tunnels]);
    let (head, body) = finished.ok().split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("403\nHTTP/1.1 403 request_not_in_rules\r\n"),
        "{finished:?}"
    );
    for line in [
        "X-OpenShell-Policy: web",
        "Content-Type: application/json",
        "Connection: close",
    ] {
        assert!(
            head.to_lowercase().contains(&line.to_lowercase()),
            "no {line:?} in {head}"
        );
    }
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error"], "policy_denied");
    assert_eq!(body["policy"], "web");
    assert_eq!(body["rule"], "POST /a");
    assert_eq!(body["detail"], "POST /a not permitted by policy");
    assert_eq!(
        (&body["method"], &body["path"], &body["layer"]),
        (&"POST".into(), &"/a".into(), &"l7".into())
    );
    assert!(
        body["fix"]
            .as_str()
            .unwrap()
            .contains("add to the `rules` of web.test:8080 `- allow: {method: POST, path: /a}`"),
        "{body}"
    );
    assert_eq!(
        seen(&upstream),
        [""],
        "nothing of it reaches the upstream, nor what is behind it"
    );
    let line = "HTTP:POST [MED] DENIED POST http://web.test:8080/a [policy:web engine:l7] \
                [request:1] [reason:POST /a not permitted by policy] [code:request_not_in_rules]";
    assert_eq!(finished.logged(line).len(), 1, "LOG-06: {}", finished.log);
    assert!(
        finished.stderr.contains("1 x "),
        "the summary counts it: {}",
        finished.stderr
    );
}

// Conformance: L7-26, TUN-08.
#[test]
fn every_request_of_a_connection_is_judged_also_in_one_write() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let all = [
        request("GET /1"),
        request("GET /2"),
        request("POST /3"),
        request("GET /4"),
    ]
    .concat();
    let finished = ask(&lab, &judged("access: read-only"), &[&all]);
    assert_eq!(finished.ok(), "200 200 403");
    let seen = seen(&upstream);
    assert!(
        seen[0].contains("GET /1 ") && seen[0].contains("GET /2 ") && seen.len() == 1,
        "{seen:?}"
    );
    assert!(
        !seen[0].contains("/3") && !seen[0].contains("/4"),
        "{seen:?}"
    );
}

// Conformance: L7-14, L7-15.
#[test]
fn what_is_audited_passes_and_is_logged_with_its_reason() {
    for words in ["enforcement: audit,", ""] {
        let policy = judged("access: read-only").replace("enforcement: enforce,", words);
        let lab = Lab::with_web();
        let upstream = lab.http("10.99.0.1:8080");
        let finished = ask(&lab, &policy, &[&request("POST /a")]);
        assert_eq!(finished.ok(), "200");
        assert!(seen(&upstream)[0].starts_with("POST /a "));
        let line = "HTTP:POST [INFO] ALLOWED POST http://web.test:8080/a [policy:web engine:l7] \
                    [decision:audit] [request:1] [reason:POST /a not permitted by policy] \
                    [code:request_not_in_rules]";
        assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    }
}

// Conformance: L7-24, L7-25, L7-31.
#[test]
fn a_twin_without_rules_does_not_switch_them_off() {
    let judged = judged("access: read-only").replace("web:", "b:");
    let twin = judged.replace(
        "{b: ",
        &format!(
            "{{a: {{endpoints: [{{host: web.test, port: 8080, \
                                                allowed_ips: [10.99.0.1]}}], binaries: [{{path: \
                                                {}}}]}}, b: ",
            super::python()
        ),
    );
    assert_ne!(twin, judged);
    check(&twin, &[("POST /a", "403"), ("GET /a", "200")]);
    check(
        &judged.replace("protocol: rest", "protocol: REST"),
        &[("POST /a", "403")],
    );
}

// Conformance: L7-27, L7-28, L7-29.
#[test]
fn without_rules_connections_are_relayed_as_what_they_are() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let two = [request("BREW /x/../y"), request("GET /%zz")].concat();
    let finished = ask(&lab, &web(), &[&two]);
    assert_eq!(finished.ok(), "200 200");
    assert!(
        seen(&upstream)[0].starts_with("BREW /x/../y HTTP/1.1\r\n"),
        "{:?}",
        seen(&upstream)
    );
    assert_eq!(
        finished
            .logged("HTTP:BREW [INFO] ALLOWED BREW http://web.test:8080/x/../y [request:1]")
            .len(),
        1
    );
    assert_eq!(
        finished
            .logged("HTTP:GET [INFO] ALLOWED GET http://web.test:8080/%zz [request:2]")
            .len(),
        1
    );
    let lab = Lab::with_web();
    let _echo = lab.echo("10.99.0.1:8080".parse().unwrap());
    for (policy, bytes) in [
        (web(), "\\x00\\x01PING"),
        (
            web().replace("port: 8080,", "port: 8080, tls: skip,"),
            "GET / ",
        ),
    ] {
        let finished = lab
            .sandbox(&policy)
            .python(super::RAW, &[&connect("web.test:8080"), bytes]);
        let echoed = finished.ok().rsplit_once("\r\n\r\n").unwrap().1;
        assert_eq!(
            echoed.escape_default().to_string(),
            bytes.replace("\\x00\\x01", "\\u{0}\\u{1}").trim_end(),
            "{finished:?}"
        );
        assert_eq!(finished.logged("HTTP:").len(), 0);
    }
}

// Conformance: TUN-01, TUN-02, TUN-03, TUN-04, TUN-05, TUN-07, TUN-17, TUN-20.
#[test]
fn what_could_be_read_in_two_ways_is_not_sent_on() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let post = |headers: &str, body: &str| {
        format!("POST /a HTTP/1.1\\r\\nHost: web.test:8080\\r\\n{headers}\\r\\n{body}")
    };
    let smuggled = request("GET /smuggled");
    let refused = [
        (
            "TUN-01",
            post("Content-Length: 1\\r\\nContent-Length: 2\\r\\n", "xx"),
        ),
        ("TUN-04", post("Content-Length: -1\\r\\n", "")),
        ("TUN-04", post("Content-Length: abc\\r\\n", "")),
        ("TUN-04", post("Content-Length:\\r\\n", "")),
        ("TUN-04", post("Content-Length: +1\\r\\n", "x")),
        ("TUN-04", post("Content-Length: 1, 1\\r\\n", "x")),
        (
            "TUN-07",
            "GET /a HTTP/2.0\\r\\nHost: web.test:8080\\r\\n\\r\\n".to_owned(),
        ),
        (
            "TUN-17",
            post("Transfer-Encoding: gzip, chunked\\r\\n", "0\\r\\n\\r\\n"),
        ),
        ("TUN-17", post("Transfer-Encoding: gzip\\r\\n", "")),
        (
            "TUN-17",
            post(
                "Transfer-Encoding: chunked\\r\\nTransfer-Encoding: chunked\\r\\n",
                "0\\r\\n\\r\\n",
            ),
        ),
        ("TUN-17", post("Transfer-Encoding:\\r\\n", "")),
        (
            "TUN-17",
            post("Transfer-Encoding: xchunked\\r\\n", "0\\r\\n\\r\\n"),
        ),
        (
            "TUN-17",
            "POST /a HTTP/1.0\\r\\nHost: web.test:8080\\r\\nTransfer-Encoding: \
             chunked\\r\\n\\r\\n0\\r\\n\\r\\n"
                .to_owned(),
        ),
        (
            "space before the colon",
            post("Content-Length : 1\\r\\n", "x"),
        ),
        ("folded line", post("X: a\\r\\n b\\r\\n", "")),
        ("NUL", post("X: a\\x00b\\r\\n", "")),
        ("no Host", "GET /a HTTP/1.1\\r\\n\\r\\n".to_owned()),
        (
            "two Hosts",
            "GET /a HTTP/1.1\\r\\nHost: web.test:8080\\r\\nHost: \
                       web.test:8080\\r\\n\\r\\n"
                .to_owned(),
        ),
        ("TUN-20", request("GET /../x")),
        ("TUN-20", request("GET /a%00")),
        ("TUN-20", request("GET /a%0a")),
        ("TUN-20", request("GET /a%zz")),
        ("TUN-20", request(&format!("GET /{}", "a".repeat(5000)))),
        ("CONNECT", request("CONNECT web.test:8080")),
    ];
    let tunnels: Vec<_> = refused
        .iter()
        .map(|(_, request)| format!("{request}{smuggled}"))
        .collect();
    let finished = ask(
        &lab,
        &judged("access: full"),
        &tunnels.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    for (line, (row, request)) in finished.ok().lines().zip(&refused) {
        assert!(matches!(line, "400" | "403"), "{row}: {request}: {line}");
    }
    assert_eq!(finished.ok().lines().count(), refused.len());
    assert!(
        upstream.seen().iter().all(Vec::is_empty),
        "{:?}",
        seen(&upstream)
    );
    // One framing leaves, independent of the one received.
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let tolerated = [
        (
            "TUN-02",
            post("Content-Length: 1\\r\\nContent-Length: 1\\r\\n", "x"),
        ),
        (
            "TUN-03",
            post(
                "Content-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n",
                "1\\r\\nx\\r\\n0\\r\\n\\r\\n",
            ),
        ),
        ("TUN-05", post("X: a\\nContent-Length: 1\\r\\n", "x")),
        (
            "TUN-20",
            "GET /a#/../b HTTP/1.1\\r\\nHost: web.test:8080\\r\\n\\r\\n".to_owned(),
        ),
    ];
    let tunnels: Vec<_> = tolerated
        .iter()
        .map(|(_, request)| format!("{request}{smuggled}"))
        .collect();
    let finished = ask(
        &lab,
        &judged("access: full, deny_rules: [{method: GET, path: /smuggled}]"),
        &tunnels.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    for ((row, _), seen) in tolerated.iter().zip(seen(&upstream)) {
        let lengths =
            seen.matches("Content-Length:").count() + seen.matches("Transfer-Encoding:").count();
        assert!(
            lengths <= 1 && !seen.contains("smuggled") && !seen.contains('#'),
            "{row}: {seen:?}\n{finished:?}"
        );
    }
}

// Conformance: TUN-06.
#[test]
fn bytes_above_ascii_in_a_header_pass_unchanged_and_a_placeholder_beside_them_is_found() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let head = |value: &str| {
        format!("GET /a HTTP/1.1\\r\\nHost: web.test:8080\\r\\nX: {value}\\r\\n\\r\\n")
    };
    let name = head("Andr\\xe9 \\xff");
    let placeholder = head("\\xe9 openshell:resolve:env:TOKEN");
    let finished = ask(&lab, &judged("access: full"), &[&name, &placeholder]);
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        ["200", "500"],
        "{finished:?}"
    );
    assert_eq!(
        upstream
            .seen()
            .iter()
            .filter(|seen| !seen.is_empty())
            .count(),
        1
    );
    assert!(
        seen(&upstream)[0].contains("X: Andr\\xe9 \\xff\r\n"),
        "{:?}",
        seen(&upstream)
    );
}

// Conformance: TUN-18, TUN-19, TUN-21.
#[test]
fn the_path_that_was_judged_is_the_one_that_is_sent() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let policy = rule("{method: GET, path: \"/pub/**\"}");
    let paths = [
        "/pub/../priv",
        "/pub/%2e%2e/priv",
        "/pub//..//priv",
        "/priv/%2e%2e/pub/%41%7e?q=%7e",
        "/PUB/x",
        "//pub///x",
    ];
    let tunnels: Vec<_> = paths
        .iter()
        .map(|path| request(&format!("GET {path}")))
        .collect();
    let finished = ask(
        &lab,
        &policy,
        &tunnels.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        ["403", "403", "403", "200", "403", "200"]
    );
    let sent: Vec<_> = seen(&upstream)
        .iter()
        .filter_map(|seen| seen.lines().next().map(str::to_owned))
        .collect();
    assert_eq!(sent, ["GET /pub/A~?q=%7e HTTP/1.1", "GET /pub/x HTTP/1.1"]);
}

#[test]
fn a_request_for_another_host_is_misdirected() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let forged = "x] [code:allowed] ALLOWED";
    let hosts = [
        forged,
        "web.test:81",
        "10.99.0.1:8080",
        "web.test:8080@other.test",
    ];
    let mut tunnels: Vec<_> = hosts
        .iter()
        .map(|host| format!("GET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n"))
        .collect();
    tunnels.push("GET http://other.test/ HTTP/1.1\\r\\nHost: web.test:8080\\r\\n\\r\\n".to_owned());
    tunnels.push(
        "GET https://web.test:8080/ HTTP/1.1\\r\\nHost: web.test:8080\\r\\n\\r\\n".to_owned(),
    );
    let finished = ask(
        &lab,
        &judged("access: full"),
        &tunnels.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(finished.ok().lines().collect::<Vec<_>>(), ["421"; 6]);
    assert!(upstream.seen().iter().all(Vec::is_empty));
    assert_eq!(
        finished.logged("[code:authority_mismatch]").len(),
        6,
        "{}",
        finished.log
    );
    assert!(!finished.log.contains("[code:allowed]"), "{}", finished.log);
    let own = "GET http://WEB.test:8080/x HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n";
    assert_eq!(ask(&lab, &judged("access: full"), &[own]).ok(), "200");
    assert!(
        seen(&upstream)
            .last()
            .unwrap()
            .starts_with("GET /x HTTP/1.1\r\nHost: web.test\r\n")
    );
}

#[test]
fn what_rules_cannot_see_is_refused() {
    let lab = Lab::with_web();
    let echo = lab.echo("10.99.0.1:8080".parse().unwrap());
    let odd = [
        "\\x00\\x01PING",
        "SSH-2.0-x\\r\\n",
        "GET /\\r\\n",
        "G",
        "\\x16\\x02",
        " GET / HTTP/1.1\\r\\n",
    ];
    let finished = ask(&lab, &judged("access: full"), &odd);
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        ["403 nor"; 6],
        "{finished:?}"
    );
    assert!(echo.seen().iter().all(Vec::is_empty));
    assert_eq!(
        finished.logged("[code:unsupported_l7_protocol]").len(),
        odd.len(),
        "{}",
        finished.log
    );
}

#[test]
fn heads_of_64_kib_and_256_lines_pass_and_larger_ones_are_refused_with_the_bound() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let program = "
import http.client, os
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
def ask(tunnel, path, fields):
    client = http.client.HTTPConnection(host, int(port))
    if tunnel: client.set_tunnel('web.test', 8080)
    client.putrequest('GET', path if tunnel else 'http://web.test:8080' + path)
    for name, value in fields: client.putheader(name, value)
    try: client.endheaders()
    except ConnectionError: pass
    answer = client.getresponse()
    body = answer.read().decode()
    return answer.status, '64 KiB and 256 lines' in body
for tunnel in (True, False):
    print(ask(tunnel, '/', [('Cookie', 'c' * 60000)]), ask(tunnel, '/?q=' + 'q' * 30000, []))
    print(ask(tunnel, '/', [('X', '1')] * 250), ask(tunnel, '/', [('X', '1')] * 300), ask(tunnel, '/', [('X', 'x' * 70000)]))
    print(ask(tunnel, '/', [('X', '1')] * 10000)[0])
";
    let finished = lab.sandbox(&judged("access: full")).python(program, &[]);
    let door = "(200, False) (200, False)\n(200, False) (431, True) (431, True)\n431\n";
    assert_eq!(finished.ok(), [door; 2].concat().trim_end());
    assert_eq!(
        upstream
            .seen()
            .iter()
            .filter(|seen| !seen.is_empty())
            .count(),
        6
    );
    assert_eq!(
        finished.logged("[code:request_too_large]").len(),
        6,
        "{}",
        finished.log
    );
}

#[test]
fn the_path_of_an_endpoint_decides_through_every_door_and_in_every_version_of_http() {
    let endpoint = |parts: &str| {
        format!(
            "{{host: web.test, ports: [8080, 443], allowed_ips: [10.99.0.1], protocol: rest, \
             enforcement: enforce, {parts}}}"
        )
    };
    let policy = super::policy(&format!(
        "{{web: {{endpoints: [{}, {}, {}], binaries: [{{path: /usr/bin/curl}}]}}}}",
        endpoint("access: read-only"),
        endpoint(
            "path: \"/api/**\", access: read-write, deny_rules: [{method: PUT, path: \"**\"}]"
        ),
        endpoint("path: /api/one, rules: [{allow: {method: DELETE, path: \"**\"}}]"),
    ));
    let cases = [
        ("GET", "/hello", "200"),
        ("POST", "/hello", "403 request_not_in_rules"),
        ("POST", "/api/x", "200"),
        ("PUT", "/api/x", "403 request_in_deny_rules"),
        ("DELETE", "/api/one", "200"),
        ("GET", "/api/one", "403 request_not_in_rules"),
        ("GET", "/api/ONE", "403 endpoints_ambiguous"),
        ("POST", "/api/one;x", "403 endpoints_ambiguous"),
    ];
    let plain = "http://web.test:8080";
    let tls = "https://web.test";
    type Start = fn(&Lab) -> Origin;
    let servers: [(Start, &[(&str, &str)]); 2] = [
        (
            Origin::start,
            &[
                ("", plain),
                ("--proxytunnel", plain),
                ("--noproxy '*'", plain),
                ("--http1.1", tls),
                ("--http1.1 --noproxy '*'", tls),
            ],
        ),
        (
            Origin::http2,
            &[
                ("--http2", tls),
                ("--http2 --noproxy '*'", tls),
                ("--proxytunnel --http2-prior-knowledge", plain),
            ],
        ),
    ];
    for (start, ways) in servers {
        let lab = Lab::with_web();
        let origin = start(&lab);
        for (way, base) in ways {
            let before = origin.asked().len();
            let mut script = String::new();
            let mut expected = String::new();
            let mut sent = Vec::new();
            for (method, path, outcome) in cases {
                script += &format!(
                    "curl -s --suppress-connect-headers --path-as-is {way} -X {method} -w \
                     '\\n%{{http_code}}\\n' '{base}{path}' | sed -n \
                     's/.*\"reason_code\":\"\\([a-z_]*\\)\".*/\\1/p; /^[0-9]*$/p' | tac | xargs\n"
                );
                expected += &format!("{outcome}\n");
                if outcome == "200" {
                    sent.push(format!("{method} {path}"));
                }
            }
            let finished = lab
                .sandbox(&policy)
                .args(&["--upstream-ca-file", &origin.authority()])
                .sh(&script);
            assert_eq!(finished.stdout, expected, "{way} {base}: {finished:?}");
            assert_eq!(origin.asked()[before..], sent, "{way} {base}");
        }
    }
}
