//! Servers inside, published to clients outside.

use lab::Lab;
use lab::sandbox::Started;
use rustix::process::Signal;

/// Starts `script` with `arguments`, and waits until it has printed nothing but made the file
/// `ready` in its folder.
fn started<'l>(lab: &'l Lab, arguments: &[&str], script: &str) -> Started<'l> {
    let folder = lab.folder("ready");
    let workdir = ["--workdir", folder.to_str().unwrap()];
    let started = lab
        .sandbox(&super::policy("{}"))
        .args(&[&workdir, arguments].concat())
        .start(&["sh", "-c", script]);
    lab::wait_until(
        || folder.join("ready").exists(),
        || "the server did not start".to_owned(),
    );
    started
}

/// A web server on port 8000, on loopback alone.
const WEB: &str = "echo inside > page; python3 -m http.server --bind 127.0.0.1 8000 >/dev/null \
                   2>&1 & until curl -sf -o /dev/null http://127.0.0.1:8000; do sleep 0.05; done; \
                   touch ready; wait";

fn end(started: Started<'_>) -> lab::sandbox::Finished {
    started.signal(Signal::TERM);
    started.wait()
}

#[test]
fn a_published_server_answers_clients_outside_and_nothing_else_comes_in() {
    let lab = Lab::with_web();
    let started = started(
        &lab,
        &["--publish", "8000", "--publish", "0.0.0.0:8081:8000"],
        WEB,
    );
    let ask = "for at in 127.0.0.1:8000 10.99.0.1:8081 10.99.0.1:8000 127.0.0.1:8002 \
               10.200.0.2:8000; do curl -s -m 5 http://$at/page || echo none; done";
    assert_eq!(lab.shell(ask), "inside\ninside\nnone\nnone\nnone\n");
    let finished = end(started);
    assert_eq!(
        finished
            .logged("CONFIG:ENABLED [INFO] Published at 127.0.0.1:8000: 127.0.0.1:8000 inside")
            .len(),
        1
    );
    let lines = finished.logged("NET:PUBLISH [INFO] ALLOWED ");
    assert_eq!(lines.len(), 2, "{}", finished.log);
    assert!(
        lines[0].contains(" -> 127.0.0.1:8000 [published:127.0.0.1:8000] sandbox="),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("10.99.0.1:") && lines[1].contains("[published:0.0.0.0:8081]"),
        "{lines:?}"
    );
    assert_eq!(
        lab.shell("curl -s -m 5 http://127.0.0.1:8000 || echo none"),
        "none\n",
        "it ends with the run"
    );
}

#[test]
fn a_port_that_the_kernel_chose_is_said() {
    let lab = Lab::with_web();
    let finished = end(started(
        &lab,
        &["--publish", "0:8000"],
        "touch ready; read line",
    ));
    let line = finished.stderr.lines().next().unwrap_or_default();
    let port = line.strip_prefix("openshell-sandbox: port 8000 inside is published at 127.0.0.1:");
    assert!(
        port.and_then(|port| port.parse::<u16>().ok())
            .is_some_and(|port| port > 0),
        "{finished:?}"
    );
}

#[test]
fn a_server_that_nobody_reached_is_said_at_the_end_with_the_flag_that_publishes_it() {
    let lab = Lab::with_web();
    let listen = "import socket, sys, time\nfor port in sys.argv[1:]: globals()['s' + port] = \
                  socket.create_server(('127.0.0.1', int(port)))\n";
    let script = format!(
        "python3 -c \"{listen}socket.create_connection(('127.0.0.1', 8002))\" 8000 8001 8002"
    );
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--publish", "0:8001", "--log-level", "warn"])
        .sh(&script);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let python = super::python();
    let expected = format!(
        "openshell-sandbox: no program connected to these servers, and none outside can:\n  \
         {python} at port 8000; --publish 8000 lets clients outside in\n"
    );
    assert!(finished.stderr.ends_with(&expected), "{finished:?}");
}

#[test]
fn a_server_that_is_not_there_yet_resets_its_clients_and_a_later_one_answers() {
    let lab = Lab::with_web();
    let started = started(
        &lab,
        &["--publish", "8000"],
        "touch ready; while [ ! -e go ]; do sleep 0.05; done; rm ready; {WEB}"
            .replace("{WEB}", WEB)
            .as_str(),
    );
    // The reset can come before curl has looked at the connection.
    let refused = lab.shell("curl -s -m 5 http://127.0.0.1:8000/page; echo $?");
    assert!(
        ["56\n", "7\n"].contains(&refused.as_str()),
        "a reset: {refused}"
    );
    let folder = lab.folder("ready");
    std::fs::write(folder.join("go"), "").unwrap();
    let answer = "until curl -sf -m 5 http://127.0.0.1:8000/page; do sleep 0.05; done";
    assert_eq!(lab.shell(answer), "inside\n");
    let finished = end(started);
    assert!(
        !finished
            .logged("[reason:no server inside: Connection refused")
            .is_empty(),
        "{}",
        finished.log
    );
}

/// Listens at port 8000 and answers each client at once, before it says anything, then echoes to
/// the end.
const ECHO: &str = "python3 -c \"
import socket, threading
server = socket.create_server(('127.0.0.1', 8000), backlog=600)
open('ready', 'w').close()
def serve(client):
    client.sendall(b'hello ')
    while data := client.recv(65536): client.sendall(data)
    client.close()
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()\"";

#[test]
fn a_server_that_speaks_first_is_heard_and_a_long_stream_arrives_whole() {
    let lab = Lab::with_web();
    let started = started(&lab, &["--publish", "9000:8000"], ECHO);
    let program = "
import hashlib, os, socket, threading
s = socket.create_connection(('127.0.0.1', 9000), 20)
print(s.recv(6))
data = os.urandom(1 << 20) * 16
threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))).start()
heard = hashlib.sha256()
while part := s.recv(1 << 16): heard.update(part)
print(heard.digest() == hashlib.sha256(data).digest())
";
    let file = lab.file("client.py", program);
    assert_eq!(
        lab.shell(&format!("/usr/bin/python3 {}", file.display())),
        "b'hello '\nTrue\n"
    );
    drop(started);
}

#[test]
fn connections_to_a_published_port_are_bounded_and_those_beyond_are_reset_and_logged() {
    let lab = Lab::with_web();
    let started = started(&lab, &["--publish", "8000"], ECHO);
    let program = "
import socket
held, refused = [], 0
def ask():
    s = socket.create_connection(('127.0.0.1', 8000), 20)
    return s, s.recv(6)
for n in range(600):
    try: held.append(ask())
    except ConnectionResetError: refused += 1
print(len(held), refused)
for s, _ in held: s.close()
while True:
    try: print(ask()[1]); break
    except ConnectionResetError: pass
";
    let file = lab.file("client.py", program);
    assert_eq!(
        lab.shell(&format!("/usr/bin/python3 {}", file.display())),
        "512 88\nb'hello '\n"
    );
    let finished = end(started);
    assert!(
        finished.logged("NET:PUBLISH [MED] DENIED ").len() >= 88,
        "{}",
        finished.log
    );
}

#[test]
fn what_cannot_be_published_stops_the_start_with_one_line() {
    let lab = Lab::with_web();
    let _holder = lab.http("10.99.0.1:8080");
    for (arguments, expected) in [
        (
            &["--publish", "10.99.0.1:8080:8000"][..],
            "cannot publish at 10.99.0.1:8080; name another port or address",
        ),
        (
            &["--publish", "192.0.2.1:8000"],
            "cannot publish at 192.0.2.1:8000",
        ),
        (
            &["--publish", "8000", "--network", "block"],
            "--publish needs --network proxy",
        ),
    ] {
        let finished = lab
            .sandbox(&super::policy("{}"))
            .args(arguments)
            .sh("echo ran");
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (1, ""),
            "{finished:?}"
        );
        assert!(
            finished.stderr.lines().count() == 1 && finished.stderr.contains(expected),
            "{}",
            finished.stderr
        );
    }
}

#[test]
fn a_published_port_is_no_way_out() {
    let lab = Lab::with_web();
    // The workload asks for the address at which its own server is published.
    let policy = super::policy(&format!(
        "{{web: {{endpoints: [{{host: 127.0.0.1, port: 8000}}], binaries: [{{path: {}}}]}}}}",
        super::python()
    ));
    let finished = lab
        .sandbox(&policy)
        .args(&["--publish", "8000"])
        .python(super::RAW, &[&super::connect("127.0.0.1:8000")]);
    assert!(
        finished
            .stdout
            .starts_with("HTTP/1.1 403 always_blocked_address"),
        "{}",
        finished.stdout
    );
}
