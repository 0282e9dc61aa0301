//! The command's life: exit codes, streams, time, signals.

use std::time::{Duration, Instant};

use lab::Lab;
use lab::only_as_root;
use lab::sandbox::{Finished, Started};
use rustix::process::Signal;

fn policy() -> String {
    super::policy("{}")
}

/// Returns true if the last line of `finished` reports the end `how`.
fn is_the_end(finished: &Finished, how: &str) -> bool {
    let last = finished
        .log
        .lines()
        .last()
        .and_then(|line| line.rsplit_once(" sandbox="));
    last.is_some_and(|(line, _)| {
        line.ends_with(&format!(
            " OCSF LIFECYCLE:END [INFO] openshell-sandbox {how}"
        ))
    })
}

// Conformance: PRV-07, PRV-08, LOG-11.
#[test]
fn exit_codes_are_the_commands() {
    let lab = Lab::with_web();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ] {
        let finished = lab.sandbox(&policy()).sh(script);
        assert_eq!(finished.code(), code, "{script}");
        assert_eq!(
            finished
                .logged(&format!("PROC:TERMINATE [INFO] sh(2) [exit:{code}]"))
                .len(),
            1,
            "{}",
            finished.log
        );
        let result = if code == 0 { "success" } else { "failure" };
        assert!(
            is_the_end(&finished, &format!("{result} [exit:{code}]")),
            "{}",
            finished.log
        );
    }
}

#[test]
fn a_command_that_cannot_run_is_126_or_127_and_said_in_words() {
    let lab = Lab::with_web();
    for (command, code, text) in [
        ("no-such-command", 127, "command not found: no-such-command"),
        ("/no/such/file", 127, "command not found: /no/such/file"),
        (
            "/etc/passwd",
            126,
            "command cannot be executed: /etc/passwd",
        ),
        ("/etc", 126, "command cannot be executed: /etc"),
    ] {
        let finished = lab.sandbox(&policy()).run(&[command]);
        assert_eq!(finished.code(), code, "{finished:?}");
        assert!(finished.stderr.contains(text), "{}", finished.stderr);
    }
}

#[test]
fn a_script_without_its_interpreter_says_so() {
    let lab = Lab::with_web();
    let folder = lab.folder("scripts");
    let script = folder.join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let path = script.to_str().unwrap();
    assert_eq!(lab.shell(&format!("chmod 755 {path}")), "");
    let finished = lab
        .sandbox(&policy())
        .args(&["--workdir", folder.to_str().unwrap()])
        .run(&[path]);
    assert_eq!(finished.code(), 126);
    assert!(
        finished.stderr.contains("interpreter"),
        "{}",
        finished.stderr
    );
}

#[test]
fn streams_are_the_callers_own() {
    let lab = Lab::with_web();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let finished = lab
        .sandbox(&policy())
        .input(&bytes)
        .sh("cat | wc -c; echo error >&2");
    assert_eq!(
        (finished.ok(), finished.stderr.as_str()),
        ("300000", "error\n")
    );
}

// Conformance: PRV-11.
#[test]
fn the_command_may_come_from_the_environment() {
    let lab = Lab::with_web();
    let data = lab.file("data.yaml", policy());
    let run = lab.shell(&format!(
        "OPENSHELL_SANDBOX_COMMAND='echo hi  there' {} --policy-data {}",
        lab.binary(),
        data.display()
    ));
    assert_eq!(run, "hi there\n");
}

// Conformance: PRV-09, PRV-10.
#[test]
fn a_command_that_takes_too_long_is_124_and_gone_and_0_is_no_limit() {
    let lab = Lab::with_web();
    assert_eq!(
        lab.sandbox(&policy())
            .args(&["-t", "0"])
            .sh("sleep 1.2; echo done")
            .ok(),
        "done"
    );
    let start = Instant::now();
    let finished = lab
        .sandbox(&policy())
        .args(&["-t", "1"])
        .sh("sleep 6001 & sleep 6001");
    assert_eq!(finished.code(), 124, "{finished:?}");
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(finished.logged("[CRIT]").len(), 1, "{}", finished.log);
    assert_eq!(
        lab.shell("ps -eo args | grep '[s]leep 6001' | wc -l"),
        "0\n"
    );
}

#[test]
fn a_command_that_ignores_the_time_out_is_killed_after_the_grace() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&policy())
        .args(&["-t", "1", "--grace", "1"])
        .sh("trap '' TERM; sleep 601; sleep 601");
    assert_eq!(finished.code(), 124, "{finished:?}");
}

/// Starts a sandbox and waits until its shell has set its traps, shown by the file that it creates.
fn trapping<'l>(lab: &'l Lab, traps: &str) -> Started<'l> {
    let folder = lab.folder("ready");
    let script = format!("{traps}; touch ready; while :; do sleep 0.05; done");
    // A shell cannot trap signals ignored at its start (XCU 2.15), as they are for background
    // processes of a script.
    let words = ["env", "--default-signal", "sh", "-c", &script];
    let started = lab
        .sandbox(&policy())
        .args(&["--grace", "1", "--workdir", folder.to_str().unwrap()])
        .start(&words);
    let ready = folder.join("ready");
    lab::wait_until(|| ready.exists(), || "the command did not start".to_owned());
    started
}

#[test]
fn signals_to_the_supervisor_reach_the_command() {
    let lab = Lab::with_web();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let lab_run = trapping(&lab, &format!("trap 'echo got {name}; exit 9' {name}"));
        lab_run.signal(signal);
        let finished = lab_run.wait();
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (9, format!("got {name}\n").as_str())
        );
        std::fs::remove_file(lab.folder("ready").join("ready")).unwrap();
    }
}

#[test]
fn a_command_that_ignores_termination_is_killed_after_the_grace() {
    let lab = Lab::with_web();
    let started = trapping(&lab, "trap '' TERM");
    started.signal(Signal::TERM);
    assert_eq!(started.wait().code(), 137);
}

#[test]
fn a_command_that_a_signal_ends_is_a_failure_in_the_log_whatever_its_status() {
    for (traps, code) in [("trap 'exit 0' TERM", 0), ("trap - TERM", 143)] {
        let lab = Lab::with_web();
        let started = trapping(&lab, traps);
        started.signal(Signal::TERM);
        let finished = started.wait();
        assert_eq!(finished.code(), code, "{finished:?}");
        let how = format!("failure [exit:{code}] ended by a signal");
        assert!(is_the_end(&finished, &how), "{traps}: {}", finished.log);
    }
}

#[test]
fn a_hang_up_neither_ends_nor_passes_where_there_is_no_terminal() {
    let lab = Lab::with_web();
    let started = trapping(&lab, "trap 'echo hung up' HUP; trap 'exit 3' USR1");
    started.signal(Signal::HUP);
    started.signal(Signal::USR1);
    let finished = started.wait();
    assert_eq!((finished.code(), finished.stdout.as_str()), (3, ""));
}

#[test]
fn it_works_as_pid_1_with_a_containers_capabilities() {
    let lab = Lab::with_web();
    let data = lab.file("policy.yaml", policy());
    let capabilities = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,\
                        +sys_chroot,+mknod,+audit_write,+setfcap,+net_admin,+sys_admin,+sys_ptrace";
    let script = format!(
        "unshare --pid --fork --mount-proc setpriv --bounding-set {capabilities} --inh-caps \
         {capabilities} {} --policy-data {} -- sh -c 'id -u; exit 3'; echo exit $?",
        lab.binary(),
        data.display()
    );
    assert_eq!(lab.shell(&script), format!("{}\nexit 3\n", lab::host::UID));
}

#[test]
fn ten_thousand_orphans_are_collected() {
    let lab = Lab::with_web();
    let script = "n=0; while [ $n -lt 10000 ]; do (:&); n=$((n+1)); done; \
                  while set -- /proc/[0-9]*; [ $# -gt 2 ]; do sleep 0.01; done; echo $#";
    // Init and the shell.
    assert_eq!(lab.sandbox(&policy()).sh(script).ok(), "2");
}

#[test]
fn streams_may_be_closed_before_and_meanwhile() {
    let lab = Lab::with_web();
    let data = lab.file("policy.yaml", policy());
    let sandbox = format!("{} --policy-data {} --", lab.binary(), data.display());
    for (script, expected) in [
        (format!("{sandbox} cat <&-; echo $?"), "0\n"),
        (
            format!("{sandbox} sh -c 'exit 3' <&- >&- 2>&-; echo $?"),
            "3\n",
        ),
        // As without the sandbox, SIGPIPE ends the writer.
        (
            format!("({sandbox} yes; echo $? >&2) | head -1"),
            "y\n141\n",
        ),
        (
            format!(
                "({sandbox} sh -c 'while :; do echo; done' 2>&1; echo $? > {}/code) | true",
                lab.folder("out").display()
            ),
            "",
        ),
        (
            format!(
                "{sandbox} sh -c 'curl -s https://web.test; exit 5' 2>&1 >/dev/null | true; echo \
                 ended"
            ),
            "ended\n",
        ),
    ] {
        assert_eq!(lab.shell(&script), expected, "{script}");
    }
    assert_eq!(
        std::fs::read_to_string(lab.folder("out").join("code")).unwrap(),
        "141\n"
    );
}

/// Every process forks without end.
const BOMB: &str = "
import os
while True:
    try: os.fork()
    except OSError: pass
";

#[test]
fn a_fork_bomb_is_held_by_the_callers_limits_and_ended_by_the_time_out() {
    only_as_root!(
        "the limit counts the processes of a user, and the caller's are those of all tests"
    );
    let lab = Lab::with_web();
    // The limit counts the processes of a user, so no other test uses this one.
    let data = lab.file("policy.yaml", "process: {run_as_user: \"61199\"}\n");
    let sandbox = format!("{} --policy-data {}", lab.binary(), data.display());
    let file = lab.file("bomb.py", BOMB);
    let bomb = format!(
        "prlimit --nproc=150 {sandbox} -t 2 --grace 0 --workdir /tmp -- /usr/bin/python3 - < {} \
         2>/dev/null; echo $?",
        file.display()
    );
    assert_eq!(lab.shell(&bomb), "124\n");
    assert_eq!(lab.shell("ps -o pid= -U 61199"), "");
    assert_eq!(lab.shell(&format!("{sandbox} -- echo next")), "next\n");
}

#[test]
fn a_supervisor_serves_while_a_fork_bomb_goes_off() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let user = if lab::host::caller() == 0 {
        61198
    } else {
        lab::host::UID
    };
    let policy = super::web().replace(&lab::host::UID.to_string(), &user.to_string());
    let program = "
import os, socket, time
for child in range(20):
    if os.fork() == 0:
        while True:
            try:
                if os.fork() == 0: time.sleep(0.01); os._exit(0)
                os.wait()
            except OSError: pass
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
for n in range(20):
    s = socket.create_connection((host, int(port)))
    s.sendall(b'CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n')
    print(s.recv(4096).split(b'\\r\\n')[0].decode())
";
    let finished = lab.sandbox(&policy).python(program, &[]);
    assert_eq!(
        finished.ok(),
        ["HTTP/1.1 200 Connection Established"; 20].join("\n")
    );
}

#[test]
fn an_init_that_is_killed_ends_the_run_and_its_cause_is_said() {
    let lab = Lab::with_web();
    let started = trapping(&lab, "trap '' TERM");
    let children = format!("/proc/{0}/task/{0}/children", started.pid());
    let init = lab.shell(&format!("cat {children}"));
    assert_eq!(lab.shell(&format!("kill -9 {init}")), "");
    let finished = started.wait();
    assert_eq!(finished.code(), 1, "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("the sandbox's init ended, and every process with it"),
        "{finished:?}"
    );
}

#[test]
fn a_caller_that_ignores_its_children_gets_the_exit_code_too() {
    let lab = Lab::with_web();
    let data = lab.file("policy.yaml", policy());
    let caller = format!(
        "import signal, subprocess, sys; \
         p = subprocess.Popen([*'{}'.split(), '--policy-data', '{}', '--', 'sh', '-c', 'exit 7'], \
         preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)); print(p.wait(60))",
        lab.binary(),
        data.display()
    );
    let file = lab.file("caller.py", caller);
    assert_eq!(
        lab.shell(&format!("/usr/bin/python3 {}", file.display())),
        "7\n"
    );
}

#[test]
fn a_working_directory_that_is_not_there_is_an_error_and_is_not_made() {
    let lab = Lab::with_web();
    let missing = lab.folder("typos").join("projcet");
    let finished = lab
        .sandbox(&policy())
        .args(&["--workdir", missing.to_str().unwrap()])
        .sh("echo ran");
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (1, ""),
        "{finished:?}"
    );
    let expected = format!(
        "openshell-sandbox: --workdir {} does not exist; make it, or name another folder",
        missing.display()
    );
    assert!(
        finished.stderr.starts_with(&expected),
        "{}",
        finished.stderr
    );
    assert!(!missing.exists());
    let file = lab
        .sandbox(&policy())
        .args(&["--workdir", "/etc/passwd"])
        .sh("echo ran");
    assert!(
        file.stderr
            .contains("--workdir /etc/passwd is not a folder"),
        "{}",
        file.stderr
    );
}

#[test]
fn a_working_directory_that_cannot_be_entered_is_said_with_the_user_and_a_remedy() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&policy())
        .args(&["--workdir", "/root"])
        .sh("echo ran");
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (1, ""),
        "{finished:?}"
    );
    let expected = format!(
        "openshell-sandbox: the workload's user {} may not enter the working directory /root; let \
         it in (chmod, setfacl), or name another with --workdir: ",
        lab::host::UID
    );
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
}

#[test]
fn a_current_directory_that_is_not_granted_is_said_with_where_the_command_starts() {
    let lab = Lab::with_web();
    let folder = lab.folder("here");
    let path = folder.to_str().unwrap();
    let finished = lab.sandbox(&policy()).current_dir(path).sh("pwd");
    let expected = format!(
        "openshell-sandbox: the policy does not grant the current directory {path}, so the command \
         starts in /run/openshell/home; --workdir {path} grants it\n"
    );
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr),
        ("/run/openshell/home\n", expected)
    );
    let granted = lab
        .sandbox(&policy())
        .args(&["--workdir", path])
        .current_dir(path)
        .sh("pwd");
    assert_eq!((granted.ok(), granted.stderr.as_str()), (path, ""));
}

#[test]
fn a_current_directory_that_its_user_may_not_enter_is_said_with_where_the_command_starts() {
    lab::only_as_root!("another starts in no folder that is closed to it");
    let lab = Lab::with_web();
    let closed = lab.folder("closed");
    let project = closed.join("project");
    std::fs::create_dir(&project).unwrap();
    let _ = lab.shell(&format!("chown 0:0 {0}; chmod 700 {0}", closed.display()));
    let path = project.to_str().unwrap();
    let granted = format!("{}filesystem_policy: {{read_write: [{path}]}}\n", policy());
    let finished = lab.sandbox(&granted).current_dir(path).sh("pwd");
    let expected = format!(
        "openshell-sandbox: the workload's user {} may not enter the current directory {path}, so \
         the command starts in /run/openshell/home; let that user in (chmod, setfacl), or go to a \
         folder that it owns\n",
        lab::host::UID
    );
    assert_eq!(finished.ok(), "/run/openshell/home", "{finished:?}");
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
}

#[test]
fn a_sandbox_inside_another_says_that_it_cannot_start_there() {
    let lab = Lab::with_web();
    let binary = lab
        .file("nested", std::fs::read(lab::sandbox::binary()).unwrap())
        .display()
        .to_string();
    let granted = format!("{}filesystem_policy: {{read_only: [{binary}]}}\n", policy());
    let finished = lab
        .sandbox(&granted)
        .run(&[&binary, "--allow", "web.test", "--", "echo", "ran"]);
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (1, ""),
        "{finished:?}"
    );
    let expected = "openshell-sandbox: a sandbox cannot start inside another, and \
                    OPENSHELL_SANDBOX=1 says that this process is in one: ";
    assert!(finished.stderr.contains(expected), "{finished:?}");
}

#[test]
fn a_command_that_is_there_and_not_granted_is_said_to_be_that() {
    let lab = Lab::with_web();
    let folder = lab.folder("tool");
    let tool = folder.join("tool");
    std::fs::copy("/bin/true", &tool).unwrap();
    let path = folder.to_str().unwrap();
    for (search, word) in [
        ("/usr/bin", tool.to_str().unwrap()),
        (&format!("{path}:/usr/bin"), "tool"),
    ] {
        let finished = lab.sandbox(&policy()).env("PATH", search).run(&[word]);
        assert_eq!(finished.code(), 127, "{finished:?}");
        let expected = format!(
            "openshell-sandbox: {path}/tool exists, but the policy does not grant it; add \
             `{path}` to filesystem_policy.read_only, and whatever else the program needs: command \
             not found: {word}\n"
        );
        assert_eq!(finished.stderr, expected);
    }
    let granted = format!("{}filesystem_policy: {{read_only: [{path}]}}\n", policy());
    assert_eq!(
        lab.sandbox(&granted).run(&[tool.to_str().unwrap()]).code(),
        0
    );
}

#[test]
fn a_cleared_environment_keeps_the_language_and_the_proxy_leaves_the_own_host_alone() {
    let lab = Lab::with_web();
    let sandbox = |flags: &[&str]| {
        let sandbox = lab
            .sandbox(&policy())
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("EDITOR", "vi")
            .args(flags);
        sandbox
            .env("TMPDIR", "/var/tmp/nowhere")
            .sh("echo $LC_ALL $TZ $EDITOR; echo ${TMPDIR-none}; echo $no_proxy")
            .ok()
            .to_owned()
    };
    let name = lab.shell("hostname");
    let hosts = "127.0.0.1,localhost,::1,.localhost,127.0.0.0/8,127.0.0.2,127.0.1.1,0.0.0.0,::";
    let own = format!("none\n{hosts},{}", name.trim());
    assert_eq!(sandbox(&[]), format!("C.UTF-8 UTC vi\n{own}"));
    assert_eq!(sandbox(&["--clear-env"]), format!("C.UTF-8 UTC\n{own}"));
}

#[test]
fn a_policy_and_a_time_are_given_in_short() {
    let lab = Lab::with_web();
    let data = lab.file("policy.yaml", policy());
    for flag in ["-p", "--policy", "--policy-data"] {
        let run = |words: &str| {
            lab.shell(&format!(
                "{} {flag} {} {words}; echo $?",
                lab.binary(),
                data.display()
            ))
        };
        assert_eq!(run("-t 5m --grace 1s -- echo ran"), "ran\n0\n");
        assert_eq!(run("-t '1h 30m' -- echo ran"), "ran\n0\n");
        for wrong in [
            "x",
            "5 parsecs",
            "-1s",
            "400days",
            "99999999999999999999999",
        ] {
            let said = run(&format!("--timeout={wrong:?} -- echo ran"));
            assert!(
                said.contains("90s, 5m or 1h30m") || said.contains("at most 365 days"),
                "{said}"
            );
            assert!(said.ends_with("\n1\n"), "{said}");
        }
        let said = run("--proxy-port 99999 -- echo ran");
        assert!(
            said.contains("a port is a whole number from 1 to 65535"),
            "{said}"
        );
    }
}

#[test]
fn a_time_out_is_said_on_standard_error_and_in_the_log() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&policy())
        .args(&["-t", "500ms", "--grace", "0"])
        .sh("sleep 612");
    assert_eq!(finished.code(), 124, "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("time-out: the command ran for 500ms (--timeout), so the sandbox ends it\n"),
        "{finished:?}"
    );
    let [killed, ended] = finished.logged("PROC:TERMINATE")[..] else {
        panic!("{}", finished.log)
    };
    assert!(
        killed.contains("[CRIT]") && killed.contains(" [reason:time-out] "),
        "{killed}"
    );
    assert!(ended.contains("[exit:124] [reason:time-out] "), "{ended}");
    assert!(
        is_the_end(&finished, "failure [exit:124] ended by the time-out"),
        "{}",
        finished.log
    );
}

/// Sends descriptors to itself until it may have no more on their way, holds them, and says `full`.
const IN_FLIGHT: &str = "
import array, os, resource, socket, sys, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    while True:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        held.append(pair)
        pair[0].setblocking(False)
        while True:
            try: pair[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 200))])
            except BlockingIOError: break
except OSError as error: print(error.errno, file=sys.stderr)
open('full', 'w').close()
while not os.path.exists('done'): time.sleep(0.05)
";

#[test]
fn descriptors_that_a_command_has_on_their_way_keep_no_further_command_from_starting() {
    let lab = Lab::with_web();
    let work = lab.folder("work").display().to_string();
    let policy = lab.file("policy.yaml", policy());
    let program = lab.file("work/flight.py", IN_FLIGHT);
    let sandbox = format!("{} {}", lab.as_caller(), lab.program_path().display());
    let seen = lab.shell(&format!(
        "cd {work}; ulimit -n 4096; {sandbox} -p {} --workdir {work} --name flight -- \
         /usr/bin/python3 {} 2> errors & until [ -e full ]; do sleep 0.05; done; {sandbox} exec \
         flight echo further; touch done; wait; cat errors",
        policy.display(),
        program.display()
    ));
    // ETOOMANYREFS.
    assert_eq!(seen, "further\n109\n");
}
