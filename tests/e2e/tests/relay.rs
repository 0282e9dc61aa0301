//! Requests and responses of all forms through a judged connection, compared with those without a
//! proxy.

use lab::{Finished, Lab};

use super::origin::{FULL, Origin, policy};

/// A Python program: one tunnel, plain or inside TLS, for the requests in its arguments, each
/// `METHOD path [body]`; prints each response as parsed by http.client.
const CLIENT: &str = r#"
import http.client, os, ssl, sys
proxy = os.environ['HTTPS_PROXY'][7:].split(':')
if sys.argv[1] == 'plain': c = http.client.HTTPConnection(*proxy); c.set_tunnel('web.test', 8080)
else: c = http.client.HTTPSConnection(*proxy, context=ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])); c.set_tunnel('web.test', 443)
c.auto_open = True
for argument in sys.argv[2:]:
    method, path, *body = argument.split(' ', 2)
    try:
        c.request(method, path, body[0] if body else None)
        r = c.getresponse()
        print(r.status, r.getheader('Content-Length'), r.read().decode()[:100], 'closed' if c.sock is None else 'kept')
    except (http.client.HTTPException, ConnectionError, ssl.SSLError) as error: print(type(error).__name__); c.close()
"#;

fn ask(lab: &Lab, how: &str, origin: &Origin, requests: &[&str]) -> Finished {
    let policy = policy(&[&super::python()], FULL);
    lab.sandbox(&policy)
        .args(&["--upstream-ca-file", &origin.authority()])
        .python(CLIENT, &[&[how], requests].concat())
}

// Conformance: TUN-10, TUN-11, TUN-12, TUN-13.
#[test]
fn answers_of_every_shape_arrive_and_the_next_request_works() {
    for how in ["plain", "tls"] {
        let lab = Lab::with_web();
        let origin = Origin::start(&lab);
        let requests = [
            "GET /hello",
            "GET /trailers",
            "GET /hello",
            "HEAD /head",
            "GET /204",
            "GET /304",
            "GET /hints",
            "GET /both",
            "POST /upload body",
            "GET /slow",
            "GET /close",
            "GET /hello",
        ];
        let finished = ask(&lab, how, &origin, &requests);
        let expected = [
            "200 5 hello kept",
            "200 None hello kept",
            "200 5 hello kept",
            "200 100  kept",
            "204 None  kept",
            "304 None  kept",
            "200 11 after hints kept",
            "200 None hello kept",
            "200 64 230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5 kept",
            "200 5 hello kept",
            "200 None until the end closed",
            "200 5 hello kept",
        ];
        assert_eq!(
            finished.ok().lines().collect::<Vec<_>>(),
            expected,
            "{how}: {finished:?}"
        );
    }
}

#[test]
fn what_an_upstream_cuts_off_is_seen_to_be_cut_off() {
    for how in ["plain", "tls"] {
        let lab = Lab::with_web();
        let origin = Origin::start(&lab);
        let finished = ask(&lab, how, &origin, &["GET /cut", "GET /cutchunk"]);
        assert_eq!(
            finished.ok().lines().collect::<Vec<_>>(),
            ["IncompleteRead", "IncompleteRead"],
            "{how}: {finished:?}"
        );
    }
}

#[test]
fn what_an_upstream_sends_beyond_its_answer_is_nobodys_answer() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let finished = ask(
        &lab,
        "plain",
        &origin,
        &["GET /more", "GET /hello", "GET /more", "GET /hello"],
    );
    assert!(
        !finished.ok().contains("forged") && finished.ok().matches("hello").count() == 4,
        "{finished:?}"
    );
}

#[test]
fn an_upstream_that_ends_its_connection_between_requests_is_dialled_again() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    for how in ["plain", "tls"] {
        let finished = ask(
            &lab,
            how,
            &origin,
            &["GET /once", "GET /once", "GET /hello"],
        );
        assert_eq!(
            finished.ok().matches("200").count(),
            3,
            "{how}: {finished:?}"
        );
    }
}

/// A server that answers the first request of each connection, and closes when it has read the
/// second.
const ONCE: &str = r"
import socket, threading
def serve(c):
    for answer in (b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello', b''):
        head = b''
        while b'\r\n\r\n' not in head:
            more = c.recv(4096)
            if not more: return
            head += more
        c.sendall(answer[:-5] if head.startswith(b'HEAD') else answer)
    c.close()
s = socket.create_server(('10.99.0.1', 8080))
print('ready', flush=True)
while True: threading.Thread(target=serve, args=s.accept()[:1]).start()
";

#[test]
fn a_request_that_meets_the_end_of_a_kept_connection_goes_out_anew_if_it_changes_nothing_or_is_the_clients_to_repeat()
 {
    let program = "
import http.client, os, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
c = http.client.HTTPConnection(host, int(port))
if sys.argv[1] == 'tunnel': c.set_tunnel('web.test', 8080)
base = '' if sys.argv[1] == 'tunnel' else 'http://web.test:8080'
for method, body in (('GET', None), ('GET', None), ('HEAD', None), ('POST', 'x')):
    try:
        c.request(method, base + '/', body)
        r = c.getresponse()
        print(method, r.status, r.read().decode())
    except http.client.RemoteDisconnected: print(method, 'closed without an answer')
";
    let lab = Lab::with_web();
    let server = lab.file("once.py", ONCE);
    let _server = lab.program(&["/usr/bin/python3", server.to_str().unwrap()]);
    for door in ["tunnel", "forward"] {
        for rules in [FULL, ""] {
            let finished = lab
                .sandbox(&policy(&[&super::python()], rules))
                .python(program, &[door]);
            let expected = "GET 200 hello\nGET 200 hello\nHEAD 200 \nPOST closed without an answer";
            assert_eq!(finished.ok(), expected, "{door}, {rules}: {finished:?}");
        }
    }
}

/// A Python program: one plain tunnel, then `s` is its socket.
const TUNNEL: &str = r"
import hashlib, os, socket, sys, time
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
s = socket.create_connection((host, int(port)))
s.settimeout(20)
s.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
assert b' 200 ' in s.recv(4096)
def until(end, data=b''):
    while end not in data:
        more = s.recv(65536)
        if not more: return data + b'[end]'
        data += more
    return data
";

fn tunnel(lab: &Lab, rules: &str, program: &str) -> Finished {
    let policy = policy(&[&super::python()], rules);
    lab.sandbox(&policy)
        .python(&format!("{TUNNEL}{program}"), &[])
}

// Conformance: TUN-09.
#[test]
fn a_chunked_body_and_its_announced_trailers_arrive() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = r"
s.sendall(b'POST /upload HTTP/1.1\r\nHost: web.test:8080\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n'
          b'5;name=value\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 42\r\n\r\nGET /trailers HTTP/1.1\r\nHost: web.test:8080\r\nTE: trailers\r\n\r\n')
answer = until(b'X-End: yes\r\n\r\n').lower()
print(hashlib.sha256(b'hello world').hexdigest().encode() in answer, b'x-end: yes' in answer)
";
    assert_eq!(tunnel(&lab, FULL, program).ok(), "True True");
    let seen = origin.seen();
    assert_eq!(
        (&seen[0][3], &seen[0][4]["x-sum"]),
        (&11.into(), &"42".into()),
        "{seen:?}"
    );
    assert!(seen[0][2].get("content-length").is_none(), "{seen:?}");
}

// Conformance: TUN-14.
#[test]
fn a_switch_of_protocols_that_nobody_asked_for_is_none() {
    let lab = Lab::with_web();
    let _origin = Origin::start(&lab);
    let program = r"
s.sendall(b'GET /101 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
print(until(b'[end]'))
";
    for rules in [FULL, ""] {
        let finished = tunnel(&lab, rules, program);
        assert!(
            finished
                .ok()
                .starts_with("b'HTTP/1.1 403 unsolicited_upgrade")
                && !finished.ok().contains("raw"),
            "{finished:?}"
        );
    }
    let finished = tunnel(&lab, FULL, program);
    let finding = "FINDING:BLOCKED [HIGH] \"Unsolicited 101 Switching Protocols\"";
    assert_eq!(finished.logged(finding).len(), 3, "{}", finished.log);
}

// Conformance: TUN-15, TUN-16.
#[test]
fn an_upgrade_is_judged_as_a_request_and_then_relayed() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let upgrade = r"
s.sendall(b'GET /upgrade HTTP/1.1\r\nHost: web.test:8080\r\nConnection: keep-alive, Upgrade\r\nUpgrade: PROTOCOL\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
head = until(b'\r\n\r\n')
print(head.split(b'\r\n')[0].decode())
if b' 101 ' in head:
    data = until(b'first', head.split(b'\r\n\r\n')[1])
    s.sendall(b'\x00anything'); print(until(b'anything', data))
    s.shutdown(socket.SHUT_WR); print(s.recv(10))
";
    let websocket = upgrade.replace("PROTOCOL", "websocket");
    let finished = tunnel(&lab, FULL, &websocket);
    let expected = [
        "HTTP/1.1 101 Switching Protocols",
        "b'first\\x00anything'",
        "b''",
    ];
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected,
        "{finished:?}"
    );
    let line = "HTTP:GET [INFO] OTHER GET http://web.test:8080/upgrade [policy:web engine:l7] \
                [decision:allow_upgrade]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    // Rules cannot judge other protocols, so they are refused unless the policy lists them; HTTP/2
    // is only left out.
    let listed = format!("{FULL}, upgrades: [tcp]");
    for (rules, protocol, status) in [
        (FULL, "tcp", "403 unsupported_l7_protocol"),
        (&listed, "tcp", "101"),
        (FULL, "h2c", "200"),
        ("", "tcp", "101"),
        ("", "h2c", "200"),
    ] {
        let finished = tunnel(&lab, rules, &upgrade.replace("PROTOCOL", protocol));
        assert!(
            finished.ok().starts_with(&format!("HTTP/1.1 {status}")),
            "{protocol}: {finished:?}"
        );
    }
    // An incomplete handshake is not an upgrade.
    for half in [
        websocket.replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n", ""),
        websocket.replace("b'GET", "b'POST"),
    ] {
        assert!(tunnel(&lab, FULL, &half).ok().starts_with("HTTP/1.1 200"));
    }
    let before = origin.seen().len();
    let denied =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /other}}]";
    assert!(
        tunnel(&lab, denied, &websocket)
            .ok()
            .starts_with("HTTP/1.1 403")
    );
    assert_eq!(origin.seen().len(), before);
}

#[test]
fn a_large_upload_is_refused_or_answered_early_so_that_its_client_can_read_it() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = r"
s.sendall(b'POST PATH HTTP/1.1\r\nHost: web.test:8080\r\nContent-Length: 100000000\r\n\r\n')
try:
    for _ in range(1000): s.sendall(bytes(1000))
except ConnectionError: pass
print(until(b'[end]')[:40])
";
    let denied = "protocol: rest, enforcement: enforce, access: read-only";
    let refused = tunnel(&lab, denied, &program.replace("PATH", "/upload"));
    assert!(
        refused.ok().contains("403 request_not_in_rules"),
        "{refused:?}"
    );
    let early = tunnel(&lab, FULL, &program.replace("PATH", "/early"));
    assert!(early.ok().contains("413"), "{early:?}");
    assert_eq!(origin.asked().len(), 0);
}

#[test]
fn a_client_that_waits_for_leave_gets_it_or_the_refusal() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = r"
s.sendall(b'POST /upload HTTP/1.1\r\nHost: web.test:8080\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n')
first = until(b'\r\n\r\n')
print(first.split(b'\r\n')[0].decode())
if b' 100 ' in first: s.sendall(b'hello'); print(until(b'\r\n\r\n').split(b'\r\n')[0].decode())
";
    assert_eq!(
        tunnel(&lab, FULL, program).ok(),
        "HTTP/1.1 100 Continue\nHTTP/1.1 200 OK"
    );
    let denied = "protocol: rest, enforcement: enforce, access: read-only";
    assert_eq!(
        tunnel(&lab, denied, program).ok(),
        "HTTP/1.1 403 request_not_in_rules"
    );
    assert_eq!(origin.asked(), ["POST /upload"]);
}

#[test]
fn clients_and_upstreams_that_vanish_leave_a_proxy_that_serves() {
    let lab = Lab::with_web();
    let _origin = Origin::start(&lab);
    let program = r"
import struct
def again():
    global s
    s = socket.create_connection((host, int(port))); s.settimeout(20)
    s.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
    assert b' 200 ' in s.recv(4096)
for round in range(20):
    s.sendall(b'POST /upload HTTP/1.1\r\nHost: web.test:8080\r\nContent-Length: 1000000\r\n\r\nsome of it')
    if round % 2: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    s.close(); again()
    s.sendall(b'GET /big?100000000 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
    s.recv(1000); s.close(); again()
    s.sendall(b'GET /cut HTTP/1.1\r\nHost: web.test:8080\r\n\r\n'); until(b'[end]'); s.close(); again()
s.sendall(b'GET /hello HTTP/1.1\r\nHost: web.test:8080\r\n\r\n'); print(until(b'hello')[-5:])
";
    assert_eq!(tunnel(&lab, FULL, program).ok(), "b'hello'");
}

#[test]
fn events_arrive_when_they_are_sent_for_a_minute_and_after_silence() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = r"
import concurrent.futures, http.client, ssl
def listen(tls):
    if tls: c = http.client.HTTPSConnection(host, int(port), context=ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])); c.set_tunnel('web.test', 443)
    else: c = http.client.HTTPConnection(host, int(port)); c.set_tunnel('web.test', 8080)
    c.request('GET', '/sse?0,0.1,20,20,20')
    r = c.getresponse()
    for _ in range(5):
        sent = float(r.readline().split()[1]); r.readline()
        assert time.monotonic() - sent < 1, 'an event was held back'
    return len(r.read())
print(*concurrent.futures.ThreadPoolExecutor().map(listen, (False, True)))
";
    let policy = policy(&[&super::python()], FULL);
    let finished = lab
        .sandbox(&policy)
        .args(&["--upstream-ca-file", &origin.authority()])
        .python(&format!("{TUNNEL}{program}"), &[]);
    assert_eq!(finished.ok(), "0 0");
}

#[test]
fn a_body_of_unknown_length_arrives_whatever_the_method() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = r"
for method in (b'GET', b'DELETE', b'POST'):
    s.sendall(method + b' /upload HTTP/1.1\r\nHost: web.test:8080\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n')
    print(hashlib.sha256(b'hello').hexdigest().encode() in until(hashlib.sha256(b'hello').hexdigest().encode()))
s.sendall(b'GET /hello HTTP/1.0\r\n\r\n'); print(b'hello' in until(b'[end]'))
";
    assert_eq!(tunnel(&lab, FULL, program).ok(), "True\nTrue\nTrue\nTrue");
    let seen = origin.seen();
    assert!(seen[..3].iter().all(|seen| seen[3] == 5), "{seen:?}");
    assert_eq!(
        seen[3][2]["host"], "web.test:8080",
        "HTTP/1.0 need not say it, HTTP/1.1 must: {seen:?}"
    );
}

#[test]
fn a_malformed_body_is_the_clients_fault() {
    let lab = Lab::with_web();
    let _origin = Origin::start(&lab);
    let program = r"
s.sendall(b'POST /upload HTTP/1.1\r\nHost: web.test:8080\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\nhello\r\n0\r\n\r\n')
print(until(b'[end]')[:25])
";
    assert_eq!(
        tunnel(&lab, FULL, program).ok(),
        "b'HTTP/1.1 400 bad_request\\r'"
    );
}

#[test]
fn an_upstream_that_never_stops_announcing_is_given_up_and_holds_nobody_up() {
    let lab = Lab::with_web();
    let _origin = Origin::start(&lab);
    let flood = "
import socket, threading
def serve(c):
    c.recv(4096)
    try:
        while True: c.sendall(b'HTTP/1.1 103 Early\\r\\n\\r\\n' * 1000)
    except OSError: pass
l = socket.create_server(('10.99.0.1', 8447))
print('ready', flush=True)
while True: threading.Thread(target=serve, args=l.accept()[:1], daemon=True).start()
";
    let _flood = lab.program(&["/usr/bin/python3", "-c", flood]);
    let program = r"
def flooded():
    s = socket.create_connection((host, int(port)))
    s.sendall(b'CONNECT web.test:8447 HTTP/1.1\r\nHost: web.test:8447\r\n\r\n')
    assert b' 200 ' in s.recv(4096)
    s.sendall(b'GET / HTTP/1.1\r\nHost: web.test:8447\r\n\r\n')
    return s
all = [flooded() for _ in range(4)]
start = time.monotonic()
s.sendall(b'GET /hello HTTP/1.1\r\nHost: web.test:8080\r\n\r\n'); print(until(b'hello')[-5:], time.monotonic() - start < 15)
for s in all: s.settimeout(60); print(until(b'\r\n').split(b'\r\n')[0].decode())
";
    let policy = policy(&[&super::python()], FULL).replace("8446]", "8446, 8447]");
    let finished = lab
        .sandbox(&policy)
        .python(&format!("{TUNNEL}{program}"), &[]);
    let expected = [
        "b'hello' True",
        "HTTP/1.1 502 upstream_unreachable",
        "HTTP/1.1 502 upstream_unreachable",
        "HTTP/1.1 502 upstream_unreachable",
        "HTTP/1.1 502 upstream_unreachable",
    ];
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected,
        "{finished:?}"
    );
}

#[test]
fn a_request_whose_client_leaves_is_logged_as_what_it_was() {
    let lab = Lab::with_web();
    let _origin = Origin::start(&lab);
    let program = r"
s.sendall(b'POST /silent HTTP/1.1\r\nHost: web.test:8080\r\nContent-Length: 6\r\n\r\nSECRET')
time.sleep(0.5)
";
    let finished = tunnel(&lab, FULL, program);
    let line = "HTTP:POST [INFO] ALLOWED POST http://web.test:8080/silent [policy:web engine:l7] \
                [request:1]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
}

#[test]
fn an_answer_that_began_before_its_request_ended_goes_on_for_as_long_as_it_likes() {
    let lab = Lab::with_web();
    let _origin = Origin::start(&lab);
    let early = "
import socket, threading, time
def serve(c):
    c.recv(4096)
    c.sendall(b'HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n')
    for n in range(7): time.sleep(5); c.sendall(b'1\\r\\nx\\r\\n')
    c.sendall(b'0\\r\\n\\r\\n')
l = socket.create_server(('10.99.0.1', 8447))
print('ready', flush=True)
while True: threading.Thread(target=serve, args=l.accept()[:1], daemon=True).start()
";
    let _early = lab.program(&["/usr/bin/python3", "-c", early]);
    let program = r"
s = socket.create_connection((host, int(port))); s.settimeout(30)
s.sendall(b'CONNECT web.test:8447 HTTP/1.1\r\nHost: web.test:8447\r\n\r\n')
assert b' 200 ' in s.recv(4096)
s.sendall(b'POST / HTTP/1.1\r\nHost: web.test:8447\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n')
until(b'\r\n\r\n'); s.sendall(b'1\r\ny\r\n0\r\n\r\n')
";
    let program = program.replace("until(b'\\r\\n\\r\\n')", "s.recv(4096)")
        + "
data = b''
while b'0\\r\\n\\r\\n' not in data:
    more = s.recv(4096)
    if not more: break
    data += more
print(data.count(b'1\\r\\n'), data.endswith(b'0\\r\\n\\r\\n'))
";
    let policy = policy(&[&super::python()], FULL).replace("8446]", "8446, 8447]");
    let finished = lab
        .sandbox(&policy)
        .python(&format!("{TUNNEL}{program}"), &[]);
    assert_eq!(finished.ok(), "7 True", "{finished:?}");
}
