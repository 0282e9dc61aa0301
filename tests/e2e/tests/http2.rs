//! HTTP/2: each stream is judged like an HTTP/1.1 request.

use lab::{Finished, Lab, Sandbox};

use super::origin::{FULL, Origin, policy};
use super::reload::{LOADED, Running};

const READ_ONLY: &str = "protocol: rest, enforcement: enforce, access: read-only";

fn sandbox<'l>(lab: &'l Lab, origin: &Origin, rules: &str) -> Sandbox<'l> {
    let python = super::python();
    let programs = [
        "/usr/bin/curl",
        "/usr/bin/openssl",
        "/usr/bin/node",
        "/usr/bin/nghttp",
        "/usr/bin/h2load",
        &python,
    ];
    lab.sandbox(&policy(&programs, rules))
        .args(&["--upstream-ca-file", &origin.authority()])
}

fn curl(lab: &Lab, origin: &Origin, rules: &str, arguments: &str) -> Finished {
    sandbox(lab, origin, rules).sh(&format!(
        "curl -sS --suppress-connect-headers {arguments}; echo"
    ))
}

#[test]
fn streams_are_judged_and_answered_as_requests_are() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    for (how, base) in [
        ("--http2", "https://web.test"),
        ("-p --http2-prior-knowledge", "http://web.test:8080"),
    ] {
        let before = origin.asked().len();
        let finished = curl(&lab, &origin, READ_ONLY, &format!("{how} -i {base}/hello"));
        assert!(finished.ok().starts_with("HTTP/2 200"), "{finished:?}");
        assert_eq!(origin.asked()[before..], ["GET /hello"], "{finished:?}");
        let line =
            format!("HTTP:GET [INFO] ALLOWED GET {base}/hello [policy:web engine:l7] [request:1]");
        assert_eq!(finished.logged(&line).len(), 1, "{}", finished.log);
        let finished = curl(
            &lab,
            &origin,
            READ_ONLY,
            &format!("{how} -i {base}/hello -d body"),
        );
        assert!(finished.ok().starts_with("HTTP/2 403"), "{finished:?}");
        for part in [
            "x-openshell-policy: web",
            "content-type: application/json",
            "\"reason_code\":\"request_not_in_rules\"",
        ] {
            assert!(finished.stdout.contains(part), "{finished:?}");
        }
        assert_eq!(origin.asked().len(), before + 1);
        let line =
            format!("HTTP:POST [MED] DENIED POST {base}/hello [policy:web engine:l7] [request:1]");
        assert_eq!(finished.logged(&line).len(), 1, "{}", finished.log);
    }
}

#[test]
fn a_refused_upload_learns_why_however_long_it_is() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    for (how, base) in [
        ("--http2", "https://web.test"),
        ("-p --http2-prior-knowledge", "http://web.test:8080"),
    ] {
        for length in [1, 100_000, 2_000_000] {
            let upload = format!("{how} {base}/hello -T- -X POST -i");
            let upload = format!("curl -sS --suppress-connect-headers {upload}; echo");
            let upload = format!("head -c {length} /dev/zero | {{ {upload}; }}");
            let finished = sandbox(&lab, &origin, READ_ONLY).sh(&upload);
            assert!(
                finished.ok().starts_with("HTTP/2 403"),
                "{length}: {finished:?}"
            );
            assert!(
                finished.stdout.contains("request_not_in_rules"),
                "{length}: {finished:?}"
            );
        }
    }
    assert_eq!(origin.asked().len(), 0);
}

/// Runs `program` after the prelude of a client that speaks frame by frame.
fn frames(lab: &Lab, origin: &Origin, rules: &str, program: &str) -> Finished {
    let program = [include_str!("data/frames.py"), program].concat();
    sandbox(lab, origin, rules).python(&program, &[])
}

/// Server behaviour that RFC 9113 requires, by section: `name`, frames sent, and the outcome. None
/// of them may reach the origin.
const CONFORMANCE: &str = r"
def check(name, expected, send, kinds=(HEADERS, RST, GOAWAY), stream=1):
    for tls in (True, False):
        client = Client(tls)
        try: send(client)
        except OSError: pass
        found = client.until(*kinds, stream=stream)
        if found not in expected.split(' | '): print(f'{name}, tls {tls}: {found}, and not {expected}')

MALFORMED = 'RST_STREAM PROTOCOL_ERROR | GOAWAY PROTOCOL_ERROR'
def malformed(name, fields, expected=MALFORMED): check(name, expected, lambda c: c.request(1, fields()))
malformed('8.2.1 upper case', lambda: ask(more=[('X-Upper', 'x')]))
malformed('8.2.1 empty name', lambda: ask(more=[('', 'x')]))
malformed('8.2.1 space in a name', lambda: ask(more=[('a b', 'x')]))
malformed('8.2.1 colon in a name', lambda: ask(more=[('a:b', 'x')]))
for byte in (b'\0', b'\r', b'\n'): malformed(f'8.2.1 {byte} in a value', lambda: ask(more=[('x', b'a' + byte + b'b')]))
for name in ('connection', 'keep-alive', 'proxy-connection', 'transfer-encoding', 'upgrade'):
    malformed(f'8.2.2 {name}', lambda: ask(more=[(name, 'chunked' if name.startswith('t') else 'x')]))
malformed('8.2.2 te', lambda: ask(more=[('te', 'gzip')]))
for missing in range(4):
    wanted = MALFORMED if missing != 2 else 'HEADERS 400 | ' + MALFORMED
    malformed(f'8.3.1 without {missing}', lambda: [f for n, f in enumerate(ask()) if n != missing], wanted)
for twice in range(4): malformed(f'8.3.1 twice {twice}', lambda: [ask()[twice], *ask()])
malformed('8.3 unknown', lambda: [(':odd', 'x'), *ask()])
malformed('8.3 behind others', lambda: [('x', 'y'), *ask()])
malformed('8.3 of answers', lambda: [(':status', '200'), *ask()])
malformed('8.3.1 empty path', lambda: ask(path=''))
malformed('8.3.1 no path', lambda: ask(path='hello'), 'HEADERS 400 | ' + MALFORMED)
malformed('8.3.1 user', lambda: ask(authority='user@' + CLIENT.authority), 'HEADERS 400 | HEADERS 421 | ' + MALFORMED)
malformed('8.3.1 other authority', lambda: ask(authority='other.test'), 'HEADERS 421')
malformed('8.3.1 other host', lambda: ask(more=[('host', 'other.test')]), 'HEADERS 421 | ' + MALFORMED)
malformed('8.3.1 two hosts', lambda: ask(more=[('host', CLIENT.authority), ('host', CLIENT.authority)]), 'HEADERS 400 | ' + MALFORMED)
malformed('8.3.1 other scheme', lambda: ask(scheme='ftp'), 'HEADERS 421 | ' + MALFORMED)
malformed('8.5 CONNECT', lambda: [(':method', 'CONNECT'), (':authority', 'other.test:443')], 'HEADERS 400 | HEADERS 421 | ' + MALFORMED)
malformed('RFC 8441 CONNECT', lambda: [*ask(method='CONNECT'), (':protocol', 'websocket')])
malformed('10.5 more lines than anybody sends', lambda: ask(more=[(f'x{n}', 'y') for n in range(300)]), 'HEADERS 431 | ' + MALFORMED)
malformed('6.5.2 more than was announced', lambda: ask(more=[(f'x{n}', 'y' * 5000) for n in range(15)]), 'HEADERS 431 | GOAWAY FRAME_SIZE_ERROR | ' + MALFORMED)
def both(first, second): return lambda c: (c.request(1, first(), END_HEADERS), c.send(second))
post = lambda length: lambda: ask('/upload', 'POST', [('content-length', str(length))])
check('8.1.1 too short', MALFORMED, both(post(5), frame(DATA, END_STREAM, 1, b'abc')))
check('8.1.1 too long', MALFORMED, both(post(2), frame(DATA, END_STREAM, 1, b'abc')))
check('8.1 trailers that end nothing', MALFORMED, both(post(3), frame(DATA, 0, 1, b'abc') + frame(HEADERS, 4, 1, block([('x', 'y')]))))
whole = dict(kinds=(GOAWAY,), stream=None)
# The library reports all frames that it cannot decode as PROTOCOL_ERROR.
def broken(name, send, error='PROTOCOL_ERROR'): check(name, f'GOAWAY {error} | GOAWAY PROTOCOL_ERROR | END', send, **whole)
broken('5.1 DATA on a stream that is idle', lambda c: c.send(frame(DATA, 0, 1, b'x')))
broken('5.1.1 even stream', lambda c: c.request(2, ask()))
broken('5.1.1 stream 0', lambda c: c.request(0, ask()))
broken('6.1 DATA on stream 0', lambda c: c.send(frame(DATA, 0, 0, b'x')))
broken('6.1 padding', lambda c: (c.request(1, ask(), END_HEADERS), c.send(frame(DATA, PADDED, 1, b'\xffx'))))
broken('6.2 DATA within a head', lambda c: (c.request(1, ask(), 0), c.send(frame(DATA, 0, 1, b'x'))))
broken('6.4 RST_STREAM of a stream that is idle', lambda c: c.send(frame(RST, 0, 5, bytes(4))))
broken('6.4 RST_STREAM length', lambda c: c.send(frame(RST, 0, 1, bytes(3))), 'FRAME_SIZE_ERROR')
broken('6.5 SETTINGS length', lambda c: c.send(frame(SETTINGS, 0, 0, bytes(5))), 'FRAME_SIZE_ERROR')
broken('6.5 SETTINGS ACK with more', lambda c: c.send(frame(SETTINGS, ACK, 0, bytes(6))), 'FRAME_SIZE_ERROR')
broken('6.5 SETTINGS on a stream', lambda c: c.send(frame(SETTINGS, 0, 1)))
broken('6.5.2 window', lambda c: c.send(frame(SETTINGS, 0, 0, struct.pack('>HI', 4, 1 << 31))), 'FLOW_CONTROL_ERROR | GOAWAY PROTOCOL_ERROR')
broken('6.5.2 frame size', lambda c: c.send(frame(SETTINGS, 0, 0, struct.pack('>HI', 5, 1))))
broken('6.5.2 push', lambda c: c.send(frame(SETTINGS, 0, 0, struct.pack('>HI', 2, 2))))
broken('6.6 PUSH_PROMISE', lambda c: c.send(frame(PUSH, END_HEADERS, 1, struct.pack('>I', 2) + block(ask()))))
broken('6.7 PING length', lambda c: c.send(frame(PING, 0, 0, bytes(7))), 'FRAME_SIZE_ERROR')
broken('6.7 PING on a stream', lambda c: c.send(frame(PING, 0, 1, bytes(8))))
broken('6.9 WINDOW_UPDATE of 0', lambda c: c.send(frame(WINDOW, 0, 0, bytes(4))))
broken('6.9.1 window overflow', lambda c: c.send(frame(WINDOW, 0, 0, struct.pack('>I', (1 << 31) - 1)) * 2), 'FLOW_CONTROL_ERROR')
broken('6.10 CONTINUATION alone', lambda c: c.send(frame(CONTINUATION, END_HEADERS, 1, block(ask()))))
broken('4.2 frame too large', lambda c: c.send(frame(HEADERS, 5, 1, bytes(20000))), 'FRAME_SIZE_ERROR')
broken('4.3 HPACK', lambda c: c.send(frame(HEADERS, 5, 1, b'\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff')), 'COMPRESSION_ERROR')
# Valid frames.
check('6.7 PING', 'PING ACK', lambda c: c.send(frame(PING, 0, 0, bytes(8))), kinds=(PING,), stream=None)
check('6.5.3 SETTINGS', 'SETTINGS ACK', lambda c: None, kinds=('ACK',), stream=None)
check('5.5 unknown frames, flags and settings', 'PING ACK', lambda c: c.send(frame(0x42, 0xff, 0, b'x') + frame(SETTINGS, 0, 0, struct.pack('>HI', 0x4242, 1)) + frame(PING, 0, 0, bytes(8))), kinds=(PING,), stream=None)
print('done')
";

#[test]
fn what_rfc_9113_says_that_no_server_takes_is_not_taken_and_not_sent_on() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let finished = frames(&lab, &origin, FULL, CONFORMANCE);
    assert_eq!(finished.ok(), "done", "{finished:?}");
    let whole = origin
        .asked()
        .into_iter()
        .filter(|asked| !asked.starts_with("ABORTED"));
    assert_eq!(whole.collect::<Vec<_>>().len(), 0, "{:?}", origin.asked());
}

#[test]
fn what_is_no_trailer_is_not_sent_on_as_one() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let program = "
client = Client()
client.request(1, ask('/upload', 'POST'), END_HEADERS)
client.send(frame(DATA, 0, 1, b'abc') + frame(HEADERS, 5, 1, block([(':path', '/other'), ('x-end', 'yes'), ('host', 'evil'), ('authorization', 'x'), ('content-length', '1'), ('cookie', 'a=b')])))
print(client.until(HEADERS, RST, GOAWAY))
";
    let finished = frames(&lab, &origin, FULL, program);
    assert_eq!(finished.ok(), "HEADERS 200");
    let seen = origin.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        (seen[0][1].as_str(), &seen[0][4]["x-end"]),
        (Some("/upload"), &serde_json::Value::from("yes")),
        "{seen:?}"
    );
    assert_eq!(seen[0][4].as_object().unwrap().len(), 1, "{seen:?}");
}

#[test]
fn one_stream_is_refused_and_the_others_beside_it_are_not() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: \"/pub/**\"}}]";
    let program = "
const session = require('http2').connect('https://web.test', { ca: require('fs').readFileSync(process.env.SSL_CERT_FILE), createConnection: () => tls });
const answers = {};
let left = 60;
for (let n = 0; n < 60; n++) {
  const stream = session.request({ ':path': (n % 3 ? '/pub/' : '/priv/') + n });
  let text = '';
  stream.on('response', head => answers[n] = head[':status']);
  stream.on('data', data => text += data);
  stream.on('end', () => { if (--left === 0) {
    const of = wanted => Object.values(answers).filter(status => status === wanted).length;
    console.log(of(200), of(403), JSON.parse(refused).nearest_rule);
    session.close();
  } else if (n % 3 === 0) refused = text; });
  stream.end();
}
let refused;
";
    let finished = node(&lab, &origin, rules, program);
    assert_eq!(finished.ok(), "40 20 web", "{finished:?}");
    assert_eq!(
        finished.logged("NET:OPEN [INFO] ALLOWED").len(),
        1,
        "one connection: {}",
        finished.log
    );
    assert_eq!(finished.logged("[code:request_not_in_rules]").len(), 20);
    assert_eq!(origin.asked().len(), 40);
}

/// Runs a Node.js program with `tls`, a TLS connection to web.test through the proxy that offers
/// HTTP/2.
fn node(lab: &Lab, origin: &Origin, rules: &str, program: &str) -> Finished {
    let program = format!(
        "
const [host, port] = process.env.HTTPS_PROXY.slice(7).split(':');
let tls;
require('http').request({{ host, port, method: 'CONNECT', path: 'web.test:443' }}).on('connect', (answer, socket) => {{
  tls = require('tls').connect({{ socket, servername: 'web.test', ALPNProtocols: ['h2'], ca: require('fs').readFileSync(process.env.SSL_CERT_FILE) }}, () => {{ {program} }});
}}).end();
"
    );
    sandbox(lab, origin, rules).run(&["/usr/bin/node", "-e", &program])
}

#[test]
fn an_upstream_without_http2_has_six_connections_at_the_most() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = "
client = Client()
def round(first):
    for n in range(first, first + 6): client.request(2 * n + 1, ask('/sse?0.2' if n % 2 else '/hello', more=[('cookie', 'a=1'), ('cookie', 'b=2')]))
    answers, over = [], 0
    while over < 6:
        kind, flags, stream, payload = client.read()
        if kind == HEADERS: answers.append(status(payload))
        over += kind in (HEADERS, DATA) and flags & END_STREAM
    return answers
print(set(round(0) + round(6) + round(12)))
client.request(101, ask('/Service/Method', 'POST', [('content-type', 'application/grpc'), ('te', 'trailers')]))
print(client.until(HEADERS, stream=101))
";
    let finished = frames(&lab, &origin, FULL, program);
    assert_eq!(finished.ok(), "{'200'}\nHEADERS 200", "{finished:?}");
    let seen = origin.seen();
    assert_eq!(seen.len(), 18);
    assert!(
        seen.iter()
            .all(|seen| seen[2]["cookie"] == "a=1; b=2" && seen[2]["host"] == "web.test"),
        "{seen:?}"
    );
    let line =
        "[reason:the upstream does not speak HTTP/2, which gRPC needs] [code:upstream_unreachable]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    let connections = origin.connections();
    assert!((2..=6).contains(&connections), "{connections}");
}

#[test]
fn what_is_cancelled_by_one_side_is_cancelled_at_the_other() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let program = "
client = Client()
client.request(1, ask('/silent'))
print(client.until(HEADERS, stream=1), client.until(DATA, stream=1))
client.send(frame(RST, 0, 1, struct.pack('>I', 8)))
client.request(3, ask('/reset'))
print(client.until(HEADERS, RST, stream=3))
client.request(11, ask('/refused'))
print(client.until(HEADERS, RST, stream=11))
client.request(13, ask('/cut'))
print(client.until(HEADERS, stream=13), client.until(RST, stream=13))
client.request(15, ask('/early', 'POST'), END_HEADERS)
print(client.until(HEADERS, stream=15))
client.request(17, ask('/hello'))
print(client.until(HEADERS, stream=17))
";
    let finished = frames(&lab, &origin, FULL, program);
    let expected = [
        "HEADERS 200 DATA",
        "HEADERS 502",
        "RST_STREAM REFUSED_STREAM",
        "HEADERS 200 RST_STREAM INTERNAL_ERROR",
        "HEADERS 413",
        "HEADERS 200",
    ];
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected,
        "{finished:?}"
    );
    assert!(
        origin.asked().contains(&"ABORTED /silent".to_owned()),
        "{:?}",
        origin.asked()
    );
}

#[test]
fn nobody_reads_faster_than_the_other_side_takes() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    // Without window updates, a response of 1 GiB stays at the origin.
    let program = "
client = Client()
client.request(1, ask('/big?1073741824'))
print(client.until(HEADERS, stream=1))
came, end = 0, time.monotonic() + 3
client.socket.settimeout(1)
try:
    while time.monotonic() < end:
        got = client.read()
        came += len(got[3]) if got[0] == DATA else 0
except TimeoutError: pass
print(came <= 65535)
client.request(3, ask('/hello'))
print(client.until(HEADERS, stream=3))
";
    let finished = frames(&lab, &origin, FULL, program);
    assert_eq!(
        finished.ok(),
        "HEADERS 200\nTrue\nHEADERS 200",
        "{finished:?}"
    );
}

#[test]
fn trailers_interim_answers_and_empty_ones_arrive() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let program = "
client = Client()
client.request(1, ask('/trailers'))
print(client.until(HEADERS), client.until(DATA), client.until(HEADERS)[:7])
";
    let finished = frames(&lab, &origin, FULL, program);
    assert_eq!(finished.ok(), "HEADERS 200 DATA HEADERS", "{finished:?}");
    let shown = curl(
        &lab,
        &origin,
        FULL,
        "-i https://web.test/trailers https://web.test/hints https://web.test/204",
    );
    for part in ["x-end: yes", "after hints", "HTTP/2 204"] {
        assert!(shown.ok().contains(part), "{part}: {shown:?}");
    }
}

/// Responses to a client that repeats requests on one connection while the policy changes.
const REVOKED: &str = "
client = Client(tls=False)
client.request(1, ask('/silent'))
assert client.until(HEADERS, stream=1) == 'HEADERS 200'
open('ready', 'w').close()
kinds = []
while got := client.read(): kinds.append((NAMES[got[0]], got[2]))
print(('GOAWAY', 0) in kinds, ('RST_STREAM', 1) in kinds)
";

#[test]
fn what_is_permitted_no_longer_ends_with_a_goaway() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let allowing = |path: &str| {
        let rules = format!(
            "protocol: rest, enforcement: enforce, rules: [{{allow: {{method: GET, path: \
             {path}}}}}]"
        );
        policy(&[&super::python()], &rules)
    };
    let program = [include_str!("data/frames.py"), REVOKED].concat();
    let running = Running::start_under(&lab, &allowing("/silent"), &program, 0);
    running.reload(&allowing("/other"), LOADED);
    let finished = running.finish();
    assert_eq!(finished.ok(), "True True", "{finished:?}");
    assert_eq!(
        finished.logged("[code:policy_changed]").len(),
        1,
        "{}",
        finished.log
    );
    assert_eq!(origin.asked(), ["GET /silent", "ABORTED /silent"]);
    // A change that does not affect the connection keeps it open.
    let lab = Lab::with_web();
    let _origin = Origin::http2(&lab);
    let program = program
        .replace("while got", "client.socket.settimeout(3)\nwhile got")
        .replace("print((", "print(2, (");
    let running = Running::start_under(
        &lab,
        &allowing("/silent"),
        &program.replace(
            "kinds = []",
            "
while not os.path.exists('go'): time.sleep(0.01)
client.request(3, ask('/silent')); print(client.until(HEADERS, stream=3)); sys.exit()",
        ),
        0,
    );
    running.reload(&allowing("\"/s*\""), LOADED);
    assert_eq!(running.finish().ok(), "HEADERS 200");
}

#[test]
fn an_upstream_that_ends_its_connection_ends_its_clients() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let program = "
for path in ('/goaway', '/gone'):
    client = Client()
    client.request(1, ask('/hello')); print(client.until(HEADERS, RST))
    client.request(3, ask(path)); print(client.until(HEADERS, RST, stream=3))
    try:
        client.request(5, ask('/hello'))
        print(client.until(HEADERS, RST, stream=5) in ('RST_STREAM REFUSED_STREAM', 'END'))
    except OSError: print(True)
    while client.read(): pass
    print(client.is_ending)
";
    let finished = frames(&lab, &origin, FULL, program);
    let expected = [
        "HEADERS 200",
        "HEADERS 200",
        "True",
        "True",
        "HEADERS 200",
        "HEADERS 502",
        "True",
        "True",
    ];
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected,
        "{finished:?}"
    );
}

/// Floods: each is a connection of its own, closed or limited by the sandbox, without a byte at the
/// origin.
const FLOODS: &str = r"
def flood(name, send, rounds):
    client = Client()
    client.socket.settimeout(3)
    try:
        for n in range(rounds): client.send(send(n))
    except (OSError, TimeoutError): pass
    try: print(name, client.until(GOAWAY))
    except TimeoutError: print(name, 'held')
client = Client()
client.request(1, ask('/hello')); print('before', client.until(HEADERS))
open('begun', 'w').close()
many = 40
reset = lambda n: b''.join(frame(HEADERS, 5, 2 * k + 1, block(ask('/silent'))) + frame(RST, 0, 2 * k + 1, struct.pack('>I', 8)) for k in range(n * 1000, n * 1000 + 1000))
flood('rapid reset', reset, many)
head = lambda n: frame(HEADERS, 0, 1, block(ask())) if n == 0 else frame(CONTINUATION, 0, 1, block([('x', 'y' * 1000)])) * 100
flood('continuation', head, many)
flood('empty continuation', lambda n: frame(HEADERS, 0, 1, block(ask())) if n == 0 else frame(CONTINUATION, 0, 1) * 1000, many)
flood('bomb', lambda n: frame(HEADERS, 5, 2 * n + 1, b'\x40\x01a' + text('b' * 3900) + b'\xbe' * 12000), 3)
flood('pings', lambda n: frame(PING, 0, 0, bytes(8)) * 1000, many)
flood('settings', lambda n: frame(SETTINGS, 0, 0, struct.pack('>HI', 4, 65535 + n)) * 1000, many)
empty = lambda n: frame(HEADERS, 4, 1, block(ask('/upload', 'POST'))) if n == 0 else frame(DATA, 0, 1) * 1000
flood('empty data', empty, many)
flood('windows', lambda n: frame(WINDOW, 0, 0, struct.pack('>I', 1)) * 1000, many)
flood('priorities', lambda n: frame(PRIORITY, 0, 2 * n + 1, struct.pack('>IB', 0, 1)) * 1000, many)
flood('malformed', lambda n: b''.join(frame(HEADERS, 5, 2 * k + 1, block([(':odd', 'x')])) for k in range(n * 1000, n * 1000 + 1000)), many)
flood('streams', lambda n: b''.join(frame(HEADERS, 5, 2 * k + 1, block(ask('/silent'))) for k in range(n * 10, n * 10 + 10)), many)
open('done', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
client = Client()
client.request(1, ask('/hello')); print('afterwards', client.until(HEADERS))
";

#[test]
fn floods_end_their_connection_or_are_held_to_what_they_may_have() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let folder = lab.folder("work");
    let program = [include_str!("data/frames.py"), FLOODS].concat();
    let words = ["--workdir", folder.to_str().unwrap()];
    let started =
        sandbox(&lab, &origin, FULL)
            .args(&words)
            .start(&["/usr/bin/python3", "-c", &program]);
    let resident = resident(started.pid());
    let mut most = 0;
    let mut before = None;
    let is_done = || {
        if folder.join("begun").exists() {
            before = before.or_else(|| Some(resident()));
            most = most.max(resident());
        }
        folder.join("done").exists()
    };
    lab::wait_until(is_done, || lab.log());
    let before = before.unwrap();
    std::fs::write(folder.join("go"), "").unwrap();
    let finished = started.wait();
    let calm = "GOAWAY ENHANCE_YOUR_CALM";
    let expected = [
        ("before", "HEADERS 200"),
        ("rapid reset", calm),
        ("continuation", calm),
        ("empty continuation", calm),
        ("bomb", calm),
        ("pings", "held"),
        ("settings", "held"),
        ("empty data", calm),
        ("windows", "held"),
        ("priorities", "held"),
        ("malformed", "GOAWAY PROTOCOL_ERROR"),
        ("streams", calm),
        ("afterwards", "HEADERS 200"),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, found)| format!("{name} {found}"))
        .collect();
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected,
        "{finished:?}"
    );
    assert!(
        finished
            .logged("[reason:the client floods its HTTP/2 connection]")
            .len()
            >= 4,
        "{}",
        finished.log
    );
    assert!(!finished.log.contains("h2::"), "{}", finished.log);
    assert!(most < before + 16 * 1024, "{most} KiB, and {before} before");
    let asked = origin
        .asked()
        .into_iter()
        .filter(|asked| !asked.starts_with("ABORTED") && asked != "GET /silent");
    assert_eq!(asked.collect::<Vec<_>>(), ["GET /hello"; 2]);
}

#[test]
fn a_client_that_leaves_it_open_speaks_what_its_upstream_does() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let alone = curl(&lab, &origin, FULL, "-i https://web.test/hello");
    assert!(alone.ok().starts_with("HTTP/1.1 200"), "{alone:?}");
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let both = curl(&lab, &origin, FULL, "-i https://web.test/hello");
    assert!(both.ok().starts_with("HTTP/2 200"), "{both:?}");
    // Also in the refusal of an upstream whose certificate does not verify.
    let refused = curl(&lab, &origin, FULL, "-i https://web.test:8444/hello");
    assert!(refused.ok().contains("upstream_tls_invalid"), "{refused:?}");
}

#[test]
fn an_upstream_that_has_not_said_that_it_speaks_http2_gets_nothing_of_a_clients() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    // Reads line by line, and serves each line that is a request.
    let server = lab.file(
        "lenient.py",
        r"
import socket, sys
listener = socket.create_server(('10.99.0.1', 8445 + 2))
print('ready', flush=True)
while True:
    client, _ = listener.accept()
    client.settimeout(2)
    try:
        while data := client.recv(65536): open(sys.argv[1], 'ab').write(data)
    except OSError: pass
    client.close()
",
    );
    let seen = lab.folder("lenient").join("seen");
    let _server = lab.program(&[
        "/usr/bin/python3",
        server.to_str().unwrap(),
        seen.to_str().unwrap(),
    ]);
    let program = [
        include_str!("data/frames.py"),
        r"
import socket
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
s = socket.create_connection((host, int(port)))
s.sendall(b'CONNECT web.test:8447 HTTP/1.1\r\nHost: web.test:8447\r\n\r\n')
assert b' 200 ' in s.recv(4096)
class At: scheme, authority = 'http', 'web.test:8447'
CLIENT = At
s.sendall(PREFACE + frame(SETTINGS) + frame(HEADERS, 4, 1, block(ask('/pub', 'POST'))) + frame(DATA, 1, 1, b'\r\nGET /priv HTTP/1.1\r\n\r\n'))
while s.recv(4096): pass
print('over')
",
    ]
    .concat();
    let python = super::python();
    let policy = policy(&[&python], FULL).replace("8446]", "8446, 8447]");
    let finished = lab
        .sandbox(&policy)
        .args(&["--upstream-ca-file", &origin.authority()])
        .python(&program, &[]);
    let seen = std::fs::read(&seen).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    assert!(seen.starts_with(b"PRI * HTTP/2.0\r\n"), "{finished:?}");
    assert!(
        !seen.windows(4).any(|part| part == b"priv"),
        "{}",
        seen.escape_ascii()
    );
}

#[test]
fn streams_that_nobody_reads_hold_up_no_others() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let program = "
client = Client()
client.send(frame(WINDOW, 0, 0, struct.pack('>I', 1 << 30)))
for n in range(20): client.request(2 * n + 1, ask('/big?10000000'))
for n in range(20): client.until(HEADERS)
client.request(101, ask('/big?50000'))
print(client.until(HEADERS, stream=101), client.until(DATA, stream=101))
for n in range(20): client.request(2 * n + 201, ask('/upload', 'POST'), END_HEADERS); client.send(frame(DATA, 0, 2 * n + 201, bytes(16000)))
client.request(301, ask('/upload', 'POST'), END_HEADERS)
client.send(frame(DATA, 1, 301, bytes(16000)))
print(client.until(HEADERS, stream=301))
";
    let finished = frames(&lab, &origin, FULL, program);
    assert_eq!(
        finished.ok(),
        "HEADERS 200 DATA\nHEADERS 200",
        "{finished:?}"
    );
}

#[test]
fn answers_that_nobody_reads_take_so_much_memory_and_no_more() {
    unread("", 0, "HEADERS 200");
}

#[test]
fn what_is_held_back_of_answers_that_are_searched_for_secrets_has_a_bound() {
    // The window admits one byte of each response; the rest is buffered.
    let secret = "0123456789abcdef".repeat(2048);
    unread(
        &format!("credentials: {{KEY: {{value: {secret}, hosts: [web.test]}}}}"),
        1,
        "HEADERS 503",
    );
}

/// Opens forty connections with 95 requests each, which read `window` bytes of each response; then
/// expects the outcome `afterwards` of a further request of the same program.
#[track_caller]
fn unread(credentials: &str, window: u32, afterwards: &str) {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let folder = lab.folder("work");
    let program = "
import os, time
clients = []
for _ in range(40):
    client = Client()
    client.send(frame(SETTINGS, 0, 0, struct.pack('>HI', 4, WINDOW_BYTES)))
    for n in range(95): client.request(2 * n + 1, ask('/big?2000000'))
    for n in range(95): client.until(HEADERS)
    clients.append(client)
open('done', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
client = Client()
client.request(1, ask('/hello')); print(client.until(HEADERS))
";
    let program = [
        include_str!("data/frames.py"),
        &program.replace("WINDOW_BYTES", &window.to_string()),
    ]
    .concat();
    let mut sandbox = sandbox(&lab, &origin, FULL).args(&["--workdir", folder.to_str().unwrap()]);
    if !credentials.is_empty() {
        let file = lab.file("credentials.yaml", credentials);
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        sandbox = sandbox.args(&["--credentials", file.to_str().unwrap()]);
    }
    let started = sandbox.start(&["/usr/bin/python3", "-c", &program]);
    let resident = resident(started.pid());
    let mut most = 0;
    let is_done = || {
        most = most.max(resident());
        folder.join("done").exists()
    };
    lab::wait_until(is_done, || lab.log());
    std::fs::write(folder.join("go"), "").unwrap();
    let finished = started.wait();
    assert_eq!(finished.ok(), afterwards, "{finished:?}");
    assert!(most < 512 * 1024, "{most} kB");
}

/// Returns the resident memory of process `pid`, in kB; 0 without such a process.
fn resident(pid: u32) -> impl Fn() -> u64 {
    move || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        });
        line.unwrap_or(0)
    }
}

#[test]
fn what_is_given_up_without_an_error_is_not_taken_for_whole() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let program = "
client = Client()
client.request(1, ask('/given-up'))
print(client.until(HEADERS, stream=1), client.until(RST, stream=1))
client.request(3, ask('/upload', 'POST'), END_HEADERS)
client.send(frame(DATA, 0, 3, b'half') + frame(RST, 0, 3, bytes(4)))
client.request(5, ask('/hello'))
print(client.until(HEADERS, stream=5))
";
    let finished = frames(&lab, &origin, FULL, program);
    assert_eq!(
        finished.ok(),
        "HEADERS 200 RST_STREAM INTERNAL_ERROR\nHEADERS 200",
        "{finished:?}"
    );
    assert!(
        !origin.asked().contains(&"POST /upload".to_owned()),
        "{:?}",
        origin.asked()
    );
}

#[test]
fn a_request_that_was_refused_ends_nothing_later() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let allowing = |others: &str| {
        let rules = "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: \
                     /silent}}, {allow: {method: GET, path: /hello}}]";
        policy(&[&super::python()], rules) + others
    };
    let program = "
client = Client(tls=False)
client.request(1, ask('/other')); assert client.until(HEADERS, stream=1) == 'HEADERS 403'
client.request(3, ask('/silent')); assert client.until(HEADERS, stream=3) == 'HEADERS 200'
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
client.request(5, ask('/hello')); print(client.until(HEADERS, RST, stream=5))
";
    let program = [include_str!("data/frames.py"), program].concat();
    let running = Running::start_under(&lab, &allowing(""), &program, 0);
    running.reload(
        &allowing("landlock: {compatibility: best_effort}\n"),
        LOADED,
    );
    let finished = running.finish();
    assert_eq!(finished.ok(), "HEADERS 200", "{finished:?}");
    assert_eq!(
        finished.logged("[code:policy_changed]").len(),
        0,
        "{}",
        finished.log
    );
    drop(origin);
}

#[test]
fn whoever_gives_up_one_request_after_the_other_is_given_up() {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let program = "
client = Client()
found = 'END'
try:
    for n in range(0, 4000, 50):
        for k in range(n, n + 50): client.request(2 * k + 1, ask(f'/slow{k}'))
        client.send(frame(PING, 0, 0, bytes(8)))
        if (found := client.until(PING, GOAWAY)) != 'PING ACK': break
        client.send(b''.join(frame(RST, 0, 2 * k + 1, struct.pack('>I', 8)) for k in range(n, n + 50)))
except OSError: found = 'END'
print(found != 'PING ACK')
client = Client(); client.request(1, ask('/hello')); print(client.until(HEADERS))
";
    let finished = frames(&lab, &origin, FULL, program);
    assert_eq!(finished.ok(), "True\nHEADERS 200", "{finished:?}");
    let line = "[reason:the client floods its HTTP/2 connection] [code:limit_reached]";
    assert!(!finished.logged(line).is_empty(), "{}", finished.log);
}

#[test]
fn a_refusal_leaves_the_connection_to_an_upstream_without_http2_as_it_is() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = "
client = Client()
for n in range(20):
    client.request(2 * n + 1, ask('/hello', 'GET' if n % 2 else 'DELETE'))
    print(client.until(HEADERS, stream=2 * n + 1)[8:], end=' ')
    if n % 2: client.until(DATA, stream=2 * n + 1)
";
    let finished = frames(&lab, &origin, READ_ONLY, program);
    assert_eq!(
        finished.ok(),
        "403 200 ".repeat(10).trim_end(),
        "{finished:?}"
    );
    assert!(origin.connections() <= 2, "{}", origin.connections());
}

/// Runs `program` as a client that speaks frame by frame, with an upstream that does too:
/// `settings` are the upstream's, `serve` is its Python code for a frame of a `kind` with `flags`
/// on a `stream`.
fn between(settings: &str, serve: &str, program: &str) -> Finished {
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let server = format!(
        "{}
listener = socket.create_server(('10.99.0.1', 8447))
print('ready', flush=True)
class Served(Client):
    def __init__(self): self.socket, self.buffer, self.is_ending = listener.accept()[0], b'', False
while True:
    served = Served()
    while len(served.buffer) < len(PREFACE): served.buffer += served.socket.recv(65536)
    served.buffer = served.buffer[len(PREFACE):]
    served.send(frame(SETTINGS, 0, 0, {settings}))
    while got := served.read():
        kind, flags, stream, payload = got
{serve}
    served.socket.close()
",
        include_str!("data/frames.py")
    );
    let server = lab.file("served.py", &server);
    let _server = lab.program(&["/usr/bin/python3", server.to_str().unwrap()]);
    let program = [include_str!("data/frames.py"), program].concat();
    let policy = policy(&[&super::python()], FULL).replace("8446]", "8446, 8447]");
    lab.sandbox(&policy)
        .args(&["--upstream-ca-file", &origin.authority()])
        .python(&program, &[])
}

/// Settings that allow one stream at a time.
const NARROW: &str = "struct.pack('>HI', 3, 1)";

#[test]
fn what_an_upstream_does_not_take_lies_about_for_so_many_streams_and_no_more() {
    let flood = "
client = Client(tls=False, port=8447)
if IS_ANSWERED: client.send(frame(WINDOW, 0, 0, struct.pack('>I', 1 << 30)))
found = 'PING ACK'
try:
    for n in range(1, 2000, 2):
        client.request(n, ask('/slow', 'POST'), END_HEADERS)
        client.send(frame(DATA, 0, n, bytes(16000)))
        if IS_ANSWERED and client.until(HEADERS, stream=n) != 'HEADERS 200': break
        if n > 3: client.send(frame(RST, 0, n, struct.pack('>I', 8)))
        client.send(frame(PING, 0, 0, bytes(8)))
        if (found := client.until(PING, GOAWAY)) != 'PING ACK': break
except OSError: found = 'END'
print(found != 'PING ACK' or n < 1999, n > 190)
";
    let answer =
        "        if kind == HEADERS: served.send(frame(HEADERS, 5, stream, bytes([0x88])))";
    let cases = [
        (NARROW, "        pass", "IS_ANSWERED = False"),
        ("struct.pack('>HI', 4, 0)", answer, "IS_ANSWERED = True"),
    ];
    for (settings, serve, how) in cases {
        let finished = between(settings, serve, &format!("{how}{flood}"));
        assert_eq!(finished.ok(), "True True", "{how}: {finished:?}");
        let line = "[reason:the client floods its HTTP/2 connection] [code:limit_reached]";
        assert!(!finished.logged(line).is_empty(), "{how}: {}", finished.log);
    }
}

#[test]
fn what_waits_for_its_turn_when_the_upstream_goes_is_not_its_clients_fault() {
    let goes = [
        "served.send(frame(GOAWAY, 0, 0, struct.pack('>II', 1, 0)))",
        "break",
    ];
    for goes in goes {
        let begun =
            "        if kind == HEADERS: served.send(frame(HEADERS, 4, stream, bytes([0x88])))";
        let serve = format!("{begun}\n        if kind == DATA: {goes}");
        let finished = between(
            NARROW,
            &serve,
            "
client = Client(tls=False, port=8447)
client.request(1, ask('/first', 'POST'), END_HEADERS)
# The upstream has the stream, and accepts no other one beside it.
client.until(HEADERS, stream=1)
for n in (3, 5, 7): client.request(n, ask('/next'))
client.send(frame(PING, 0, 0, bytes(8))); client.until(PING)
client.send(frame(DATA, 0, 1, b'go'))
found = {}
while len(found) < 3 and (got := client.read()):
    kind, flags, stream, payload = got
    if stream > 1 and kind in (HEADERS, RST): found[stream] = status(payload) if kind == HEADERS else ERRORS[int.from_bytes(payload, 'big')]
print(sorted(found.items()))
",
        );
        let expected = "[(3, '502'), (5, 'REFUSED_STREAM'), (7, 'REFUSED_STREAM')]";
        assert_eq!(finished.ok(), expected, "{goes}: {finished:?}");
        assert!(
            finished.logged("[code:bad_request]").is_empty(),
            "{}",
            finished.log
        );
    }
}
