//! Health, metrics, labels, and the way to the end.

use std::path::PathBuf;

use lab::Lab;
use lab::host::{Tier, tier};
use rustix::process::Signal;

use super::ssh::wait_for;

/// Asks `http://host` behind the socket or port in `curl`'s arguments, until `answer` comes.
fn until(lab: &Lab, ask: &str, answer: &str) {
    lab::wait_until(
        || lab.shell(ask).contains(answer),
        || format!("{ask}: {}{}", lab.shell(ask), lab.log()),
    );
}

/// A folder for sockets of the supervisor: where the workload's user is another one, it must not
/// own it.
fn outside(lab: &Lab) -> PathBuf {
    match tier() {
        Tier::Root => lab.folder("work").parent().unwrap().join("door"),
        Tier::Rootless => lab.folder("door").join("own"),
    }
}

#[test]
fn probes_and_scrapers_see_the_state_and_the_counts_of_a_sandbox() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let folder = lab.folder("work");
    let door = outside(&lab).join("health.sock");
    let script = "import socket, sys, urllib.request, os\nopener = \
                  urllib.request.build_opener(urllib.request.ProxyHandler({'http': \
                  os.environ['HTTP_PROXY']}))\nfor n in range(3): \
                  opener.open('http://web.test:8080/').read()\ntry: \
                  opener.open('http://other.test:8080/')\nexcept Exception as e: pass\nproxy = \
                  os.environ['HTTP_PROXY'][7:].strip('/').split(':')\ns = \
                  socket.create_connection((proxy[0], int(proxy[1])))\ns.sendall(b'CONNECT \
                  other.test:8080 HTTP/1.1\\r\\n\\r\\n'); s.recv(100)\nopen('done', \
                  'w').close()\nimport time; time.sleep(600)\n";
    let policy = super::web();
    let started = lab
        .sandbox(&policy)
        .args(&[
            "--workdir",
            folder.to_str().unwrap(),
            "--health-port",
            "9464",
            "--health-socket",
        ])
        .args(&[door.to_str().unwrap()])
        .start(&["/usr/bin/python3", "-c", script]);
    until(&lab, "curl -s -m 5 http://127.0.0.1:9464/readyz", "ok");
    until(&lab, &format!("ls {}", folder.display()), "done");
    let parse = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
                 for family in parse(sys.stdin.read()):\n  for s in family.samples:\n    print(s.name, *sorted(s.labels.items()), s.value)\n";
    let parse = lab.file("parse.py", parse);
    let seen = lab.shell(&format!(
        "curl -s http://10.99.0.1:9464/metrics | /usr/bin/python3 {}",
        parse.display()
    ));
    for line in [
        "decisions_total ('decision', 'allow') ('layer', 'l7') ('reason_code', '') 3\n",
        "decisions_total ('decision', 'deny') ('layer', 'l4') ('reason_code', \
         'endpoint_not_in_policy') 2\n",
        "requests_total ('decision', 'allow') ('protocol', 'http') 3\n",
        "requests_total ('decision', 'deny') ('protocol', 'http') 1\n",
        "connections_total ('door', 'connect') 0\n",
        "connections_total ('door', 'forward') ",
        "bytes_total ('direction', 'received') ",
        "decision_seconds_count 5\n",
        "upstream_connect_seconds_count ",
        "policy_generation 1\n",
        "policy_reloads_total ('result', 'applied') 0\n",
        "credentials_injected_total 0\n",
        "bypass_attempts_total 0\n",
        "approvals_held 0\n",
        "approvals_total ('by', 'none') ('scope', 'limit') 0\n",
        "denials_dropped_total 0\n",
        "log_lines_dropped_total 0\n",
        "ssh_sessions_open 0\n",
        "connections_open ",
        "process_resident_memory_bytes ",
        "open_fds ",
    ] {
        assert!(
            seen.contains(&format!("openshell_sandbox_{line}")),
            "{line}\n{seen}"
        );
    }
    let dashboard = include_str!("../../../docs/grafana.json");
    let raw = lab.shell("curl -s http://10.99.0.1:9464/metrics");
    let is_name = |byte: char| byte.is_ascii_lowercase() || byte == '_';
    for name in dashboard
        .split("openshell_sandbox_")
        .skip(1)
        .map(|rest| rest.split(|byte| !is_name(byte)).next().unwrap())
    {
        let family = name.trim_end_matches("_total").trim_end_matches("_bucket");
        assert!(
            raw.contains(&format!("# TYPE openshell_sandbox_{family} ")),
            "{name} of the dashboard\n{raw}"
        );
    }
    assert!(
        !seen.contains("web.test") && !seen.contains("other.test"),
        "{seen}"
    );
    let as_caller = lab.as_caller();
    let at = format!("{as_caller} curl -s -m 5 --unix-socket {}", door.display());
    let seen = lab.shell(&format!(
        "{at} http://x/healthz; curl -s -o /dev/null -w '%{{http_code}} ' -X POST \
         http://127.0.0.1:9464/metrics; curl -s -o /dev/null -w '%{{http_code}} ' \
         http://127.0.0.1:9464/; printf 'no http\\r\\n\\r\\n' | nc -N 127.0.0.1 9464 | head -1; \
         curl -s -I http://127.0.0.1:9464/healthz | head -1; stat -c %a {}",
        door.display()
    ));
    assert_eq!(
        seen.replace('\r', ""),
        "ok\n405 404 HTTP/1.1 400 Bad Request\nHTTP/1.1 200 OK\n600\n"
    );
    // Connections that say nothing take no slot for long.
    let idle = "import socket, subprocess, time\nheld = [socket.create_connection(('127.0.0.1', \
                9464)) for _ in range(40)]\nbegun = time.time()\nwhile subprocess.run(['curl', \
                '-s', '-m', '5', 'http://127.0.0.1:9464/healthz'], capture_output=True).stdout != \
                b'ok\\n':\n  assert time.time() < begun + 30\nprint('answered')\n";
    let idle = lab.file("idle.py", idle);
    assert_eq!(
        lab.shell(&format!("/usr/bin/python3 {} 2>&1", idle.display())),
        "answered\n"
    );
    started.signal(Signal::TERM);
    let finished = started.wait();
    assert_eq!(
        finished
            .logged("CONFIG:ENABLED [INFO] Health and metrics at ")
            .len(),
        2,
        "{}",
        finished.log
    );
    assert!(!door.exists());
}

#[test]
fn health_and_metrics_are_out_of_the_workloads_reach() {
    let lab = Lab::with_web();
    let folder = lab.folder("work");
    // The most that a policy could give away: the folder of the socket, and the host's address.
    let door = outside(&lab).join("health.sock");
    let policy = super::policy(
        "{own: {endpoints: [{host: 10.99.0.1, port: 9464, allowed_ips: [10.99.0.1]}, {host: \
         web.test, port: 9464, allowed_ips: [10.99.0.1]}], binaries: [{path: '/**'}]}}",
    );
    let granted = [folder.as_path(), door.parent().unwrap()]
        .map(|path| path.display().to_string())
        .join(", ");
    let policy = format!("{policy}filesystem_policy: {{read_write: [{granted}]}}\n");
    let ask = format!(
        "for at in http://127.0.0.1:9464 http://10.99.0.1:9464 http://web.test:9464; do curl -s -m \
         5 -o /dev/null -w '%{{http_code}} ' $at/metrics; curl -s -m 5 -p -o /dev/null -w \
         '%{{http_code}} ' $at/metrics; curl -s -m 5 --noproxy '*' $at/metrics | head -1; done; \
         curl -s -m 5 --unix-socket {} http://x/metrics | head -1; echo end",
        door.display()
    );
    let finished = lab
        .sandbox(&policy)
        .args(&[
            "--health-port",
            "9464",
            "--health-socket",
            door.to_str().unwrap(),
        ])
        .sh(&ask);
    assert!(
        !finished.stdout.contains("200") && !finished.stdout.contains("TYPE"),
        "{}",
        finished.stdout
    );
    assert!(finished.stdout.ends_with("end\n"), "{finished:?}");
    assert!(
        finished
            .log
            .contains("port 9464 of this host is the supervisor's"),
        "{}",
        finished.log
    );
}

#[test]
fn a_sandbox_that_drains_is_not_ready_lets_nobody_in_and_serves_those_who_are() {
    let lab = Lab::with_web();
    let folder = lab.folder("work");
    let server = "trap 'touch asked; kill $!; exit 9' TERM; python3 -m http.server --bind \
                  127.0.0.1 8000 > /dev/null 2>&1 & until curl -s -o /dev/null 127.0.0.1:8000; do \
                  sleep 0.05; done; touch ready; while :; do wait; sleep 0.1; done";
    let door = outside(&lab).join("ssh.sock");
    let started = lab
        .sandbox(&super::policy("{}"))
        .args(&[
            "--workdir",
            folder.to_str().unwrap(),
            "--publish",
            "8000",
            "--health-port",
            "9464",
            "--drain",
            "3",
        ])
        .args(&["--ssh-socket-path", door.to_str().unwrap()])
        .start(&["bash", "-c", server]);
    until(&lab, &format!("ls {}", folder.display()), "ready");
    until(&lab, "curl -s -m 5 http://127.0.0.1:9464/readyz", "ok");
    assert_eq!(
        lab.shell("curl -s -m 5 -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/"),
        "200"
    );
    // A connection that is in before the signal, and is used after it.
    let client = format!(
        "import socket, os, signal, time, urllib.request\ndef ask(path):\n  try: return \
         urllib.request.urlopen('http://127.0.0.1:9464' + path, timeout=5).status\n  except \
         urllib.error.HTTPError as e: return e.code\nopen_before = \
         socket.create_connection(('127.0.0.1', 8000))\nopen_before.sendall(b'GET /ready \
         HTTP/1.1\\r\\nHost: x\\r\\n')\nprint(ask('/readyz'))\nos.kill({}, signal.SIGTERM)\nwhile \
         ask('/readyz') == 200: pass\nprint(ask('/readyz'), ask('/healthz'), \
         os.path.exists('asked'))\nfor place in [('127.0.0.1', 8000), {:?}]:\n  s = \
         socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)\n  try: \
         s.connect(place); print('in')\n  except ConnectionRefusedError: \
         print('refused')\nopen_before.sendall(b'\\r\\n')\nprint(open_before.recv(12))\nwhile not \
         os.path.exists('asked'): pass\nprint('asked')\n",
        started.pid(),
        door.display().to_string(),
    );
    let client = lab.file("client.py", client);
    let seen = lab.shell(&format!(
        "cd {}; /usr/bin/python3 {} 2>&1",
        folder.display(),
        client.display()
    ));
    assert_eq!(
        seen,
        "200\n503 200 False\nrefused\nrefused\nb'HTTP/1.0 200'\nasked\n"
    );
    assert_eq!(started.wait().code(), 9);
}

#[test]
fn a_second_signal_ends_a_drain_and_without_a_drain_the_first_is_passed_on() {
    for arguments in [&["--drain", "600", "--health-port", "9464"][..], &[]] {
        let lab = Lab::with_web();
        let started = lab.sandbox(&super::policy("{}")).args(arguments).start(&[
            "env",
            "--default-signal=INT",
            "sleep",
            "600",
        ]);
        wait_for(&lab, "PROC:LAUNCH");
        started.signal(Signal::TERM);
        if !arguments.is_empty() {
            until(
                &lab,
                "curl -s -m 5 http://127.0.0.1:9464/readyz",
                "the sandbox ends",
            );
            started.signal(Signal::INT);
        }
        assert_eq!(
            started.wait().code(),
            if arguments.is_empty() { 143 } else { 130 }
        );
    }
}

#[test]
fn a_kept_sandbox_drains_too_and_ends() {
    for command in ["exec sleep 600", "true"] {
        let lab = Lab::with_web();
        let arguments = ["--keep", "--drain", "1", "--health-port", "9464"];
        let started = lab
            .sandbox(&super::policy("{}"))
            .args(&arguments)
            .start(&["sh", "-c", command]);
        wait_for(
            &lab,
            if command == "true" {
                "PROC:TERMINATE"
            } else {
                "PROC:LAUNCH"
            },
        );
        until(&lab, "curl -s -m 5 http://127.0.0.1:9464/readyz", "ok");
        started.signal(Signal::TERM);
        until(
            &lab,
            "curl -s -m 5 http://127.0.0.1:9464/readyz",
            "the sandbox ends",
        );
        assert_eq!(
            started.wait().code(),
            if command == "true" { 0 } else { 143 }
        );
    }
}

#[test]
fn labels_are_in_every_line_of_the_log() {
    let lab = Lab::with_web();
    let labels = ["--label", "session=7f3a", "--label", "user=kim@example.com"];
    let sandbox = lab
        .sandbox(&super::policy("{}"))
        .args(&labels)
        .args(&["--name", "box"]);
    let finished = sandbox
        .env("OPENSHELL_LABELS", "tenant=acme, session=other")
        .sh("env | grep -c LABELS");
    assert_eq!(finished.stdout, "0\n");
    let end = " tenant=acme session=7f3a user=kim@example.com sandbox=box";
    assert!(
        finished.log.lines().count() > 3 && finished.log.lines().all(|line| line.ends_with(end)),
        "{}",
        finished.log
    );
    for wrong in [
        "session",
        "Session=1",
        "sandbox=1",
        "a=",
        "a=b c",
        "a=\u{1b}[1m",
        "=b",
    ] {
        let finished = lab
            .sandbox(&super::policy("{}"))
            .args(&["--label", wrong])
            .sh("true");
        assert!(
            finished.code() != 0 && finished.stderr.contains("a label is KEY=VALUE"),
            "{wrong}: {finished:?}"
        );
    }
    let finished = lab
        .sandbox(&super::policy("{}"))
        .env("OPENSHELL_LABELS", "a=b,c")
        .sh("true");
    assert!(
        finished.code() == 1 && finished.stderr.contains("OPENSHELL_LABELS: a label is"),
        "{finished:?}"
    );
    let many: Vec<_> = (0..33).map(|n| format!("l{n}=x")).collect();
    let finished = lab
        .sandbox(&super::policy("{}"))
        .env("OPENSHELL_LABELS", &many.join(","))
        .sh("true");
    assert!(
        finished.code() == 1
            && finished
                .stderr
                .contains("33 labels are too many: a run has at most 32;"),
        "{finished:?}"
    );
}

#[test]
fn a_port_or_socket_of_health_that_cannot_be_had_is_no_start() {
    let lab = Lab::with_web();
    let folder = lab.folder("work");
    let taken = std::fs::File::create(folder.join("taken"))
        .map(|_| folder.join("taken"))
        .unwrap();
    let _taken = lab.inside(|| std::net::TcpListener::bind("0.0.0.0:9464").unwrap());
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--health-port", "9464"])
        .sh("true");
    let said = "openshell-sandbox: cannot listen at port 9464 (--health-port); name another one: \
                Address already in use (os error 98)\n";
    assert_eq!((finished.code(), finished.stderr.as_str()), (1, said));
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--health-socket", taken.to_str().unwrap()])
        .sh("true");
    assert!(
        finished.code() == 1 && finished.stderr.contains("taken (--health-socket): "),
        "{finished:?}"
    );
}

/// Prints each export that it gets, up to the number of its argument: path, header, length, and
/// whether it names a metric.
const COLLECTOR: &str = "
import http.server, sys
class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        print(self.path, self.headers['x-key'], self.headers['content-type'], b'openshell_sandbox_decisions' in body, flush=True)
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(('10.99.0.1', 4318), Collector)
print('listening', flush=True)
for _ in range(int(sys.argv[1])): server.handle_request()
";

#[test]
fn metrics_are_exported_at_intervals_and_at_the_end_and_the_collectors_headers_stay_outside() {
    let lab = Lab::with_web();
    let file = lab.file("collector.py", COLLECTOR).display().to_string();
    let got = lab.folder("got").join("exports").display().to_string();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let variables = "OTEL_EXPORTER_OTLP_ENDPOINT=http://web.test:4318/ \
                     OTEL_EXPORTER_OTLP_HEADERS=x-key=hush OTEL_METRIC_EXPORT_INTERVAL";
    let run = |interval: u32, command: &str| {
        format!(
            "{} env {variables}={interval} {} -p {policy} --log-level info -- sh -c \"{command}\" \
             2>&1",
            lab.as_caller(),
            lab.program_path().display()
        )
    };
    // The command waits for two exports; the end is the third.
    let mark = lab.folder("mark").display().to_string();
    let policy_text = super::policy("{}").replace(
        "network_policies",
        &format!("filesystem_policy: {{read_only: [{mark}]}}\nnetwork_policies"),
    );
    std::fs::write(&policy, policy_text).unwrap();
    let printed = lab.shell(&format!(
        "/usr/bin/python3 {file} 3 > {got} & until grep -q listening {got}; do sleep 0.01; done; \
         (until [ $(grep -c metrics {got}) -ge 2 ]; do sleep 0.01; done; touch {mark}/two) & \
         {}; wait; cat {got}",
        run(
            50,
            &format!("env | grep OTEL; until [ -e {mark}/two ]; do sleep 0.01; done; echo ended")
        )
    ));
    let line = "/v1/metrics hush application/x-protobuf True\n";
    assert!(
        printed.ends_with(&format!("listening\n{}", line.repeat(3))),
        "{printed}"
    );
    assert!(
        printed.contains("CONFIG:ENABLED [INFO] Export of metrics to web.test:4318")
            && printed.contains("\nended\n"),
        "{printed}"
    );
    let inside: Vec<_> = printed
        .lines()
        .filter(|line| line.starts_with("OTEL_"))
        .collect();
    assert!(
        inside.len() == 2 && !inside.concat().contains("hush"),
        "{inside:?}"
    );
    // Nobody listens any more: one line, and the end does not wait for it.
    let printed = lab.shell(&format!("{}; echo $?", run(10, "sleep 1")));
    assert_eq!(
        printed
            .matches("cannot export metrics to web.test:4318: ")
            .count(),
        1,
        "{printed}"
    );
    assert!(
        printed.ends_with("\n0\n") && !printed.contains("hush"),
        "{printed}"
    );
}

#[test]
fn variables_of_opentelemetry_that_are_invalid_or_ask_for_something_else_are_said() {
    let lab = Lab::with_web();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let run = |variables: &str| {
        let program = lab.program_path().display().to_string();
        lab.shell(&format!(
            "{} env {variables} {program} -p {policy} -- echo ran; echo $?",
            lab.as_caller()
        ))
    };
    for (variables, said) in [
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT=web.test",
            "OTEL_EXPORTER_OTLP_ENDPOINT: it is not a URL",
        ),
        (
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://u:hush@c/",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: it has a user name",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_EXPORTER_OTLP_HEADERS=hush",
            "the headers are not of the form NAME=VALUE",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_METRIC_EXPORT_INTERVAL=0",
            "OTEL_METRIC_EXPORT_INTERVAL is not a whole number of milliseconds above 0",
        ),
    ] {
        let printed = run(variables);
        assert!(
            printed.contains(said) && printed.ends_with("\n1\n"),
            "{variables}: {printed}"
        );
        assert!(
            printed.lines().count() == 2 && !printed.contains("hush"),
            "{variables}: {printed}"
        );
    }
    let printed = run("OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc");
    assert!(
        printed.contains("OTEL_EXPORTER_OTLP_PROTOCOL is grpc") && printed.ends_with("ran\n0\n"),
        "{printed}"
    );
    let printed = run("OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317 OTEL_SDK_DISABLED=true");
    assert_eq!(printed, "ran\n0\n");
    // Headers are taken also where nothing is exported.
    let program = lab.program_path().display().to_string();
    let variables = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_EXPORTER_OTLP_PROTOCOL=grpc \
                     OTEL_EXPORTER_OTLP_HEADERS=x=hush";
    let printed = lab.shell(&format!(
        "{} env {variables} {program} -p {policy} -- env",
        lab.as_caller()
    ));
    assert!(
        printed.contains("OTEL_EXPORTER_OTLP_PROTOCOL=grpc") && !printed.contains("hush"),
        "{printed}"
    );
}
