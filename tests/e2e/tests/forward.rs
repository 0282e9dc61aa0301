//! Plain HTTP by forward requests.

use lab::{Finished, Lab, Upstream};

/// A policy that permits curl `web.test:8080`.
fn curl() -> String {
    super::web().replace(&super::python(), "/usr/bin/curl")
}

/// Returns the output of curl with `arguments` in a sandbox under `policy`, with the status line.
fn ask(lab: &Lab, policy: &str, arguments: &str) -> Finished {
    lab.sandbox(policy).sh(&format!("curl -s -i {arguments}"))
}

fn seen(upstream: &Upstream) -> Vec<String> {
    upstream
        .seen()
        .iter()
        .map(|bytes| bytes.escape_ascii().to_string().replace("\\r\\n", "\r\n"))
        .collect()
}

// Conformance: FWD-01, FWD-11, FWD-12, LOG-08.
#[test]
fn a_request_reaches_the_upstream_in_origin_form() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let finished = ask(
        &lab,
        &curl(),
        "-H 'Proxy-Authorization: x' -H 'Connection: X-Hop' -H 'X-Hop: 1' -H 'X-End: 1' -H 'TE: \
         trailers' 'http://web.test:8080/p?q=1'",
    );
    assert!(
        finished.ok().starts_with("HTTP/1.1 200 OK") && finished.ok().ends_with("hello"),
        "{finished:?}"
    );
    let requests = seen(&upstream);
    let [request] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert!(request.starts_with("GET /p?q=1 HTTP/1.1\r\n"), "{request}");
    for line in [
        "Host: web.test:8080\r\n",
        "Via: 1.1 openshell-sandbox\r\n",
        "X-End: 1\r\n",
    ] {
        assert!(request.contains(line), "no {line:?} in {request}");
    }
    assert!(
        request.contains("TE: trailers\r\nConnection: TE\r\n"),
        "what the client takes, the proxy does too: {request}"
    );
    for gone in ["Proxy-", "X-Hop"] {
        assert!(!request.contains(gone), "{gone:?} in {request}");
    }
    let line = "HTTP:GET [INFO] ALLOWED /usr/bin/curl(3) -> GET http://web.test:8080/p [policy:web \
                engine:opa]";
    assert_eq!(
        finished.logged(line).len(),
        1,
        "LOG-08, the query is in no log: {}",
        finished.log
    );
    ask(&lab, &curl(), "-H 'Via: x' http://web.test:8080")
        .ok()
        .ends_with("hello")
        .then_some(())
        .unwrap();
    let request = seen(&upstream).pop().unwrap();
    assert!(
        request.starts_with("GET / HTTP/1.1\r\n") && request.contains("Via: x\r\n"),
        "{request}"
    );
    assert!(!request.contains("openshell"), "{request}");
}

// Conformance: FWD-02, FWD-03.
#[test]
fn what_no_policy_permits_is_refused_and_never_dialled() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let unlisted = curl().replace(", allowed_ips: [10.99.0.1]", "");
    let cases = [
        (
            &unlisted,
            "http://web.test:8080/p?q=1",
            "GET web.test:8080 blocked: internal address",
        ),
        (
            &super::web(),
            "http://web.test:8080/p?q=1",
            "GET web.test:8080/p not permitted by policy",
        ),
        (
            &curl(),
            "http://other.test:8080/p",
            "GET other.test:8080/p not permitted by policy",
        ),
    ];
    for (before, (policy, url, detail)) in cases.into_iter().enumerate() {
        let finished = ask(&lab, policy, &format!("'{url}'"));
        assert!(finished.stdout.starts_with("HTTP/1.1 403 "), "{finished:?}");
        assert!(
            finished
                .stdout
                .contains(&format!("\"detail\":\"{detail}\"")),
            "{finished:?}"
        );
        assert_eq!(
            finished.logged("HTTP:GET [MED] DENIED").len(),
            before + 1,
            "{}",
            finished.log
        );
        assert!(
            !finished.logged("HTTP:GET").concat().contains("q=1"),
            "{}",
            finished.log
        );
    }
    assert!(upstream.seen().is_empty());
}

// Conformance: FWD-09.
#[test]
fn what_is_no_absolute_url_is_400() {
    let lab = Lab::with_web();
    for (line, detail) in [
        ("GET /just/a/path HTTP/1.1", "this is a proxy"),
        ("GET ftp://web.test/ HTTP/1.1", "only http and https URLs"),
        (
            "GET http://user:word@web.test:8080/ HTTP/1.1",
            "may not have user information",
        ),
        (
            "GET http://web.test:0/ HTTP/1.1",
            "a number from 1 to 65535",
        ),
    ] {
        let finished = lab.sandbox(&super::web()).python(
            super::RAW,
            &[&format!("{line}\\r\\nHost: web.test\\r\\n\\r\\n")],
        );
        assert!(
            finished.stdout.starts_with("HTTP/1.1 400 bad_request")
                && finished.stdout.contains(detail),
            "{finished:?}"
        );
    }
}

// Conformance: FWD-08.
#[test]
fn an_upstream_that_is_not_there_is_502() {
    let lab = Lab::with_web();
    let finished = ask(&lab, &curl(), "http://web.test:8080/");
    assert!(finished.stdout.starts_with("HTTP/1.1 502 "), "{finished:?}");
    assert!(
        finished
            .stdout
            .contains("\"error\":\"upstream_unreachable\""),
        "{finished:?}"
    );
}

// Conformance: FWD-10.
#[test]
fn the_port_is_80_unless_it_is_said() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:80");
    let finished = ask(&lab, &curl().replace("8080", "80"), "http://web.test/");
    assert!(finished.ok().ends_with("hello"), "{finished:?}");
    assert_eq!(
        finished.logged("-> GET http://web.test/ [policy:web").len(),
        1,
        "{}",
        finished.log
    );
}

// Conformance: FWD-14.
#[test]
fn a_public_address_needs_no_list() {
    let lab = Lab::new(&[("8.8.8.8", "public.test")]);
    let _upstream = lab.http("8.8.8.8:8080");
    let policy = curl()
        .replace("web.test", "public.test")
        .replace(", allowed_ips: [10.99.0.1]", "");
    assert!(
        ask(&lab, &policy, "http://public.test:8080/")
            .ok()
            .ends_with("hello")
    );
}

#[test]
fn an_ipv6_address_is_reached_as_it_is_written_in_a_url() {
    let lab = Lab::new(&[("fd00::99", "six.test")]);
    let upstream = lab.http("[fd00::99]:8080");
    let policy = curl()
        .replace("host: web.test", "host: \"fd00::99\"")
        .replace("10.99.0.1", "fd00::99");
    let finished = ask(&lab, &policy, "-g 'http://[fd00::99]:8080/x'");
    assert!(finished.ok().ends_with("hello"), "{finished:?}");
    assert!(
        seen(&upstream)[0].contains("Host: [fd00::99]:8080\r\n"),
        "{:?}",
        seen(&upstream)
    );
    let other = ask(&lab, &policy, "-g 'http://[fd00::98]:8080/x'");
    assert!(other.stdout.starts_with("HTTP/1.1 403 "), "{other:?}");
}

/// A server that returns method, length and SHA-256 of the body, and the number of requests on the
/// connection.
const SERVER: &str = "
import hashlib, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    requests = 0
    def answer(self):
        self.requests += 1
        if self.headers.get('Transfer-Encoding'):
            body = b''
            while length := int(self.rfile.readline(), 16): body += self.rfile.read(length); self.rfile.readline()
            self.rfile.readline()
        else: body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        text = f'{self.command} {len(body)} {hashlib.sha256(body).hexdigest()} {self.requests}\\n'.encode()
        self.send_response(200)
        if self.path == '/chunked':
            self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
            self.wfile.write(b'%x\\r\\n%s\\r\\n0\\r\\n\\r\\n' % (len(text), text))
        elif self.path == '/close':
            self.send_header('Connection', 'close'); self.end_headers(); self.wfile.write(text); self.close_connection = True
        else:
            self.send_header('Content-Length', str(len(text))); self.end_headers()
            if self.command != 'HEAD': self.wfile.write(text)
    do_GET = do_HEAD = do_POST = do_PUT = answer
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('10.99.0.1', 8080), Handler)
print('ready', flush=True)
server.serve_forever()
";

// Conformance: FWD-13.
#[test]
fn bodies_and_connections_are_kept() {
    let lab = Lab::with_web();
    let _server = lab.program(&["/usr/bin/python3", "-c", SERVER]);
    let url = "http://web.test:8080";
    let script = format!(
        "cd $(mktemp -d); head -c 1048576 /dev/urandom > body; sha256sum < body | cut -d' ' -f1; \
         curl -s --data-binary @body {url}/ --next -s -T body {url}/chunked --next -s -H \
         'Transfer-Encoding: chunked' --data-binary @body {url}/ --next -s -I -o /dev/null -w \
         '%{{http_code}}\\n' {url}/ --next -s {url}/close --next -s {url}/; rm -r $PWD"
    );
    let finished = lab.sandbox(&curl()).sh(&script);
    let lines: Vec<_> = finished.ok().lines().collect();
    let [hash, post, put, chunked, head, close, after] = lines[..] else {
        panic!("{finished:?}")
    };
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(post, format!("POST 1048576 {hash} 1"));
    assert_eq!(
        put,
        format!("PUT 1048576 {hash} 2"),
        "the upstream's connection is kept"
    );
    assert_eq!(chunked, format!("POST 1048576 {hash} 3"));
    assert_eq!((head, close), ("200", format!("GET 0 {empty} 5").as_str()));
    assert_eq!(
        after,
        format!("GET 0 {empty} 1"),
        "and another is made where it ended"
    );
    assert_eq!(
        finished.logged("HTTP:").len(),
        6,
        "each request is a decision: {}",
        finished.log
    );
}

#[test]
fn each_request_of_a_connection_is_judged_by_itself() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let requests = "GET http://web.test:8080/one HTTP/1.1\\r\\nHost: x\\r\\n\\r\\nGET \
                    http://web.test:8081/two HTTP/1.1\\r\\nHost: web.test:8080\\r\\n\\r\\n";
    let finished = lab.sandbox(&super::web()).python(super::RAW, &[requests]);
    assert!(
        finished.stdout.starts_with("HTTP/1.1 200 OK") && finished.stdout.contains("HTTP/1.1 403 "),
        "{finished:?}"
    );
    let all = seen(&upstream).concat();
    assert!(
        all.contains("GET /one") && all.contains("Host: web.test:8080\r\n") && !all.contains("two"),
        "{all}"
    );
}

#[test]
fn what_the_library_takes_for_no_port_is_not_port_80() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:80");
    for port in [":99999", ":evil.test", ":", ":-1", ":080"] {
        let request =
            format!("GET http://web.test{port}/ HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n");
        let finished = lab
            .sandbox(&super::web().replace("8080", "80"))
            .python(super::RAW, &[&request]);
        assert!(
            finished.stdout.starts_with("HTTP/1.1 400 "),
            "{port}: {finished:?}"
        );
    }
    assert!(upstream.seen().is_empty());
}

#[test]
fn a_message_has_one_length_whatever_its_sender_says() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let ask = |headers: &str| {
        let request = format!("POST http://web.test:8080/ HTTP/1.1\\r\\nHost: x\\r\\n{headers}");
        lab.sandbox(&super::web())
            .python(super::RAW, &[&request])
            .stdout
    };
    assert!(ask("Content-Length: 0\\r\\n\\r\\n").contains("hello"));
    let requests = seen(&upstream);
    assert!(
        requests[0].contains("Content-Length: 0\r\n")
            && requests[0].contains("Host: web.test:8080\r\n"),
        "{requests:?}"
    );
    assert!(
        ask("Transfer-Encoding: gzip, chunked\\r\\n\\r\\n0\\r\\n\\r\\n")
            .starts_with("HTTP/1.1 400 ")
    );
    assert!(
        ask("Content-Length: 3\\r\\nContent-Length: 4\\r\\n\\r\\nabcd")
            .starts_with("HTTP/1.1 400 ")
    );
    let both = ask("Content-Length: 3\\r\\nTransfer-Encoding: \
         chunked\\r\\n\\r\\n5\\r\\nabcde\\r\\n0\\r\\n\\r\\n");
    let last = seen(&upstream).pop().unwrap();
    let one_framing = last.contains("Transfer-Encoding: chunked")
        && !last.contains("Content-Length")
        && last.contains("abcde");
    assert!(
        both.starts_with("HTTP/1.1 400 ") || one_framing,
        "{both} {last}"
    );
}

#[test]
fn a_path_that_is_not_written_is_the_root() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    for (url, expected) in [
        ("#x", "GET / HTTP/1.1"),
        ("?q=1", "GET /?q=1 HTTP/1.1"),
        ("", "GET / HTTP/1.1"),
    ] {
        let request = format!(
            "GET http://web.test:8080{url} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"
        );
        let finished = lab.sandbox(&super::web()).python(super::RAW, &[&request]);
        assert!(finished.stdout.starts_with("HTTP/1.1 "), "{finished:?}");
        if finished.stdout.starts_with("HTTP/1.1 200") {
            assert!(
                seen(&upstream).pop().unwrap().starts_with(expected),
                "{url}: {:?}",
                seen(&upstream)
            );
        }
    }
}

#[test]
fn an_answer_that_has_two_lengths_has_the_one_of_its_chunks() {
    let lab = Lab::with_web();
    let answer = "HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\nTransfer-Encoding: \
                  chunked\\r\\n\\r\\n5\\r\\nhello\\r\\n0\\r\\n\\r\\n";
    let server = format!(
        "import socket\ns = socket.create_server(('10.99.0.1', 8080))\nprint('ready', \
         flush=True)\nwhile True:\n  c, _ = s.accept(); c.recv(4096); c.sendall(b'{answer}')"
    );
    let _server = lab.program(&["/usr/bin/python3", "-c", &server]);
    assert!(
        ask(&lab, &curl(), "http://web.test:8080/")
            .ok()
            .ends_with("hello")
    );
}

#[test]
fn a_client_that_has_gone_leaves_no_connection_behind() {
    let lab = Lab::with_web();
    let _server = lab.program(&[
        "/usr/bin/python3",
        "-c",
        &ENDLESS.replace("c.sendall", "0 and c.sendall"),
    ]);
    let folder = lab.folder("gone");
    let sandbox = lab
        .sandbox(&curl())
        .args(&["--workdir", folder.to_str().unwrap()]);
    let script = "for n in 1 2 3; do curl -s --max-time 0.3 http://web.test:8080/; done; while [ ! \
                  -e go ]; do sleep 0.05; done";
    let started = sandbox.start(&["sh", "-c", script]);
    let open = || {
        lab.shell("ss -Htn state established dst 10.99.0.1 dport = 8080 | wc -l")
            .trim()
            .to_owned()
    };
    let wait = |count: &str| {
        lab::wait_until(|| open() == count, || format!("{} connections", open()));
    };
    wait("3");
    wait("0");
    std::fs::write(folder.join("go"), "").unwrap();
    assert_eq!(started.wait().code(), 0);
}

/// Starts an endless response, and sends the request back.
const ENDLESS: &str = r"
import socket, time
s = socket.create_server(('10.99.0.1', 8080))
print('ready', flush=True)
while True:
    c, _ = s.accept()
    c.recv(4096)
    c.sendall(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n')
    held = globals().setdefault('held', []); held.append(c)
";

#[test]
fn an_answer_on_its_way_ends_when_its_request_is_permitted_no_longer() {
    let lab = Lab::with_web();
    let _server = lab.program(&["/usr/bin/python3", "-c", ENDLESS]);
    let policy = lab.file("policy.yaml", curl());
    let sandbox =
        lab::sandbox::Sandbox::bare(&lab).args(&["--policy-data", policy.to_str().unwrap()]);
    let started = sandbox.start(&["sh", "-c", "curl -sN http://web.test:8080/; echo code $?"]);
    let log = || lab.log();
    lab::wait_until(|| log().contains("HTTP:GET [INFO] ALLOWED"), log);
    std::fs::write(&policy, super::policy("{}")).unwrap();
    started.signal(rustix::process::Signal::HUP);
    let finished = started.wait();
    assert_eq!(finished.ok(), "xcode 18", "curl: the transfer ended early");
    assert_eq!(
        finished.logged("[code:policy_changed]").len(),
        1,
        "{}",
        finished.log
    );
}

// Conformance: FWD-04, FWD-05, FWD-06.
#[test]
fn rules_judge_requests_at_this_door_too() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let judged = |words: &str| {
        curl().replace(
            "port: 8080,",
            &format!("port: 8080, protocol: rest, {words} access: read-only,"),
        )
    };
    let enforced = judged("enforcement: enforce,");
    let finished = ask(
        &lab,
        &enforced,
        "-X POST 'http://web.test:8080/a/../b?q=1' --path-as-is",
    );
    assert!(
        finished
            .stdout
            .starts_with("HTTP/1.1 403 request_not_in_rules\r\n"),
        "{finished:?}"
    );
    assert!(
        finished
            .stdout
            .contains("\"detail\":\"POST web.test:8080/b denied by L7 policy\""),
        "{finished:?}"
    );
    assert!(
        finished
            .stdout
            .to_lowercase()
            .contains("\r\nx-openshell-policy: web\r\n"),
        "{finished:?}"
    );
    assert!(upstream.seen().is_empty());
    let line = "HTTP:POST [MED] DENIED /usr/bin/curl(3) -> POST http://web.test:8080/b [policy:web \
                engine:l7]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    assert!(
        ask(&lab, &enforced, "http://web.test:8080/%61?q=1")
            .ok()
            .ends_with("hello")
    );
    assert!(
        seen(&upstream)[0].starts_with("GET /a?q=1 HTTP/1.1\r\n"),
        "{:?}",
        seen(&upstream)
    );
    let audited = ask(&lab, &judged(""), "-X POST http://web.test:8080/a");
    assert!(audited.ok().ends_with("hello"), "{audited:?}");
    assert_eq!(
        audited
            .logged("POST http://web.test:8080/a [policy:web engine:l7] [decision:audit]")
            .len(),
        1
    );
}
