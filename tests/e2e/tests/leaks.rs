//! Secrets in requests: reported, or refused with nothing of them sent, in each place and encoding.

use lab::{Finished, Lab, Sandbox};

use super::credentials::PARTS;
use super::inference;
use super::origin::{FULL, Origin, policy};

/// What looks like a token of GitHub's.
fn token() -> String {
    ["gh", "p_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat()
}

fn sandbox<'l>(lab: &'l Lab, origin: &Origin, rules: &str, flags: &[&str]) -> Sandbox<'l> {
    let programs = ["/usr/bin/curl", "/usr/bin/python3*"];
    lab.sandbox(
        &policy(&programs, rules)
            .replace(", }", "}")
            .replace("8446]", "8446, 8447]"),
    )
    .args(&["--upstream-ca-file", &origin.authority()])
    .args(flags)
    .env("T", &token())
    .env(
        "B",
        "Z2hwX2ExQjJjM0Q0ZTVGNmc3SDhpOUowazFMMm0zTjRvNVA2cTdSOA==",
    )
    .env(
        "X",
        "6768705f613142326333443465354636673748386939".trim_end_matches('9'),
    )
}

/// Requests with the token in every place, each with the text that tells it from the others.
const PLACES: &[(&str, &str)] = &[
    ("/path/$T", ""),
    ("/inside/$T/more", ""),
    ("/query?key=$T", ""),
    ("/escaped?key=$(echo $T | sed s/_/%5F/)", ""),
    ("/field", "-H \"X-Key: $T\""),
    ("/bearer", "-H \"Authorization: Bearer $T\""),
    ("/basic", "-u \"user:$T\""),
    ("/cookie", "-b \"a=b; key=$T\""),
    ("/form", "-d \"a=b&key=$T\""),
    ("/json", "-d \"{\\\"key\\\": \\\"$T\\\"}\""),
    ("/multipart", "-F \"key=$T\""),
    ("/base64", "-d \"{\\\"key\\\": \\\"$B\\\"}\""),
    (
        "/hex",
        "-d \"$(printf $T | od -An -v -tx1 | tr -d ' \\n')\"",
    ),
    ("/chunked", "-H 'Transfer-Encoding: chunked' -d \"key=$T\""),
    (
        "/large",
        "-H 'Content-Type: text/plain' --data-binary @large",
    ),
];

/// Asks for every place by each of `ways`, and prints path and status.
fn ask(sandbox: Sandbox<'_>, ways: &[(&str, &str)]) -> Finished {
    let mut lines = vec![
        "cd /tmp; (head -c 3000000 /dev/zero | tr '\\0' x; echo \" $T\"; head -c 3000000 \
         /dev/zero) > large"
            .to_owned(),
    ];
    for (words, origin) in ways {
        for (path, more) in PLACES.iter().chain([&("/ordinary", "-d 'a=b'")]) {
            let name = path.split(['/', '?']).nth(1).unwrap_or_default();
            lines.push(format!(
                "curl -sS {words} -o answer -w '{name} %{{http_code}}\\n' \"{origin}{path}\" \
                 {more} || echo {name} cut"
            ));
        }
    }
    sandbox.sh(&lines.join("\n"))
}

/// Inside TLS, in a plain tunnel, and forwarded.
const WAYS: &[(&str, &str)] = &[
    ("", "https://web.test"),
    ("-p", "http://web.test:8080"),
    ("", "http://web.test:8080"),
];

#[test]
fn secrets_are_reported_once_for_each_host_and_the_requests_go() {
    let lab = Lab::with_web();
    for (index, rules) in [FULL, ""].into_iter().enumerate() {
        let origin = Origin::start(&lab);
        let finished = ask(sandbox(&lab, &origin, rules, &[]), WAYS);
        let lines: Vec<_> = finished.ok().lines().collect();
        assert_eq!(lines.len(), 3 * (PLACES.len() + 1), "{finished:?}");
        assert!(
            lines.iter().all(|line| line.ends_with(" 200")),
            "{finished:?}"
        );
        let found = finished.logged("Secret In A Request");
        assert_eq!(found.len(), index + 1, "{}", finished.log);
        assert!(!finished.log.contains("p_a1B2"), "{}", finished.log);
        let line = found.last().unwrap();
        assert!(
            line.contains("[HIGH]") && line.contains("holds what looks like a secret of GitHub"),
            "{line}"
        );
        // Who looks at the terminal alone sees it at once, and again in the summary.
        let summary = "openshell-sandbox: look at this:\n  1 x Secret In A Request: ";
        assert!(
            finished.stderr.contains(summary) && !finished.stderr.contains("p_a1B2"),
            "{}",
            finished.stderr
        );
        assert_eq!(
            finished.stderr.matches("Secret In A Request").count(),
            2,
            "{}",
            finished.stderr
        );
        assert!(
            line.contains("web.test") && line.contains("/usr/bin/curl") && !line.contains(&token()),
            "{line}"
        );
    }
}

#[test]
fn refused_secrets_reach_no_upstream_from_any_place() {
    for rules in [FULL, ""] {
        let lab = Lab::with_web();
        let origin = Origin::start(&lab);
        let finished = ask(sandbox(&lab, &origin, rules, &["--leaks", "block"]), WAYS);
        for line in finished.ok().lines() {
            let (name, status) = line.split_once(' ').unwrap();
            match name {
                "ordinary" => assert_eq!(status, "200", "{finished:?}"),
                // What is found on its way ends the connection.
                "large" => assert!(
                    ["403", "cut", "502"].contains(&status),
                    "{line}: {finished:?}"
                ),
                _ => assert_eq!(status, "403", "{name}: {finished:?}"),
            }
        }
        let seen = origin.asked();
        let whole: Vec<_> = seen
            .iter()
            .filter(|asked| !asked.ends_with("/ordinary"))
            .collect();
        assert!(whole.is_empty(), "{whole:?}");
        let refused = finished.logged("[code:secret_in_request]");
        assert!(
            refused.len() >= 3 * PLACES.len()
                && refused.iter().all(|line| !line.contains("p_a1B2")),
            "{refused:?}"
        );
    }
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let finished = sandbox(&lab, &origin, FULL, &["--leaks", "block"])
        .sh("curl -s -i https://web.test/a -H \"X-Key: $T\" --suppress-connect-headers");
    for part in [
        "HTTP/1.1 403 secret_in_request",
        "it holds a secret of GitHub, which is not for this host",
        "network_policies.web.endpoints: if the secret may go there, add `leaks: allow` to each of \
         web.test:443",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {finished:?}");
    }
}

#[test]
fn http2_requests_are_searched_as_well() {
    for (mode, status) in [("report", "200"), ("block", "403")] {
        for rules in [FULL, ""] {
            let lab = Lab::with_web();
            let origin = Origin::http2(&lab);
            let finished = ask(
                sandbox(&lab, &origin, rules, &["--leaks", mode]),
                &[("--http2", "https://web.test")],
            );
            for line in finished
                .ok()
                .lines()
                .filter(|line| !line.starts_with("large") && !line.starts_with("ordinary"))
            {
                assert!(line.ends_with(status), "{mode}: {line}: {finished:?}");
            }
            let asked = origin
                .asked()
                .iter()
                .filter(|asked| !asked.ends_with("/ordinary") && !asked.starts_with("ABORTED"))
                .count();
            assert_eq!(
                asked,
                if mode == "block" { 0 } else { PLACES.len() },
                "{:?}",
                origin.asked()
            );
        }
    }
}

#[test]
fn endpoints_that_allow_secrets_and_runs_without_the_search_take_them() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let allowed = format!("{FULL}, leaks: allow");
    for (rules, flags) in [
        (allowed.as_str(), &["--leaks", "block"][..]),
        ("leaks: allow", &["--leaks", "block"]),
        (FULL, &["--leaks", "off"]),
    ] {
        let finished = ask(sandbox(&lab, &origin, rules, flags), WAYS);
        assert!(
            finished.ok().lines().all(|line| line.ends_with(" 200")),
            "{finished:?}"
        );
        assert!(
            finished.logged("Secret In A Request").is_empty(),
            "{}",
            finished.log
        );
    }
    let unknown = sandbox(&lab, &origin, "leaks: report", &[]).sh("echo ran");
    assert!(
        unknown.code() == 1 && unknown.stderr.contains("`report` is not one of allow"),
        "{unknown:?}"
    );
}

#[test]
fn the_value_of_a_credential_is_found_and_its_placeholder_is_not() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let text = r#"credentials: {API_KEY: {value: "s3cret/Value.42", hosts: [web.test]}, OTHER: {value: "another-Value.7", hosts: [other.test]}}"#;
    let file = lab.file("credentials.yaml", text);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let file = file.display().to_string();
    let script = "
for key in $API_KEY s3cret/Value.42 another-Value.7 $(printf another-Value.7 | base64) $(printf another-Value.7 | od -An -v -tx1 | tr -d ' \n'); do
  curl -s -o /dev/null -w '%{http_code} ' https://web.test/a -H \"X-Key: $key\"
done";
    let blocked = sandbox(
        &lab,
        &origin,
        FULL,
        &["--credentials", &file, "--leaks", "block"],
    )
    .sh(script);
    assert_eq!(blocked.ok(), "200 200 403 403 403", "{blocked:?}");
    let reported = sandbox(&lab, &origin, FULL, &["--credentials", &file]).sh(script);
    assert_eq!(reported.ok(), "200 200 200 200 200", "{reported:?}");
    let found = reported.logged("Secret In A Request");
    assert!(
        found.len() == 1 && found[0].contains("the secret of the credential OTHER"),
        "{found:?}"
    );
    assert!(!found[0].contains("another-Value"), "{found:?}");
}

#[test]
fn of_a_secret_on_its_way_the_end_does_not_leave_wherever_it_is_cut() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let policy = super::web().replace("port: 8080,", &format!("port: 8080, {FULL},"));
    let head = r"POST /x HTTP/1.1\r\nHost: web.test:8080\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n";
    let token = token();
    let cuts = [1, 3, 4, 5, 20, 39];
    for (index, cut) in cuts.into_iter().enumerate() {
        let (one, other) = token.split_at(cut);
        let [one, other] = [one, other].map(|part| format!(r"{:x}\r\n{part}\r\n", part.len()));
        let sandbox = lab.sandbox(&policy).args(&["--leaks", "block"]);
        let finished = sandbox.python(PARTS, &[head, &one, &other, r"3\r\nend\r\n0\r\n\r\n"]);
        assert_eq!(
            finished.logged("[code:secret_in_request]").len(),
            index + 1,
            "{}",
            finished.log
        );
    }
    for seen in upstream.seen() {
        let seen = seen.escape_ascii().to_string();
        assert!(
            !seen.contains(&token[20..]) && !seen.ends_with(r"0\r\n\r\n"),
            "{seen}"
        );
    }
}

#[test]
fn messages_of_websockets_are_searched() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let server = lab.file("server.py", SOCKET_SERVER);
    let client = SOCKET_CLIENT;
    let _server = lab.program(&[
        "/usr/bin/python3",
        server.to_str().unwrap(),
        "10.99.0.1",
        "8447",
    ]);
    for (flags, expected, count) in [
        (&["--leaks", "block"][..], "echo short, ended\n", 0),
        (&[], "echo short, echo short\n", 1),
    ] {
        let sandbox = sandbox(&lab, &origin, "", flags);
        let finished = sandbox.python(client, &[&token()]);
        assert_eq!(finished.stdout, expected, "{finished:?}");
        assert_eq!(
            finished.logged("Secret In A Request").len(),
            count,
            "{}",
            finished.log
        );
    }
    assert_eq!(
        lab.log().matches("[code:secret_in_request]").count(),
        1,
        "{}",
        lab.log()
    );
}

/// Answers the handshake of a WebSocket and says how long each frame is; of short ones it says so.
const SOCKET_SERVER: &str = r#"
import base64, hashlib, socket, sys, threading
def read(s, n):
    d = b''
    while len(d) < n:
        part = s.recv(n - len(d))
        if not part: raise SystemExit
        d += part
    return d
def serve(s):
    head = b''
    while b'\r\n\r\n' not in head: head += read(s, 1)
    key = [l.split(b': ')[1] for l in head.split(b'\r\n') if l.lower().startswith(b'sec-websocket-key')][0]
    accept = base64.b64encode(hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
    s.sendall(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ' + accept + b'\r\n\r\n')
    while True:
        first, second = read(s, 2)
        length = second & 127
        if length == 126: length = int.from_bytes(read(s, 2), 'big')
        mask, data = read(s, 4), read(s, length)
        answer = b'short' if length < 30 else b'secret'
        s.sendall(bytes([0x81, len(answer)]) + answer)
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

/// Sends two messages, the second with a secret over two frames.
const SOCKET_CLIENT: &str = r#"
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlparse(os.environ['HTTP_PROXY'])
s = socket.create_connection((proxy.hostname, proxy.port))
def read(n):
    d = b''
    while len(d) < n:
        part = s.recv(n - len(d))
        if not part: raise ConnectionError
        d += part
    return d
def head():
    h = b''
    while b'\r\n\r\n' not in h: h += read(1)
    return h
s.sendall(b'CONNECT web.test:8447 HTTP/1.1\r\nHost: web.test:8447\r\n\r\n')
assert b' 200 ' in head()
s.sendall(b'GET / HTTP/1.1\r\nHost: web.test:8447\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
assert b' 101 ' in head()
def frame(first, text):
    mask = bytes([7, 11, 13, 200])
    data = bytes(b ^ mask[i % 4] for i, b in enumerate(text))
    length = bytes([0x80 | len(text)]) if len(text) < 126 else bytes([0x80 | 126]) + len(text).to_bytes(2, 'big')
    return bytes([first]) + length + mask + data
said = []
try:
    for message in [b'hello'], [b'x' * 200 + b' key=' + sys.argv[1].encode()[:10], sys.argv[1].encode()[10:] + b' and more of it, so that it is long']:
        for index, part in enumerate(message):
            opcode = (1 if index == 0 else 0) | (0x80 if index == len(message) - 1 else 0)
            s.sendall(frame(opcode, part))
            # A control frame may stand between the frames of a message.
            s.sendall(frame(0x89, b'ping'))
        for part in message * 2:
            first, length = read(2)
            answer = 'echo ' + read(length).decode()
        said.append(answer)
except OSError:
    said.append('ended')
print(', '.join(said))
"#;

#[test]
fn prompts_are_searched_and_keys_of_clients_are_not() {
    let lab = Lab::with_web();
    let backend = inference::Backend::start(&lab);
    let routes = inference::file(&lab, &format!("routes: [{}]", inference::route("ok", "")));
    let script = "ask() { curl -s https://inference.local/v1/chat/completions -H \"Authorization: Bearer $T\" -d \"$1\" -o answer -w '%{http_code} '; }
         cd /tmp; ask '{\"model\": \"x\"}'; ask \"{\\\"model\\\": \\\"x\\\", \\\"messages\\\": [\\\"$T\\\"]}\"; cat answer";
    let run = |flags: &[&str]| {
        lab.sandbox(&super::policy("{}"))
            .args(&["--inference-routes", &routes])
            .args(flags)
            .env("T", &token())
            .sh(script)
    };
    let blocked = run(&["--leaks", "block"]);
    assert!(
        blocked.stdout.starts_with("200 403 ") && blocked.stdout.contains("a secret of GitHub"),
        "{blocked:?}"
    );
    assert_eq!(backend.seen().len(), 1);
    let reported = run(&[]);
    assert!(reported.stdout.starts_with("200 200 "), "{reported:?}");
    assert_eq!(
        reported.logged("Secret In A Request").len(),
        1,
        "{}",
        reported.log
    );
}

/// Sends bodies of nothing but beginnings of secrets, and asks for something small meanwhile;
/// prints how many of the former are through.
const LONG_SEARCHES: &str = "
import http.client, os, ssl, threading
sent = []
def connected(host):
    name, port = os.environ['HTTP_PROXY'][7:].split(':')
    if host == 'web.test':
        return http.client.HTTPConnection(name, int(port), timeout=100), 'http://web.test:8080'
    models = http.client.HTTPSConnection(name, int(port), timeout=100)
    models.set_tunnel(host)
    return models, ''
def ask(host, method, path, body=None):
    connection, url = connected(host)
    connection.request(method, url + path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()
def send(host, path, body):
    ask(host, 'POST', path, body)
    sent.append(path)
for _ in range(6):
    threading.Thread(target=send, args=('web.test', '/upload', b'QUtJQUFC' * (1 << 21))).start()
    prompt = b'{\"model\": \"' + b'sk-' * (5 << 20) + b'\"}'
    threading.Thread(target=send, args=('inference.local', '/v1/chat/completions', prompt)).start()
for _ in range(20):
    assert ask('web.test', 'GET', '/x')[0] == 200
    assert ask('inference.local', 'GET', '/v1/models')[0] == 200
print(len(sent), flush=True)
os._exit(0)
";

#[test]
fn what_takes_long_to_search_holds_up_no_other_request() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let _backend = inference::Backend::start(&lab);
    let routes = inference::file(&lab, &format!("routes: [{}]", inference::route("ok", "")));
    let finished =
        sandbox(&lab, &origin, FULL, &["--inference-routes", &routes]).python(LONG_SEARCHES, &[]);
    assert_eq!(finished.ok(), "0");
}

#[test]
fn a_path_with_a_secret_is_in_no_log_proposal_or_answer() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let proposals = lab
        .folder("out")
        .join("proposals.yaml")
        .display()
        .to_string();
    let rules = "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /a}}]";
    let finished = sandbox(&lab, &origin, rules, &["--proposals", &proposals]).sh(
        "for url in https://web.test/deny/$T http://web.test:8080/deny/$T/x \
             http://other.test/$T https://web.test/../$T; do curl -s --path-as-is $url; done",
    );
    let written = std::fs::read_to_string(&proposals).unwrap();
    for (what, text) in [
        ("log", &finished.log),
        ("answers", &finished.stdout),
        ("summary", &finished.stderr),
        ("proposals", &written),
    ] {
        assert!(!text.contains("p_a1B2"), "{what}: {text}");
    }
    assert!(
        finished.log.contains("request_not_in_rules") && finished.log.contains("/[SECRET]"),
        "{}",
        finished.log
    );
}

#[test]
fn an_observed_run_refuses_no_secret() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let finished = sandbox(
        &lab,
        &origin,
        FULL,
        &["--leaks", "block", "--observe", &observed],
    )
    .sh(
        "for path in /a /$T; do curl -s -o /dev/null -w '%{http_code}' https://web.test$path -H \
         \"X-Key: $T\"; done",
    );
    assert_eq!(finished.ok(), "200200", "{finished:?}");
    let written = std::fs::read_to_string(&observed).unwrap();
    assert!(written.contains("# paths: \"/a\"\n"), "{written}");
    assert_eq!(
        finished.logged("Secret In A Request").len(),
        1,
        "{}",
        finished.log
    );
}
