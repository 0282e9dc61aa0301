//! The binary as PID 1 of a container, under the capabilities and limits that container engines
//! give.

use lab::container::{Container, DEFAULT, DOCUMENTED, Files};
use lab::{Lab, only_as_root};

/// Words that start the binary under test in `container`, under a policy without a network.
fn sandbox(lab: &Lab, container: &mut Container, command: &[&'static str]) -> Vec<&'static str> {
    let policy = lab.file("policy.yaml", "network_policies: {}\n");
    container.binds = vec![
        (lab.program_path(), "/box/openshell-sandbox".into()),
        (policy, "/box/policy.yaml".into()),
    ];
    [
        &["/box/openshell-sandbox", "-p", "/box/policy.yaml", "--"],
        command,
    ]
    .concat()
}

/// Runs `command` in a sandbox of the container, and returns everything printed, with the exit code
/// last.
fn run(mut container: Container, command: &[&'static str]) -> String {
    let lab = Lab::with_web();
    let words = sandbox(&lab, &mut container, command);
    container.run(&lab, &words)
}

/// Returns a container of root or another user, with /proc as the kernel has it or masked as by
/// engines.
fn container(uid: u32, capabilities: &[&[&'static str]], is_masked: bool) -> Container {
    Container {
        is_masked,
        ..Container::new(uid, capabilities)
    }
}

/// Attempts of a workload to become root, and to end or stop its supervisor and init.
const ATTEMPTS: &str = "id -u; grep -c '^CapEff:.0000000000000000$' /proc/self/status; touch \
                        /etc/x; for p in $(ls /proc | grep '^[0-9]*$'); do [ $p = $$ ] || kill \
                        -STOP $p 2>/dev/null; done; curl -s -o /dev/null -w '%{http_connect}\\n' \
                        https://example.com; echo alive";

#[test]
fn root_with_the_default_capabilities_is_nobody_in_a_user_namespace() {
    only_as_root!("a container runtime starts it");
    for is_masked in [true, false] {
        let printed = run(container(0, &[DEFAULT], is_masked), &["sh", "-c", ATTEMPTS]);
        assert!(
            printed.contains("\n65534\n1\n") && printed.contains("\n403\nalive\n"),
            "{printed}"
        );
        assert!(
            printed.contains("the command is root outside, and 65534 inside"),
            "{printed}"
        );
        assert_eq!(
            printed.contains("shares the supervisor's PID namespace"),
            is_masked,
            "{printed}"
        );
        assert!(printed.ends_with("\n0\n"), "{printed}");
    }
    let shadow = run(container(0, &[DEFAULT], true), &["cat", "/etc/shadow"]);
    assert!(
        shadow.contains("/etc/shadow: Permission denied"),
        "{shadow}"
    );
}

#[test]
fn root_without_capabilities_is_told_what_to_change() {
    only_as_root!("a container runtime starts it");
    let printed = run(container(0, &[], true), &["echo", "ran"]);
    let lines: Vec<_> = printed
        .lines()
        .filter(|line| !line.contains("umount"))
        .collect();
    let [line, "1"] = lines[..] else {
        panic!("one line: {printed}")
    };
    assert!(
        line.contains("another user (`USER` of an image)") && line.contains("CAP_SETFCAP"),
        "{line}"
    );
}

#[test]
fn another_user_without_capabilities_runs_as_itself() {
    only_as_root!("a container runtime starts it");
    for is_masked in [true, false] {
        let printed = run(container(61184, &[], is_masked), &["sh", "-c", ATTEMPTS]);
        assert!(
            printed.contains("\n61184\n1\n") && printed.contains("\n403\nalive\n"),
            "{printed}"
        );
    }
}

#[test]
fn the_documented_capabilities_are_enough_for_another_user() {
    only_as_root!("a container runtime starts it");
    for is_masked in [true, false] {
        let printed = run(
            container(0, &[DEFAULT, DOCUMENTED], is_masked),
            &["sh", "-c", ATTEMPTS],
        );
        assert!(
            printed.contains("65534\n1\n") && printed.contains("\n403\nalive\n"),
            "{printed}"
        );
        assert!(!printed.contains("root outside"), "{printed}");
    }
}

/// Forks 10,000 orphans that end at once, and waits until none is a zombie, of which there may be
/// many for a moment.
const ORPHANS: &str = r#"
import os, time
for _ in range(100):
    if not (parent := os.fork()):
        for _ in range(100):
            if not os.fork(): os._exit(0)
        os._exit(0)
    os.waitpid(parent, 0)
def zombies():
    count = 0
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try: count += open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] == 'Z'
        except OSError: pass
    return count
end = time.monotonic() + 60
while left := zombies():
    assert time.monotonic() < end, f'{left} zombies'
    time.sleep(0.01)
print('no zombies')
"#;

#[test]
fn ten_thousand_orphans_leave_no_zombie() {
    only_as_root!("a container runtime starts it");
    // With a masked /proc the orphans are in the supervisor's own PID namespace.
    for is_masked in [true, false] {
        let printed = run(
            container(61184, &[], is_masked),
            &["python3", "-c", ORPHANS],
        );
        assert!(printed.contains("no zombies\n0\n"), "{printed}");
    }
}

#[test]
fn orphans_beside_the_sandbox_are_reaped_by_pid_1() {
    only_as_root!("a container runtime starts it");
    let lab = Lab::with_web();
    let mut container = container(0, &[DEFAULT, DOCUMENTED], true);
    let words = sandbox(
        &lab,
        &mut container,
        &["sh", "-c", "echo started; exec sleep 600"],
    );
    let out = lab.folder("out").join("out").display().to_string();
    let script = container.script(&lab, &words);
    // As `docker exec` does; the container's PID 1 is the runtime's child.
    let printed = lab.shell(
        &format!(
            "{script} > {out} & until grep -q started {out}; do sleep 0.05; done; \
         one=$(pgrep -P $! ); nsenter -t $one -p -m python3 -c \"$ORPHANS\"; \
         kill -TERM $one; wait $!; echo $?"
        )
        .replace("$ORPHANS", ORPHANS),
    );
    assert!(printed.contains("no zombies\n143\n"), "{printed}");
}

#[test]
fn a_read_only_root_without_etc_var_run_and_tmp_is_enough() {
    only_as_root!("a container runtime starts it");
    for (uid, capabilities) in [
        (0, &[DEFAULT, DOCUMENTED][..]),
        (0, &[DEFAULT]),
        (61184, &[]),
    ] {
        for is_masked in [true, false] {
            let container = Container {
                files: Files::Programs,
                is_read_only: true,
                ..container(uid, capabilities, is_masked)
            };
            let printed = run(container, &["sh", "-c", ATTEMPTS]);
            assert!(
                printed.contains("\n403\nalive\n"),
                "{uid} {is_masked} {printed}"
            );
        }
    }
}

#[test]
fn a_container_with_a_terminal_gives_it_to_the_command() {
    only_as_root!("a container runtime starts it");
    for (uid, capabilities) in [
        (0, &[DEFAULT, DOCUMENTED][..]),
        (0, &[DEFAULT]),
        (61184, &[]),
    ] {
        let lab = Lab::with_web();
        let mut container = Container {
            has_terminal: true,
            ..container(uid, capabilities, true)
        };
        let words = sandbox(
            &lab,
            &mut container,
            &["sh", "-c", "tty; cut -d' ' -f5,8 /proc/$$/stat"],
        );
        let script = lab
            .file("terminal.sh", container.script(&lab, &words))
            .display()
            .to_string();
        let printed = lab.shell(&format!(
            "script -qec 'sh {script}' /dev/null < /dev/null; echo $?"
        ));
        let lines: Vec<_> = printed.lines().rev().map(str::trim).collect();
        let groups: Vec<_> = lines[1].split_whitespace().collect();
        assert!(
            lines[0] == "0" && lines[2].ends_with("/dev/pts/0"),
            "{uid} {printed}"
        );
        assert!(
            groups.len() == 2 && groups[0] == groups[1],
            "in the foreground: {uid} {printed}"
        );
    }
}

#[test]
fn without_one_of_the_documented_capabilities_the_sandbox_is_made_in_a_user_namespace() {
    only_as_root!("a container runtime starts it");
    for missing in [
        "SYS_ADMIN",
        "NET_ADMIN",
        "SYS_PTRACE",
        "SETUID",
        "SETGID",
        "SETPCAP",
    ] {
        let mut container = container(0, &[DEFAULT, DOCUMENTED], true);
        container.capabilities.retain(|name| *name != missing);
        let printed = run(container, &["sh", "-c", ATTEMPTS]);
        assert!(
            printed.contains("65534\n1\n") && printed.contains("\n403\nalive\n"),
            "{missing} {printed}"
        );
    }
}

/// Runs a sandbox whose command uses its proxy, in a control group of its own with one limit.
fn limited(controller: &str, limits: [&str; 2], value: &str) -> String {
    let lab = Lab::with_web();
    let policy = lab
        .file("policy.yaml", "network_policies: {}\n")
        .display()
        .to_string();
    let [first, second] = limits;
    // Of the first version of control groups, or of the second.
    lab.shell(&format!(
        "for place in /sys/fs/cgroup/{controller} /sys/fs/cgroup; do \
         group=$place/openshell-test-$$; mkdir $group && for limit in {first} {second}; do [ ! -e \
         $group/$limit ] || break 2; done; rmdir $group; done; trap 'rmdir $group' EXIT; echo \
         {value} > $group/$limit || exit; sh -c 'echo $$ > '$group'/cgroup.procs; exec timeout 60 \
         {} -p {policy} -- curl -s -o /dev/null -w %{{http_connect}} https://example.com'; echo \" \
         $?\"; until [ -z \"$(cat $group/cgroup.procs)\" ]; do sleep 0.01; done",
        lab.program_path().display()
    ))
}

#[test]
fn sixteen_processes_and_threads_are_enough_for_a_sandbox_and_its_command() {
    only_as_root!("a control group is root's to make");
    let printed = limited("pids", ["pids.max", "pids.max"], "16");
    assert!(
        printed.contains("403") && printed.ends_with(" 56\n"),
        "{printed}"
    );
}

#[test]
fn too_few_processes_stop_the_start_with_one_line() {
    only_as_root!("a control group is root's to make");
    let printed = limited("pids", ["pids.max", "pids.max"], "4");
    let lines: Vec<_> = printed.lines().collect();
    let [line, " 1"] = lines[..] else {
        panic!("one line: {printed}")
    };
    assert!(
        line.starts_with("openshell-sandbox: ") && line.contains("thread"),
        "{line}"
    );
}

#[test]
fn sixty_four_megabytes_are_enough_for_a_sandbox_and_its_command() {
    only_as_root!("a control group is root's to make");
    let printed = limited("memory", ["memory.limit_in_bytes", "memory.max"], "64M");
    assert!(
        printed.contains("403") && printed.ends_with(" 56\n"),
        "{printed}"
    );
}

/// Takes the name `web` away from its sandbox, and answers for it.
const IMPOSTOR: &str = r"
import os, socket
parent, uid = '/tmp', os.getuid()
name, folder = f'{parent}/openshell-name-{uid}-web', f'{parent}/openshell-0123456789abcdef'
try: os.unlink(name)
except OSError: pass
os.mkdir(folder, 0o711)
open(name, 'w').write('openshell-0123456789abcdef'); os.chmod(name, 0o600)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(folder + '/control'); s.listen()
print('planted', flush=True)
while True:
    peer, _ = s.accept()
    peer.settimeout(5)
    try:
        data, fds, *_ = socket.recv_fds(peer, 65536, 8)
        print('client came with' if data or fds else 'client left', fds, data, flush=True)
    except OSError as error: print('client left', flush=True)
";

#[test]
fn a_program_of_a_sandbox_is_handed_nothing_of_a_client_in_a_container_with_a_masked_proc() {
    only_as_root!("a container runtime starts it");
    let lab = Lab::with_web();
    let mut container = container(61184, &[], true);
    let words = sandbox(&lab, &mut container, &["python3", "-u", "-c", IMPOSTOR]);
    let words = [&[words[0], "--name", "web"], &words[1..]].concat();
    let out = lab.folder("out").join("out").display().to_string();
    let script = container.script(&lab, &words);
    let printed = lab.shell(&format!(
        "{script} > {out} 2>&1 & until grep -qs planted {out}; do sleep 0.05; done; one=$(pgrep -P \
         $!); nsenter -t $one -m -p setpriv --reuid 61184 --regid 61184 --clear-groups \
         --bounding-set -all timeout --kill-after=1 10 /box/openshell-sandbox exec web -- echo \
         hello; echo $?; kill -TERM $one; wait $!; cat {out}"
    ));
    assert!(!printed.contains("client came with"), "{printed}");
    assert!(
        printed.starts_with("hello\n0\n") || printed.contains("is not a supervisor"),
        "{printed}"
    );
}
