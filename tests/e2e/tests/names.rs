//! Names inside, and programs that know no proxy.

use lab::Lab;

use super::{policy, python};

/// A host with two names at one address.
fn lab() -> Lab {
    Lab::new(&[
        ("10.99.0.1", "web.test db.test"),
        ("10.99.0.2", "10-99-0-2.test"),
    ])
}

/// Python may go to `endpoints`, at the servers' addresses; `{}` are further keys of each.
fn endpoints(endpoints: &[&str]) -> String {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|endpoint| format!("{{{endpoint}, allowed_ips: [10.99.0.0/24]}}"))
        .collect();
    policy(&format!(
        "{{names: {{endpoints: [{}], binaries: [{{path: {}}}]}}}}",
        endpoints.join(", "),
        python()
    ))
}

/// Connects to `argv[1]:argv[2]`, without a proxy, sends `argv[3]` and ends its sending; prints
/// everything that it receives, or the error.
const CONNECT: &str = r"
import socket, sys
try:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
    s.sendall(sys.argv[3].encode().decode('unicode_escape').encode())
    s.shutdown(socket.SHUT_WR)
    data = b''
    while more := s.recv(65536): data += more
    print(data.decode())
except OSError as error: print(type(error).__name__)
";

/// Serves one line before its clients say anything, at `argv[1]:argv[2]`; then echoes until they
/// end, and says goodbye.
const GREETER: &str = r"
import socket, sys, threading
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
def serve(s):
    try:
        s.sendall(b'220 hello\n')
        while data := s.recv(65536): s.sendall(data)
        s.sendall(b'bye')
    except ConnectionError: pass
    s.close()
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
";

fn greeter(lab: &Lab, port: &str) -> lab::host::Program {
    let file = lab.file("greeter.py", GREETER);
    lab.program(&[
        "/usr/bin/python3",
        file.to_str().unwrap(),
        "10.99.0.1",
        port,
    ])
}

#[test]
fn a_name_of_the_policy_has_an_address_and_every_other_is_refused_and_counted() {
    let lab = lab();
    let data = endpoints(&[
        "host: db.test, port: 5432, protocol: tcp",
        "host: '*.apps.test', port: 80",
    ]);
    let script = "ask() { dig +noall +answer +comments \"$@\" | grep -v WARNING | grep -oE 'status: [A-Z]+|IN.*' | tr '\\n\\t' '  '; echo; }
        ask db.test; ask DB.Test. AAAA; ask a.apps.test; ask a.b.apps.test; ask nope.test; ask nope.test; ask nope.test HTTPS
        ask db.test ANY; ask -x 198.18.0.1; ask -x 198.18.0.77; ask localhost; ask localhost AAAA; ask inference.local
        ask +tcp db.test; ask db.test HTTPS; getent hosts db.test; getent hosts $(hostname) localhost";
    let finished = lab.sandbox(&data).args(&["--log-level", "info"]).sh(script);
    let lines: Vec<_> = finished.ok().lines().map(str::trim).collect();
    let expected = [
        "status: NOERROR IN A 198.18.0.1",
        "status: NOERROR",
        "status: NOERROR IN A 198.18.0.2",
        "status: NXDOMAIN",
        "status: NXDOMAIN",
        "status: NXDOMAIN",
        "status: NXDOMAIN",
        "status: REFUSED",
        "status: NOERROR IN PTR db.test.",
        "status: NXDOMAIN",
        "status: NOERROR IN A 127.0.0.1",
        "status: NOERROR IN AAAA ::1",
        "status: NOERROR IN A 198.18.0.3",
        "status: NOERROR IN A 198.18.0.1",
        "status: NOERROR",
    ];
    assert_eq!(lines[..expected.len()], expected);
    assert!(
        lines[expected.len()].ends_with("db.test") && lines.len() > expected.len() + 1,
        "{lines:?}"
    );
    let denied = finished.logged("DNS:RESOLVE [LOW] DENIED");
    assert_eq!(denied.len(), 2, "{denied:?}");
    assert!(
        denied[0].contains("DENIED a.b.apps.test A [code:endpoint_not_in_policy]"),
        "{denied:?}"
    );
    assert!(denied[1].contains("DENIED nope.test A ["), "{denied:?}");
    assert_eq!(
        finished
            .logged("DNS:RESOLVE [INFO] ALLOWED db.test [addresses:1 ttl:")
            .len(),
        1,
        "{}",
        finished.log
    );
    let asked = "1 x /usr/bin/dig -> nope.test: endpoint_not_in_policy";
    assert!(finished.stderr.contains(asked), "{}", finished.stderr);
}

#[test]
fn a_server_that_speaks_first_is_reached_by_name_and_each_side_ends_by_itself() {
    let lab = lab();
    let _server = greeter(&lab, "5432");
    for protocol in [
        "protocol: tcp",
        "protocol: tcp, enforcement: enforce, access: full",
        "tls: skip",
        "port: 5432",
    ] {
        let data = endpoints(&[&format!("host: db.test, port: 5432, {protocol}")
            .replace(", port: 5432, port", ", port")]);
        let finished = lab
            .sandbox(&data)
            .args(&["--log-level", "info"])
            .python(CONNECT, &["db.test", "5432", "mine"]);
        assert_eq!(finished.ok(), "220 hello\nminebye", "{protocol}");
        let line = format!("NET:OPEN [INFO] ALLOWED {}(", python());
        assert!(
            finished
                .logged(&line)
                .iter()
                .any(|line| line.contains("-> db.test:5432 [policy:names")),
            "{protocol}"
        );
    }
}

#[test]
fn names_have_their_real_addresses_or_those_of_a_range_where_that_is_asked_for() {
    let lab = Lab::new(&[
        ("11.7.7.7", "web.test db.test"),
        ("10.99.0.2", "inner.test"),
    ]);
    let file = lab.file("greeter.py", GREETER);
    let _server = lab.program(&[
        "/usr/bin/python3",
        file.to_str().unwrap(),
        "11.7.7.7",
        "5432",
    ]);
    let db = "host: db.test, port: 5432, protocol: tcp";
    let web = "host: web.test, port: 5432, protocol: tcp";
    let endpoints = [
        db,
        web,
        "host: '*.apps.test', port: 80",
        "host: inner.test, port: 80",
    ]
    .map(|one| format!("{{{one}}}"));
    let data = policy(&format!(
        "{{names: {{endpoints: [{}], binaries: [{{path: {}}}]}}}}",
        endpoints.join(", "),
        python()
    ));
    let ask = "for name in web.test db.test x.apps.test inner.test inference.local other.test; do
        getent ahostsv4 $name | head -n 1 | cut -d' ' -f1 | tr '\n' ' '; done; ";
    let connector = lab.file("connect.py", CONNECT).display().to_string();
    let connect = format!(
        "for name in web.test db.test; do /usr/bin/python3 {connector} $name 5432 mine; done"
    );
    let data = format!("{data}filesystem_policy: {{read_only: [{connector}]}}\n");
    // A second name at one address has another, as has one with an internal address; what a
    // wildcard permits is not looked up.
    for (addresses, expected) in [
        (
            "real",
            "11.7.7.7 198.18.0.1 198.18.0.2 198.18.0.3 198.18.0.4 ",
        ),
        (
            "11.5.0.0/16",
            "11.5.0.1 11.5.0.2 11.5.0.3 11.5.0.4 11.5.0.5 ",
        ),
    ] {
        let sandbox =
            lab.sandbox(&data)
                .args(&["--name-addresses", addresses, "--log-level", "info"]);
        let finished = sandbox.sh(&format!("{ask}{connect}"));
        assert_eq!(
            finished.ok(),
            format!("{expected}220 hello\nminebye\n220 hello\nminebye"),
            "{finished:?}"
        );
        for name in ["web.test", "db.test"] {
            let opened = finished.logged(&format!("-> {name}:5432 [policy:names engine:opa]"));
            assert!(!opened.is_empty(), "{}", finished.log);
        }
    }
    let refused = lab
        .sandbox(&data)
        .args(&["--name-addresses", "127.0.0.0/8"])
        .sh("echo ran");
    assert!(
        refused.stderr.contains("never lead out of a sandbox") && refused.stdout.is_empty(),
        "{refused:?}"
    );
}

#[test]
fn another_program_name_or_port_is_refused_at_once_and_named() {
    let lab = lab();
    let _server = greeter(&lab, "5432");
    let data = endpoints(&["host: db.test, port: 5432, protocol: tcp"]);
    let sandbox = || lab.sandbox(&data);
    let other = sandbox()
        .sh("curl -sS --noproxy '*' --max-time 20 telnet://db.test:5432 </dev/null; echo $?");
    assert!(
        other.stdout.trim_end().ends_with("56") || other.stdout.trim_end().ends_with("52"),
        "{other:?}"
    );
    let line = "NET:OPEN [MED] DENIED /usr/bin/curl(";
    assert!(
        other.logged(line)[0].contains("-> db.test:5432 ["),
        "{}",
        other.log
    );
    assert!(
        other
            .stderr
            .contains("/usr/bin/curl -> db.test:5432: binary_not_in_policy"),
        "{}",
        other.stderr
    );
    let port = sandbox().python(CONNECT, &["db.test", "5433", ""]);
    assert_eq!(port.ok(), "ConnectionRefusedError");
    let hint = "-> db.test:5433: direct_connection\n      it went past the proxy: no endpoint of \
                the policy names this port of the host";
    assert!(port.stderr.contains(hint), "{}", port.stderr);
    // The same server by another name, which no policy has.
    assert_eq!(
        sandbox().python(CONNECT, &["web.test", "5432", ""]).ok(),
        "gaierror"
    );
    // Its own address, and one of the pool that no name has.
    for address in ["10.99.0.1", "198.18.0.9"] {
        assert_eq!(
            sandbox().python(CONNECT, &[address, "5432", ""]).ok(),
            "ConnectionRefusedError",
            "{address}"
        );
    }
}

#[test]
fn names_of_one_address_are_kept_apart_and_requests_are_judged_by_their_rules() {
    let lab = lab();
    let upstream = lab.http("10.99.0.1:8080");
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /open}}]";
    let data = endpoints(&[
        "host: db.test, port: 8080",
        &format!("host: web.test, port: 8080, {rules}"),
    ]);
    let data = data.replace(&python(), "/usr/bin/curl");
    let script = "for url in db.test:8080/any web.test:8080/open web.test:8080/any; do
            curl -sS --noproxy '*' http://$url | head -c 60; echo; done";
    let finished = lab.sandbox(&data).args(&["--log-level", "info"]).sh(script);
    let lines: Vec<_> = finished.ok().lines().collect();
    assert_eq!(lines[..2], ["hello", "hello"], "{finished:?}");
    assert!(
        lines[2].starts_with("{\"error\":\"policy_denied\""),
        "{lines:?}"
    );
    assert_eq!(
        upstream
            .seen()
            .iter()
            .filter(|bytes| !bytes.is_empty())
            .count(),
        2
    );
    assert_eq!(
        finished.logged("HTTP:GET [MED] DENIED").len(),
        1,
        "{}",
        finished.log
    );
}

#[test]
fn an_address_of_the_policy_is_a_door_itself_and_an_address_of_a_name_means_the_name_to_the_proxy()
{
    let lab = lab();
    let _server = greeter(&lab, "5432");
    let _web = lab.http("10.99.0.1:8080");
    let data = endpoints(&[
        "host: 10.99.0.1, port: 5432, protocol: tcp",
        "host: web.test, port: 8080",
    ]);
    let direct = lab
        .sandbox(&data)
        .python(CONNECT, &["10.99.0.1", "5432", "x"]);
    assert_eq!(direct.ok(), "220 hello\nxbye");
    let data = data.replace(&python(), "/usr/bin/curl");
    // A client that looks names up itself, and one that does not.
    let script = "curl -sS --socks5 10.200.0.1:3128 http://web.test:8080/; echo
        curl -sS --socks5-hostname 10.200.0.1:3128 http://web.test:8080/; echo
        curl -sS -x $HTTPS_PROXY http://$(getent hosts web.test | cut -d' ' -f1):8080/; echo
        curl -sS --socks5 10.200.0.1:3128 http://web.test:8081/; echo $?";
    let finished = lab.sandbox(&data).args(&["--log-level", "info"]).sh(script);
    assert_eq!(finished.ok(), "hello\nhello\nhello\n97", "{finished:?}");
    assert_eq!(
        finished.logged("DENIED /usr/bin/curl").len(),
        1,
        "{}",
        finished.log
    );
    assert!(!finished.log.contains("198.18."), "{}", finished.log);
}

#[test]
fn a_server_inside_at_the_port_of_a_name_is_its_own() {
    let lab = lab();
    let _server = greeter(&lab, "5432");
    let data = endpoints(&["host: db.test, port: 5432, protocol: tcp"]);
    let program = format!(
        "
import socket, threading
server = socket.create_server(('0.0.0.0', 5432))
threading.Thread(target=lambda: server.accept()[0].sendall(b'own'), daemon=True).start()
print(socket.create_connection(('127.0.0.1', 5432), 20).recv(9).decode())
import sys; sys.argv = ['', 'db.test', '5432', 'x']
{CONNECT}"
    );
    assert_eq!(
        lab.sandbox(&data).python(&program, &[]).ok(),
        "own\n220 hello\nxbye"
    );
}

#[test]
fn an_upstream_that_is_gone_or_resets_is_a_reset() {
    let lab = lab();
    let resetting = "
import socket, struct, sys
server = socket.create_server(('10.99.0.1', 5433))
print('ready', flush=True)
while True:
    s = server.accept()[0]
    s.recv(1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    s.close()
";
    let file = lab.file("resetting.py", resetting);
    let _server = lab.program(&["/usr/bin/python3", file.to_str().unwrap()]);
    let data = endpoints(&["host: db.test, ports: [5432, 5433], protocol: tcp"]);
    let gone = lab
        .sandbox(&data)
        .python(CONNECT, &["db.test", "5432", "x"]);
    assert_eq!(gone.ok(), "ConnectionResetError");
    assert_eq!(gone.logged("NET:FAIL").len(), 1, "{}", gone.log);
    assert_eq!(
        lab.sandbox(&data)
            .python(CONNECT, &["db.test", "5433", "x"])
            .ok(),
        "ConnectionResetError"
    );
}

#[test]
fn a_reload_opens_new_names_and_ends_the_connections_of_old_ones_whose_addresses_stay_their_own() {
    let lab = lab();
    let _server = greeter(&lab, "5432");
    let folder = lab.folder("work");
    let file = lab.file("policy.yaml", "");
    let grants = format!(
        "filesystem_policy: {{read_write: [{}]}}\n",
        folder.display()
    );
    let write = |host: &str| {
        let data = endpoints(&[&format!("host: {host}, port: 5432, protocol: tcp")]);
        drop(lab.file("policy.yaml", format!("{data}{grants}")));
    };
    write("db.test");
    let program = "
import socket, sys, time, os
def find(name):
    try: return socket.gethostbyname(name)
    except OSError: return 'none'
s = socket.create_connection(('db.test', 5432), 20)
print(s.recv(10).decode().strip(), find('db.test'), find('web.test'), flush=True)
open(sys.argv[1] + '/ready', 'w').close()
try: end = s.recv(9)
except OSError: end = b''
print(end)
deadline = time.monotonic() + 20
while find('web.test') == 'none' and time.monotonic() < deadline: pass
print(find('db.test'), find('web.test'))
print(socket.create_connection(('web.test', 5432), 20).recv(9).decode().strip())
try: print(socket.create_connection(('198.18.0.1', 5432), 20).recv(9))
except ConnectionError as error: print(type(error).__name__)
";
    let sandbox = lab::Sandbox::bare(&lab).args(&[
        "--policy-data",
        file.to_str().unwrap(),
        "--log-level",
        "info",
    ]);
    let started = sandbox.start(&["/usr/bin/python3", "-c", program, folder.to_str().unwrap()]);
    let ready = folder.join("ready");
    lab::wait_until(|| ready.exists(), || lab.log());
    write("web.test");
    started.signal(rustix::process::Signal::HUP);
    let finished = started.wait();
    let expected =
        "220 hello 198.18.0.1 none\nb''\nnone 198.18.0.2\n220 hello\nConnectionRefusedError";
    assert_eq!(finished.ok(), expected, "{finished:?}");
    assert_eq!(
        finished.logged("NET:CLOSE [MED]").len(),
        1,
        "{}",
        finished.log
    );
}

#[test]
fn an_observed_run_knows_every_name_and_writes_down_what_was_connected_to() {
    let lab = lab();
    let _server = greeter(&lab, "5432");
    let out = lab.folder("out").join("policy.yaml");
    let data = policy("{}");
    let finished = lab
        .sandbox(&data)
        .args(&["--observe", out.to_str().unwrap()])
        .python(CONNECT, &["db.test", "5432", "x"]);
    assert_eq!(finished.ok(), "220 hello\nxbye", "{finished:?}");
    let written = std::fs::read_to_string(&out).unwrap();
    assert!(
        written.contains(
            "{host: \"db.test\", port: 5432, allowed_ips: [\"10.99.0.1\"], protocol: tcp}"
        ),
        "{written}"
    );
}

/// Sends each datagram of a list, and prints the code of its answer; then asks a proper question.
const MALFORMED: &str = r"
import socket, struct, sys
def ask(data, wait=0.3):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(wait)
    s.connect(('10.200.0.1', 53))
    s.send(data)
    try: return s.recv(9000)[3] & 15
    except TimeoutError: return None
head = lambda questions=1, flags=0x0100: struct.pack('>6H', 7, flags, questions, 0, 0, 0)
name = b'\x02db\x04test\x00'
question = name + struct.pack('>HH', 1, 1)
print(ask(b''), ask(b'\x00' * 11), ask(head()), ask(head(2) + question * 2), ask(head(0)))
print(ask(head(1, 0x8100) + question), ask(head(1, 0x2900) + question), ask(head() + name + struct.pack('>HH', 1, 3)))
print(ask(head() + b'\xc0\x0c' + struct.pack('>HH', 1, 1)), ask(head() + (b'\x3f' + b'a' * 63) * 4 + b'\x00\x00\x01\x00\x01'))
print(ask(head() + b'\x02\xff\x00\x04test\x00' + struct.pack('>HH', 1, 1)), ask(head() + question + b'\x00' * 9000))
print(ask(head() + question, 5))
slow = socket.create_connection(('10.200.0.1', 53), 5)
slow.send(b'\x00')
fast = socket.create_connection(('10.200.0.1', 53), 5)
message = head() + question
fast.sendall(struct.pack('>H', len(message)) + message + struct.pack('>H', len(message)) + message)
answers = b''
while len(answers) < 2 * (2 + len(message) + 16): answers += fast.recv(9000)
print(len(answers), answers[-4:])
";

#[test]
fn malformed_questions_are_answered_as_such_and_hold_nobody_up() {
    let lab = lab();
    let data = endpoints(&["host: db.test, port: 5432, protocol: tcp"]);
    let finished = lab.sandbox(&data).python(MALFORMED, &[]);
    let expected = "None None 1 1 1\nNone 4 5\n1 1\n3 1\n0\n86 b'\\xc6\\x12\\x00\\x01'";
    assert_eq!(finished.ok(), expected, "{finished:?}");
}

#[test]
fn programs_find_names_whatever_the_hosts_files_are() {
    let data = endpoints(&["host: db.test, port: 5432, protocol: tcp"]);
    let asks =
        "cat /etc/resolv.conf | head -1; getent hosts db.test | tr -s ' '; grep -c . /etc/hosts";
    for change in [
        "",
        // As of a host with a resolver of its own, whose file is gone in a container.
        "mount --bind /var/empty-etc /etc; rm /etc/resolv.conf; ln -s ../run/none/stub-resolv.conf \
         /etc/resolv.conf",
        "mount --bind /var/empty-etc /etc; rm /etc/resolv.conf /etc/hosts",
        "mount --bind /var/empty-etc /etc; echo 'hosts: files mdns4_minimal [NOTFOUND=return] \
         resolve [!UNAVAIL=return] dns myhostname' > /etc/nsswitch.conf",
    ] {
        let lab = lab();
        let copied = "mkdir -p /run/lab-etc && cp -a /etc/. /run/lab-etc";
        let change = change.replace("/var/empty-etc", "/run/lab-etc");
        assert_eq!(
            lab.shell(&format!(
                "umount /etc/hosts /etc/resolv.conf; {copied}; {change}"
            )),
            "",
            "{change}"
        );
        let finished = lab.sandbox(&data).sh(asks);
        let is_refused =
            change.contains("/etc/hosts") && lab::host::tier() == lab::host::Tier::Rootless;
        if is_refused {
            // The caller can make no file in /etc.
            assert_eq!(
                finished.logged("names do not resolve inside").len(),
                1,
                "{}",
                finished.log
            );
            continue;
        }
        let lines: Vec<_> = finished.ok().lines().collect();
        assert_eq!(
            lines[..2],
            ["nameserver 10.200.0.1", "198.18.0.1 db.test"],
            "{change}: {finished:?}"
        );
    }
}

/// Asks for a tunnel, and resets the connection before the answer is read; then connects by name
/// and is killed by a reset too.
const RESETS: &str = r"
import os, socket, struct
def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    s.close()
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
for n in range(20):
    s = socket.create_connection((host, int(port)))
    s.sendall(b'CONNECT db.test:5432 HTTP/1.1\r\n\r\n')
    reset(s)
    s = socket.create_connection(('db.test', 5432))
    s.recv(1)
    reset(s)
";

#[test]
fn each_connection_that_was_opened_has_one_end_whoever_resets_it() {
    let lab = lab();
    let _server = greeter(&lab, "5432");
    let data = endpoints(&["host: db.test, port: 5432, protocol: tcp"]);
    let finished = lab
        .sandbox(&data)
        .args(&["--log-level", "info"])
        .python(RESETS, &[]);
    assert_eq!(finished.ok(), "");
    let opened = finished.logged("NET:OPEN [INFO] ALLOWED").len();
    let closed = finished.logged("NET:CLOSE [INFO]");
    assert_eq!(opened, closed.len(), "{}", finished.log);
    let by_name: Vec<_> = closed
        .iter()
        .filter(|line| line.contains("[door:name]"))
        .collect();
    assert_eq!(by_name.len(), 20, "{closed:?}");
    assert!(
        by_name.iter().all(|line| line.contains("[by:client]")),
        "{by_name:?}"
    );
}

#[test]
fn explain_says_what_a_program_without_a_proxy_would_meet() {
    let lab = lab();
    let file = lab.file(
        "policy.yaml",
        endpoints(&[
            "host: db.test, port: 5432, protocol: tcp",
            "host: 10.99.0.1, port: 80",
        ]),
    );
    let explain = |host: &str, port: &str| {
        let words = format!(
            "--binary {} --host {host} --port {port} --door name",
            python()
        );
        lab.shell(&format!(
            "{} explain {} {words}",
            lab.binary(),
            file.display()
        ))
    };
    assert!(
        explain("db.test", "5432").starts_with("allowed: "),
        "{}",
        explain("db.test", "5432")
    );
    assert!(explain("10.99.0.1", "80").starts_with("allowed: "));
    assert!(explain("db.test", "5433").contains("names this port of the host"));
    assert!(explain("web.test", "5432").contains("does not know the name"));
    assert!(explain("10.99.0.2", "80").contains("no endpoint names this address"));
}

#[test]
fn names_do_not_depend_on_the_callers_umask() {
    let lab = lab();
    let file = lab.file(
        "policy.yaml",
        endpoints(&["host: db.test, port: 5432, protocol: tcp"]),
    );
    let asked = "getent hosts db.test localhost | grep -c .";
    let script = format!(
        "umask 077; {} --policy-data {} -- sh -c '{asked}'",
        lab.binary(),
        file.display()
    );
    assert_eq!(
        lab.shell(&script).lines().last(),
        Some("2"),
        "{}",
        lab.log()
    );
}

/// Fetches `argv[1]` by Go's own resolver, which reads resolv.conf itself.
const GO: &str = r#"
package main
import ("fmt"; "net/http"; "os")
func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil { fmt.Println(err); return }
	fmt.Println(answer.Status)
}
"#;

#[test]
fn resolvers_that_programs_bring_along_find_the_same_names() {
    let lab = lab();
    let _server = lab.http("10.99.0.1:80");
    let source = lab.file("get.go", GO);
    let go = lab.folder("go").join("get");
    let build = "CGO_ENABLED=0 GO111MODULE=off GOCACHE=";
    let built = lab.shell(&format!(
        "{build}{} go build -o {} {} && echo built",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"),
        go.display(),
        source.display()
    ));
    assert_eq!(built, "built\n");
    let node = std::fs::canonicalize("/usr/bin/node").unwrap();
    let data = policy(&format!(
        "{{names: {{endpoints: [{{host: web.test, port: 80, allowed_ips: [10.99.0.0/24]}}], \
         binaries: [{{path: {}}}, {{path: {}}}]}}}}",
        go.display(),
        node.display()
    ));
    let data = data
        + &format!(
            "filesystem_policy: {{read_only: [{}]}}\n",
            lab.folder("go").display()
        );
    let script = format!(
        "cp {0} /tmp/other; for go in {0} /tmp/other; do env -i $go http://web.test/; env -i $go http://nope.test/; done
        env -i {1} -e \"const dns = require('dns'); dns.resolve4('web.test', (e, found) => console.log(e?.code, found));
        dns.resolve4('nope.test', (e, found) => console.log(e?.code, found))\" | sort",
        go.display(),
        node.display()
    );
    let finished = lab.sandbox(&data).sh(&script);
    let lines: Vec<_> = finished.ok().lines().collect();
    let [found, unknown, refused, _, nope, address] = lines[..] else {
        panic!("{finished:?}")
    };
    assert_eq!(found, "200 OK");
    assert!(unknown.contains("no such host"), "{unknown}");
    assert!(
        refused.contains("connection reset by peer"),
        "another program may ask, and not connect: {refused}"
    );
    assert_eq!(
        [nope, address],
        ["ENOTFOUND undefined", "undefined [ '198.18.0.1' ]"]
    );
}

/// Listens in place of the host's name service cache daemon, and prints a line for each client.
const DAEMON: &str = r"
import os, socket
os.makedirs('/run/nscd', exist_ok=True)
server = socket.socket(socket.AF_UNIX)
server.bind('/run/nscd/socket')
os.chmod('/run/nscd/socket', 0o666)
server.listen()
print('ready', flush=True)
while True:
    server.accept()[0].close()
    open('/run/nscd/asked', 'a').write('asked\n')
";

#[test]
fn a_cache_of_names_outside_is_not_asked() {
    let lab = lab();
    let file = lab.file("daemon.py", DAEMON);
    let _daemon = lab.program(&["/usr/bin/python3", file.to_str().unwrap()]);
    assert_ne!(
        lab.shell("getent hosts db.test; cat /run/nscd/asked; : > /run/nscd/asked"),
        "",
        "it is asked outside"
    );
    let data = endpoints(&["host: db.test, port: 5432, protocol: tcp"]);
    let finished = lab.sandbox(&data).sh("getent hosts db.test | tr -s ' '");
    assert_eq!(finished.ok(), "198.18.0.1 db.test");
    assert_eq!(lab.shell("cat /run/nscd/asked"), "");
}

/// A name server at 10.99.0.1 that answers by the first label: with an address that is not the
/// upstream's, an alias of itself, a message for another question, bytes that are no message, or
/// nothing.
const LIAR: &str = r"
import socket, struct
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('10.99.0.1', 53))
print('ready', flush=True)
ADDRESSES = {b'own': '127.0.0.1', b'metadata': '169.254.169.254', b'private': '10.1.2.3', b'inside': '10.200.0.1', b'pool': '198.18.0.9'}
def record(kind, data): return b'\xc0\x0c' + struct.pack('!HHIH', kind, 1, 60, len(data)) + data
while True:
    data, client = server.recvfrom(4096)
    end = data.index(b'\0', 12) + 5
    question, label = data[12:end], data[13:13 + data[12]]
    kind = struct.unpack('!H', question[-4:-2])[0]
    answers = b''
    if kind == 1 and label in ADDRESSES: answers = record(1, socket.inet_aton(ADDRESSES[label]))
    if label == b'loop': answers = record(5, b'\xc0\x0c')
    if label == b'other': question = b'\x05other\x03org\0' + question[-4:]
    if label == b'silent': continue
    if label == b'garbage': server.sendto(data[:2] + b'\xff' * 40, client); continue
    server.sendto(data[:2] + struct.pack('!HHHHH', 0x8180, 1, bool(answers), 0, 0) + question + answers, client)
";

#[test]
fn a_name_server_that_lies_or_is_silent_leads_nowhere() {
    let lab = lab();
    assert_eq!(
        lab.shell("echo 'nameserver 10.99.0.1\noptions timeout:1 attempts:1' > /etc/resolv.conf"),
        ""
    );
    let file = lab.file("liar.py", LIAR);
    let _liar = lab.program(&["/usr/bin/python3", file.to_str().unwrap()]);
    let hosts = [
        "own", "metadata", "private", "inside", "pool", "loop", "other", "silent", "garbage",
    ];
    let endpoints: Vec<_> = hosts
        .map(|host| format!("{{host: {host}.lies, port: 5432, protocol: tcp}}"))
        .into();
    let data = policy(&format!(
        "{{names: {{endpoints: [{}], binaries: [{{path: {}}}]}}}}",
        endpoints.join(", "),
        python()
    ));
    let finished = lab.sandbox(&data).python(
        "import socket\nfor host in '\
         own metadata private inside pool loop other silent garbage'.split():\n    \
         try: socket.create_connection((host + '.lies', 5432), 30).recv(1); print(host)\n    \
         except OSError as error: print(type(error).__name__)",
        &[],
    );
    assert_eq!(
        finished.ok(),
        vec!["ConnectionResetError"; hosts.len()].join("\n"),
        "{finished:?}"
    );
    for (host, code) in hosts.into_iter().zip([
        "always_blocked_address",
        "always_blocked_address",
        "internal_address",
        "internal_address",
        "internal_address",
        "dns_failed",
        "dns_failed",
        "dns_failed",
        "dns_failed",
    ]) {
        let line = format!("{host}.lies:5432");
        let logged = finished.logged(&line);
        assert!(
            logged
                .iter()
                .any(|line| line.contains(&format!("[code:{code}]"))),
            "{host}: {logged:?}"
        );
    }
}
