//! Sandboxes of a caller without capabilities: its identity, groups, places, and what `doctor` says
//! of it.

use lab::host::{Tier, UID, tier};
use lab::{Lab, Sandbox, only_rootless};
use rustix::process::Signal;
use serde_json::Value;

use super::{policy, python, web};

/// A policy without `process`.
const PLAIN: &str = "network_policies: {}\n";

#[test]
fn without_process_the_command_is_the_caller_with_a_powerless_user_namespace() {
    only_rootless!("the caller of the other tier is root, which no command stays");
    let lab = Lab::with_web();
    let script = "id -u; id -g; grep -c '^Cap...:.0000000000000000$' /proc/self/status; cat \
                  /proc/self/uid_map /proc/self/setgroups; prlimit --pid 1 --nofile=1 2>&1; chroot \
                  / true 2>&1; unshare -U true 2>&1; cat /proc/1/environ /proc/1/maps 2>&1; ls \
                  /proc/1/fd 2>&1; kill -9 1; kill -STOP 1; echo alive";
    let finished = lab.sandbox(PLAIN).sh(script);
    let lines: Vec<_> = finished
        .ok()
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let uid = UID.to_string();
    assert_eq!(
        lines[..5],
        [&uid, &uid, "5", &format!("{uid} {uid} 1"), "deny"].map(str::to_owned),
        "{finished:?}"
    );
    let refused =
        |line: &&String| line.contains("ermission denied") || line.contains("not permitted");
    assert_eq!(
        lines[5..].iter().filter(refused).count(),
        lines.len() - 6,
        "{finished:?}"
    );
    assert!(
        finished
            .log
            .contains(&format!("the caller {uid} in a user namespace;")),
        "{}",
        finished.log
    );
}

#[test]
fn groups_that_cannot_be_left_are_named_and_those_with_power_warned_of_or_refused() {
    only_rootless!("with capabilities a command leaves the caller's groups");
    let lab = Lab::with_web();
    let group = lab.file("group", "root:x:0:\ndocker:x:4711:\nbuilders:x:4712:\n");
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/group", group.display())),
        ""
    );
    let run = |policy: &str| {
        let policy = lab.file("policy.yaml", policy);
        let binary = lab.binary().replace("--clear-groups", "--groups 4711,4712");
        lab.shell(&format!(
            "{binary} -p {} --log-level info -- sh -c 'echo ran'; echo $?",
            policy.display()
        ))
    };
    let printed = run(PLAIN);
    assert!(
        printed.contains("who stays in the groups docker, builders;"),
        "{printed}"
    );
    assert!(
        printed.contains("the command is in the group docker") && printed.contains("ran\n"),
        "{printed}"
    );
    assert!(!printed.contains("in the group builders"), "{printed}");
    let hard = run(&format!(
        "{PLAIN}landlock: {{compatibility: hard_requirement}}\n"
    ));
    assert!(
        hard.contains("group docker") && hard.ends_with("1\n") && !hard.contains("ran\n"),
        "{hard}"
    );
}

#[test]
fn log_run_folder_and_ca_files_have_places_of_the_callers_own() {
    only_rootless!("root writes to the system's places");
    let lab = Lab::with_web();
    let home = lab.folder("home").display().to_string();
    let etc = lab.folder("etc").display().to_string();
    // A host on which no sandbox of root has made the folder.
    assert_eq!(
        lab.shell(&format!(
            "cp -a /etc/. {etc} && rm -rf {etc}/openshell-tls && chown 0:0 {etc} && mount --bind \
             {etc} /etc"
        )),
        ""
    );
    let policy = lab.file("policy.yaml", PLAIN);
    let run = |variables: &str, command: &str| {
        let binary = lab
            .binary()
            .replace(" env ", &format!(" env -i PATH=$PATH {variables} "))
            .replace("XDG_", "NO_");
        let binary = binary.replace("OWN_", "XDG_");
        lab.shell(&format!(
            "{binary} -p {} -- sh -c '{command}'; echo $?",
            policy.display()
        ))
    };
    let shown = "echo $SSL_CERT_FILE; head -c 27 $SSL_CERT_FILE; echo x 2>/dev/null >> \
                 $SSL_CERT_FILE || echo; env | grep -c XDG_RUNTIME_DIR";
    let usual = run(
        &format!("HOME={home} OWN_RUNTIME_DIR=/run/user/{UID}"),
        shown,
    );
    assert!(
        usual.starts_with(&format!("/run/user/{UID}/openshell/openshell-")),
        "{usual}"
    );
    assert!(
        usual.contains("/tls/ca-bundle.pem\n-----BEGIN CERTIFICATE-----")
            && usual.ends_with("\n0\n1\n"),
        "{usual}"
    );
    assert!(
        lab.shell(&format!("ls {home}/.local/state/openshell"))
            .starts_with("openshell.20")
    );
    // Neither a relative folder nor another user's.
    let elsewhere = run(
        &format!("HOME={home} OWN_RUNTIME_DIR=run OWN_STATE_HOME=state"),
        shown,
    );
    assert!(elsewhere.starts_with("/tmp/openshell-"), "{elsewhere}");
    let another = run(&format!("HOME={home} OWN_RUNTIME_DIR=/run"), shown);
    assert!(another.starts_with("/tmp/openshell-"), "{another}");
    // A workload can leave there what looks like the folder of another start.
    let planted =
        "mkdir -p /tmp/openshell-00000000deadbeef && mkfifo /tmp/openshell-00000000deadbeef/lock";
    assert_eq!(
        lab.shell(&format!("{} sh -c '{planted}'", lab.as_caller())),
        ""
    );
    let beside = run(&format!("HOME={home}"), "echo ran");
    assert_eq!(lab.shell("rm -r /tmp/openshell-00000000deadbeef"), "");
    assert_eq!(beside, "ran\n0\n");
    let homeless = run("", "echo ran");
    assert!(
        homeless.contains("cannot write a log file in") && homeless.ends_with("ran\n0\n"),
        "{homeless}"
    );
    assert_eq!(lab.shell(&format!("mount -t tmpfs -o ro x {home}")), "");
    let read_only = run(&format!("HOME={home}"), "echo ran");
    assert!(
        read_only.contains("cannot write a log file in") && read_only.ends_with("ran\n0\n"),
        "{read_only}"
    );
    assert_eq!(
        lab.shell(
            r"find /run /tmp /dev/shm -maxdepth 4 -regex '.*/openshell-[0-9a-f]\{16\}' 2>/dev/null"
        ),
        ""
    );
}

#[test]
fn a_user_namespace_in_a_user_namespace_is_none_too_many() {
    only_rootless!("root with its capabilities makes none");
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", PLAIN);
    let nested = lab
        .binary()
        .replace(" env ", " unshare --user --map-current-user env ");
    let printed = lab.shell(&format!(
        "{nested} -p {} -- id -u; echo $?",
        policy.display()
    ));
    assert_eq!(printed, format!("{UID}\n0\n"));
    // With none left to make the setting is named.
    let limited = nested.replace(
        "unshare --user --map-current-user env",
        "unshare --user --map-root-user sh -c 'echo 0 > /proc/sys/user/max_user_namespaces; exec \
         \"$@\"' sh setpriv --bounding-set=-all env",
    );
    let printed = lab.shell(&format!(
        "{limited} -p {} -- echo ran; echo $?",
        policy.display()
    ));
    assert!(
        printed.contains("user.max_user_namespaces is 0") && printed.ends_with("1\n"),
        "{printed}"
    );
    assert!(!printed.contains("ran\n"), "{printed}");
}

#[test]
fn a_program_that_makes_itself_unreadable_is_known_all_the_same() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let program = "
import ctypes, os, socket
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
s = socket.create_connection((host, int(port)))
s.sendall(b'CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n')
print(s.recv(4096).split(b'\\r\\n')[0].decode())
";
    assert_eq!(
        lab.sandbox(&web()).python(program, &[]).ok(),
        "HTTP/1.1 200 Connection Established"
    );
    let refused = lab
        .sandbox(&web().replace(&python(), "/usr/bin/curl"))
        .python(program, &[]);
    assert_eq!(refused.ok(), "HTTP/1.1 403 binary_not_in_policy");
}

/// Returns the findings of `doctor`, with its exit code.
fn doctor(lab: &Lab, policy: Option<&str>) -> (Value, String) {
    let policy = policy
        .map(|policy| lab.file("doctor.yaml", policy).display().to_string())
        .unwrap_or_default();
    let printed = lab.shell(&format!("{} doctor --json {policy}; echo $?", lab.binary()));
    let (json, code) = printed
        .trim_end()
        .rsplit_once('\n')
        .unwrap_or_else(|| panic!("{printed}"));
    (
        serde_json::from_str(json).unwrap_or_else(|_| panic!("{printed}")),
        code.to_owned(),
    )
}

#[test]
fn doctor_says_what_there_is_and_whether_a_policy_would_start_and_leaves_nothing() {
    let lab = Lab::with_web();
    let before = lab.shell("find /run /var/log -type f; ip -br link");
    let (found, code) = doctor(&lab, None);
    assert_eq!(
        (code.as_str(), &found["would_start"]),
        ("0", &Value::Bool(true)),
        "{found}"
    );
    let ok = |name: &str| {
        let checks = found["checks"].as_array().unwrap();
        checks
            .iter()
            .find(|check| check["name"] == name)
            .map(|check| check["ok"].as_bool().unwrap())
    };
    for name in [
        "kernel",
        "Landlock",
        "seccomp",
        "/proc",
        "network namespace",
        "veth",
        "nf_tables",
        "seccomp notifications",
        "pidfd_getfd",
        "NFLOG",
        "clock",
    ] {
        assert_eq!(ok(name), Some(true), "{name}: {found}");
    }
    assert_eq!(ok("capabilities"), Some(tier() == Tier::Root), "{found}");
    let (refused, code) = doctor(&lab, Some("process: {run_as_user: not-here}\n"));
    assert_eq!(
        (code.as_str(), &refused["would_start"]),
        ("1", &Value::Bool(false)),
        "{refused}"
    );
    assert_eq!(lab.shell("find /run /var/log -type f; ip -br link"), before);
    let state = lab.shell(&format!("ls {}", lab.logs()));
    assert!(state.contains("No such file"), "{state}");
    let text = lab.shell(&format!("{} doctor; echo $?", lab.binary()));
    assert!(
        text.contains("ok       kernel: Linux") && text.ends_with("It would start.\n0\n"),
        "{text}"
    );
}

#[test]
fn a_sandbox_of_a_caller_is_ended_and_reloaded_by_its_caller() {
    let lab = Lab::with_web();
    let started = Sandbox::bare(&lab)
        .args(&[
            "--policy-data",
            lab.file("policy.yaml", policy("{}")).to_str().unwrap(),
        ])
        .start(&[
            "sh",
            "-c",
            "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done",
        ]);
    assert_eq!(
        lab.shell(&format!("until grep -qs LAUNCH {}; do :; done", lab.logs())),
        ""
    );
    started.signal(Signal::HUP);
    assert_eq!(
        lab.shell(&format!(
            "until grep -qs 'reloaded successfully' {}; do :; done",
            lab.logs()
        )),
        ""
    );
    started.signal(Signal::TERM);
    assert_eq!(started.wait().code(), 7);
}
