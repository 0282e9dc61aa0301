//! Lines for people and for audit.

use lab::Lab;

use crate::policy;

#[test]
fn log_01_10_a_dated_file_that_only_root_may_read_and_no_other() {
    let lab = Lab::with_web();
    let finished = lab.sandbox(&policy("{}")).sh("cat /var/log/openshell.*.log");
    assert_eq!(finished.stdout, "", "the workload reads no log of ours");
    let day = lab.shell("date -u +%F").trim().to_owned();
    assert_eq!(lab.shell("stat -c '%n %a %u' /var/log/openshell*"), format!("/var/log/openshell.{day}.log 640 0\n"));
    for line in finished.log.lines() {
        let stamp = line.split(' ').next().unwrap();
        assert!(stamp.len() == 24 && stamp.starts_with(&day[..4]) && stamp.ends_with('Z'), "{line}");
    }
}

#[test]
fn log_02_without_a_file_the_sandbox_runs_and_says_so() {
    let lab = Lab::with_web();
    let finished = lab.sandbox(&policy("{}")).args(&["--log-dir", "/proc/nowhere"]).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    assert!(finished.stderr.contains("no log file: /proc/nowhere"), "{}", finished.stderr);
}

#[test]
fn a_log_that_others_may_write_is_not_used_and_holds_nobody_up() {
    for make in ["mkfifo", "touch"] {
        let lab = Lab::with_web();
        let folder = lab.folder("logs");
        let file = format!("{}/openshell.$(date -u +%F).log", folder.display());
        assert_eq!(lab.shell(&format!("{make} {file} && chown {0} {file}", lab::host::UID)), "");
        let finished = lab.sandbox(&policy("{}")).args(&["--log-dir", folder.to_str().unwrap()]).sh("echo ran");
        assert_eq!(finished.ok(), "ran");
        assert!(finished.stderr.contains("no log file"), "{make}: {}", finished.stderr);
    }
}

#[test]
fn log_12_standard_error_shows_what_it_is_asked_for_and_standard_output_nothing() {
    let lab = Lab::with_web();
    let ask = |arguments: &[&str], variable: &str| {
        lab.sandbox(&policy("{}")).args(arguments).env("OPENSHELL_LOG_LEVEL", variable).sh("echo ran")
    };
    let quiet = ask(&[], "");
    assert_eq!((quiet.ok(), quiet.stderr.as_str()), ("ran", ""));
    for shown in [ask(&["--log-level", "info"], ""), ask(&[], "info")] {
        assert_eq!(shown.ok(), "ran");
        assert!(shown.stderr.contains(" OCSF PROC:TERMINATE [INFO] sh(2) [exit:0]"), "{}", shown.stderr);
    }
    assert_eq!(ask(&["--log-level", "warn"], "info").stderr, "", "the flag wins");
}

/// Runs the command given as arguments with an error output that nobody reads, and says how it ended.
const UNREAD: &str = "
import subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
print(p.wait(60))
";

/// Fills the error output that the supervisor shares, has something logged, and stays.
const FILL: &str = "
import os, socket, time
os.set_blocking(2, False)
try:
    while True: os.write(2, b'x' * 4096)
except BlockingIOError: pass
os.set_blocking(2, True)
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
for n in range(10):
    s = socket.create_connection((host, int(port)))
    s.sendall(b'CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n')
    assert b' 403 ' in s.recv(4096)
time.sleep(600)
";

#[test]
fn an_output_that_nobody_reads_stops_neither_the_proxy_nor_the_time_out() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", policy("{}"));
    let (caller, fill) = (lab.file("caller.py", UNREAD), lab.file("fill.py", FILL));
    let sandbox = format!(
        "{} --policy-data {} --log-level info -t 2 --grace 1",
        lab::sandbox::binary().display(),
        policy.display()
    );
    let script = format!(
        "/usr/bin/python3 {} {sandbox} -- /usr/bin/python3 -c \"$(cat {})\"; grep -c DENIED /var/log/openshell.*.log",
        caller.display(),
        fill.display()
    );
    assert_eq!(lab.shell(&script), "124\n10\n");
}

#[test]
fn a_doubtful_policy_is_said_on_standard_error() {
    let lab = Lab::with_web();
    let doubtful = policy("{web: {endpoints: [{host: a.test, port: 1, protocol: rest, access: full}]}}");
    let finished = lab.sandbox(&doubtful).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    let expected = "L7 policy validation warning";
    assert!(finished.stderr.contains(expected) && finished.logged(expected).len() == 1, "{finished:?}");
}
