//! SIGHUP: the policy is read again while the command runs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lab::sandbox::{Sandbox, Started};
use lab::{Finished, Lab, Upstream};
use rustix::process::Signal;

/// Opens `argv[1]` tunnels, says so, and waits for `go`; then says how many of them still carry data, and what a new one gets.
const TUNNELS: &str = r"
import os, socket, sys, time
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
def connect():
    s = socket.create_connection((host, int(port)), 20)
    s.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\n\r\n')
    return s, s.recv(4096).split(b'\r\n')[0].decode()
held = [connect() for n in range(int(sys.argv[1]))]
assert all(' 200 ' in status for _, status in held), held
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
alive = 0
for s, _ in held:
    s.settimeout(5)
    try:
        s.sendall(b'x')
        alive += s.recv(16) == b'x'
    except ConnectionError: pass
print(alive, connect()[1])
";

/// A sandbox with open tunnels.
struct Running<'l> {
    lab: &'l Lab,
    policy: PathBuf,
    folder: PathBuf,
    started: Started<'l>,
    _upstream: Upstream,
}

impl<'l> Running<'l> {
    fn start(lab: &'l Lab, tunnels: usize) -> Self {
        let upstream = lab.echo("10.99.0.1:8080".parse().unwrap());
        let policy = lab.file("policy.yaml", crate::web());
        let folder = lab.folder("work");
        let words = ["--policy-data", policy.to_str().unwrap(), "--workdir", folder.to_str().unwrap()];
        let command = ["/usr/bin/python3", "-c", TUNNELS, &tunnels.to_string()];
        let started = Sandbox::bare(lab).args(&words).start(&command);
        let running = Self { lab, policy, folder, started, _upstream: upstream };
        running.until(|| running.folder.join("ready").exists());
        running
    }

    #[track_caller]
    fn until(&self, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "{}", self.log());
            std::thread::yield_now();
        }
    }

    fn log(&self) -> String {
        self.lab.shell("cat /var/log/openshell.*.log")
    }

    /// Has `policy` read, and waits until the log says `said`.
    #[track_caller]
    fn reload(&self, policy: &str, said: &str) {
        std::fs::write(&self.policy, policy).unwrap();
        self.started.signal(Signal::HUP);
        self.until(|| self.log().contains(said));
    }

    fn finish(self) -> Finished {
        std::fs::write(self.folder.join("go"), "").unwrap();
        self.started.wait()
    }
}

const LOADED: &str = "CONFIG:LOADED [INFO] Policy reloaded successfully";

#[test]
fn a_change_of_something_else_leaves_five_hundred_tunnels_alone() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 500);
    let other = "  other: {endpoints: [{host: other.test, port: 443}], binaries: [{path: /usr/bin/curl}]}\n";
    running.reload(
        &crate::web().replace("network_policies: {", &format!("network_policies: {{{}, ", other.trim())),
        LOADED,
    );
    let finished = running.finish();
    assert_eq!(finished.ok(), "500 HTTP/1.1 200 Connection Established", "{}", finished.log);
    assert!(!finished.log.contains("policy_changed"));
}

#[test]
fn what_is_permitted_no_longer_ends_within_a_second_and_is_logged() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 20);
    running.reload(&crate::policy("{}"), LOADED);
    let start = Instant::now();
    running.until(|| running.log().matches("[code:policy_changed]").count() == 20);
    assert!(start.elapsed() < Duration::from_secs(5), "a second, and what a busy machine adds");
    let finished = running.finish();
    assert_eq!(finished.ok(), "0 HTTP/1.1 403 no_network_policies");
    let line = format!("NET:CLOSE [MED] DENIED {}(2) -> web.test:8080", crate::python());
    assert_eq!(finished.logged(&line).len(), 20, "{}", finished.log);
}

#[test]
fn an_address_that_is_permitted_no_longer_ends_what_is_connected_to_it() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 1);
    running.reload(&crate::web().replace("10.99.0.1", "10.99.0.2"), LOADED);
    running.until(|| running.log().contains("[code:policy_changed]"));
    assert_eq!(running.finish().ok(), "0 HTTP/1.1 403 address_not_in_allowed_ips");
}

#[test]
fn a_bad_file_keeps_the_last_good_policy_and_says_why() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 3);
    running.reload(
        "network_policies: {web: {endpoints: [{host: \"*\"}]}}",
        "Policy reload failed, keeping last-known-good",
    );
    let finished = running.finish();
    assert_eq!(finished.ok(), "3 HTTP/1.1 200 Connection Established");
    let [line] = finished.logged("CONFIG:FAILED [MED]")[..] else { panic!("{}", finished.log) };
    assert!(line.contains("generation:1") && line.contains("matches all hosts"), "{line}");
    assert!(finished.stderr.contains("keeping last-known-good policy"), "{}", finished.stderr);
}

#[test]
fn what_waits_for_the_next_start_is_named_and_the_rest_is_taken() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 1);
    let policy = "process: {run_as_user: \"61185\"}\nfilesystem_policy: {read_only: [/opt]}\nlandlock: {compatibility: hard_requirement}\n";
    running.reload(policy, LOADED);
    let finished = running.finish();
    assert_eq!(finished.ok(), "0 HTTP/1.1 403 no_network_policies");
    let [line] = finished.logged("CONFIG:UNCHANGED [MED]")[..] else { panic!("{}", finished.log) };
    assert!(line.ends_with("in force from the next start on only: filesystem_policy, landlock, process"), "{line}");
}
