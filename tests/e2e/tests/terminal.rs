//! A command that has the terminal: in its foreground, stopped, continued, and gone.

use lab::Lab;

/// Drives a shell on a terminal of its own: types each `send:` line, waits until each `expect:` text has been shown, and
/// prints `ok`, or what was shown instead.
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
    deadline = time.monotonic() + 20
    while text not in shown:
        if time.monotonic() > deadline: sys.exit(f'no {text!r} in {shown!r}')
        if not select.select([terminal], [], [], 1)[0]: continue
        try: shown += os.read(terminal, 4096).decode(errors='replace')
        except OSError: sys.exit(f'ended before {text!r}: {shown!r}')
    shown = shown.split(text, 1)[1]
print('ok')
"#;

/// `steps` on a terminal, `BOX` standing for the binary under a policy of nothing.
#[track_caller]
fn on_terminal(steps: &[&str]) {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", crate::policy("{}"));
    let sandbox = format!("{} --policy-data {}", lab::sandbox::binary().display(), policy.display());
    let driver = lab.file("driver.py", DRIVER);
    let steps = lab.file("steps", steps.join("\n").replace("BOX", &sandbox));
    assert_eq!(lab.shell(&format!("/usr/bin/python3 {} {}", driver.display(), steps.display())), "ok\n");
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
    let policy = lab.file("policy.yaml", crate::policy("{}"));
    let sandbox = format!("{} --policy-data {}", lab::sandbox::binary().display(), policy.display());
    // Neither a terminal's own program nor a shell without job control (dash keeps itself as the parent, bash does not).
    for shell in ["/bin/bash", "/bin/dash"] {
        // Also where what began the session has no number: in a PID namespace that was made for a child.
        for namespace in ["", "unshare --pid --fork --mount-proc --kill-child"] {
            let shown = lab.shell(&format!(
                "SHELL={shell} {namespace} script -qec \"{sandbox} -- sh -c 'kill -STOP \\$\\$; echo went on; exit 3'\" /dev/null; echo $?"
            ));
            assert_eq!(shown.replace('\r', ""), "went on\n3\n", "under {namespace} {shell}");
        }
    }
}

#[test]
fn a_terminal_whose_job_began_outside_of_the_pid_namespace_serves_the_command() {
    on_terminal(&[
        r#"send:unshare --pid --fork --mount-proc --kill-child BOX --interactive -- sh -c 'printf UP; read a && echo GOT""$a; kill -STOP $$; echo we""nt'\n"#,
        "expect:UP",
        r"send:one\n",
        "expect:GOTone",
        "expect:went",
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

/// A command that says when it is interrupted and when it has read a line.
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
        // It reads, which the terminal stops it for in the background, and the supervisor with it.
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
