//! Further commands in a running sandbox, and the list of those that run.

use lab::Lab;
use lab::host::UID;
use lab::sandbox::{Finished, Sandbox, Started};
use rustix::process::Signal;

use super::ssh::{PROBE, wait_for};

/// A running sandbox with a name.
struct Named<'l> {
    lab: &'l Lab,
    started: Started<'l>,
    /// Writable inside, and the working directory of commands.
    folder: String,
}

impl<'l> Named<'l> {
    fn start(lab: &'l Lab) -> Self {
        Self::of(lab, lab.sandbox(&super::policy("{}")), &["sleep", "600"])
    }

    fn of(lab: &'l Lab, sandbox: Sandbox<'l>, command: &[&str]) -> Self {
        let folder = lab.folder("work").display().to_string();
        let sandbox = sandbox.args(&[
            "--workdir",
            &folder,
            "--name",
            "box",
            "--log-level",
            "error",
        ]);
        let started = sandbox.start(command);
        wait_for(lab, "PROC:LAUNCH");
        Self {
            lab,
            started,
            folder,
        }
    }

    /// Runs a script on the host in which `sandbox` is the program, as the user who started the
    /// sandbox.
    fn shell(&self, script: &str) -> String {
        shell(self.lab, &format!("cd {}; {script}", self.folder))
    }

    fn end(self) -> Finished {
        self.started.signal(Signal::TERM);
        self.started.wait()
    }
}

fn shell(lab: &Lab, script: &str) -> String {
    lab.shell(&format!(
        "sandbox() {{ {} {} \"$@\"; }}; {script}",
        lab.as_caller(),
        lab.program_path().display()
    ))
}

#[test]
fn a_further_command_has_the_clients_streams_and_its_exit_code() {
    let lab = Lab::with_web();
    let sandbox = Named::start(&lab);
    let seen = sandbox.shell(
        "echo in | sandbox exec box -- sh -c 'cat; id -u; pwd; echo err >&2; exit 7'; echo $?; \
         sandbox exec box -e A='b c' -w / sh -c 'echo $A; pwd'; sandbox exec box nosuchprogram; \
         echo $?; sandbox exec box /etc/passwd; echo $?; sandbox exec box sh -c 'kill -9 $$'; echo \
         $?; sandbox exec box -w /root true; echo $?; sandbox exec box env TOKEN=hush true; echo x \
         > file; sandbox exec box cat < file > out; cat out; A=given sandbox exec -e A box env | \
         grep ^A=; head -c 30000000 /dev/urandom > big; sandbox exec box cat < big | cmp - big && \
         echo same",
    );
    let folder = &sandbox.folder;
    let refused = "openshell-sandbox: the command was not started: cannot enter the working \
                   directory: Permission denied (os error 13)";
    let not_found = "openshell-sandbox: command not found: nosuchprogram\n127";
    let not_executable = "openshell-sandbox: command cannot be executed: /etc/passwd: Permission \
                          denied (os error 13)\n126";
    assert_eq!(
        seen,
        format!(
            "in\n{UID}\n{folder}\nerr\n7\nb \
             c\n/\n{not_found}\n{not_executable}\n137\n{refused}\n1\nx\nA=given\nsame\n"
        )
    );
    let finished = sandbox.end();
    assert!(
        finished.log.contains("[cmd:env TOKEN=… true]") && !finished.log.contains("hush"),
        "{}",
        finished.log
    );
    let lines = finished.logged("SSH:");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("SSH:EXEC [INFO] ALLOWED pid:")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("[door:exec] [cmd:sh -c cat; id")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("SSH:CLOSE") && line.contains("[exit:7]")),
        "{lines:#?}"
    );
}

#[test]
fn a_further_command_is_confined_as_the_main_one() {
    let lab = Lab::with_web();
    let folder = lab.folder("work").display().to_string();
    std::fs::write(format!("{folder}/probe.py"), PROBE).unwrap();
    let main = format!("/usr/bin/python3 {folder}/probe.py > {folder}/main; sleep 600");
    let sandbox = Named::of(
        &lab,
        lab.sandbox(&super::policy("{}")),
        &["sh", "-c", &main],
    );
    let seen = sandbox.shell(
        "sandbox exec box -- sh -c '/usr/bin/python3 probe.py > pipes'; sandbox exec -t box -- sh \
         -c '/usr/bin/python3 probe.py > terminal' < /dev/null; until [ -s main ]; do sleep 0.05; \
         done; for way in pipes terminal; do diff main $way && echo $way is the same; done",
    );
    assert_eq!(seen, "pipes is the same\nterminal is the same\n");
    drop(sandbox.end());
}

#[test]
fn signals_that_the_starter_of_a_sandbox_ignores_reach_further_commands_and_not_the_main_one() {
    let lab = Lab::with_web();
    let folder = lab.folder("work").display().to_string();
    let policy = lab
        .file("policy.yaml", super::policy("{}"))
        .display()
        .to_string();
    let as_caller = lab.as_caller();
    let program = lab.program_path().display().to_string();
    // As nohup and a script's `&` have it: HUP, INT and QUIT are ignored.
    let seen = shell(
        &lab,
        &format!(
            "cd {folder}; trap '' HUP INT QUIT; {as_caller} {program} --policy-data {policy} \
             --workdir {folder} --name box -- sh -c 'grep SigIgn /proc/self/status > main; sleep \
             600' 2> /dev/null & until [ -s main ]; do sleep 0.05; done; trap - HUP INT QUIT; \
             sandbox exec box grep SigIgn /proc/self/status; cat main; kill $!; wait"
        ),
    );
    let mask =
        |line: &str| u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    let [further, main] = seen.lines().collect::<Vec<_>>()[..] else {
        panic!("{seen}")
    };
    // The C library keeps signals 32 and 33 to itself.
    assert_eq!(
        (mask(further) & 0x7fff_ffff, mask(main) & 0b111),
        (0, 0b111),
        "{seen}"
    );
}

#[test]
fn variables_that_run_other_code_or_lead_past_the_proxy_are_refused() {
    let lab = Lab::with_web();
    let sandbox = Named::start(&lab);
    for name in [
        "LD_PRELOAD",
        "BASH_ENV",
        "HTTPS_PROXY",
        "SSL_CERT_FILE",
        "OPENSHELL_X",
        "NODE_OPTIONS",
    ] {
        let seen = sandbox.shell(&format!(
            "sandbox exec box -e {name}=x -- echo ran; echo $?"
        ));
        assert!(
            seen.starts_with(&format!("openshell-sandbox: {name} may not be set")),
            "{seen}"
        );
        assert!(seen.ends_with("\n1\n") && !seen.contains("ran"), "{seen}");
    }
    drop(sandbox.end());
}

#[test]
fn a_further_command_on_a_terminal_has_size_job_control_and_interrupts() {
    let lab = Lab::with_web();
    let sandbox = Named::start(&lab);
    let client = "import os, pty, select, sys, fcntl, termios, struct
pid, fd = pty.fork()
if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])
seen = b''
def until(text):
    global seen
    while text not in seen:
        ready = select.select([fd], [], [], 60)[0]
        assert ready, seen
        seen += os.read(fd, 65536)
    seen = seen.split(text, 1)[1]
def size(rows, columns): fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
size(31, 97)
def run(line): os.write(fd, line + b'\\n')
run(b'PS1=pro\"\"mpt; stty size; bind \"set enable-bracketed-paste off\"'); until(b'31 97'); until(b'prompt')
for rows in range(40, 90): size(rows, 100)
run(b'until [ \"$(stty size)\" = \"89 100\" ]; do sleep 0.05; done; echo resi\"\"zed'); until(b'resized'); until(b'prompt')
run(b'sh -c \"echo run\\'\\'ning; exec sleep 600\"'); until(b'\\nrunning')
os.write(fd, b'\\x03'); until(b'prompt'); run(b'echo code $?'); until(b'code 130'); until(b'prompt')
run(b'sh -c \"echo run\\'\\'ning; exec cat\"'); until(b'\\nrunning')
os.write(fd, b'\\x1a'); until(b'Stopped'); until(b'prompt')
run(b'kill %1; wait; seq 200000; tty; exit 9'); until(b'200000'); until(b'/dev/pts/0')
while True:
    try:
        if not os.read(fd, 65536): break
    except OSError: break
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    let client = lab.file("client.py", client);
    let program = format!("{} {}", lab.as_caller(), lab.program_path().display());
    let seen = lab.shell(&format!(
        "export TERM=xterm; /usr/bin/python3 {} {program} exec box bash",
        client.display()
    ));
    assert_eq!(seen, "9\n");
    drop(sandbox.end());
}

#[test]
fn a_hundred_further_commands_run_at_once() {
    let lab = Lab::with_web();
    let sandbox = Named::start(&lab);
    let seen = sandbox.shell(
        "for i in $(seq 100); do (echo $i | sandbox exec box -- sh -c 'read i; : > up.$i; until [ \
         -e go ]; do sleep 0.1; done; echo $i') & done; until [ $(ls | grep -c ^up) = 100 ]; do \
         sleep 0.1; done; : > go; wait",
    );
    let mut numbers: Vec<u32> = seen.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
    drop(sandbox.end());
}

#[test]
fn signals_reach_a_further_command_and_the_end_of_its_client_ends_it() {
    let lab = Lab::with_web();
    let sandbox = Named::start(&lab);
    let program = format!("{} {}", lab.as_caller(), lab.program_path().display());
    let seen = sandbox.shell(&format!(
        "{program} exec box -- sh -c 'trap \"echo term; exit 3\" TERM; : > one; while :; do sleep \
         0.05; done' & client=$!; until [ -e one ]; do sleep 0.05; done; kill $client; wait \
         $client; echo $?; {program} exec box -- sh -c 'trap \": > hup; exit\" HUP; : > two; while \
         :; do sleep 0.05; done' & client=$!; until [ -e two ]; do sleep 0.05; done; kill -9 \
         $client; until [ -e hup ]; do sleep 0.05; done; echo hung up; {program} exec box -- sh -c \
         'trap \"\" HUP; echo $$ > deaf; while :; do sleep 0.05; done' & client=$!; until [ -s \
         deaf ]; do sleep 0.05; done; kill -9 $client; {program} exec box -- sh -c 'while kill -0 \
         $(cat deaf) 2>/dev/null; do sleep 0.1; done; echo the deaf one is gone'"
    ));
    let lines: Vec<_> = seen
        .lines()
        .filter(|line| !["Killed", "Terminated", "Hangup"].contains(line))
        .collect();
    assert_eq!(lines, ["term", "3", "hung up", "the deaf one is gone"]);
    drop(sandbox.end());
}

#[test]
fn names_are_unique_and_listed_and_a_kept_sandbox_stays_after_its_command() {
    let lab = Lab::with_web();
    let folder = lab.folder("work").display().to_string();
    let sandbox =
        lab.sandbox(&super::policy("{}"))
            .args(&["--keep", "--name", "kept", "--workdir", &folder]);
    let started = sandbox.start(&["true"]);
    wait_for(&lab, "PROC:TERMINATE");
    let twin = lab
        .sandbox(&super::policy("{}"))
        .args(&["--name", "kept"])
        .sh("echo ran");
    assert_eq!((twin.code(), twin.stdout.as_str()), (1, ""));
    assert!(
        twin.stderr.contains("a sandbox named kept runs already"),
        "{}",
        twin.stderr
    );
    let pid = started.pid();
    let seen = shell(
        &lab,
        &format!(
            "sandbox ps | tr -s ' ' | cut -d' ' -f1,2,4-; sandbox ps --json | grep -c \
             '\"name\":\"kept\"'; sandbox exec {pid} echo by pid; sandbox exec nosuch true; echo \
             $?; sandbox exec kept echo still here"
        ),
    );
    let expected = format!(
        "NAME PID POLICY CONNECTIONS COMMAND\nkept {pid} 1 0 true\n1\nby pid\n\
         openshell-sandbox: no sandbox nosuch runs; these run: kept\n1\nstill here\n"
    );
    assert_eq!(seen, expected);
    started.signal(Signal::TERM);
    assert_eq!(started.wait().code(), 0, "its command's");
    let again = lab
        .sandbox(&super::policy("{}"))
        .args(&["--name", "kept"])
        .sh("echo ran");
    assert_eq!(again.ok(), "ran");
    assert_eq!(
        shell(&lab, "sandbox ps"),
        "NAME  PID  AGE  POLICY  CONNECTIONS  COMMAND\n"
    );
}

#[test]
fn a_kept_sandbox_outlives_its_commands_time_out_and_ends_with_its_init() {
    let lab = Lab::with_web();
    let started = lab
        .sandbox(&super::policy("{}"))
        .args(&["--keep", "--timeout", "60"])
        .start(&["true"]);
    wait_for(&lab, "PROC:TERMINATE");
    let line = wait_for(&lab, "init is process");
    let init = line
        .split("init is process ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    assert_eq!(shell(&lab, &format!("kill -9 {init}")), "");
    let finished = started.wait();
    assert!(
        finished.code() != 0 && finished.stderr.contains("init ended"),
        "{finished:?}"
    );
}

#[test]
fn a_program_inside_enters_by_no_control_socket_and_poses_as_none() {
    let lab = Lab::with_web();
    let folder = lab.folder("run");
    // The most that a policy could give away: the run folder itself is refused, its parent is not.
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{}, /tmp]}}\n",
        super::policy("{}"),
        folder.display()
    );
    let program = folder.join("attacker.py");
    std::fs::write(
        &program,
        "import glob, os, socket, sys
folder = sys.argv[1]
for path in glob.glob(folder + '/openshell-*/control') + glob.glob('/run/**/control', recursive=True):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try: s.connect(path); s.send(b'\"Describe\"'); print('got', s.recv(100))
    except OSError as error: print('refused')
fake = folder + '/openshell-0123456789abcdef'
os.mkdir(fake)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(fake + '/control'); s.listen()
open(folder + '/fake', 'w').close()
s.settimeout(0.05)
while not os.path.exists(folder + '/done'):
    try: client, _ = s.accept()
    except OSError: continue
    if client.recv(100): print('posed')
",
    )
    .unwrap();
    let sandbox = lab.sandbox(&policy);
    let words = [
        "/usr/bin/python3",
        program.to_str().unwrap(),
        folder.to_str().unwrap(),
    ];
    let started = sandbox.start(&words);
    let seen = shell(
        &lab,
        &format!(
            "until [ -e {0}/fake ]; do sleep 0.05; done; sandbox ps --run-dir {0}; echo $?; \
             sandbox exec --run-dir {0} 1 true; echo $?; : > {0}/done",
            folder.display()
        ),
    );
    assert!(!seen.contains("posed"), "{seen}");
    let finished = started.wait();
    assert!(
        !finished.stdout.contains("got") && !finished.stdout.contains("Exec"),
        "{finished:?}"
    );
}

#[test]
fn a_command_cannot_put_certificates_of_its_own_before_another() {
    let lab = Lab::with_web();
    // In the sandbox's own /tmp the folders above are the command's.
    let place = tempfile::Builder::new()
        .prefix("lab-run-")
        .tempdir_in("/tmp")
        .unwrap();
    let run_dir = place.path().display().to_string();
    assert_eq!(
        lab.shell(&format!("chown {} {run_dir}", lab::host::caller())),
        ""
    );
    let forge = "T=$(dirname $SSL_CERT_FILE); mv $(dirname $T) $(dirname $T).old; mkdir -p $T; \
                 echo false > $SSL_CERT_FILE; chmod 0 $T; touch forged; exec sleep 600";
    let sandbox = Named::of(
        &lab,
        lab.sandbox(&super::policy("{}"))
            .args(&["--run-dir", &run_dir]),
        &["sh", "-c", forge],
    );
    let seen = sandbox.shell(&format!(
        "until [ -e forged ]; do sleep 0.05; done; sandbox exec --run-dir {run_dir} box sh -c \
         'grep -c BEGIN $SSL_CERT_FILE' | grep -c '[1-9]'"
    ));
    assert_eq!(seen, "1\n");
    sandbox.end();
    assert_eq!(lab.shell(&format!("ls {run_dir}")), "");
}

#[test]
fn a_name_leads_to_the_sandbox_that_answers_to_it() {
    let lab = Lab::with_web();
    let place = tempfile::Builder::new()
        .prefix("lab-run-")
        .tempdir_in("/tmp")
        .unwrap();
    let run_dir = place.path().display().to_string();
    assert_eq!(
        lab.shell(&format!("chown {} {run_dir}", lab::host::caller())),
        ""
    );
    let named = |name: &str| {
        let which = format!("WHICH={name}");
        let sandbox = lab.sandbox(&super::policy("{}"));
        sandbox
            .args(&["--run-dir", &run_dir, "--name", name, "--env", &which])
            .start(&["sleep", "600"])
    };
    let sandboxes = [named("good"), named("evil")];
    // As a sandbox whose policy grants the folder of the names could.
    let seen = shell(
        &lab,
        &format!(
            "until [ $(sandbox ps --run-dir {run_dir} | grep -c sleep) = 2 ]; do :; done; cat \
             {run_dir}/openshell-name-*-evil > {run_dir}/openshell-name-*-good; sandbox exec \
             --run-dir {run_dir} good printenv WHICH; sandbox exec --run-dir {run_dir} evil \
             printenv WHICH"
        ),
    );
    assert_eq!(seen, "good\nevil\n");
    for sandbox in sandboxes {
        sandbox.signal(Signal::TERM);
        let _ended = sandbox.wait();
    }
}

#[test]
fn names_of_files_inside_neither_act_on_the_terminal_of_a_copy_nor_begin_a_line() {
    let lab = Lab::with_web();
    let sandbox = Named::start(&lab);
    let out = lab.folder("out").display().to_string();
    let seen = sandbox.shell(&format!(
        "sandbox exec box -- sh -c 'mkdir odd; N=$(printf \
         \"a\\033]52;c;eA\\007\\nopenshell-sandbox: forged\"); mkfifo \"odd/$N\"; ln -s /etc \
         \"odd/$N.link\"'; cd {out}; sandbox cp box:odd . 2>&1; sandbox cp \"box:$(printf \
         'x\\033y')\" . 2>&1"
    ));
    assert_eq!(
        seen.lines()
            .filter(|line| line.starts_with("openshell-sandbox: "))
            .count(),
        3,
        "{seen}"
    );
    assert_eq!(seen.matches("\\u{1b}").count(), 3, "{seen}");
    assert!(!seen.contains(['\u{1b}', '\u{7}']), "{seen}");
}

#[test]
fn copies_go_in_and_out_and_bring_out_nothing_that_leaves_them_or_runs_by_itself() {
    let lab = Lab::with_web();
    let sandbox = Named::start(&lab);
    let out = lab.folder("out").display().to_string();
    let seen = sandbox.shell(&format!(
        "sandbox exec box -- sh -c 'mkdir -p tree/.git/hooks tree/deep/er; echo x > \
         tree/deep/er/file; ln -s deep/er/file tree/inside; ln -s /etc/passwd tree/absolute; ln -s \
         ../../../etc tree/up; ln -s deep/../../.. tree/sly; mkfifo tree/fifo; printf \
         \"#!/bin/sh\\n\" > tree/.git/hooks/post-checkout; chmod 4755 \
         tree/.git/hooks/post-checkout; cp /bin/true tree/tool; chmod 6755 tree/tool; echo secret \
         > tree/closed; chmod 0 tree/closed; head -c 20000000 /dev/urandom > big'; cd {out}; \
         sandbox cp box:tree .; echo $?; cat tree/inside; ls tree | tr '\\n' ' '; stat -c %a \
         tree/tool; ls -A tree/.git; sandbox cp box:big small; cmp small ../work/big && echo same; \
         ln -s ../victim bait; sandbox cp box:tree/inside bait 2>/dev/null; sandbox cp --git-hooks \
         box:tree/.git hooked; ls hooked/hooks; sandbox cp box:nosuch .; echo $?; sandbox cp \
         box:/root/x .; echo $?; sandbox cp nosuch box:; echo $?; mkdir in; echo y > in/y; ln -s y \
         in/z; sandbox cp in box:came; sandbox exec box cat came/z; sandbox exec box stat -c %u:%a \
         came/y; sandbox cp in/y box:/usr/y; echo $?; sandbox cp in/y box:; sandbox exec box cat \
         y; ls ../victim"
    ));
    let expected = [
        "openshell-sandbox: inside: left out tree/closed: Permission denied (os error 13)",
        "openshell-sandbox: inside: left out tree/fifo: it is a FIFO",
        "openshell-sandbox: left out tree/.git/hooks/post-checkout: git would run it; copy it \
         with --git-hooks",
        "openshell-sandbox: left out tree/absolute: the link leads out of the copy",
        "openshell-sandbox: left out tree/sly: the link leads out of the copy",
        "openshell-sandbox: left out tree/up: the link leads out of the copy",
        "1",
        "x",
        "deep inside tool 755",
        "same",
        "post-checkout",
        "openshell-sandbox: cannot read nosuch: No such file or directory (os error 2)",
        "1",
        "openshell-sandbox: cannot read /root/x: No such file or directory (os error 2)",
        "1",
        "openshell-sandbox: cannot read nosuch: No such file or directory (os error 2)",
        "1",
        "y",
        &format!("{UID}:644"),
        "openshell-sandbox: inside: left out y: Permission denied (os error 13)",
        "1",
        "y",
        "ls: cannot access '../victim': No such file or directory",
    ];
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
    drop(sandbox.end());
}
