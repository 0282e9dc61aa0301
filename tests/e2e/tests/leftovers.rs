//! No leftovers of a sandbox: no process, namespace, link, mount or file.

use lab::Lab;
use lab::host::UID;
use rustix::process::Signal;

/// Returns the state of the host that a sandbox can leave behind.
fn state(lab: &Lab) -> String {
    let settings = "sysctl net 2>/dev/null | grep -v -e '_count =' -e 'netfilter.nf_conntrack' -e \
                    'fib_sync_mem' -e 'tcp_fastopen_key'";
    lab.shell(&format!(
        "ip -d link; ip addr; ip route show table all; ip -6 route show table all; nft list \
         ruleset; ls -A /run/openshell 2>/dev/null; grep -c . /proc/self/mountinfo; ls \
         /tmp/openshell 2>/dev/null; {settings}"
    ))
}

/// Waits until the host is in its former state.
#[track_caller]
fn as_before(lab: &Lab, before: &str) {
    let otherwise = || format!("before:\n{before}\nnow:\n{}", state(lab));
    lab::wait_until(|| state(lab) == before, otherwise);
}

// Conformance: NET-08.
#[test]
fn a_sandbox_that_ended_leaves_nothing() {
    let lab = Lab::with_web();
    let before = state(&lab);
    let finished = lab
        .sandbox(&super::policy("{}"))
        .sh("setsid sleep 602 & (sleep 603 &) ; exit 3");
    assert_eq!(finished.code(), 3);
    assert_eq!(lab.shell("ps -eo args | grep '[s]leep 60[23]'"), "");
    as_before(&lab, &before);
}

// Conformance: NET-08.
#[test]
fn a_start_that_failed_leaves_nothing() {
    let lab = Lab::with_web();
    let before = state(&lab);
    assert_eq!(
        lab.sandbox(&super::policy("{}"))
            .run(&["no-such-command"])
            .code(),
        127
    );
    as_before(&lab, &before);
    // A step that fails when the network is there: the folder of the observation is none.
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--observe", "/dev/null/observed.yaml"])
        .sh("echo ran");
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (1, ""),
        "{finished:?}"
    );
    as_before(&lab, &before);
}

#[test]
fn a_supervisor_that_is_killed_takes_everything_with_it() {
    let lab = Lab::with_web();
    let before = state(&lab);
    let folder = lab.folder("ready");
    let script = "setsid sleep 604 & (trap '' TERM HUP INT; touch ready; sleep 605)";
    let started = lab
        .sandbox(&super::policy("{}"))
        .args(&["--workdir", folder.to_str().unwrap()])
        .start(&["sh", "-c", script]);
    lab::wait_until(
        || folder.join("ready").exists(),
        || "the command did not start".to_owned(),
    );
    started.signal(Signal::KILL);
    drop(started);
    lab::wait_until(
        || lab.shell("ps -eo args | grep '[s]leep 60[45]'").is_empty(),
        || "a process outlived its supervisor".to_owned(),
    );
    // The next start removes its folder; the kernel removes the rest.
    assert_eq!(lab.sandbox(&super::policy("{}")).sh("true").code(), 0);
    as_before(&lab, &before);
}

#[test]
fn several_on_one_host_are_apart() {
    let lab = Lab::with_web();
    let before = state(&lab);
    // Each listens on all addresses of its own, tries those of the others, which are the same, and
    // finds itself alone.
    let program = "
import os, socket
own = socket.create_server(('', 8000))
print(os.environ['HTTPS_PROXY'])
for address in ('10.200.0.2', '10.200.0.1'):
    try:
        s = socket.create_connection((address, 8000), 5); s.sendall(str(os.getpid()).encode())
        print('reached', own.accept()[0].recv(10) == str(os.getpid()).encode())
    except ConnectionRefusedError: print('refused')
input()
";
    let started: Vec<_> = (0..3)
        .map(|_| {
            lab.sandbox(&super::policy("{}")).input(b"x\n").start(&[
                "/usr/bin/python3",
                "-c",
                program,
            ])
        })
        .collect();
    for sandbox in started {
        assert_eq!(
            sandbox.wait().ok(),
            "http://10.200.0.1:3128\nreached True\nrefused"
        );
    }
    as_before(&lab, &before);
}

/// A container that cannot mount a new /proc: a user namespace whose /proc is masked from outside.
const MASKED: &str = r#"
mount -t tmpfs mask /proc/fs; mkfifo $DIR/go
unshare -Umn --propagation private sh -c 'read _ < $DIR/go; mount -t tmpfs x /run; mount -t tmpfs x /var/log; ip link set lo up; exec "$@"' sh "$@" &
while [ "$(readlink /proc/$!/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do :; done
echo '0 0 70000' > /proc/$!/uid_map; echo '0 0 70000' > /proc/$!/gid_map; echo > $DIR/go
wait $!; echo "exit $?"
"#;

#[test]
fn without_a_proc_of_its_own_a_sandbox_says_so_and_still_leaves_nothing() {
    let lab = Lab::with_web();
    let folder = lab.folder("masked");
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let script = lab.file("masked.sh", MASKED);
    let command = format!(
        "DIR={} sh {} {} --policy-data {} -- sh -c '(setsid sleep 606 &); sleep 607 & id -u; cat \
         /proc/$PPID/environ; curl -s -o /dev/null -w %{{http_connect}} https://web.test:8080; \
         exit 4'",
        folder.display(),
        script.display(),
        lab.binary(),
        policy.display()
    );
    let printed = lab.shell(&command);
    for expected in [
        "shares the supervisor's PID namespace",
        "61184\n",
        "403",
        "exit 4",
    ] {
        assert!(printed.contains(expected), "no {expected:?} in {printed}");
    }
    assert_eq!(lab.shell("ps -eo args | grep '[s]leep 60[67]'"), "");
}

/// Runs the sandbox given as arguments 200 times, `argv[1]` at a time; kills every `argv[2]`-th one
/// at a random moment, none if that is 0. Prints the exit codes of the others.
const MANY: &str = "
import random, subprocess, sys, time
at_a_time, kill, *command = sys.argv[1:]
kill = int(kill)
codes = set()
def wait(one, killed):
    if not killed: codes.add(one.wait())
    else: one.wait()
running = []
for n in range(200):
    one = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed = kill and n % kill == 0
    if killed:
        time.sleep(random.random() * 0.05)
        one.kill()
    running.append((one, killed))
    if len(running) == int(at_a_time): wait(*running.pop(0))
for one in running: wait(*one)
print(*codes)
";

/// Runs two hundred sandboxes on a host, and checks its state afterwards.
fn many(at_a_time: u32, kill: u32, mark: u32) {
    let lab = Lab::with_web();
    let before = state(&lab);
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let driver = lab.file("many.py", MANY);
    let command = format!(
        "/usr/bin/python3 {} {at_a_time} {kill} {} --policy-data {} -- sh -c 'setsid sleep {mark} \
         & sleep 0.02; exit 3'",
        driver.display(),
        lab.binary(),
        policy.display()
    );
    assert_eq!(lab.shell(&command).trim(), if kill == 1 { "" } else { "3" });
    // The next start removes the folders of killed supervisors in the run directory.
    assert_eq!(lab.sandbox(&super::policy("{}")).sh("true").code(), 0);
    let left = format!("ps -eo args | grep '^sleep {mark}'");
    lab::wait_until(
        || lab.shell(&left).is_empty(),
        || "a process outlived its supervisor".to_owned(),
    );
    as_before(&lab, &before);
}

#[test]
fn two_hundred_runs_killed_at_any_moment_leave_the_host_as_it_was() {
    many(5, 1, 608);
}

#[test]
fn two_hundred_runs_in_sequence_leave_the_host_as_it_was() {
    many(1, 0, 609);
}

#[test]
fn twenty_sandboxes_at_a_time_leave_the_host_as_it_was() {
    many(20, 2, 610);
}

/// Holds the lock of the host's network namespace as an unprivileged user, and reports it.
const HOLDER: &str = "
import fcntl, os, time
os.setuid(65534)
fcntl.flock(os.open('/proc/self/ns/net', os.O_RDONLY), fcntl.LOCK_EX)
print('held', flush=True)
time.sleep(600)
";

#[test]
fn a_process_that_locks_the_network_namespace_holds_up_no_start() {
    let lab = Lab::with_web();
    let _holder = lab.program(&["/usr/bin/python3", "-c", HOLDER]);
    let finished = lab.sandbox(&super::policy("{}")).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
}

/// Holds locks on the folders in `argv[1:]` as an unprivileged user.
const LOCKER: &str = "
import fcntl, os, sys, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = [os.open(folder, os.O_RDONLY) for folder in sys.argv[1:]]
for folder in held: fcntl.flock(folder, fcntl.LOCK_EX)
print('locked', flush=True)
time.sleep(600)
";

#[test]
fn a_folder_that_a_process_of_another_user_locks_holds_up_no_start_and_no_end() {
    let lab = Lab::with_web();
    let folder = lab.folder("host").display().to_string();
    let caller = lab::host::caller();
    assert_eq!(
        lab.shell(&format!(
            "mkdir {folder}/tls; mkdir -m 755 /run/place; chown {caller} {folder} /run/place; \
             chmod 755 {folder}"
        )),
        ""
    );
    let _holder = lab.program(&[
        "/usr/bin/python3",
        "-c",
        LOCKER,
        "/run/place",
        &format!("{folder}/tls"),
    ]);
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{folder}/new]}}\n",
        super::policy("{}")
    );
    let tls = format!("{folder}/tls");
    let finished = lab
        .sandbox(&policy)
        .args(&["--run-dir", "/run/place", "--tls-dir", &tls])
        .sh("ls $SSL_CERT_FILE");
    assert_eq!(finished.ok(), format!("{tls}/ca-bundle.pem"));
    assert_eq!(finished.logged("CONFIG:LEFT"), Vec::<&str>::new());
    assert_eq!(
        lab.shell(&format!("ls -A {folder} /run/place")),
        format!("/run/place:\n\n{folder}:\ntls\n")
    );
}

#[test]
fn folders_that_a_start_made_end_with_it_where_they_are_empty_and_are_named_where_not() {
    let lab = Lab::with_web();
    let folder = lab.folder("host");
    let path = folder.display();
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{path}/new/deep, {path}/there]}}\n",
        super::policy("{}")
    );
    std::fs::create_dir(folder.join("there")).unwrap();
    let tls = format!("{path}/tls/deep");
    let run = |script: &str| lab.sandbox(&policy).args(&["--tls-dir", &tls]).sh(script);
    assert_eq!(
        run(&format!("ls -d {path}/new/deep && echo $SSL_CERT_FILE")).ok(),
        format!("{path}/new/deep\n{tls}/ca-bundle.pem")
    );
    assert_eq!(
        lab.shell(&format!("ls {path}")),
        "there\n",
        "what was there stays, empty or not"
    );
    let left = run(&format!("touch {path}/new/deep/file"));
    assert_eq!(
        lab.shell(&format!("ls {path}; ls {path}/new/deep")),
        "new\nthere\nfile\n"
    );
    for name in ["new/deep", "new"] {
        assert_eq!(
            left.logged(&format!(
                "CONFIG:LEFT [INFO] left {path}/{name}, which the start made"
            ))
            .len(),
            1,
            "{}",
            left.log
        );
    }
    assert_eq!(lab.shell(&format!("rm -r {path}/new")), "");
    assert_eq!(
        lab.sandbox(&policy)
            .args(&["--tls-dir", &tls])
            .run(&["no-such-command"])
            .code(),
        127
    );
    assert_eq!(
        lab.shell(&format!("ls {path}")),
        "there\n",
        "a command that never ran leaves no folder either"
    );
}

#[test]
fn a_folder_that_one_sandbox_made_stays_while_another_uses_it() {
    let lab = Lab::with_web();
    let folder = lab.folder("host");
    let path = folder.display();
    let tls = format!("{path}/tls");
    let signs = lab.folder("signs");
    std::os::unix::fs::chown(&signs, Some(UID), None).unwrap();
    let signs = signs.display();
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{path}/shared, {signs}]}}\n",
        super::policy("{}")
    );
    let begin = |name: &str| {
        let started = lab.sandbox(&policy).args(&["--tls-dir", &tls]).start(&[
            "sh",
            "-c",
            &format!(
                "touch {signs}/{name}; while ! rm {signs}/{name}-go 2>/dev/null; do sleep \
                      0.01; done; openssl x509 -noout -in {tls}/openshell-ca.pem && echo x > \
                      {path}/shared/file && rm {path}/shared/file && echo used"
            ),
        ]);
        let sign = format!("{signs}/{name}");
        lab::wait_until(
            || std::fs::remove_file(&sign).is_ok(),
            || "the command did not start".to_owned(),
        );
        started
    };
    let names = ["one", "two"];
    let started = names.map(begin);
    for (name, started) in names.into_iter().zip(started) {
        // The folder is the command's, so that it may remove what is not.
        std::fs::write(format!("{signs}/{name}-go"), "").unwrap();
        assert_eq!(started.wait().ok(), "used");
    }
}

/// Forges the record of what the sandbox with the run directories `runs` has made: in it, and in
/// one that takes its place.
const FORGER: &str = r"
import os, sys
runs, victim = sys.argv[1:3]
data = os.stat(victim + '/kept')
entry = '%d:%d:%d:%d.%d:%s/kept' % (data.st_dev, data.st_ino, data.st_size, data.st_mtime_ns // 10**9, data.st_mtime_ns % 10**9, victim)
record = entry.encode() + b'\0'
[name] = [name for name in os.listdir(runs) if name.startswith('openshell-')]
open(f'{runs}/{name}/made', 'ab').write(record)
if len(sys.argv) > 3:
    os.rename(runs, runs + '.old')
    os.makedirs(f'{runs}/{name}')
    open(f'{runs}/{name}/lock', 'w')
    open(f'{runs}/{name}/made', 'wb').write(record + f'{victim}/empty'.encode() + b'\0')
    os.symlink(victim, f'{runs}/{name}/link')
";

#[test]
fn a_forged_record_of_what_was_made_removes_no_file() {
    for (replaced, and_then) in [
        ("", "--workdir . -- true"),
        ("replaced", "--version > /dev/null"),
    ] {
        let lab = Lab::with_web();
        let folder = lab.folder("place").display().to_string();
        let caller = lab::host::caller();
        let rest = format!(
            "filesystem_policy: {{read_write: [{folder}/made], hidden: [{folder}/made/missing]}}\n"
        );
        let policy = lab
            .file("policy.yaml", format!("{}{rest}", super::policy("{}")))
            .display()
            .to_string();
        let forger = lab.file("forger.py", FORGER).display().to_string();
        let printed = lab.shell(&format!(
            "cd {folder}; mkdir -p runs victim/empty made; echo kept > victim/kept; chown -R \
             {caller} runs victim; chown {UID} made; chmod 755 runs; mkfifo in; {binary} -p \
             {policy} --run-dir {folder}/runs --workdir {folder}/made -- sh -c 'read line' < in & \
             exec 3> in; until [ -S runs/openshell-*/control ]; do sleep 0.05; done; python3 \
             {forger} {folder}/runs {folder}/victim {replaced}; echo > in; wait; cd made; {binary} \
             -p {policy} --run-dir {folder}/runs {and_then}; cd ..; cat victim/kept; ls victim \
             made; ls runs.old 2>/dev/null",
            binary = lab.binary()
        ));
        assert_eq!(
            printed, "kept\nmade:\n\nvictim:\nempty\nkept\n",
            "{replaced}"
        );
    }
}

#[test]
fn the_files_that_a_sandbox_is_shown_are_on_no_disk_of_the_host() {
    let lab = Lab::with_web();
    let folder = lab.folder("run").display().to_string();
    let caller = lab::host::caller();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let printed = lab.shell(&format!(
        "chown {caller} {folder}; chmod 755 {folder}; cd /tmp; mkfifo {folder}/in; {} -p {policy} \
         --run-dir {folder} -- sh -c 'stat -fc %T $SSL_CERT_FILE /etc/resolv.conf; read line' < \
         {folder}/in > {folder}/out & exec 3> {folder}/in; until grep -qs tmpfs {folder}/out; do \
         sleep 0.05; done; ls {folder}/openshell-* | grep -v made; echo > {folder}/in; wait; cat \
         {folder}/out; ls {folder}",
        lab.binary()
    ));
    assert_eq!(printed, "control\nlock\nuses\ntmpfs\ntmpfs\nin\nout\n");
}

#[test]
fn a_full_disk_at_the_start_is_an_error_of_one_line_and_leaves_nothing() {
    let lab = Lab::with_web();
    let folder = lab.folder("full").display().to_string();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let uid = lab::host::caller();
    for flags in ["--run-dir {}", "--ca-dir {}/ca"].map(|flags| flags.replace("{}", &folder)) {
        let printed = lab.shell(&format!(
            "mount -t tmpfs -o size=16k,mode=700,uid={uid},gid={uid} none {folder}; \
             dd if=/dev/zero of={folder}/fill bs=4k count=100 status=none 2>/dev/null; \
             {} -p {policy} {flags} -- echo ran; echo $?; find {folder} -type f; umount {folder}",
            lab.binary()
        ));
        let lines: Vec<_> = printed.lines().collect();
        let [error, "1", fill] = lines[..] else {
            panic!("{flags}: {printed}")
        };
        let flag = flags.split(' ').next().unwrap();
        assert!(
            error.contains(flag) && error.contains("No space left on device"),
            "{flags}: {error}"
        );
        assert!(fill.ends_with("/fill"), "{flags}: {printed}");
    }
}

#[test]
fn a_limit_of_file_sizes_is_said_and_leaves_nothing() {
    let lab = Lab::with_web();
    let folder = lab.folder("limited").display().to_string();
    let caller = lab::host::caller();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let printed = lab.shell(&format!(
        "chown {caller} {folder}; chmod 700 {folder}; ulimit -f 1; {} -p {policy} --run-dir \
         {folder} -- echo ran; echo $?; ls {folder}",
        lab.binary()
    ));
    // What is too large depends on the host: a start goes on without certificates, and not without
    // a file of ssh's.
    let end = printed.lines().last().unwrap_or_default();
    assert!(
        printed.contains("File too large") && ["0", "1"].contains(&end),
        "{printed}"
    );
    assert_eq!(printed.contains("\nran\n"), end == "0", "{printed}");
}

#[test]
fn root_makes_its_own_files_behind_no_link_that_a_command_left() {
    let lab = Lab::with_web();
    let folder = lab.folder("project").display().to_string();
    let elsewhere = lab.folder("elsewhere").display().to_string();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let caller = lab::host::caller();
    let plant = format!(
        "chown {caller} {elsewhere}; ln -s {elsewhere} {folder}/link; chown -h {UID} {folder}/link \
         {folder}; chmod 755 {folder} {elsewhere}"
    );
    assert_eq!(lab.shell(&plant), "");
    let is_root = lab::host::tier() == lab::host::Tier::Root;
    let flags = [
        "--run-dir {}/run",
        "--ca-dir {}/ca",
        "--health-socket {}/deep/door",
        "--log-to both --log-dir {}",
    ];
    for flags in flags.map(|flags| flags.replace("{}", &format!("{folder}/link"))) {
        let printed = lab.shell(&format!(
            "cd /; {} -p {policy} {flags} -- echo ran 2>&1; ls -A {elsewhere}",
            lab.binary()
        ));
        if is_root {
            assert!(
                printed.contains("link is a symlink that users other than root can change"),
                "{flags}: {printed}"
            );
            assert_eq!(lab.shell(&format!("ls -A {elsewhere}")), "", "{flags}");
            // Without a log file lines go to standard error, and nothing else is missing.
            assert_eq!(
                printed.contains("ran\n"),
                flags.contains("--log-dir"),
                "{flags}: {printed}"
            );
        } else {
            assert!(printed.contains("ran\n"), "{flags}: {printed}");
        }
    }
}
