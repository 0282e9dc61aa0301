//! SIGHUP: the policy is reloaded while the command runs.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lab::sandbox::{Sandbox, Started};
use lab::{Finished, Lab, Upstream};
use rustix::process::Signal;

/// Opens `argv[1]` tunnels, reports it, and waits for `go`. Prints the number that still carry data
/// and the answer to a new one.
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
        s.sendall(b'\0')
        alive += s.recv(16) == b'\0'
    except ConnectionError: pass
print(alive, connect()[1])
";

/// A running sandbox with open tunnels.
pub(crate) struct Running<'l> {
    lab: &'l Lab,
    policy: PathBuf,
    folder: PathBuf,
    started: Started<'l>,
    _upstream: Option<Upstream>,
}

impl<'l> Running<'l> {
    fn start(lab: &'l Lab, tunnels: usize) -> Self {
        Self::start_as(lab, TUNNELS, tunnels)
    }

    /// Starts it with tunnels opened by `program`.
    fn start_as(lab: &'l Lab, program: &str, tunnels: usize) -> Self {
        let echo = lab.echo("10.99.0.1:8080".parse().unwrap());
        Self {
            _upstream: Some(echo),
            ..Self::start_under(lab, &super::web(), program, tunnels)
        }
    }

    /// Starts it under `policy`, with tunnels to a running upstream.
    pub(crate) fn start_under(lab: &'l Lab, policy: &str, program: &str, tunnels: usize) -> Self {
        let policy = lab.file("policy.yaml", policy);
        let folder = lab.folder("work");
        let words = [
            "--policy-data",
            policy.to_str().unwrap(),
            "--workdir",
            folder.to_str().unwrap(),
        ];
        let command = ["/usr/bin/python3", "-c", program, &tunnels.to_string()];
        let started = Sandbox::bare(lab).args(&words).start(&command);
        let running = Self {
            lab,
            policy,
            folder,
            started,
            _upstream: None,
        };
        running.until(|| running.folder.join("ready").exists());
        running
    }

    #[track_caller]
    fn until(&self, condition: impl Fn() -> bool) {
        lab::wait_until(condition, || self.log());
    }

    fn log(&self) -> String {
        self.lab.log()
    }

    /// Reloads `policy`, and waits until the log contains `said`.
    #[track_caller]
    pub(crate) fn reload(&self, policy: &str, said: &str) {
        std::fs::write(&self.policy, policy).unwrap();
        self.started.signal(Signal::HUP);
        self.until(|| self.log().contains(said));
    }

    /// Process number of the supervisor.
    pub(crate) fn pid(&self) -> u32 {
        self.started.pid()
    }

    pub(crate) fn finish(self) -> Finished {
        std::fs::write(self.folder.join("go"), "").unwrap();
        self.started.wait()
    }
}

pub(crate) const LOADED: &str = "CONFIG:LOADED [INFO] Policy reloaded successfully";

#[test]
fn a_change_of_something_else_leaves_five_hundred_tunnels_alone() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 500);
    let other = "  other: {endpoints: [{host: other.test, port: 443}], binaries: [{path: \
                 /usr/bin/curl}]}\n";
    running.reload(
        &super::web().replace(
            "network_policies: {",
            &format!("network_policies: {{{}, ", other.trim()),
        ),
        LOADED,
    );
    let finished = running.finish();
    assert_eq!(
        finished.ok(),
        "500 HTTP/1.1 200 Connection Established",
        "{}",
        finished.log
    );
    assert!(!finished.log.contains("policy_changed"));
}

#[test]
fn what_is_permitted_no_longer_ends_within_a_second_and_is_logged() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 20);
    running.reload(&super::policy("{}"), LOADED);
    let start = Instant::now();
    running.until(|| running.log().matches("[code:policy_changed]").count() == 20);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "a second, and what a busy machine adds"
    );
    let finished = running.finish();
    assert_eq!(finished.ok(), "0 HTTP/1.1 403 no_network_policies");
    let line = format!(
        "NET:CLOSE [MED] {}(2) -> web.test:8080 [policy:web] [door:connect] [in:",
        super::python()
    );
    assert_eq!(finished.logged(&line).len(), 20, "{}", finished.log);
}

/// Before the tunnels of [`TUNNELS`] are ready, makes the proxy read 48 programs of 2 GB each.
const PROGRAMS: &str = r"
import os, shutil, subprocess
def begin():
    for n in range(48):
        name = shutil.copy(shutil.which('curl'), './curl%d' % n)
        os.truncate(name, 2000 << 20)
        subprocess.Popen([name, '-s', '-x', os.environ['HTTPS_PROXY'], 'http://web.test:8080/'], stdout=subprocess.DEVNULL)
";

/// The same with a program that the policy does not list and that asks for 300 connections at once,
/// again and again.
const FLOOD: &str = r"
import os, shutil, subprocess, sys
ASK = r'''
import socket, sys, threading
def ask():
    while True:
        try:
            s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
            s.sendall(b'CONNECT other%d.test:443 HTTP/1.1\r\n\r\n' % id(s)); s.recv(4096); s.close()
        except OSError: pass
for n in range(300): threading.Thread(target=ask, daemon=True).start()
sys.stdin.read()
'''
def begin():
    name = shutil.copy(os.path.realpath(sys.executable), './flood')
    load = subprocess.Popen([name, '-c', ASK] + os.environ['HTTPS_PROXY'][7:].split(':'), stdin=subprocess.PIPE)
    globals()['load'] = load
";

#[test]
fn what_is_permitted_no_longer_ends_while_the_proxy_reads_programs_or_refuses_others() {
    let everything = super::web().replace(&super::python(), "\"/**\"");
    for (load, policy) in [(PROGRAMS, everything), (FLOOD, super::web())] {
        let lab = Lab::with_web();
        let _echo = lab.echo("10.99.0.1:8080".parse().unwrap());
        let program = format!(
            "{load}{}",
            TUNNELS.replace("open('ready'", "begin(); open('ready'")
        );
        let running = Running::start_under(&lab, &policy, &program, 40);
        running.until(|| load == PROGRAMS || running.log().contains("other"));
        // What a change permits goes on, and what it does not ends before the programs are read.
        running.reload(&format!("{policy}# changed\n"), LOADED);
        let start = Instant::now();
        running.reload(&super::policy("{}"), "policy_changed");
        running.until(|| running.log().matches("[code:policy_changed]").count() >= 40);
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "a second, and what a busy machine adds: {load}"
        );
        let finished = running.finish();
        assert!(
            finished.ok().starts_with("0 HTTP/1.1 403"),
            "{load}: {}",
            finished.log
        );
        assert!(
            !finished.log.contains("took too long"),
            "{load}: {}",
            finished.log
        );
    }
}

#[test]
fn an_address_that_is_permitted_no_longer_ends_what_is_connected_to_it() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 1);
    running.reload(&super::web().replace("10.99.0.1", "10.99.0.2"), LOADED);
    running.until(|| running.log().contains("[code:policy_changed]"));
    assert_eq!(
        running.finish().ok(),
        "0 HTTP/1.1 403 address_not_in_allowed_ips"
    );
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
    let [line] = finished.logged("CONFIG:FAILED [MED]")[..] else {
        panic!("{}", finished.log)
    };
    assert!(
        line.contains("generation:1") && line.contains("matches all hosts"),
        "{line}"
    );
    assert!(
        finished.stderr.contains("keeping last-known-good policy"),
        "{}",
        finished.stderr
    );
}

#[test]
fn what_waits_for_the_next_start_is_named_and_the_rest_is_taken() {
    let lab = Lab::with_web();
    let running = Running::start(&lab, 1);
    let policy = "process: {run_as_user: \"61185\"}\nfilesystem_policy: {read_only: \
                  [/opt]}\nlandlock: {compatibility: hard_requirement}\n";
    running.reload(policy, LOADED);
    let finished = running.finish();
    assert_eq!(finished.ok(), "0 HTTP/1.1 403 no_network_policies");
    let [line] = finished.logged("CONFIG:UNCHANGED [MED]")[..] else {
        panic!("{}", finished.log)
    };
    assert!(
        line.contains(
            "these parts have changed, but take effect only at the next start: filesystem_policy, \
             landlock, process sandbox="
        ),
        "{line}"
    );
}

#[test]
fn what_has_rules_since_is_not_relayed_unseen_whether_it_was_silent_or_not() {
    let judged = super::web().replace(
        "port: 8080,",
        "port: 8080, protocol: rest, enforcement: enforce, access: full,",
    );
    let lab = Lab::with_web();
    let running = Running::start(&lab, 1);
    running.reload(&judged, LOADED);
    let silent = running.finish();
    assert_eq!(silent.ok(), "0 HTTP/1.1 200 Connection Established");
    assert_eq!(
        silent.logged("[code:unsupported_l7_protocol]").len(),
        1,
        "{}",
        silent.log
    );
    let lab = Lab::with_web();
    let running = Running::start_as(
        &lab,
        &TUNNELS.replace(
            "open('ready'",
            "[s.sendall(bytes(1)) for s, _ in held]; [s.recv(16) for s, _ in held]; open('ready'",
        ),
        1,
    );
    running.reload(&judged, LOADED);
    running.until(|| running.log().contains("[code:policy_changed]"));
    assert_eq!(
        running.finish().ok(),
        "0 HTTP/1.1 200 Connection Established"
    );
}

#[test]
fn a_stream_that_no_rule_allows_any_more_ends_at_either_door() {
    let lab = Lab::with_web();
    let origin = super::origin::Origin::start(&lab);
    let rules = |path: &str| {
        let rules = format!(
            "protocol: rest, enforcement: enforce, rules: [{{allow: {{method: GET, path: \
             {path}}}}}]"
        );
        super::origin::policy(&[&super::python()], &rules)
    };
    let streams = r"
import os, socket, time
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
tunnel, door = (socket.create_connection((host, int(port)), 20) for _ in range(2))
tunnel.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
assert b' 200 ' in tunnel.recv(4096)
tunnel.sendall(b'GET /sse?0,60 HTTP/1.1\r\nHost: web.test:8080\r\n\r\n')
door.sendall(b'GET http://web.test:8080/upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
for s, text in ((tunnel, b'data: '), (door, b'first')):
    data = b''
    while text not in data: data += s.recv(4096)
open('ready', 'w').close()
start = time.monotonic()
for s in (tunnel, door):
    try:
        while s.recv(4096): pass
    except ConnectionError: pass
print('ended', time.monotonic() - start < 10)
";
    let running = Running::start_under(&lab, &rules("\"**\""), streams, 0);
    running.reload(&rules("/other"), LOADED);
    let finished = running.finish();
    assert_eq!(finished.ok(), "ended True", "{finished:?}");
    assert_eq!(
        finished.logged("[code:policy_changed]").len(),
        2,
        "{}",
        finished.log
    );
    let mut asked = origin.asked();
    asked.sort();
    assert_eq!(asked, ["GET /sse?0,60", "GET /upgrade"]);
}

/// Waits for `count` lines of the log that contain `text`.
pub(crate) fn wait_for_lines(lab: &Lab, text: &str, count: usize) {
    lab::wait_until(
        || lab.log().lines().filter(|line| line.contains(text)).count() == count,
        || format!("{count} x {text}: {}", lab.log()),
    );
}

#[test]
fn a_watched_policy_is_read_again_after_writes_renames_and_swapped_symlinks_each_once() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let config = policy.with_file_name("config").display().to_string();
    // As the kubelet lays out a ConfigMap.
    let made = format!(
        "mkdir -p {config}/..one; cd {config}; cp {} ..one; ln -s ..one ..data; ln -s \
         ..data/policy.yaml policy.yaml",
        policy.display()
    );
    assert_eq!(lab.shell(&made), "");
    let file = format!("{config}/policy.yaml");
    let started = Sandbox::bare(&lab)
        .args(&["--policy-data", &file, "--watch"])
        .start(&["sleep", "600"]);
    wait_for_lines(&lab, "PROC:LAUNCH", 1);
    let reloaded = "Policy reloaded successfully";
    let run =
        |script: &str| assert_eq!(lab.shell(&format!("cd {config}; {script}")), "", "{script}");
    // A swap, as the kubelet does it.
    run(
        "mkdir ..two; sed s/nothing/x/ ..one/policy.yaml > ..two/policy.yaml; ln -s ..two \
         ..data_tmp; mv -T ..data_tmp ..data; rm -r ..one",
    );
    wait_for_lines(&lab, reloaded, 1);
    // A burst.
    run("for i in $(seq 50); do echo \"# $i\" >> ..two/policy.yaml; done");
    wait_for_lines(&lab, reloaded, 2);
    // Other files change nothing: the next reload is the next line.
    run("for i in $(seq 20); do touch other.$i ..two/other; done");
    // As editors save.
    run(
        "cp ..two/policy.yaml ..two/.swp; echo '# saved' >> ..two/.swp; mv ..two/.swp \
         ..two/policy.yaml",
    );
    wait_for_lines(&lab, reloaded, 3);
    // A broken one is kept out, and said.
    run("echo 'network_policies: 7' > ..two/policy.yaml");
    wait_for_lines(
        &lab,
        "Policy reload failed, keeping last-known-good policy [generation:4",
        1,
    );
    // Gone, and there again.
    run("mv ..data away");
    wait_for_lines(
        &lab,
        "Policy reload failed, keeping last-known-good policy [generation:4",
        2,
    );
    run("mkdir ..three; echo 'network_policies: {}' > ..three/policy.yaml; ln -s ..three ..data");
    wait_for_lines(&lab, reloaded, 4);
    // The whole folder replaced.
    run(&format!(
        "cp -a {config} {config}.new; echo '# new' >> {config}.new/..three/policy.yaml; mv \
         {config} {config}.old; mv {config}.new {config}"
    ));
    wait_for_lines(&lab, reloaded, 5);
    // Removed and made again, by the next writer in the same inode perhaps; and changed once more.
    run(&format!(
        "rm -r {config}; mkdir {config}; cd {config}; echo '# again' > policy.yaml"
    ));
    run("until [ -s policy.yaml ]; do :; done; sleep 1; echo 'network_policies: {}' > policy.yaml");
    wait_for_lines(&lab, reloaded, 6);
    run("echo 'network_policies: {} # more' > policy.yaml");
    wait_for_lines(&lab, reloaded, 7);
    started.signal(Signal::TERM);
    let finished = started.wait();
    assert_eq!(finished.logged(reloaded).len(), 7, "{}", finished.log);
}

#[test]
fn a_watched_policy_behind_a_swapped_folder_or_mounted_by_itself_is_read_again() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let base = policy.with_file_name("os").display().to_string();
    let policy = policy.display();
    let made = format!(
        "mkdir -p {base}/one {base}/two; cp {policy} {base}/one; cp {policy} {base}/two; ln -s one \
         {base}/current"
    );
    assert_eq!(lab.shell(&made), "");
    let file = format!("{base}/current/policy.yaml");
    let started = Sandbox::bare(&lab)
        .args(&["--policy-data", &file, "--watch"])
        .start(&["sleep", "600"]);
    wait_for_lines(&lab, "PROC:LAUNCH", 1);
    let reloaded = "Policy reloaded successfully";
    assert_eq!(lab.shell(&format!("ln -sfn two {base}/current")), "");
    wait_for_lines(&lab, reloaded, 1);
    // The file alone is open elsewhere, as a file that is mounted by itself is written.
    assert_eq!(
        lab.shell(&format!(
            "cd /; ln {base}/two/policy.yaml {base}/elsewhere; echo '# more' >> {base}/elsewhere"
        )),
        ""
    );
    wait_for_lines(&lab, reloaded, 2);
    started.signal(Signal::TERM);
    drop(started.wait());
}

#[test]
fn watching_needs_files() {
    let lab = Lab::with_web();
    let finished = Sandbox::bare(&lab)
        .args(&[
            "--watch",
            "--sandbox-id",
            "x",
            "--openshell-endpoint",
            "http://127.0.0.1:9",
        ])
        .run(&["true"]);
    assert!(
        finished.code() == 1
            && finished
                .stderr
                .contains("--watch does not go with --sandbox-id"),
        "{finished:?}"
    );
}

#[test]
fn a_secret_in_a_swapped_volume_is_read_again_and_stays_hidden() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    // As the kubelet lays out a Secret, for root or with a group (`fsGroup`).
    let (group, mode) = match lab::host::caller() {
        0 => (0, 400),
        group => (group, 440),
    };
    let volume = lab.folder("volume").display().to_string();
    let work = lab.folder("work");
    let fill = |folder: &str| {
        format!(
            "mkdir ..{folder}; for key in token other; do echo {folder}-secret > ..{folder}/$key; \
             done; chmod {mode} ..{folder}/*; chown -Rh 0:{group} ."
        )
    };
    let run =
        |script: &str| assert_eq!(lab.shell(&format!("cd {volume}; {script}")), "", "{script}");
    run(&format!(
        "ln -s ..first ..data; ln -s ..data/token token; ln -s ..data/other other; {}",
        fill("first")
    ));
    let of = |key| format!("{{file: {volume}/{key}, hosts: ['http://web.test:8080']}}");
    let credentials = format!(
        "credentials: {{TOKEN: {}, OTHER: {}}}\n",
        of("token"),
        of("other")
    );
    let credentials = lab.file("credentials.yaml", credentials);
    std::fs::set_permissions(&credentials, PermissionsExt::from_mode(0o600)).unwrap();
    let policy = super::web()
        .replace(
            "port: 8080",
            "port: 8080, protocol: rest, enforcement: enforce, access: full",
        )
        .replace(
            "network_policies:",
            "filesystem_policy: {read_only: [/var/tmp]}\nnetwork_policies:",
        );
    let policy = lab.file("policy.yaml", policy);
    let credentials = credentials.display().to_string();
    let words = [
        "--policy-data",
        policy.to_str().unwrap(),
        "--credentials",
        &credentials,
    ];
    let program = "import os, sys, time, urllib.request as r\n\
         def attempt():\n\
         \x20   r.urlopen(r.Request('http://web.test:8080/', headers={'X-Key': os.environ['TOKEN']})).read()\n\
         \x20   for path in sys.argv[1] + '/token', sys.argv[1] + '/..data/token', sys.argv[1]:\n\
         \x20       try: print(os.listdir(path) if path == sys.argv[1] else open(path).read())\n\
         \x20       except OSError as error: print(error.strerror)\n\
         attempt()\n\
         while not os.path.exists('go'): time.sleep(0.01)\n\
         attempt()";
    let started = Sandbox::bare(&lab)
        .args(&words)
        .args(&["--watch", "--workdir", work.to_str().unwrap()])
        .start(&["/usr/bin/python3", "-c", program, &volume]);
    wait_for_lines(&lab, "HTTP:GET", 1);
    run(&format!(
        "{}; ln -s ..second ..data_tmp; mv -T ..data_tmp ..data; rm -r ..first",
        fill("second")
    ));
    wait_for_lines(&lab, "Policy reloaded successfully", 1);
    std::fs::write(work.join("go"), "").unwrap();
    let finished = started.wait();
    assert_eq!(
        finished.ok(),
        "Permission denied\n".repeat(6).trim_end(),
        "{finished:?}"
    );
    let received: Vec<_> = upstream
        .seen()
        .into_iter()
        .map(|bytes| String::from_utf8(bytes).unwrap())
        .collect();
    assert!(
        received[0].contains("first-secret") && received[1].contains("second-secret"),
        "{received:?}"
    );
}
