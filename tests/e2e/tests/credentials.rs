//! Secrets that the command uses without having them: each arrives where it may, and neither secret
//! nor placeholder anywhere else.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use lab::{Finished, Lab, Sandbox};
use rustix::process::Signal;
use serde_json::Value;

use super::origin::{FULL, Origin, policy};

const SECRET: &str = "s3cret-Value.42";

const PLACEHOLDER: &str = "openshell:resolve:env:API_KEY";

/// A credential that is bound to the origin at the ports of the tests.
const CREDENTIALS: &str = r#"credentials: {API_KEY: {value: s3cret-Value.42, hosts: ["web.test", "http://web.test:8080"]}}"#;

/// URLs of the origin inside TLS, in a plain tunnel, and by forward requests.
const WAYS: [(&str, &str); 3] = [
    ("", "https://web.test"),
    ("-p", "http://web.test:8080"),
    ("", "http://web.test:8080"),
];

/// Writes a credentials file that only its owner may read.
fn file(lab: &Lab, text: &str) -> String {
    let path = lab.file("credentials.yaml", text);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}

fn sandbox<'l>(lab: &'l Lab, origin: &Origin, credentials: &str, rules: &str) -> Sandbox<'l> {
    let programs = [
        "/usr/bin/curl",
        "/usr/bin/python3*",
        "/usr/bin/git",
        "/usr/lib/git-core/*",
        "/usr/local/libexec/git-core/*",
        "/usr/bin/node",
    ];
    let sandbox = lab.sandbox(&policy(&programs, rules));
    sandbox.args(&[
        "--upstream-ca-file",
        &origin.authority(),
        "--credentials",
        &file(lab, credentials),
    ])
}

/// Runs each line of `words` by curl, with `$P` for the placeholder, and prints the status and body
/// of each, or that it failed.
fn curl(lab: &Lab, origin: &Origin, credentials: &str, words: &[String]) -> Finished {
    let lines: Vec<_> = words
        .iter()
        .map(|words| {
            format!(
                "curl -sS --path-as-is --suppress-connect-headers -w ' %{{http_code}}\\n' \
                     {words} || echo failed"
            )
        })
        .collect();
    let finished = sandbox(lab, origin, credentials, FULL)
        .sh(&format!("P={PLACEHOLDER}\n{}\ntrue", lines.join("\n")));
    super::inference::statuses_beside(finished)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

// Conformance: SEC-01.
#[test]
fn the_command_has_placeholders_and_no_secret() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let secret = lab.file("secret", "from a file\n");
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let credentials = format!(
        "credentials:\n  API_KEY: {{env: REAL_KEY}}\n  REAL: {{env: REAL}}\n  FILE: {{file: {}}}\n  VALUE: {{value: in the text}}",
        secret.display()
    );
    for clear in [&[][..], &["--clear-env"]] {
        let sandbox = sandbox(&lab, &origin, &credentials, FULL)
            .args(clear)
            .env("REAL_KEY", SECRET)
            .env("REAL", "its twin");
        let finished =
            sandbox.sh("env | sort; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'");
        for name in ["API_KEY", "REAL", "FILE", "VALUE"] {
            let line = format!("{name}=openshell:resolve:env:{name}");
            assert!(
                finished.ok().lines().any(|printed| printed == line),
                "{finished:?}"
            );
        }
        for secret in [SECRET, "its twin", "from a file", "in the text", "REAL_KEY"] {
            assert!(!finished.stdout.contains(secret), "{secret}: {finished:?}");
        }
    }
}

// Conformance: SEC-02, SEC-03, SEC-04, SEC-05, SEC-06, SEC-13.
#[test]
fn secrets_arrive_where_their_placeholders_stand() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let ways = WAYS.iter().flat_map(|(flag, origin)| {
        [
            format!("{flag} -H \"X-Key: $P\" {origin}/whole"),
            format!("{flag} -H \"Authorization: Bearer $P\" {origin}/bearer"),
            format!("{flag} -H \"Cookie: a=1; key=$P; b=$P\" {origin}/inside"),
            format!("{flag} -u \"user:$P\" {origin}/basic"),
            format!("{flag} \"{origin}/bot$P/send\""),
            format!("{flag} {origin}/bot$(printf %s $P | sed s/:/%3a/g)/escaped"),
            format!("{flag} \"{origin}/query?a=%20+&k=$P&x=1&\""),
            format!("{flag} -G --data-urlencode \"k=$P\" {origin}/encoded"),
        ]
    });
    let finished = curl(&lab, &origin, CREDENTIALS, &ways.collect::<Vec<_>>());
    assert_eq!(
        finished.ok().matches("hello 200").count(),
        24,
        "{finished:?}"
    );
    let seen = origin.seen();
    for seen in seen.chunks(8) {
        let header = |index: usize, name: &str| text(&seen[index][2][name]).to_owned();
        assert_eq!(header(0, "x-key"), SECRET);
        assert_eq!(header(0, "accept-encoding"), "identity");
        assert_eq!(header(1, "authorization"), format!("Bearer {SECRET}"));
        assert_eq!(
            header(2, "cookie"),
            format!("a=1; key={SECRET}; b={SECRET}")
        );
        assert_eq!(
            header(3, "authorization"),
            "Basic dXNlcjpzM2NyZXQtVmFsdWUuNDI="
        );
        let targets: Vec<_> = seen[4..].iter().map(|seen| text(&seen[1])).collect();
        assert_eq!(targets[0], format!("/bot{SECRET}/send"));
        assert_eq!(targets[1], format!("/bot{SECRET}/escaped"));
        assert_eq!(targets[2], format!("/query?a=%20+&k={SECRET}&x=1&"));
        assert_eq!(targets[3], format!("/encoded?k={SECRET}"));
    }
    assert_eq!(seen.len(), 24);
    let line =
        "HTTP:GET [INFO] ALLOWED GET https://web.test/bot[CREDENTIAL]/send [policy:web engine:l7]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    assert!(
        finished.logged(line)[0].contains("[credentials:API_KEY]"),
        "{}",
        finished.log
    );
}

// Conformance: SEC-05.
#[test]
fn rules_see_a_path_without_its_secret() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let rules = r#"protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: "/bot\\[CREDENTIAL]/send"}}]"#;
    let finished = sandbox(&lab, &origin, CREDENTIALS, rules).sh(&format!(
        "curl -sS https://web.test/bot{PLACEHOLDER}/send https://web.test/bot{PLACEHOLDER}/other \
         https://web.test/bots3cret/send"
    ));
    assert_eq!(
        origin.asked(),
        [format!("GET /bot{SECRET}/send")],
        "{finished:?}"
    );
    let fix = r#"`- allow: {method: GET, path: \"/bot\\\\[CREDENTIAL\\\\]/other\"}`"#;
    assert!(
        finished.stdout.contains("GET /bot[CREDENTIAL]/other") && finished.stdout.contains(fix),
        "{finished:?}"
    );
}

#[test]
fn secrets_of_any_size_and_names_that_overlap_are_replaced() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let long = "k".repeat(64 * 1024);
    let path = lab.file("long", &long);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let credentials = format!(
        "credentials:\n  A: {{value: x}}\n  A_B: {{value: twice as long}}\n  A_B_C: {{file: {}}}\n  ODD: {{value: 'a b/%&=+;\"é'}}",
        path.display()
    );
    let headers: String = (0..40)
        .map(|n| format!(" -H 'X-{n}: openshell:resolve:env:A'"))
        .collect();
    let finished = curl(
        &lab,
        &origin,
        &credentials,
        &[
            format!(
                "-o /dev/null -H 'X-1: openshell:resolve:env:A' -H 'X-2: \
                 openshell:resolve:env:A_B' {}",
                "https://web.test/a"
            ),
            "-o /dev/null -H 'X-1: openshell:resolve:env:A_B_C' https://web.test/b".to_owned(),
            format!("-o /dev/null {headers} https://web.test/c"),
            "-o /dev/null -H 'X-1: openshell:resolve:env:ODD' \
             'https://web.test/d?openshell=openshell:resolve:env:ODD'"
                .to_owned(),
            "-H 'X-1: openshell:resolve:env:A_' https://web.test/e".to_owned(),
        ],
    );
    let seen = origin.seen();
    assert_eq!(seen.len(), 4, "{finished:?}");
    assert_eq!(
        [&seen[0][2]["x-1"], &seen[0][2]["x-2"]],
        ["x", "twice as long"]
    );
    assert_eq!(seen[1][2]["x-1"], *long);
    assert!(
        (0..40).all(|n| seen[2][2][format!("x-{n}")] == "x"),
        "{:?}",
        seen[2]
    );
    assert_eq!(
        text(&seen[3][1]),
        "/d?openshell=a%20b%2F%25%26%3D%2B%3B%22%C3%A9"
    );
    assert!(
        finished.stdout.contains("there is no credential A_\""),
        "{finished:?}"
    );
}

// Conformance: SEC-07, SEC-08, SEC-09, SEC-16.
#[test]
fn what_cannot_be_replaced_is_refused_with_its_cause_and_sent_nowhere() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let unsafe_ones = [
        ("SLASH", "a/b"),
        ("BACK", "a\\b"),
        ("DOTS", "a..b"),
        ("QUERY", "a?b"),
        ("HASH", "a#b"),
        ("DOT", "."),
        ("PARAMETER", ";x"),
        ("ESCAPE", "%2e"),
    ];
    let values: String = unsafe_ones
        .iter()
        .map(|(name, value)| format!("  {name}: {{value: '{value}'}}\n"))
        .collect();
    let credentials = format!("credentials:\n  API_KEY: {{value: {SECRET}}}\n{values}");
    let base64 = |text: &str| lab.shell(&format!("printf %s '{text}' | base64 -w0"));
    let hidden = base64(&format!("x{PLACEHOLDER}"));
    let nested = base64(&format!("user:{hidden}"));
    let percent = PLACEHOLDER.replace(':', "%3A");
    let twice = PLACEHOLDER.replace(':', "%253A");
    let cases = [
        (
            "-H 'X: openshell:resolve:env:OTHER'".to_owned(),
            "credential_unknown",
            "there is no credential OTHER",
        ),
        (
            "-H 'X: openshell:resolve:env:9'".to_owned(),
            "credential_not_replaceable",
            "a header",
        ),
        (
            "-u u:openshell:resolve:env:OTHER".to_owned(),
            "credential_unknown",
            "OTHER",
        ),
        (
            format!("-H '{percent}: x'"),
            "credential_not_replaceable",
            "the name of a header",
        ),
        (
            format!("-H '{PLACEHOLDER}: x'"),
            "credential_not_replaceable",
            "the name of a header",
        ),
        (
            format!("-H 'X-{PLACEHOLDER}: x'"),
            "credential_not_replaceable",
            "the name of a header",
        ),
        (
            format!("-H 'X: {percent}'"),
            "credential_not_replaceable",
            "a header",
        ),
        (
            format!("-H 'X: {hidden}'"),
            "credential_not_replaceable",
            "a header",
        ),
        (
            format!("-H 'Authorization: Bearer {hidden}'"),
            "credential_not_replaceable",
            "a header",
        ),
        (
            format!("-H 'Authorization: Basic {nested}'"),
            "credential_not_replaceable",
            "a header",
        ),
        (
            format!("-G -d {PLACEHOLDER}=1"),
            "credential_not_replaceable",
            "the name of a query parameter",
        ),
        (
            format!("-G -d {PLACEHOLDER}"),
            "credential_not_replaceable",
            "the name of a query parameter",
        ),
        (
            format!("-G -d k={twice}"),
            "credential_not_replaceable",
            "the query",
        ),
        (
            format!("-G -d k={hidden}"),
            "credential_not_replaceable",
            "the query",
        ),
    ];
    let paths = unsafe_ones.iter().map(|(name, _)| {
        (
            format!("/x/openshell:resolve:env:{name}/y"),
            "credential_unsafe",
            *name,
        )
    });
    let paths = paths.chain([
        (
            "/openshell:resolve:env:OTHER".to_owned(),
            "credential_unknown",
            "OTHER",
        ),
        (
            "/.openshell:resolve:env:DOT".to_owned(),
            "credential_unsafe",
            "DOT",
        ),
        (
            format!("/{twice}"),
            "credential_not_replaceable",
            "the path",
        ),
        (
            format!("/{hidden}"),
            "credential_not_replaceable",
            "the path",
        ),
    ]);
    let mut words = Vec::new();
    let mut expected = Vec::new();
    for (flag, url) in WAYS {
        words.extend(
            cases
                .iter()
                .map(|(case, ..)| format!("{flag} {case} {url}/x")),
        );
        expected.extend(cases.iter().map(|(_, code, cause)| (*code, *cause)));
        let paths: Vec<_> = paths.clone().collect();
        words.extend(
            paths
                .iter()
                .map(|(path, ..)| format!("{flag} '{url}{path}'")),
        );
        expected.extend(paths.iter().map(|(_, code, cause)| (*code, *cause)));
    }
    let finished = curl(&lab, &origin, &credentials, &words);
    let answers: Vec<_> = finished.ok().lines().collect();
    assert_eq!(answers.len(), expected.len(), "{finished:?}");
    for ((answer, (code, cause)), words) in answers.iter().zip(expected).zip(&words) {
        let (body, status) = answer.rsplit_once(' ').unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            (status, text(&body["reason_code"]), text(&body["error"])),
            ("500", code, "credential_injection_failed"),
            "{words}"
        );
        let detail = text(&body["detail"]);
        assert!(
            detail.starts_with("unresolved credential placeholder in request")
                && detail.contains(cause),
            "{words}: {detail}"
        );
    }
    assert_eq!(origin.seen().len(), 0);
    // The same without credentials.
    let finished = lab
        .sandbox(&policy(&["/usr/bin/curl"], FULL))
        .args(&["--upstream-ca-file", &origin.authority()])
        .sh(&format!(
            "curl -sS -H 'X: {PLACEHOLDER}' https://web.test/x"
        ));
    assert!(finished.ok().contains("credential_unknown"), "{finished:?}");
    assert_eq!(origin.seen().len(), 0);
}

/// A Python program: opens a tunnel to web.test:8080 and sends each argument in a write of its own,
/// a moment after the one before; prints the response.
pub(crate) const PARTS: &str = r#"
import os, socket, sys, time
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
s = socket.create_connection((host, int(port)))
s.settimeout(20)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
assert b' 200 ' in s.recv(65536)
for argument in sys.argv[1:]:
    try: s.sendall(argument.encode().decode('unicode_escape').encode('latin-1'))
    except ConnectionError: break
    time.sleep(0.05)
try: print(s.recv(65536).decode())
except ConnectionError: print('reset')
"#;

// Conformance: SEC-11.
#[test]
fn a_placeholder_in_a_body_ends_the_request() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let finished = curl(
        &lab,
        &origin,
        CREDENTIALS,
        &[
            "-d \"key=$P\" https://web.test/form".to_owned(),
            "--data-urlencode \"key=$P\" https://web.test/form".to_owned(),
            "-F \"key=$P\" https://web.test/multipart".to_owned(),
            "-H 'Content-Encoding: identity' -d \"{\\\"k\\\":\\\"$P\\\"}\" https://web.test/json"
                .to_owned(),
            "-H 'Transfer-Encoding: chunked' -d \"key=$P\" http://web.test:8080/chunked".to_owned(),
            "-d \"key=$P\" http://web.test:8080/form".to_owned(),
            "-H 'Content-Encoding: gzip' -d \"key=$P\" https://web.test/encoded".to_owned(),
            "-d 'speaks of openshell:resolve:env:, and of no more' https://web.test/text"
                .to_owned(),
        ],
    );
    let lines: Vec<_> = finished.ok().lines().collect();
    assert!(
        lines[..6]
            .iter()
            .all(|line| line.contains("the proxy does not replace placeholders in the body")),
        "{finished:?}"
    );
    assert_eq!(lines[6..], ["hello 200", "hello 200"]);
    assert_eq!(origin.asked(), ["POST /encoded", "POST /text"]);
    assert_eq!(
        finished.logged("[code:credential_not_replaceable]").len(),
        6,
        "{}",
        finished.log
    );
}

// Conformance: SEC-11.
#[test]
fn a_body_that_is_on_its_way_is_cut_off_wherever_the_placeholder_is_cut() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let policy = super::web().replace("port: 8080,", &format!("port: 8080, {FULL},"));
    let head = r"POST /x HTTP/1.1\r\nHost: web.test:8080\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    for (index, cut) in [1, 9, 10, 21, 22, 23, 28].into_iter().enumerate() {
        let (one, other) = PLACEHOLDER.split_at(cut);
        let [one, other] = [one, other].map(|part| format!(r"{:x}\r\n{part}\r\n", part.len()));
        let finished = lab
            .sandbox(&policy)
            .args(&["--credentials", &file(&lab, CREDENTIALS)])
            .python(PARTS, &[head, &one, &other, r"3\r\nend\r\n0\r\n\r\n"]);
        assert_eq!(
            finished.logged("[code:credential_not_replaceable]").len(),
            index + 1,
            "{}",
            finished.log
        );
    }
    let all = upstream.seen();
    let all: Vec<_> = all
        .iter()
        .map(|seen| seen.escape_ascii().to_string())
        .collect();
    for seen in &all {
        assert!(!seen.contains("env:A") && !seen.contains("end"), "{seen}");
        assert!(
            !seen.ends_with(r"0\r\n\r\n"),
            "no upstream takes it for whole: {seen}"
        );
    }
    // On a busy machine the parts of a body can arrive together, and then nothing is on its way.
    assert!(all.iter().any(|seen| seen.contains("hello")), "{all:?}");
}

#[test]
fn a_placeholder_in_a_trailer_ends_the_request() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let policy = super::web().replace("port: 8080,", &format!("port: 8080, {FULL},"));
    let head = r"POST /x HTTP/1.1\r\nHost: web.test:8080\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n5\r\nhello\r\n";
    let finished = lab
        .sandbox(&policy)
        .args(&["--credentials", &file(&lab, CREDENTIALS)])
        .python(PARTS, &[head, &format!(r"0\r\nX: {PLACEHOLDER}\r\n\r\n")]);
    assert!(
        !upstream
            .seen()
            .iter()
            .any(|seen| seen.escape_ascii().to_string().contains("resolve")),
        "{finished:?}"
    );
}

/// Runs nghttpd with its log of heads in a file, and reports that it listens.
const NGHTTPD: &str = r#"
import subprocess, sys, ctypes, signal, time
log, command = sys.argv[1], sys.argv[2:]
die = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
server = subprocess.Popen(command, stdout=open(log, 'wb'), stderr=subprocess.DEVNULL, preexec_fn=die)
while b'listen' not in open(log, 'rb').read():
    if server.poll() is not None: sys.exit(1)
    time.sleep(0.01)
print('ready', flush=True)
server.wait()
"#;

#[test]
fn http2_on_an_endpoint_without_rules_is_relayed_request_by_request() {
    const RUNS: usize = 34;
    let lab = Lab::new(&[("10.99.0.1", "web.test"), ("10.99.0.2", "other.test")]);
    let origin = Origin::http2(&lab);
    let folder = lab.folder("origin").display().to_string();
    let log = format!("{folder}/nghttpd.log");
    let key = format!("{folder}/other.key");
    let certificate = format!("{folder}/other.pem");
    let served = [
        "nghttpd",
        "-v",
        "-a",
        "10.99.0.2",
        "-d",
        &folder,
        "443",
        &key,
        &certificate,
    ];
    let _other = lab.program(&[&["/usr/bin/python3", "-c", NGHTTPD, &log], &served[..]].concat());
    let credentials = r#"credentials: {API_KEY: {value: s3cret-Value.42, hosts: ["web.test", "http://web.test:8080", other.test]}}"#;
    let network = "{all: {endpoints: [{host: web.test, ports: [443, 8080], allowed_ips: \
                   [10.99.0.1]}, {host: other.test, port: 443, allowed_ips: [10.99.0.2]}], \
                   binaries: [{path: /usr/bin/curl}]}}";
    let ways = [
        "--http2 https://web.test",
        "--http2 https://other.test",
        "-p --http2-prior-knowledge http://web.test:8080",
    ];
    for is_observed in [false, true] {
        let before = origin.seen().len();
        let observed = format!("{folder}/observed-{is_observed}.yaml");
        let mut sandbox = lab.sandbox(&super::policy(network));
        sandbox = sandbox.args(&[
            "--upstream-ca-file",
            &origin.authority(),
            "--credentials",
            &file(&lab, credentials),
        ]);
        if is_observed {
            sandbox = sandbox.args(&["--observe", &observed]);
        }
        let asked: Vec<_> = ways
            .iter()
            .map(|way| {
                format!(
                    "curl -sS --suppress-connect-headers -o /dev/null -w \
                                '%{{http_version}}\\n' {way}/hello -H \"Authorization: Bearer \
                                $API_KEY\""
                )
            })
            .collect();
        let finished = sandbox.sh(&format!(
            "for run in $(seq {RUNS}); do {}; done",
            asked.join("; ")
        ));
        assert_eq!(
            finished
                .ok()
                .lines()
                .filter(|version| *version == "2")
                .count(),
            3 * RUNS,
            "{}",
            finished.stderr
        );
        let seen = origin.seen().split_off(before);
        let wanted = format!("Bearer {SECRET}");
        let arrived = seen
            .iter()
            .filter(|seen| seen[2]["authorization"] == wanted.as_str())
            .count();
        assert_eq!((seen.len(), arrived), (2 * RUNS, 2 * RUNS));
        for way in ways {
            let line = format!("ALLOWED GET {}/hello ", way.rsplit(' ').next().unwrap());
            let lines = finished
                .logged("HTTP:GET")
                .iter()
                .filter(|found| found.contains(&line))
                .count();
            // The log is the host's, so it also contains the first run.
            assert_eq!(lines, if is_observed { 2 * RUNS } else { RUNS }, "{way}");
        }
        if is_observed {
            let policy = std::fs::read_to_string(&observed).unwrap();
            assert_eq!(policy.matches("protocol: rest").count(), 3, "{policy}");
        }
    }
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(
        log.matches(&format!("authorization: Bearer {SECRET}"))
            .count(),
        2 * RUNS
    );
    assert!(!log.contains("openshell:"), "a placeholder arrived");
}

// Conformance: SEC-12.
#[test]
fn what_is_not_opened_is_not_touched_and_what_can_be_seen_of_it_is_refused() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let finished = sandbox(&lab, &origin, CREDENTIALS, "tls: skip").sh(&format!(
        "curl -ksS --http1.1 -H 'X-Key: {PLACEHOLDER}' https://web.test/x; curl -sS -p -H 'X-Key: \
         {PLACEHOLDER}' http://web.test:8080/y"
    ));
    assert_eq!(origin.seen()[0][2]["x-key"], PLACEHOLDER, "{finished:?}");
    assert_eq!(origin.seen().len(), 1, "{finished:?}");
    assert_eq!(
        finished.logged("[code:credential_not_replaceable]").len(),
        1,
        "{}",
        finished.log
    );
}

#[test]
fn the_first_bytes_of_what_is_no_http_hold_no_placeholder() {
    let lab = Lab::with_web();
    let echo = lab.echo("10.99.0.1:8080".parse().unwrap());
    let (one, other) = PLACEHOLDER.split_at(15);
    let before = "x".repeat(63 * 1024);
    let connections = [
        &["@login ", PLACEHOLDER][..],
        &["@login ", one, other],
        &["@", &before, one, other],
    ];
    for (index, parts) in connections.into_iter().enumerate() {
        let finished = lab
            .sandbox(&super::web())
            .args(&["--credentials", &file(&lab, CREDENTIALS)])
            .python(PARTS, &[parts, &[" and more"]].concat());
        let line = "[reason:the proxy does not replace placeholders in the first bytes of the \
                    connection] [code:credential_not_replaceable]";
        assert_eq!(finished.logged(line).len(), index + 1, "{}", finished.log);
    }
    for seen in echo.seen() {
        let seen = seen.escape_ascii().to_string();
        assert!(
            seen.contains('@') && !seen.contains("env:A") && !seen.contains("and more"),
            "{seen}"
        );
    }
}

#[test]
fn a_credential_goes_where_it_is_bound_and_nowhere_else() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let credentials = r#"
credentials:
  API_KEY: {value: s3cret-Value.42, hosts: ["other.test", "*.web.test"]}
  PORT: {value: for one port, hosts: ["web.test:8443"]}
  PATHS: {value: for some paths, hosts: ["web.test"], path: /repos/}
"#;
    let asked = |placeholder: &str, target: &str| {
        format!("-H 'X: openshell:resolve:env:{placeholder}' 'https://web.test{target}'")
    };
    let refused = [
        asked("API_KEY", "/"),
        asked("PORT", "/"),
        asked("PATHS", "/"),
        asked("PATHS", "/reposx"),
        asked("PATHS", "/repos/../x"),
        asked("PATHS", "/repos/%2e%2e/x"),
        asked("PATHS", "/x;/repos/"),
        asked("PATHS", "/repos"),
        "'https://web.test/?k=openshell:resolve:env:PORT'".to_owned(),
        "'https://web.test/repos/x/..//openshell:resolve:env:PORT'".to_owned(),
        "-u u:openshell:resolve:env:PORT https://web.test/".to_owned(),
        "-H 'X: openshell:resolve:env:PORT' http://web.test:8080/".to_owned(),
        "-p -H 'X: openshell:resolve:env:PORT' http://web.test:8080/".to_owned(),
    ];
    let finished = curl(&lab, &origin, credentials, &refused);
    for line in finished.ok().lines() {
        assert!(
            line.ends_with(" 403") && line.contains("credential_endpoint_mismatch"),
            "{line}"
        );
    }
    assert_eq!(
        (finished.stdout.lines().count(), origin.seen().len()),
        (refused.len(), 0),
        "{finished:?}"
    );
    let line = "HTTP:GET [HIGH] DENIED GET https://web.test/ [policy:web engine:credential] \
                [request:1] [reason:credential API_KEY is not for this host and port] \
                [code:credential_endpoint_mismatch]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    assert!(
        finished.stdout.contains("credentials.PORT.hosts: add"),
        "{finished:?}"
    );
    let permitted = [
        asked("PATHS", "/repos/x?y"),
        asked("PATHS", "/x/../repos/y"),
        "-H 'X: openshell:resolve:env:PORT' https://web.test:8443/".to_owned(),
    ];
    let finished = curl(&lab, &origin, credentials, &permitted);
    assert_eq!(
        finished.ok().matches("hello 200").count(),
        3,
        "{finished:?}"
    );
    assert_eq!(origin.seen().len(), 3);
}

#[test]
fn a_path_that_could_be_read_in_two_ways_is_none_that_a_credential_is_bound_to() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let credentials =
        r#"credentials: {PATHS: {value: for some paths, hosts: ["web.test"], path: /repos/}}"#;
    let script = [
        "/admin//../repos/x",
        "/other/../repos/x",
        "//repos/x",
        "/./repos/x",
        "/%72epos/x",
        "/repos/a%2fb",
        "/repos/x",
    ]
    .map(|path| {
        format!(
            "curl -sS --path-as-is -H 'X: openshell:resolve:env:PATHS' https://web.test{path}; echo"
        )
    });
    // Without rules, paths are sent as written.
    let finished =
        sandbox(&lab, &origin, credentials, "allow_encoded_slash: false").sh(&script.join("\n"));
    assert_eq!(origin.asked(), ["GET /repos/x"], "{finished:?}");
    assert_eq!(
        finished
            .stdout
            .matches("credential_endpoint_mismatch")
            .count(),
        6,
        "{finished:?}"
    );
}

#[test]
fn on_the_port_of_https_a_secret_leaves_inside_tls_alone() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let words = [
        "-H \"X: $P\" http://web.test:443/forward",
        "-p -H \"X: $P\" http://web.test:443/tunnel",
    ];
    let finished = curl(&lab, &origin, CREDENTIALS, &words.map(str::to_owned));
    let answers: Vec<_> = finished.ok().lines().collect();
    assert!(
        answers
            .iter()
            .all(|answer| answer.contains("it would go to port 443 without TLS")),
        "{finished:?}"
    );
    assert_eq!(answers.len(), 2, "{finished:?}");
}

#[test]
fn without_credentials_bodies_may_hold_what_they_like() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let sandbox = lab
        .sandbox(&policy(&["/usr/bin/curl"], FULL))
        .args(&["--upstream-ca-file", &origin.authority()]);
    let finished = sandbox.sh(&format!(
        "curl -sS -d 'what is {PLACEHOLDER}?' https://web.test/text"
    ));
    assert_eq!(finished.ok(), "hello", "{finished:?}");
}

#[test]
fn what_says_how_long_an_answer_is_stays() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let credentials = "credentials: {API_KEY: {value: '5'}}";
    let finished = curl(
        &lab,
        &origin,
        credentials,
        &["--http1.1 -i -H \"X: $P\" https://web.test/hello".to_owned()],
    );
    assert!(
        finished.ok().contains("Content-Length: 5") && finished.stdout.contains("hello 200"),
        "{finished:?}"
    );
}

#[test]
fn credentials_come_from_a_pipe_as_well() {
    let lab = Lab::with_web();
    let pipe = lab.folder("pipes").join("credentials");
    assert_eq!(
        lab.shell(&format!(
            "mkfifo -m 600 {0} && chown {1} {0}",
            pipe.display(),
            lab::host::caller()
        )),
        ""
    );
    let writer = pipe.clone();
    let writing = std::thread::spawn(move || {
        std::fs::write(writer, "credentials: {API_KEY: {value: from-a-pipe}}").unwrap()
    });
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--credentials", pipe.to_str().unwrap()])
        .sh("echo $API_KEY");
    assert_eq!(finished.ok(), PLACEHOLDER);
    writing.join().unwrap();
}

#[test]
fn a_fifo_that_nobody_writes_to_hangs_no_start_and_is_named() {
    let lab = Lab::with_web();
    let fifo = lab.folder("pipes").join("left-there");
    assert_eq!(
        lab.shell(&format!(
            "mkfifo -m 600 {0} && chown {1} {0}",
            fifo.display(),
            lab::host::caller()
        )),
        ""
    );
    let fifo = fifo.to_str().unwrap();
    for flag in [
        "--credentials",
        "--inference-routes",
        "--env-file",
        "--policy-rules",
    ] {
        let finished = lab
            .sandbox(&super::policy("{}"))
            .args(&[flag, fifo])
            .sh("echo ran");
        assert!(
            finished.code() == 1 && finished.stderr.contains("a FIFO, and nobody writes to it"),
            "{finished:?}"
        );
        assert!(finished.stderr.contains(fifo), "{finished:?}");
    }
    let checked = lab.shell(&format!("{} check {fifo} 2>&1", lab.binary()));
    assert!(checked.contains("nobody writes to it"), "{checked}");
    let given = lab.shell(&format!(
        "{} bash -c '{} check <(sleep 4; echo network_policies: {{}})' 2>&1; echo $?",
        lab.as_caller(),
        lab.program_path().display()
    ));
    assert!(given.trim_end().ends_with('0'), "{given}");
}

#[test]
fn the_example_is_valid() {
    let lab = Lab::with_web();
    let policy = lab.file(
        "curl.yaml",
        include_str!("../../../data/examples/curl.yaml"),
    );
    let credentials = lab.file(
        "credentials.yaml",
        include_str!("../../../data/credentials.yaml"),
    );
    let policy = policy.display();
    let credentials = credentials.display();
    let said = lab.shell(&format!(
        "{} check {policy} --credentials {credentials}",
        lab.binary()
    ));
    assert!(
        said.ends_with("credentials.yaml: 1 credential, 0 warnings\n"),
        "{said}"
    );
}

#[test]
fn what_names_one_host_and_goes_to_another_takes_no_secret_along() {
    let lab = Lab::new(&[("10.99.0.1", "web.test bound.test")]);
    let origin = Origin::start(&lab);
    let credentials = r#"credentials: {API_KEY: {value: s3cret-Value.42, hosts: ["bound.test", "http://bound.test:8080"]}}"#;
    let finished = curl(
        &lab,
        &origin,
        credentials,
        &[
            // By Host, SNI, absolute form, user information and redirects.
            "-H 'Host: bound.test' -H \"X: $P\" https://web.test/host".to_owned(),
            "-k --connect-to bound.test:443:web.test:443 -H \"X: $P\" https://bound.test/sni"
                .to_owned(),
            "-H 'Host: bound.test:8080' -H \"X: $P\" http://web.test:8080/absolute".to_owned(),
            "-p --request-target http://bound.test:8080/x -H \"X: $P\" http://web.test:8080/"
                .to_owned(),
            "--request-target \"http://bound.test:8080@web.test:8080/$P\" http://web.test:8080/"
                .to_owned(),
            "\"http://bound.test:8080:$P@web.test:8080/userinfo\"".to_owned(),
            "-L -H \"X: $P\" http://web.test:8080/redirect?http://bound.test:8080/".to_owned(),
        ],
    );
    for seen in origin.seen() {
        assert!(
            !seen.to_string().contains("s3cret") && !seen.to_string().contains("resolve"),
            "{seen}\n{finished:?}"
        );
    }
    assert!(
        finished.logged("[code:credential_endpoint_mismatch]").len() >= 2,
        "{}",
        finished.log
    );
}

#[test]
fn an_answer_that_holds_the_secret_comes_without_it() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let lines: Vec<_> = (1..=40)
        .map(|step| {
            format!(
                "--http1.1 -i --raw -H 'X-Step: {step}' -H \"X-Back: $P\" -u \"user:$P\" \
                 \"https://web.test/reflect/$P?k=$P\""
            )
        })
        .collect();
    let finished = curl(&lab, &origin, CREDENTIALS, &lines);
    assert!(
        !finished.ok().contains("s3cret") && !finished.stdout.contains("Value.42"),
        "{finished:?}"
    );
    // Inside `user:…` the secret starts at the third byte of a Base64 group.
    assert!(
        !finished.stdout.contains("czM2NyZXQtVmFsdWU")
            && !finished.stdout.contains("NyZXQtVmFsdWU"),
        "{finished:?}"
    );
    let stars = "*".repeat(SECRET.len());
    assert_eq!(
        finished
            .stdout
            .matches(&format!("HTTP/1.1 200 Back {stars}"))
            .count(),
        40,
        "{finished:?}"
    );
    assert_eq!(
        finished.stdout.matches(&format!("X-Back: {stars}")).count(),
        40
    );
    let finding = "[MED] \"Credential In An Answer\" [confidence:high]";
    assert_eq!(finished.logged(finding).len(), 40, "{}", finished.log);
    // The length is unchanged, also in the response to a request without a credential.
    let finished = curl(
        &lab,
        &origin,
        CREDENTIALS,
        &[
            "-H \"X-Back: $P\" https://web.test/reflect".to_owned(),
            format!("-H 'X-Back: {SECRET}' https://web.test/reflect"),
        ],
    );
    let bodies: Vec<_> = finished.ok().lines().collect();
    assert!(
        bodies
            .iter()
            .all(|body| body.contains(&format!("\"x-back\": \"{stars}\""))),
        "{finished:?}"
    );
    assert!(!finished.stdout.contains(SECRET), "{finished:?}");
}

#[test]
fn an_answer_in_a_coding_or_character_set_that_was_not_asked_for_comes_decoded_or_not_at_all() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    for version in ["--http1.1", "--http2"] {
        for (base, how) in [
            ("https://web.test", ""),
            ("http://web.test:8080", "-p"),
            ("http://web.test:8080", ""),
        ] {
            let ask = |back: &str, query: &str| {
                format!(
                    "{version} {how} -H \"X-Back: {back}\" '{base}/coded?{query}' | tr -d \
                     '\\0\\377\\376'"
                )
            };
            let queries = [
                "gzip",
                "deflate",
                "raw",
                ";utf-16-le",
                ";utf-16-be",
                ";utf-16",
                "gzip;utf-16-le",
            ];
            let asked =
                queries.map(|query| ask("$P", query).replace("-le", "le").replace("-be", "be"));
            let finished = curl(&lab, &origin, CREDENTIALS, &asked);
            assert!(
                !finished.stdout.contains("s3cret") && !finished.stdout.contains("Value"),
                "{finished:?}"
            );
            assert_eq!(
                finished.stdout.matches("<p>****").count(),
                queries.len(),
                "{version} {base} {finished:?}"
            );
            // What cannot be searched is refused where the request carried a secret, and reported
            // where it did not.
            let odd = [
                ask("$P", "compress"),
                ask("$P", ";utf-7"),
                ask("none", "compress"),
                ask("none", ";utf-7"),
            ];
            let finished = curl(&lab, &origin, CREDENTIALS, &odd);
            assert_eq!(
                finished
                    .stdout
                    .matches("\"error\":\"upstream_unreachable")
                    .count(),
                2,
                "{finished:?}"
            );
            assert_eq!(
                finished.stdout.matches("<p>none</p>").count(),
                2,
                "{finished:?}"
            );
            assert!(
                finished
                    .stdout
                    .contains("the proxy cannot search the answer for the credential"),
                "{finished:?}"
            );
            assert!(!finished.stdout.contains("s3cret"), "{finished:?}");
            assert!(
                finished
                    .log
                    .contains("is encoded, and was not searched for API_KEY"),
                "{}",
                finished.log
            );
        }
    }
}

#[test]
fn what_one_request_has_stored_another_does_not_read_back() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let ask = |path: &str| format!("--http1.1 --compressed https://web.test{path}");
    let store = ask("/store?k -H \"X-Key: $P\"");
    let read = ask("/stored?k");
    // Bound to the host: redacted in the response to any request, which asks for no compression.
    let finished = curl(&lab, &origin, CREDENTIALS, &[store.clone(), read.clone()]);
    assert_eq!(
        finished.ok(),
        "stored 200\n*************** 200",
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("FINDING:BLOCKED").len(),
        1,
        "{}",
        finished.log
    );
    assert!(
        origin
            .seen()
            .iter()
            .all(|seen| seen[2]["accept-encoding"] == "identity"),
        "{:?}",
        origin.seen()
    );
    // Also at another port of the host.
    let plain = "http://web.test:8080/stored?k".to_owned();
    let finished = curl(&lab, &origin, CREDENTIALS, std::slice::from_ref(&plain));
    assert_eq!(finished.ok(), "*************** 200", "{finished:?}");
    // Unbound: in all responses, also to requests sent before the credential was.
    let unbound = "credentials: {API_KEY: {value: s3cret-Value.42}}";
    let finished = curl(&lab, &origin, unbound, &[read.clone(), plain]);
    assert_eq!(
        finished.ok(),
        "*************** 200\n*************** 200",
        "{finished:?}"
    );
    // Bound to another host: not redacted.
    let elsewhere = "credentials: {API_KEY: {value: s3cret-Value.42, hosts: [other.test]}}";
    let finished = curl(&lab, &origin, elsewhere, &[read]);
    assert_eq!(finished.ok(), format!("{SECRET} 200"), "{finished:?}");
}

#[test]
fn every_request_of_a_connection_gets_its_own() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let credentials = "credentials: {A: {value: first-secret}, B: {value: second-secret}}";
    let program = r"
import http.client, os, socket
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
c = http.client.HTTPConnection(host, int(port))
c.set_tunnel('web.test', 8080)
for name in ['A', 'B', None, 'A']:
    c.request('GET', f'/{name}', headers={'X-Key': f'openshell:resolve:env:{name}'} if name else {})
    print(c.getresponse().read())
s = c.sock
s.sendall(b''.join(b'GET /p HTTP/1.1\r\nHost: web.test:8080\r\nX-Key: openshell:resolve:env:%s\r\n\r\n' % name for name in [b'B', b'A', b'C', b'B']))
out = b''
while data := s.recv(65536): out += data
print(out.count(b'hello'), out.count(b'there is no credential C'))
";
    let finished = sandbox(&lab, &origin, credentials, FULL).python(program, &[]);
    assert!(finished.ok().ends_with("2 1"), "{finished:?}");
    let keys: Vec<_> = origin
        .seen()
        .iter()
        .map(|seen| seen[2]["x-key"].as_str().unwrap_or("-").to_owned())
        .collect();
    assert_eq!(
        keys,
        [
            "first-secret",
            "second-secret",
            "-",
            "first-secret",
            "second-secret",
            "first-secret"
        ]
    );
}

#[test]
fn real_clients_use_credentials_that_they_do_not_have() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let script = format!(
        r#"
P={PLACEHOLDER}
/usr/bin/python3 -c "import requests; print(requests.get('https://web.test/requests', auth=('user', '$P'), params={{'k': '$P'}}).text)"
/usr/bin/python3 -c "import httpx; print(httpx.post('https://web.test/httpx', headers={{'X-Api-Key': '$P'}}, json={{'a': 1}}).text)"
NODE_PATH=/usr/share/nodejs node -e "require('axios').get('https://web.test/axios', {{headers: {{Authorization: 'Bearer ' + process.env.API_KEY}}}}).then(r => console.log(r.data))" 2>&1 | tail -1
git -c credential.helper= ls-remote "https://user:$P@web.test/auth/repo.git" 2>&1 | tail -1
curl -sS --oauth2-bearer $P https://web.test/oauth
"#
    );
    let finished = sandbox(&lab, &origin, CREDENTIALS, FULL).sh(&script);
    let seen = origin.seen();
    let of = |path: &str| {
        seen.iter()
            .filter(|seen| text(&seen[1]).starts_with(path))
            .collect::<Vec<_>>()
    };
    let header = |path: &str, name: &str| {
        of(path)
            .iter()
            .map(|seen| seen[2][name].clone())
            .next_back()
            .unwrap_or_default()
    };
    assert_eq!(
        header("/requests", "authorization"),
        "Basic dXNlcjpzM2NyZXQtVmFsdWUuNDI=",
        "{finished:?}"
    );
    assert_eq!(of("/requests")[0][1], format!("/requests?k={SECRET}"));
    assert_eq!(header("/httpx", "x-api-key"), SECRET, "{finished:?}");
    assert_eq!(
        header("/axios", "authorization"),
        format!("Bearer {SECRET}"),
        "{finished:?}"
    );
    assert_eq!(
        header("/auth/repo.git", "authorization"),
        "Basic dXNlcjpzM2NyZXQtVmFsdWUuNDI=",
        "{finished:?}"
    );
    assert_eq!(
        header("/oauth", "authorization"),
        format!("Bearer {SECRET}"),
        "{finished:?}"
    );
    assert!(
        !seen.iter().any(|seen| seen.to_string().contains("resolve")),
        "{seen:?}"
    );
}

// Conformance: SEC-14.
#[test]
fn no_secret_is_in_anything_that_a_run_leaves() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let work = lab.folder("work");
    let proposals = work.join("proposals.yaml");
    let script = format!(
        r#"
P={PLACEHOLDER}
curl -sS -i -v -u "user:$P" -H "X-Back: $P" "https://web.test/reflect/$P?k=$P"
curl -sS -i -v "https://web.test/bot$P/x" "http://web.test:8080/bot$P/x" "https://web.test:8444/bot$P/expired" "http://other.test/bot$P"
curl -sS -d "$P" https://web.test/body; curl -sS -H "X: ${{P}}X" https://web.test/unknown
curl -sS -X DELETE "https://web.test/denied/$P"; curl -sS "https://web.test/%zz$P"; curl -sS "https://web.test/silent?$P=$P" -m 1
sh -c 'ulimit -c unlimited; kill -ABRT $$'
/usr/bin/python3 -c "import mmap; print(open('/proc/self/environ').read())"
"#
    );
    let rules = "protocol: rest, enforcement: enforce, access: read-write";
    let words = [
        "--log-level",
        "trace",
        "--workdir",
        work.to_str().unwrap(),
        "--proposals",
        proposals.to_str().unwrap(),
    ];
    let finished = sandbox(&lab, &origin, CREDENTIALS, rules)
        .args(&words)
        .sh(&script);
    assert!(
        origin
            .seen()
            .iter()
            .any(|seen| seen.to_string().contains(SECRET)),
        "{finished:?}"
    );
    let left = lab.shell(&format!("cat {}/* 2>/dev/null; true", work.display()));
    let encoded = "s3cret-Value.42"
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    for (what, text) in [
        ("log", &finished.log),
        ("stdout", &finished.stdout),
        ("stderr", &finished.stderr),
        ("files", &left),
    ] {
        for secret in [
            SECRET,
            "czNjcmV0LVZhbHVl",
            "MzY3JldC1WYWx1Z",
            "zM2NyZXQtVmFsdW",
            encoded.as_str(),
        ] {
            assert!(!text.contains(secret), "{what} holds {secret}: {text}");
        }
    }
    assert!(
        finished.log.contains("/bot[CREDENTIAL]/x"),
        "{}",
        finished.log
    );
}

#[test]
fn no_process_of_the_sandbox_has_a_secret_in_its_memory() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let credentials = r#"credentials: {API_KEY: {env: REAL_KEY}}"#;
    let work = lab.folder("work");
    let ready = work.join("ready");
    let sandbox = sandbox(&lab, &origin, credentials, FULL).env("REAL_KEY", SECRET);
    let script = format!(
        "curl -sS -H \"X: $API_KEY\" https://web.test/reflect; touch {}; sleep 60 & wait",
        ready.display()
    );
    let started = sandbox
        .args(&["--workdir", work.to_str().unwrap(), "--grace", "1"])
        .start(&["sh", "-c", &script]);
    lab::wait_until(|| ready.exists(), || lab.log());
    // The memory of every process below the supervisor, init included, without that of the
    // supervisor.
    let scan = r#"
import os, sys
secret, parents, found, looked = sys.argv[2].encode(), {}, [], 0
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: parents[int(pid)] = int(open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1].split()[1])
    except OSError: pass
inside, grown = {int(sys.argv[1])}, True
while grown:
    more = {pid for pid, parent in parents.items() if parent in inside} | inside
    grown, inside = more != inside, more
for pid in inside - {int(sys.argv[1])}:
    memory = open(f'/proc/{pid}/mem', 'rb')
    for line in open(f'/proc/{pid}/maps'):
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        if '[v' in line: continue
        try:
            memory.seek(start)
            looked += 1
            if secret in memory.read(end - start): found.append((pid, line))
        except (OSError, OverflowError): pass
print(len(inside), looked > 20, found)
"#;
    let scanned = lab.shell(&format!(
        "/usr/bin/python3 {} {} {SECRET}",
        lab.file("scan.py", scan).display(),
        started.pid()
    ));
    started.signal(Signal::TERM);
    let finished = started.wait();
    assert!(
        scanned.ends_with("True []\n") && !scanned.starts_with("1 "),
        "{scanned}\n{finished:?}"
    );
    assert!(
        origin.seen()[0].to_string().contains(SECRET),
        "{finished:?}"
    );
}

#[test]
fn credentials_are_read_again_with_the_policy() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let work = lab.folder("work");
    let credentials = r#"credentials: {API_KEY: {value: first-secret}, OLD: {env: OLD}}"#;
    let script = r#"
ask() { curl -sS -H "X-Key: openshell:resolve:env:$1" https://web.test/$2 -w '\n'; }
ask API_KEY a; touch ready; until [ -e go ]; do sleep 0.02; done
ask API_KEY b; ask NEW c; ask OLD d; echo NEW=$NEW
touch again; until [ -e last ]; do sleep 0.02; done
ask API_KEY e"#;
    let started = sandbox(&lab, &origin, credentials, FULL)
        .env("OLD", "kept-secret")
        .args(&["--workdir", work.to_str().unwrap()])
        .start(&["sh", "-c", script]);
    let until = |name: &str| {
        lab::wait_until(|| work.join(name).exists(), || lab.log());
    };
    let logged = |text: &str| {
        lab::wait_until(|| lab.log().contains(text), || lab.log());
    };
    until("ready");
    file(
        &lab,
        "credentials: {API_KEY: {value: second-secret}, NEW: {value: brand-new-secret}, OLD: {env: \
         OLD}}",
    );
    started.signal(Signal::HUP);
    logged("Credentials reloaded successfully");
    std::fs::write(work.join("go"), "").unwrap();
    until("again");
    file(&lab, "credentials: {API_KEY: {env: LATER}}");
    started.signal(Signal::HUP);
    logged("Credentials reload failed, keeping last-known-good policy");
    std::fs::write(work.join("last"), "").unwrap();
    let finished = started.wait();
    let keys: Vec<_> = origin
        .seen()
        .iter()
        .map(|seen| seen[2]["x-key"].as_str().unwrap_or("-").to_owned())
        .collect();
    assert_eq!(
        keys,
        [
            "first-secret",
            "second-secret",
            "brand-new-secret",
            "kept-secret",
            "second-secret"
        ],
        "{finished:?}"
    );
    assert!(finished.stdout.contains("NEW=\n"), "{finished:?}");
}

#[test]
fn a_credentials_file_that_is_none_stops_the_start_and_says_where() {
    let lab = Lab::with_web();
    let secret = |name: &str, content: &[u8], mode| -> PathBuf {
        let path = lab.file(name, content);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    };
    let public = secret("public", b"x", 0o644);
    let lines = secret("lines", b"a\nb\n", 0o600);
    let empty = secret("empty", b"\n", 0o600);
    let long = secret("long", &[b'x'; 70_000], 0o600);
    for (text, expected) in [
        (
            "credentials: {A: {value: x, host: a.test}}".to_owned(),
            "line 1: credentials.A.host: unknown key `host`: did you mean `hosts`? known here: \
             env, file, value, hosts, path",
        ),
        ("other: {}".to_owned(), "unknown key `other`"),
        ("credentials:\n  9A: {value: x}".to_owned(), "line 2: credentials.9A: the name of a \
                                                       credential is a letter"),
        (
            "credentials: {HTTPS_PROXY: {value: x}, LD_PRELOAD: {value: x}, SSL_CERT_FILE: {value: \
             x}}".to_owned(),
            "`LD_PRELOAD` is a variable that the sandbox sets or removes itself",
        ),
        ("credentials: {A: {}}".to_owned(), "exactly one of `env`, `file` and `value`"),
        ("credentials: {A: {env: X, value: x}}".to_owned(), "exactly one of `env`, `file` and \
                                                             `value`"),
        ("credentials: {A: {env: NOT_THERE}}".to_owned(), "credentials.A: the variable NOT_THERE \
                                                           is not set"),
        ("credentials: {A: {file: /not/there}}".to_owned(), "credentials.A: failed to read \
                                                             /not/there: No such file"),
        (
            format!("credentials: {{A: {{file: {}}}}}", public.display()),
            "others may read it; remove that permission with `chmod go-rwx`",
        ),
        (format!("credentials: {{A: {{file: {}}}}}", lines.display()), "the secret holds CR, LF or NUL"),
        (format!("credentials: {{A: {{file: {}}}}}", empty.display()), "the secret is empty"),
        (format!("credentials: {{A: {{file: {}}}}}", long.display()), "it has more than 65537 bytes"),
        ("credentials: {A: {value: ''}}".to_owned(), "the secret is empty"),
        ("credentials: {A: {value: \"a\\r\\nb\"}}".to_owned(), "the secret holds CR, LF or NUL"),
        ("credentials: {A: {value: \"openshell:resolve:env:B\"}}".to_owned(), "the secret holds a placeholder; give the secret itself"),
        ("credentials: {A: {value: x, hosts: []}}".to_owned(), "an empty list would refuse the \
                                                                credential everywhere"),
        ("credentials: {A: {value: x, hosts: ['*']}}".to_owned(), "matches all hosts"),
        ("credentials: {A: {value: x, hosts: ['a.test:0']}}".to_owned(), "a port is a whole number from 1 to 65535"),
        ("credentials: {A: {value: x, path: repos}}".to_owned(), "a path begins with `/`"),
        ("credentials: [".to_owned(), "line "),
        (
            format!("credentials:\n{}", (0..1001).map(|n| format!("  A{n}: {{env: X}}\n")).collect::<String>()),
            "there are 1001 credentials; at most 1000 are allowed",
        ),
    ] {
        let path = file(&lab, &text);
        let finished = lab.sandbox(&super::policy("{}")).args(&["--credentials", &path]).sh("echo ran");
        assert_eq!((finished.code(), finished.stdout.as_str()), (1, ""), "{text}: {finished:?}");
        assert!(finished.stderr.contains(expected), "{text}: {}", finished.stderr);
        assert!(finished.stderr.contains("credentials.yaml"), "it names the file: {}", finished.stderr);
    }
    let path = lab
        .file("open.yaml", "credentials: {A: {value: x}}")
        .display()
        .to_string();
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--credentials", &path])
        .sh("echo ran");
    assert!(
        finished.code() == 1 && finished.stderr.contains("others may read it"),
        "{finished:?}"
    );
    let path = file(&lab, "credentials: {A: {value: x}}");
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--credentials", &path, "--network", "allow"])
        .sh("echo ran");
    assert!(
        finished.code() == 1
            && finished
                .stderr
                .contains("--credentials needs --network proxy"),
        "{finished:?}"
    );
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--credentials", &path])
        .sh("echo ran");
    for doubt in [
        "it has no `hosts`, so it works at every host",
        "the secret has less than 8 bytes",
    ] {
        assert!(
            finished.ok() == "ran" && finished.log.contains(doubt),
            "{finished:?}"
        );
    }
}

#[test]
fn what_calls_itself_a_call_hides_no_secret() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let calls = "-H 'Content-Type: application/grpc' -H 'Accept-Encoding: gzip' -H \
                 'Grpc-Accept-Encoding: gzip'";
    let words: Vec<_> = WAYS
        .iter()
        .map(|(how, base)| format!("{how} {calls} -H \"X: $P\" {base}/hello"))
        .collect();
    let finished = curl(&lab, &origin, CREDENTIALS, &words);
    for seen in origin.seen() {
        let headers = &seen[2];
        assert_eq!(
            (
                &headers["accept-encoding"],
                &headers["grpc-accept-encoding"]
            ),
            (&"identity".into(), &"identity".into()),
            "{seen} {finished:?}"
        );
    }
    assert_eq!(origin.seen().len(), 3, "{finished:?}");
    // The names in `Trailer` are redacted too.
    let named = curl(
        &lab,
        &origin,
        CREDENTIALS,
        &["-i -H 'X-Trailer: x' -H \"X-Back: $P\" https://web.test/named".to_owned()],
    );
    assert!(!named.stdout.contains(SECRET), "{named:?}");
}

#[test]
fn debug_lines_tell_each_step_of_a_request_and_neither_secret_nor_query() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let words =
        "curl -s -o /dev/null -H \"X: $API_KEY\" 'https://web.test/repos/x?token=from-the-query'";
    let run = |level: &str| {
        sandbox(&lab, &origin, CREDENTIALS, FULL)
            .args(&["--log-level", level])
            .sh(words)
    };
    let shown = run("debug");
    let steps = [
        ("", "authorized policy=web generation=1 inspection=rest us="),
        ("", "resolved addresses=10.99.0.1:443 us="),
        ("", "connected address=10.99.0.1:443 us="),
        ("", "detected protocol=Tls"),
        ("", "TLS intercepted protocol="),
        (
            "request{n=1 request=\"GET /repos/x\"}",
            "message authorized policy=web generation=1 us=",
        ),
        (
            "request{n=1 request=\"GET /repos/x\"}",
            "response status=200 us=",
        ),
        ("", "ended us="),
    ];
    let mut lines = shown
        .stderr
        .lines()
        .filter(|line| line.contains("connection{client=10.200."));
    for (span, step) in steps {
        assert!(
            lines.any(|line| line.contains(span) && line.contains(step)),
            "{step} in its place: {}",
            shown.stderr
        );
    }
    assert!(
        !shown.stderr.contains(SECRET) && !shown.stderr.contains("from-the-query"),
        "{}",
        shown.stderr
    );
    assert!(!run("info").stderr.contains("connection{"));
}

#[test]
fn secrets_of_the_environment_are_placeholders_for_the_hosts_of_their_issuers_alone() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let work = lab.folder("work");
    let file = file(
        &lab,
        r#"credentials: {OF_FILE: {env: IN_FILE_TOKEN, hosts: ["web.test"]}}"#,
    );
    let pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE \
               KEY-----\n";
    let script = r#"
ask() { curl -sS -H "Authorization: Bearer $1" https://web.test/$2 -w ' %{http_code}\n'; }
ask $OPENAI_API_KEY a; ask $GITHUB_TOKEN b; ask $DEPLOY_PASSWORD c; ask $OF_FILE d; ask $MEANT_TOKEN e
touch ready; until [ -e go ]; do sleep 0.02; done
ask $OPENAI_API_KEY f; ask $GITHUB_TOKEN g
echo "[$SIGNING_KEY]"; env; cat /proc/*/environ | tr '\0' '\n'"#;
    let started = lab
        .sandbox(&policy(&["/usr/bin/curl"], FULL))
        .args(&[
            "--upstream-ca-file",
            &origin.authority(),
            "--credentials",
            &file,
            "--secrets-from-env",
        ])
        .args(&[
            "--env",
            "MEANT_TOKEN",
            "--env",
            "OPENAI_BASE_URL",
            "--workdir",
            work.to_str().unwrap(),
            "--clear-env",
        ])
        .env("OPENAI_BASE_URL", "https://web.test/v1")
        .env("OPENAI_API_KEY", "models-secret")
        .env("GITHUB_TOKEN", "github-secret")
        .env("DEPLOY_PASSWORD", "deploy-secret")
        .env("IN_FILE_TOKEN", "file-secret")
        .env("MEANT_TOKEN", "meant-value")
        .env("SIGNING_KEY", pem)
        .start(&["sh", "-c", script]);
    lab::wait_until(|| work.join("ready").exists(), || lab.log());
    started.signal(Signal::HUP);
    lab::wait_until(
        || lab.log().contains("Credentials reloaded successfully"),
        || lab.log(),
    );
    std::fs::write(work.join("go"), "").unwrap();
    let finished = started.wait();
    let keys: Vec<_> = origin
        .seen()
        .iter()
        .map(|seen| text(&seen[2]["authorization"]).to_owned())
        .collect();
    let expected = [
        "models-secret",
        "file-secret",
        "meant-value",
        "models-secret",
    ]
    .map(|key| format!("Bearer {key}"));
    assert_eq!(keys, expected, "{finished:?}");
    assert_eq!(
        finished
            .stdout
            .matches("credential_endpoint_mismatch")
            .count(),
        3,
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("[]\n") && !finished.stdout.contains("IN_FILE_TOKEN"),
        "{finished:?}"
    );
    for secret in [
        "models-secret",
        "github-secret",
        "deploy-secret",
        "file-secret",
        "MIIE",
    ] {
        let log = lab.log();
        assert!(
            ![&finished.stdout, &finished.stderr, &log]
                .iter()
                .any(|text| text.contains(secret)),
            "{finished:?}"
        );
    }
    for line in [
        "DEPLOY_PASSWORD: no hosts are known, so the proxy refuses the placeholder everywhere",
        "the command gets neither SIGNING_KEY nor a placeholder for it",
    ] {
        assert!(finished.stderr.contains(line), "{finished:?}");
    }
    assert!(
        !finished.stderr.contains("look like secrets"),
        "{finished:?}"
    );
    assert!(
        lab.log()
            .contains("GITHUB_TOKEN (api.github.com, github.com, uploads"),
        "{}",
        lab.log()
    );
}

#[test]
fn secrets_of_the_environment_need_the_proxy() {
    let lab = Lab::with_web();
    let refused = lab
        .sandbox(&super::policy("{}"))
        .args(&["--network", "block", "--secrets-from-env"])
        .sh("echo ran");
    assert!(
        refused.code() == 1
            && refused
                .stderr
                .contains("--secrets-from-env needs --network proxy"),
        "{refused:?}"
    );
}
