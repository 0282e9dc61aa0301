//! A command with the terminal: in its foreground, stopped, continued and ended.

use lab::Lab;
use lab::host::Tier;

/// Drives a shell on a new terminal: types each `send:` line, waits until each `expect:` text is shown, and
/// prints `ok`, or the text shown instead. `until:` waits too; a following `absent:`
/// applies to the output before its text.
const DRIVER: &str = r#"
import os, pty, select, sys, time
steps = open(sys.argv[1]).read().splitlines()
pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(PS1='$ ', PATH='/usr/bin:/bin:/usr/sbin:/sbin')
    os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])
shown = ''
for step in steps:
    kind, text = step.split(':', 1)
    if kind == 'send':
        os.write(terminal, text.encode().decode('unicode_escape').encode())
        continue
    if kind == 'absent':
        if text in before: sys.exit(f'{text!r} in {before!r}')
        continue
    deadline = time.monotonic() + 60
    while text not in shown:
        if time.monotonic() > deadline: sys.exit(f'no {text!r} in {shown!r}')
        if not select.select([terminal], [], [], 1)[0]: continue
        try: shown += os.read(terminal, 4096).decode(errors='replace')
        except OSError: sys.exit(f'ended before {text!r}: {shown!r}')
    before, after = shown.split(text, 1)
    if kind == 'expect': shown = after
print('ok')
"#;

/// Runs `steps` on a terminal; `BOX` stands for the binary under an empty policy.
#[track_caller]
fn on_terminal(steps: &[&str]) {
    on_terminal_of(&Lab::with_web(), steps);
}

/// The same on `lab`.
#[track_caller]
fn on_terminal_of(lab: &Lab, steps: &[&str]) {
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let sandbox = format!("{} --policy-data {}", lab.program_path().display(), policy.display());
    let driver = lab.file("driver.py", DRIVER);
    let steps = lab.file("steps", steps.join("\n").replace("BOX", &sandbox));
    assert_eq!(
        lab.shell(&format!("{} /usr/bin/python3 {} {}", lab.as_caller(), driver.display(), steps.display())),
        "ok\n"
    );
}

#[test]
fn a_command_that_stops_itself_does_not_outlive_its_time() {
    on_terminal(&[
        r"send:BOX -t 1 --grace 0 -- sh -c 'sleep 611 & kill -STOP $$'\n",
        "expect:Stopped",
        r"send:while ps -eo args | grep -q '^sleep 61''1'; do sleep 0.1; done; fg; echo RC=$((0+$?))\n",
        "expect:RC=124",
    ]);
}

#[test]
fn a_command_that_nobody_could_continue_is_not_left_stopped() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let sandbox = format!("{} --policy-data {}", lab.binary(), policy.display());
    // Neither the terminal's first program nor a shell without job control (dash stays as the parent, bash does not).
    for shell in ["/bin/bash", "/bin/dash"] {
        // Also if the session leader has no number: in a PID namespace created for a child.
        for namespace in ["", "unshare --pid --fork --mount-proc --kill-child"] {
            let shown = lab.shell(&format!(
                "SHELL={shell} {namespace} script -qec \"{sandbox} -- sh -c 'kill -STOP \\$\\$; echo went on; exit 3'\" /dev/null; echo $?"
            ));
            assert_eq!(shown.replace('\r', ""), "went on\n3\n", "under {namespace} {shell}");
        }
    }
}

/// Returns the words that run a program in a new PID namespace.
fn pid_namespace() -> &'static str {
    match lab::host::tier() {
        Tier::Root => "unshare --pid --fork --mount-proc --kill-child",
        Tier::Rootless => "unshare --user --map-current-user --pid --fork --mount-proc --kill-child",
    }
}

#[test]
fn a_terminal_whose_job_began_outside_of_the_pid_namespace_serves_the_command() {
    on_terminal(&[
        &format!(
            r#"send:{} BOX --interactive -- sh -c 'printf UP; read a && echo GOT""$a; kill -STOP $$; echo we""nt'\n"#,
            pid_namespace()
        ),
        "expect:UP",
        r"send:one\n",
        "expect:GOTone",
        "expect:went",
        // What is typed before the command has ended is the command's.
        "expect:$ ",
        r"send:echo RC=$((0+$?))\n",
        "expect:RC=0",
    ]);
}

#[test]
fn a_shell_without_job_control_leaves_a_stop_to_the_one_with() {
    on_terminal(&[
        r#"send:sh -c "BOX -- sh -c 'kill -STOP \\$\\$; printf we%s nt; exit 3'; exit \\$?"\n"#,
        "expect:Stopped",
        r"send:fg\n",
        "expect:went",
        r"send:echo RC=$((0+$?))\n",
        "expect:RC=3",
    ]);
}

#[test]
fn the_terminal_is_given_back_as_it_was() {
    on_terminal(&[
        "send:stty -a > before; BOX -- sh -c 'stty raw -echo'; stty -a > after; cmp before after && echo SA''ME; rm before after\\n",
        "expect:SAME",
    ]);
}

/// A command that reports each interrupt and each line read.
const LISTENER: &str =
    r#"send:BOX --grace 1 -- sh -c 'trap "echo IN""TR" INT; echo UP""1; while :; do read a && echo GOT""$a; done'\n"#;

#[test]
fn an_interrupt_reaches_the_command_alone_and_its_exit_code_the_shell() {
    on_terminal(&[
        LISTENER,
        "expect:UP1",
        r"send:\x03",
        "expect:INTR",
        r"send:one\n",
        "expect:GOTone",
        r"send:\x1a",
        "expect:Stopped",
        r"send:kill -9 %1; wait %1; echo DO''NE\n",
        "expect:DONE",
    ]);
    on_terminal(&[r"send:BOX -- sh -c 'exit 9'; echo RC=$((0+$?))\n", "expect:RC=9"]);
}

#[test]
fn a_stopped_command_goes_on_in_the_foreground_and_after_the_background() {
    on_terminal(&[
        LISTENER,
        "expect:UP1",
        r"send:\x1a",
        "expect:Stopped",
        r"send:fg\n",
        "expect:BOX",
        r"send:two\n",
        "expect:GOTtwo",
        r"send:\x1a",
        "expect:Stopped",
        // Its read in the background makes the terminal stop it, and the supervisor with it.
        r"send:bg; while jobs | grep -q Running; do :; done; echo B''G\n",
        "expect:BG",
        r"send:fg\n",
        "expect:BOX",
        r"send:three\n",
        "expect:GOTthree",
        r"send:\x03",
        "expect:INTR",
    ]);
}

#[test]
fn a_command_that_could_not_start_leaves_the_terminal_to_the_shell() {
    on_terminal(&[
        r#"send:sh -c 'BOX -- /no/such; read a; echo RE""AD $a'\n"#,
        "expect:command not found",
        r"send:four\n",
        "expect:READ four",
    ]);
}

#[test]
fn in_the_background_the_terminal_is_not_taken() {
    on_terminal(&[
        r"send:BOX -- sleep 30 &\n",
        r"send:read b; echo RE''AD $b\n",
        r"send:five\n",
        "expect:READ five",
        r"send:kill %1; wait; echo EN''D\n",
        "expect:END",
    ]);
}

/// Runs `steps` on a terminal with `command`, a shell script, in a sandbox, and beside it `helper`, a shell script on the host with
/// the supervisor's number in `SUPERVISOR`. It starts when the command has created `ready`, and creates `go` at its end.
#[track_caller]
fn with_helper(helper: &str, command: &str, steps: &[&str]) {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let policy = lab.file("reloaded.yaml", super::policy("{}"));
    let work = work.display();
    let helper = helper.replace("LOGS", &lab.logs());
    let helper =
        helper.replace("SUPERVISOR", &format!("$(cat {work}/pid)")).replace("POLICY", policy.to_str().unwrap());
    let helper = format!("until test -e {work}/ready; do :; done\n{helper}\ntouch {work}/go\n");
    let helper = lab.file("helper.sh", helper);
    let start = lab.file(
        "start.sh",
        format!(
            "timeout --kill-after=1 100 sh {} & echo $$ > {work}/pid; exec {} --policy-data {} --workdir {work} -- sh {}",
            helper.display(),
            lab.program_path().display(),
            policy.display(),
            lab.file("work/command.sh", command).display(),
        ),
    );
    let start = format!(r"send:sh {}; echo RC=$((0+$?))\n", start.display());
    on_terminal_of(&lab, &[&[start.as_str()], steps].concat());
}

/// Waits until the log has `$2` lines with `$1`.
const LOGGED: &str = r#"logged() { until test "$(cat LOGS | grep -c "$1")" -ge "$2"; do :; done; }"#;

#[test]
fn a_hang_up_that_was_sent_reloads_the_policy_of_an_interactive_command() {
    let helper = format!("{LOGGED}\nkill -HUP SUPERVISOR\nlogged 'Policy reloaded successfully' 1");
    let command = "trap 'exit 7' HUP; touch ready; until test -e go; do :; done; echo DO''NE; exit 3";
    with_helper(&helper, command, &["expect:DONE", "expect:RC=3"]);
}

#[test]
fn a_terminal_that_hangs_up_ends_its_command() {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let program = "
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0: os.execv(sys.argv[1], sys.argv[1:])
shown = b''
while b'UP' not in shown: shown += os.read(terminal, 4096)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    let program = lab.file("hang-up.py", program);
    let script = "trap 'echo hung up > hung; exit 5' HUP; echo U''P; while :; do sleep 0.05; done";
    let script = lab.file("work/command.sh", script);
    let printed = lab.shell(&format!(
        "PATH=/usr/bin:/bin {} /usr/bin/python3 {} {} --policy-data {} --workdir {} -- sh {}",
        lab.as_caller(),
        program.display(),
        lab.program_path().display(),
        policy.display(),
        work.display(),
        script.display()
    ));
    assert_eq!(printed, "5\n");
    assert_eq!(std::fs::read_to_string(work.join("hung")).unwrap(), "hung up\n");
}

#[test]
fn nothing_is_written_to_the_terminal_that_the_command_draws_on() {
    let reload = "echo wrong: > POLICY; n=0\n\
                  while [ $n -lt 23 ]; do n=$((n+1)); kill -HUP SUPERVISOR; logged CONFIG:FAILED $n; done";
    let helper = format!("{LOGGED}\n{reload}");
    let command = "touch ready; until test -e go; do :; done; echo DRA''WN";
    with_helper(
        &helper,
        command,
        &[
            "until:DRAWN",
            "absent:last-known-good",
            "expect:DRAWN",
            "expect:openshell-sandbox: 23 lines held back while the command had the terminal; the last 20 of them:",
            "expect:last-known-good",
            "expect:RC=0",
        ],
    );
}
