//! Log lines for operators and for audit.

use lab::{Lab, Sandbox};

use super::policy;

// Conformance: LOG-01, LOG-10.
#[test]
fn a_dated_file_that_only_root_may_read_and_no_other() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&policy("{}"))
        .sh(&format!("cat {}", lab.logs()));
    assert_eq!(finished.stdout, "", "the workload reads no log of ours");
    let day = lab.shell("date -u +%F").trim().to_owned();
    let logs = lab.logs();
    let caller = lab::host::caller();
    let expected = format!("{} 640 {caller}\n", logs.replace('*', &day));
    assert_eq!(lab.shell(&format!("stat -c '%n %a %u' {logs}")), expected);
    for line in finished.log.lines() {
        let stamp = line.split(' ').next().unwrap();
        assert!(
            stamp.len() == 24 && stamp.starts_with(&day[..4]) && stamp.ends_with('Z'),
            "{line}"
        );
    }
}

// Conformance: LOG-02.
#[test]
fn without_a_file_the_sandbox_runs_and_says_so() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&policy("{}"))
        .args(&["--log-dir", "/proc/nowhere"])
        .sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    assert!(
        finished
            .stderr
            .contains("cannot write a log file in /proc/nowhere"),
        "{}",
        finished.stderr
    );
}

#[test]
fn timings_name_each_stage_of_a_start_that_reached_its_command_and_nothing_does_without() {
    let lab = Lab::with_web();
    let stages = |flags: &[&str], program: &str| {
        let finished = lab.sandbox(&policy("{}")).args(flags).run(&[program]);
        let lines = finished.stderr.lines();
        let times = lines.filter(|line| line.ends_with(" ms"));
        times
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        stages(&["--timings"], "true"),
        "openshell-sandbox: init config plan host confine serve command"
    );
    assert_eq!(stages(&["--timings"], "/nowhere"), "");
    assert_eq!(stages(&[], "true"), "");
}

#[test]
fn a_log_that_others_may_write_is_not_used_and_holds_nobody_up() {
    for make in ["mkfifo", "touch"] {
        let lab = Lab::with_web();
        let folder = lab.folder("logs");
        let file = format!("{}/openshell.$(date -u +%F).log", folder.display());
        assert_eq!(
            lab.shell(&format!("{make} {file} && chown {0} {file}", 65534)),
            ""
        );
        let finished = lab
            .sandbox(&policy("{}"))
            .args(&["--log-dir", folder.to_str().unwrap()])
            .sh("echo ran");
        assert_eq!(finished.ok(), "ran");
        assert!(
            finished.stderr.contains("cannot write a log file in"),
            "{make}: {}",
            finished.stderr
        );
    }
}

// Conformance: LOG-12.
#[test]
fn standard_error_shows_what_it_is_asked_for_and_standard_output_nothing() {
    let lab = Lab::with_web();
    let ask = |arguments: &[&str], variable: &str| {
        lab.sandbox(&policy("{}"))
            .args(arguments)
            .env("OPENSHELL_LOG_LEVEL", variable)
            .sh("echo ran")
    };
    let quiet = ask(&[], "");
    assert_eq!((quiet.ok(), quiet.stderr.as_str()), ("ran", ""));
    for shown in [ask(&["--log-level", "info"], ""), ask(&[], "info")] {
        assert_eq!(shown.ok(), "ran");
        assert!(
            shown
                .stderr
                .contains(" OCSF PROC:TERMINATE [INFO] sh(2) [exit:0]"),
            "{}",
            shown.stderr
        );
    }
    assert_eq!(
        ask(&["--log-level", "warn"], "info").stderr,
        "",
        "the flag wins"
    );
}

/// Runs the command in its arguments with an unread standard error, and prints its exit code.
const UNREAD: &str = "
import subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
print(p.wait(60))
";

/// Fills the standard error that the supervisor shares, causes a log line, and stays.
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
    let caller = lab.file("caller.py", UNREAD);
    let fill = lab.file("fill.py", FILL);
    let sandbox = format!(
        "{} --policy-data {} --log-level info -t 2 --grace 1",
        lab.binary(),
        policy.display()
    );
    let script = format!(
        "/usr/bin/python3 {} {sandbox} -- /usr/bin/python3 -c \"$(cat {})\"; grep -c DENIED {}",
        caller.display(),
        fill.display(),
        lab.logs()
    );
    assert_eq!(lab.shell(&script), "124\n10\n");
}

#[test]
fn a_doubtful_policy_is_said_on_standard_error() {
    let lab = Lab::with_web();
    let doubtful =
        policy("{web: {endpoints: [{host: a.test, port: 1, protocol: rest, access: full}]}}");
    let finished = lab.sandbox(&doubtful).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    let expected = "L7 policy validation warning";
    assert!(
        finished.stderr.contains(expected) && finished.logged(expected).len() == 1,
        "{finished:?}"
    );
}

/// Makes `argv[1]` refused connections.
const REFUSED: &str = r"
import os, socket, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
for n in range(int(sys.argv[1])):
    s = socket.create_connection((host, int(port)))
    s.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\n\r\n')
    assert b' 403 ' in s.recv(4096)
";

#[test]
fn every_line_ends_with_the_sandbox_that_wrote_it() {
    let lab = Lab::with_web();
    let run = |flags: &[&str]| {
        lab.sandbox(&policy("{}"))
            .args(flags)
            .python(REFUSED, &["2"])
    };
    let shown = run(&["--log-level", "info"]);
    let id = shown
        .log
        .lines()
        .next()
        .unwrap()
        .rsplit_once(" sandbox=")
        .unwrap()
        .1
        .to_owned();
    assert!(
        id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id}"
    );
    for line in shown
        .log
        .lines()
        .chain(shown.stderr.lines().filter(|line| line.contains(" OCSF ")))
    {
        assert!(line.ends_with(&format!(" sandbox={id}")), "{line}");
    }
    for network in ["proxy", "block", "allow"] {
        let name = format!("box.{network}");
        let named = lab
            .sandbox(&policy("{}"))
            .args(&["--name", &name, "--network", network])
            .run(&["true"]);
        let lines = named.logged(&format!(" sandbox={name}"));
        assert!(
            lines.iter().any(|line| line.contains("PROC:TERMINATE")),
            "{}",
            named.log
        );
        let others = named.log.lines().filter(|line| !line.contains(" sandbox="));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    for wrong in ["", "two words", &"x".repeat(65)] {
        let refused = lab
            .sandbox(&policy("{}"))
            .args(&["--name", wrong])
            .run(&["true"]);
        assert_eq!(refused.code(), 1, "{refused:?}");
        assert!(
            refused.stderr.contains("a name is 1 to 64 characters"),
            "{refused:?}"
        );
    }
}

#[test]
fn a_log_that_another_sandbox_has_filled_takes_every_denial_of_this_one() {
    let lab = Lab::with_web();
    let folder = lab.folder("logs");
    let logs = folder.to_str().unwrap();
    assert_eq!(
        lab.shell(&format!("chown {} {logs}", lab::host::caller())),
        ""
    );
    for size in ["200M", "2G"] {
        let prepared = lab.shell(&format!(
            "rm -f {logs}/*; truncate -s {size} {logs}/openshell.$(date -u +%F).log; chown {} \
             {logs}/*",
            lab::host::caller()
        ));
        assert_eq!(prepared, "");
        let finished = lab
            .sandbox(&policy("{}"))
            .args(&["--log-dir", logs])
            .python(REFUSED, &["20"]);
        assert_eq!(finished.ok(), "");
        // The denials follow at the end, after a gap.
        let count = |words: &str| {
            lab.shell(&format!(
                "tail -c 65536 {logs}/openshell.2*.log | grep -a -c '{words}'"
            ))
        };
        assert_eq!(count("NET:OPEN .MED. DENIED"), "20\n", "{size}");
        assert_eq!(count("PROC:TERMINATE"), "1\n", "{size}");
    }
}

#[test]
fn a_run_logs_its_start_its_network_its_policy_and_its_end() {
    let lab = Lab::with_web();
    let data = lab.file("policy.yaml", policy("{}"));
    let run = |flags: &[&str], words: &[&str]| {
        let finished = Sandbox::bare(&lab)
            .args(&["--policy-data", data.to_str().unwrap()])
            .args(flags)
            .run(words);
        // The lines of one sandbox, without time and last word.
        let id = finished
            .log
            .lines()
            .last()
            .unwrap()
            .rsplit_once(' ')
            .unwrap()
            .1
            .to_owned();
        let own = finished
            .log
            .lines()
            .filter(|line| line.ends_with(&id))
            .map(|line| {
                line.split_once(" OCSF ")
                    .unwrap()
                    .1
                    .rsplit_once(' ')
                    .unwrap()
                    .0
                    .to_owned()
            });
        own.collect::<Vec<_>>()
    };
    let proxied = run(&[], &["sh", "-c", "exit 3"]);
    let version = env!("CARGO_PKG_VERSION");
    assert!(proxied[0].starts_with(&format!(
        "LIFECYCLE:START [INFO] openshell-sandbox success [version:{version} pid:"
    )));
    assert_eq!(
        proxied.last().unwrap(),
        "LIFECYCLE:END [INFO] openshell-sandbox failure [exit:3]"
    );
    let hash = lab.shell(&format!("sha256sum < {}", data.display()));
    let hash = hash.split(' ').next().unwrap();
    let in_order = [
        "LIFECYCLE:START".to_owned(),
        format!("ms [version:1 hash:{hash}]"),
        "CONFIG:ENABLED [INFO] Network namespace created, with a link 10.200.".to_owned(),
        "CONFIG:ENABLED [INFO] Fence installed: nothing but 10.200.".to_owned(),
        "PROC:LAUNCH".to_owned(),
        "PROC:TERMINATE".to_owned(),
        "CONFIG:DISABLED [INFO] Network namespace, its link and its fence removed".to_owned(),
        "LIFECYCLE:END".to_owned(),
    ];
    let places: Vec<_> = in_order
        .iter()
        .map(|text| {
            proxied
                .iter()
                .position(|line| line.contains(text))
                .unwrap_or_else(|| panic!("{text}: {proxied:?}"))
        })
        .collect();
    assert!(places.is_sorted(), "{places:?} {proxied:?}");
    let blocked = run(&["--network", "block"], &["true"]).join("\n");
    assert!(
        blocked.contains("Network namespace created, without a link"),
        "{blocked}"
    );
    assert!(
        blocked.contains("DISABLED [INFO] Network namespace removed"),
        "{blocked}"
    );
    let failed = run(&[], &["/no/such"]);
    let end =
        "LIFECYCLE:END [MED] openshell-sandbox failure [exit:127] command not found: /no/such";
    assert_eq!(failed.last().unwrap(), end, "{failed:?}");
}

/// Makes `argv[1]` refused connections, waits for room (the pipe `argv[2]` asks for it, `argv[3]`
/// reports it), and makes three more.
const REFUSED_WITHOUT_ROOM: &str = r"
import os, socket, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
def ask(count):
    for n in range(count):
        s = socket.create_connection((host, int(port)))
        s.sendall(b'CONNECT web.test:8080 HTTP/1.1\r\n\r\n')
        assert b' 403 ' in s.recv(4096)
ask(int(sys.argv[1]))
open(sys.argv[2], 'w').close()
open(sys.argv[3]).close()
ask(3)
";

#[test]
fn what_a_full_log_disk_does_not_take_is_counted_and_no_line_is_torn() {
    let lab = Lab::with_web();
    let logs = lab.folder("logs");
    let pipes = lab.folder("pipes");
    let [logs, pipes] = [&logs, &pipes].map(|path| path.to_str().unwrap());
    let uid = lab::host::UID;
    let prepared = lab.shell(&format!(
        "mount -t tmpfs -o size=16k,mode=755 logs {logs} && mkfifo {pipes}/full {pipes}/room && \
         chown {uid} {pipes}/* && chown {} {logs}",
        lab::host::caller()
    ));
    assert_eq!(prepared, "");
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{pipes}]}}\n",
        policy("{}")
    );
    let full = format!("{pipes}/full");
    let room = format!("{pipes}/room");
    let words = [
        "/usr/bin/python3",
        "-c",
        REFUSED_WITHOUT_ROOM,
        "300",
        &full,
        &room,
    ];
    let running = lab
        .sandbox(&policy)
        .args(&["--log-dir", logs, "--log-level", "info"])
        .start(&words);
    assert_eq!(
        lab.shell(&format!(
            "cat {full} && mount -o remount,size=1m {logs} && : > {room}"
        )),
        ""
    );
    let finished = running.wait();
    assert_eq!(finished.ok(), "");
    let text = lab.shell(&format!("cat {logs}/openshell.*.log"));
    let id = text.lines().last().unwrap().rsplit_once(' ').unwrap().1;
    let (whole, torn): (Vec<_>, Vec<_>) = text
        .lines()
        .partition(|line| line.ends_with(&format!(" {id}")));
    assert!(torn.len() <= 1, "{torn:?}");
    let left_out = whole.iter().filter_map(|line| {
        let count = line
            .strip_suffix(&format!(" left out before] {id}"))?
            .rsplit_once('[')?
            .1;
        count.split(' ').next()?.parse::<usize>().ok()
    });
    let left_out: usize = left_out.sum();
    assert!(left_out > 0, "the disk was never full: {text}");
    // Standard error has all lines.
    let made = finished
        .stderr
        .lines()
        .filter(|line| line.ends_with(&format!(" {id}")))
        .count();
    assert_eq!(whole.len() + left_out, made, "{text}");
    let of_each = whole.iter().map(|line| line.matches(" OCSF ").count());
    assert!(of_each.max() == Some(1), "{text}");
    assert_eq!(
        finished
            .stderr
            .matches(": No space left on device (os error 28); lines are left out")
            .count(),
        1,
        "{}",
        finished.stderr
    );
}

#[test]
fn lines_of_json_on_standard_error_are_objects_each_and_there_is_no_file() {
    let lab = Lab::with_web();
    let arguments = [
        "--log-to",
        "stderr",
        "--log-format",
        "json",
        "--label",
        "tenant=acme",
        "--name",
        "box",
    ];
    let finished = lab.sandbox(&policy("{}")).args(&arguments).sh(
        "curl -s -m 5 http://web.test:8080 > /dev/null; curl -s -m 5 --noproxy '*' \
             http://10.99.0.1:8080; true",
    );
    let lines: Vec<serde_json::Value> = finished
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let is_own = |line: &&serde_json::Value| {
        line["metadata"]["labels"][0] == "tenant=acme" && line["unmapped"]["sandbox"] == "box"
            || line["labels"]["tenant"] == "acme" && line["sandbox"] == "box"
    };
    assert!(
        lines.len() > 6
            && lines
                .iter()
                .all(|line| is_own(&line) && line["time"].is_i64()),
        "{}",
        finished.stderr
    );
    assert!(
        lines
            .iter()
            .any(|line| line["class_uid"] == 4002 || line["class_uid"] == 4001),
        "{}",
        finished.stderr
    );
    let summary = lines.iter().find(|line| {
        line["message"]
            .as_str()
            .unwrap()
            .contains("refused by the policy:")
    });
    assert!(summary.is_some(), "{}", finished.stderr);
    assert_eq!(lab.shell("ls /var/log"), "");
}

#[test]
fn a_log_that_goes_to_its_file_alone_needs_one() {
    let lab = Lab::with_web();
    let sandbox = || {
        lab.sandbox(&policy("{}"))
            .args(&["--log-to", "file", "--log-level", "info"])
    };
    let finished = sandbox().sh("echo out");
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.as_str()),
        ("out\n", "")
    );
    assert!(finished.log.contains("PROC:LAUNCH"), "{}", finished.log);
    let finished = sandbox().args(&["--log-dir", "/proc/nowhere"]).sh("true");
    assert!(
        finished.code() == 1
            && finished
                .stderr
                .contains("cannot write a log file in /proc/nowhere"),
        "{finished:?}"
    );
}
