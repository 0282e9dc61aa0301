//! Identity of the workload, and ways to change it.

use lab::Lab;
use lab::host::UID;
use lab::only_as_root;

// Conformance: PRV-01.
#[test]
fn the_workload_has_one_user_one_group_and_no_power() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&super::policy("{}"))
        .sh("id -u; id -g; id -G; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status");
    let none = "0000000000000000";
    let capabilities: String = ["Inh", "Prm", "Eff", "Bnd", "Amb"]
        .iter()
        .map(|set| format!("Cap{set}:\t{none}\n"))
        .collect();
    assert_eq!(
        finished.ok(),
        format!("{UID}\n{UID}\n{UID}\n{capabilities}NoNewPrivs:\t1\nSeccomp:\t2")
    );
}

// Conformance: PRV-03.
#[test]
fn no_process_section_means_the_user_sandbox() {
    only_as_root!("another user than the caller takes capabilities");
    let lab = Lab::with_web();
    let passwd = lab.file(
        "passwd",
        "root:x:0:0::/root:/bin/sh\nsandbox:x:61190:61191::/sandbox:/bin/bash\n",
    );
    let group = lab.file(
        "group",
        "root:x:0:\nsandbox:x:61191:\nextra:x:61192:sandbox\n",
    );
    assert_eq!(
        lab.shell(&format!(
            "mount --bind {} /etc/passwd; mount --bind {} /etc/group",
            passwd.display(),
            group.display()
        )),
        ""
    );
    let finished = lab
        .sandbox("network_policies: {}")
        .sh("id -u; id -g; id -G; echo $USER $SHELL");
    assert_eq!(
        finished.ok(),
        "61190\n61191\n61191 61192\nsandbox /bin/bash"
    );
}

// Conformance: PRV-05, SCP-06.
#[test]
fn nothing_leads_back_to_root() {
    let lab = Lab::with_web();
    let program = "
import os
for act in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0)):
    try: act(); print('became root')
    except OSError: print('refused')
";
    assert_eq!(
        lab.sandbox(&super::policy("{}")).python(program, &[]).ok(),
        "refused\n".repeat(4).trim_end()
    );
    // A set-user-ID program runs without gaining privileges.
    let folder = lab.folder("setuid");
    let id = folder.join("id");
    lab.shell(&format!(
        "cp /usr/bin/id {0} && chmod 4755 {0}",
        id.display()
    ))
    .is_empty()
    .then_some(())
    .unwrap();
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{}]}}\n",
        super::policy("{}"),
        folder.display()
    );
    let twin = lab.shell(&format!(
        "setpriv --reuid {UID} --clear-groups {} -u",
        id.display()
    ));
    assert_eq!(twin, "0\n", "outside it does");
    assert_eq!(
        lab.sandbox(&policy).run(&[id.to_str().unwrap(), "-u"]).ok(),
        UID.to_string()
    );
}

// Conformance: SCP-01, SCP-03, SCP-04.
#[test]
fn the_filter_is_in_force_in_the_command() {
    let lab = Lab::with_web();
    let program = "
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno(*call):
    return ctypes.get_errno() if libc.syscall(*call) < 0 else 0
print(errno(319, b'x', 0), errno(272, 0x10000000), errno(425, 1, 0), errno(435, 0, 0), errno(165, 0, 0, 0, 0, 0))
for family, kind, protocol in ((17, 3, 0), (40, 1, 0), (16, 3, 15), (38, 5, 0)):
    try: socket.socket(family, kind, protocol); print('open')
    except OSError: print('refused')
socket.socket(16, 3, 0); socket.socket(2, 1, 0); socket.socket(10, 1, 0); socket.socketpair()
";
    let numbers = "1 1 38 38 1";
    assert_eq!(
        lab.sandbox(&super::policy("{}")).python(program, &[]).ok(),
        format!("{numbers}\nrefused\nrefused\nrefused\nrefused")
    );
}

/// Sets the socket options that curl, wget, git, ssh, Python, Node.js, Java and `ip` set (strace),
/// then options that hide the owner of a connection or reach rarely used code; prints the refused
/// ones of each.
const OPTIONS: &str = "
import ctypes, errno, socket as s
tcp, tcp6, udp, udp6 = [s.socket(f, t) for t in (s.SOCK_STREAM, s.SOCK_DGRAM) for f in (s.AF_INET, s.AF_INET6)]
route = s.socket(s.AF_NETLINK, s.SOCK_RAW | s.SOCK_CLOEXEC, 0)
def refused(list):
    for socket, level, option, value in list:
        try: socket.setsockopt(level, option, value)
        except OSError as error: yield f'{level}/{option} {errno.errorcode[error.errno]}'
ordinary = [
    (tcp, s.SOL_SOCKET, s.SO_KEEPALIVE, 1), (tcp, s.SOL_SOCKET, s.SO_REUSEADDR, 1), (tcp, s.SOL_SOCKET, s.SO_REUSEPORT, 1),
    (tcp, s.SOL_SOCKET, s.SO_LINGER, bytes(8)), (udp, s.SOL_SOCKET, s.SO_BROADCAST, 1),
    (route, s.SOL_SOCKET, s.SO_SNDBUF, 32768), (route, s.SOL_SOCKET, s.SO_RCVBUF, 32768), (route, 270, 11, 1), (route, 270, 12, 1),
    (tcp, s.SOL_TCP, s.TCP_NODELAY, 1), (tcp, s.SOL_TCP, s.TCP_KEEPIDLE, 60), (tcp, s.SOL_TCP, s.TCP_KEEPINTVL, 60),
    (tcp, s.SOL_TCP, s.TCP_KEEPCNT, 9), (tcp, s.SOL_TCP, s.TCP_USER_TIMEOUT, 9), (tcp, s.SOL_TCP, s.TCP_DEFER_ACCEPT, 1),
    (tcp, s.SOL_IP, s.IP_TOS, 16), (udp, s.SOL_IP, 11, 1), (udp, s.SOL_IP, 49, 0),
    (tcp6, s.IPPROTO_IPV6, s.IPV6_V6ONLY, 0), (udp6, s.IPPROTO_IPV6, s.IPV6_RECVPKTINFO, 1),
    (udp6, s.IPPROTO_IPV6, s.IPV6_MULTICAST_HOPS, 1), (tcp6, s.IPPROTO_IPV6, s.IPV6_TCLASS, 16), (udp, 17, 103, 1200),
]
print('ordinary:', *refused(ordinary))
program = bytes([0x06, 0, 0, 0, 0xff, 0xff, 0, 0])
held = ctypes.create_string_buffer(program)
filter = (1).to_bytes(2, 'little') + bytes(6) + ctypes.addressof(held).to_bytes(8, 'little')
others = [(tcp, 6, 30, 1), (tcp, 6, 34, 1), (tcp, 6, 23, 1), (tcp, 6, 33, bytes(16)), (tcp, 6, 31, b'tls'), (udp, 1, 26, filter), (udp, 17, 100, 2)]
print('others:', *refused(others))
try: tcp.sendto(b'x', s.MSG_FASTOPEN, ('127.0.0.1', 1))
except OSError as error: print('sendto', errno.errorcode[error.errno])
for kind, protocol in ((1, 262), (2, 136), (1, 132), (5, 0), (2, 115)):
    try: s.socket(s.AF_INET, kind, protocol)
    except OSError as error: print(kind, protocol, errno.errorcode[error.errno])
";

#[test]
fn socket_options_of_ordinary_programs_pass_and_fast_open_filters_and_other_protocols_do_not() {
    let lab = Lab::with_web();
    let expected = "ordinary:\nothers: 6/30 ENOPROTOOPT 6/34 ENOPROTOOPT 6/23 ENOPROTOOPT 6/33 \
                    ENOPROTOOPT 6/31 ENOPROTOOPT 1/26 ENOPROTOOPT 17/100 ENOPROTOOPT\nsendto \
                    ENOTSUP\n1 262 EPROTONOSUPPORT\n2 136 EPROTONOSUPPORT\n1 132 \
                    EPROTONOSUPPORT\n5 0 EPROTONOSUPPORT\n2 115 EPROTONOSUPPORT";
    assert_eq!(
        lab.sandbox(&super::policy("{}")).python(OPTIONS, &[]).ok(),
        expected
    );
    // A client that asks for fast open continues without it.
    let curl = "curl -sS --tcp-fastopen -o /dev/null -w '%{http_connect}' https://web.test:8080";
    assert_eq!(lab.sandbox(&super::policy("{}")).sh(curl).stdout, "403");
}

// Conformance: PRV-06.
#[test]
fn no_descriptor_variable_or_process_of_the_supervisor_is_inside() {
    let lab = Lab::with_web();
    let script = "ls /proc/self/fd; tr '\\0' '\\n' < /proc/self/environ | cut -d= -f1 | sort; ls \
                  -d /proc/[0-9]* | wc -l; cat /proc/1/environ /proc/1/cmdline /proc/1/mem \
                  /proc/1/maps; ls -l /proc/1/fd /proc/1/exe";
    let finished = lab
        .sandbox(&super::policy("{}"))
        .env("OPENSHELL_SSH_HANDSHAKE_SECRET", "hush")
        .env("LD_LIBRARY_PATH", "/x")
        .env("AWS_CA_BUNDLE", "/x")
        .sh(&format!("exec 9< /dev/null; exec 9<&-; {script}"));
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(
        lines[..4],
        ["0", "1", "2", "3"],
        "3 is the folder that ls reads: {finished:?}"
    );
    let expected = [
        "ALL_PROXY",
        "HOME",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "LOGNAME",
        "NODE_USE_ENV_PROXY",
        "NO_PROXY",
        "OPENSHELL_SANDBOX",
        "PATH",
        "PWD",
        "SHELL",
        "USER",
        "all_proxy",
        "grpc_proxy",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    ];
    let names: Vec<_> = lines[4..]
        .iter()
        .copied()
        .filter(|line| line.starts_with(char::is_alphabetic))
        .collect();
    assert!(
        names.iter().all(|name| expected.contains(name)),
        "{names:?}"
    );
    assert!(
        !finished.stdout.contains("hush") && !finished.stdout.contains("openshell-sandbox"),
        "{finished:?}"
    );
}

#[test]
fn no_process_outside_can_be_seen_or_signalled() {
    let lab = Lab::with_web();
    let own = std::process::id();
    let script = format!(
        "kill -0 {own} && echo reached; kill -0 1 && echo init; kill -9 1; kill -STOP 1; echo \
         alive; ls /proc/{own} && echo seen"
    );
    let finished = lab.sandbox(&super::policy("{}")).sh(&script);
    // Without root init is the caller's, and takes no signals from its namespace
    // (pid_namespaces(7)).
    let expected = if lab::host::caller() == 0 {
        "alive\n"
    } else {
        "init\nalive\n"
    };
    assert_eq!(finished.stdout, expected, "{finished:?}");
}

// Conformance: PRV-13.
#[test]
fn processes_of_the_same_user_outside_cannot_be_signalled_nor_read() {
    let lab = Lab::with_web();
    let sleeper = lab.program(&[
        "setpriv",
        "--reuid",
        &UID.to_string(),
        "--clear-groups",
        "sh",
        "-c",
        "echo $$; trap 'echo signalled' TERM; while :; do sleep 0.05; done",
    ]);
    let pid = sleeper.pid();
    let outside = lab.shell(&format!(
        "setpriv --reuid {UID} --clear-groups kill -0 {pid} && echo reached"
    ));
    assert_eq!(outside, "reached\n", "the twin outside");
    let script = format!(
        "kill -0 {pid} && echo reached; cat /proc/{pid}/status && echo read; kill -9 -1; echo alive"
    );
    // `kill -1` reaches every process that may be signalled, except the sender.
    for network in ["proxy", "allow"] {
        let inside = lab
            .sandbox(&super::policy("{}"))
            .args(&["--network", network])
            .sh(&script);
        assert_eq!(inside.stdout, "alive\n", "{inside:?}");
    }
    assert_eq!(
        lab.shell(&format!("kill -0 {pid} && echo alive")),
        "alive\n"
    );
}

/// Calls getpid by the table of 32-bit calls.
const OTHER_TABLE: &str = r#"
#include <stdio.h>
int main(void) { long number; __asm__ volatile("int $0x80" : "=a"(number) : "a"(20) : "memory"); puts(number > 0 ? "asked" : "no"); }
"#;

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_by_another_architectures_table_end_the_program() {
    let lab = Lab::with_web();
    let folder = lab.folder("table");
    let source = lab.file("table.c", OTHER_TABLE);
    let program = folder.join("table");
    assert_eq!(
        lab.shell(&format!(
            "gcc -o {} {}",
            program.display(),
            source.display()
        )),
        ""
    );
    assert_eq!(
        lab.shell(program.to_str().unwrap()),
        "asked\n",
        "the twin outside"
    );
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{}]}}\n",
        super::policy("{}"),
        folder.display()
    );
    let finished = lab.sandbox(&policy).run(&[program.to_str().unwrap()]);
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (128 + 31, ""),
        "SIGSYS"
    );
}

#[test]
fn shared_memory_of_the_host_is_another_one() {
    let lab = Lab::with_web();
    let program = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('made' if libc.shmget(0x05e11, 4096, 0o1666) >= 0 else 'failed')
";
    let before = lab.shell("ipcs -m");
    assert_eq!(
        lab.sandbox(&super::policy("{}")).python(program, &[]).ok(),
        "made"
    );
    assert_eq!(lab.shell("ipcs -m"), before);
}

#[test]
fn the_supervisors_secrets_cannot_be_read_even_by_root_through_proc() {
    let lab = Lab::with_web();
    let sandbox = lab
        .sandbox(&super::policy("{}"))
        .env("OPENSHELL_SSH_HANDSHAKE_SECRET", "hush-hush");
    let started = sandbox.args(&["--grace", "7"]).start(&["sleep", "60"]);
    let running = || lab.log().contains("PROC:LAUNCH");
    lab::wait_until(running, || "it did not start".to_owned());
    let pid = started.pid();
    let init = lab
        .shell(&format!("cat /proc/{pid}/task/{pid}/children"))
        .trim()
        .to_owned();
    for process in [pid.to_string(), init] {
        let shown = lab.shell(&format!(
            "cat /proc/{process}/environ /proc/{process}/cmdline | tr -d '\\0' | wc -c"
        ));
        assert_eq!(shown, "0\n", "{process}");
    }
    // A thread may end meanwhile.
    let status = lab.shell(&format!(
        "grep -hsE '^Seccomp:' /proc/{pid}/task/*/status | grep -cv 'Seccomp:.2'"
    ));
    assert_eq!(
        status, "0\n",
        "every thread of the supervisor is under its filter"
    );
    assert_eq!(
        lab.shell(&format!(
            "grep -E 'core file' /proc/{pid}/limits | tr -s ' ' | cut -d' ' -f5,6"
        )),
        "0 0\n"
    );
    drop(started);
}

/// Prints the limit of core dumps, the results of attempts to change it, and the limit afterwards.
const CORE: &str = "
import ctypes, resource, struct
libc = ctypes.CDLL(None, use_errno=True)
limit = lambda: resource.getrlimit(resource.RLIMIT_CORE)
print(limit())
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(libc.syscall(160, 4, struct.pack('QQ', 0, 0)), limit())
resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
";

#[cfg(target_arch = "x86_64")]
#[test]
fn a_crash_runs_no_handler_of_the_host_whatever_the_workload_sets() {
    let lab = Lab::with_web();
    // At 1, and at no other value, the kernel runs no handler (core(5)).
    let finished = lab.sandbox(&super::policy("{}")).python(CORE, &[]);
    assert_eq!(finished.ok(), "(1, 1)\n0 (1, 1)\n(99, 99)");
    // A crash ends with its signal.
    assert_eq!(
        lab.sandbox(&super::policy("{}"))
            .sh("ulimit -c 0; kill -SEGV $$")
            .code(),
        128 + 11
    );
}

#[test]
fn a_hard_limit_of_no_core_dumps_is_kept_unless_the_host_pipes_them_anyway() {
    let lab = Lab::with_web();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let printed = lab.shell(&format!(
        "ulimit -Hc 0; setpriv --bounding-set -sys_resource {} -p {policy} -- echo ran; echo $?",
        lab.binary()
    ));
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with('|') {
        assert!(
            printed.contains("kernel.core_pattern") && printed.ends_with("\n1\n"),
            "{printed}"
        )
    } else {
        assert!(printed.ends_with("ran\n0\n"), "{printed}")
    }
}

/// Writes a passwd file with a further user, and creates its home.
fn with_user(lab: &Lab, home: &str) {
    let passwd = lab.file(
        "passwd",
        format!("root:x:0:0::/root:/bin/sh\nbuilder:x:{UID}:{UID}::{home}:/bin/sh\n"),
    );
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/passwd", passwd.display())),
        ""
    );
}

#[test]
fn a_home_of_the_runs_own_takes_nothing_from_other_sandboxes_and_is_gone_afterwards() {
    let lab = Lab::with_web();
    // As in the examples: a user without a home, and no /sandbox. Another sandbox leaves a start-up
    // file in every place it can.
    let planted = format!("/tmp/e2e-planted-{}", std::process::id());
    let plant = format!(
        "for d in $HOME /tmp /dev/shm; do echo 'echo planted' > $d/.e2e-rc; done; touch {planted}"
    );
    let shared = format!(
        "{}filesystem_policy: {{read_write: [/tmp, /dev/shm]}}\n",
        super::policy("{}")
    );
    assert_eq!(lab.sandbox(&shared).sh(&plant).code(), 0);
    let script = "[ -e $HOME/.e2e-rc ] && . $HOME/.e2e-rc; echo $HOME; stat -c '%u %a' $HOME; ls \
                  -A $HOME; echo x > $HOME/file && mkdir $HOME/d && mv $HOME/file $HOME/d/ && cp \
                  /bin/true $HOME/d/ && $HOME/d/true && cat $HOME/d/file";
    let finished = lab.sandbox(&super::policy("{}")).sh(script);
    let removed = lab.shell(
        "rm /tmp/.e2e-rc /dev/shm/.e2e-rc; rm -f /tmp/e2e-planted-*; find /run -name 'openshell-*'",
    );
    assert_eq!(removed, "", "{finished:?}");
    assert_eq!(finished.ok(), format!("/run/openshell/home\n{UID} 700\nx"));
}

#[test]
fn a_policy_that_grants_everything_has_a_home_too() {
    let lab = Lab::with_web();
    for listed in ["read_only: [/]", "read_write: [/run]"] {
        let policy = format!("{}filesystem_policy: {{{listed}}}\n", super::policy("{}"));
        let finished = lab
            .sandbox(&policy)
            .sh("cd && stat -c '%u %a' . && touch x && ls");
        assert_eq!(
            finished.ok(),
            format!("{UID} 700\nx"),
            "{listed}: {finished:?}"
        );
    }
    assert_eq!(lab.shell("find /run -name 'openshell-*'"), "");
}

#[test]
fn home_is_the_users_own_also_where_parts_of_it_are_granted() {
    let lab = Lab::with_web();
    let home = lab.folder("home");
    with_user(&lab, home.to_str().unwrap());
    let made = format!(
        "chown {UID}:{UID} {0} && mkdir {0}/project && chown {UID}:{UID} {0}/project",
        home.display()
    );
    assert_eq!(lab.shell(&made), "");
    let of = |listed: &str| {
        let policy = format!(
            "process: {{run_as_user: builder}}\nfilesystem_policy: {{read_write: \
             {listed}}}\nnetwork_policies: {{}}\n"
        );
        lab.sandbox(&policy).sh("echo $HOME").ok().to_owned()
    };
    let home = home.to_str().unwrap();
    assert_eq!(of(&format!("[{home}]")), home);
    assert_eq!(of(&format!("[{home}/project]")), home);
    assert_eq!(
        of("[]"),
        "/run/openshell/home",
        "out of sight, its own home is none"
    );
}

#[test]
fn a_home_that_others_may_write_to_is_none() {
    let lab = Lab::with_web();
    let shared = lab.folder("shared");
    let folder = shared.parent().unwrap().display();
    let made = format!(
        "chown 61191 {0}/shared && chmod 777 {0}/shared && ln -s {0}/shared {0}/link",
        folder
    );
    assert_eq!(lab.shell(&made), "");
    let passwd = lab.file("passwd", "");
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/passwd", passwd.display())),
        ""
    );
    let of = |home: &str, listed: &str| {
        let entries = format!("root:x:0:0::/root:/bin/sh\nbuilder:x:{UID}:{UID}::{home}:/bin/sh\n");
        std::fs::write(&passwd, entries).unwrap();
        let policy = format!(
            "process: {{run_as_user: builder}}\nfilesystem_policy: {{read_write: \
             [{listed}]}}\nnetwork_policies: {{}}\n"
        );
        lab.sandbox(&policy).sh("echo $HOME").ok().to_owned()
    };
    let link = format!("{folder}/link");
    let shared = shared.to_str().unwrap();
    for (home, listed) in [
        ("/tmp", ""),
        ("/dev/shm", ""),
        (shared, shared),
        (&link, shared),
        ("/var", "/var/tmp"),
    ] {
        assert_eq!(
            of(home, listed),
            "/run/openshell/home",
            "{home} with {listed}"
        );
    }
}
