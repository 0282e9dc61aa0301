//! A command with the terminal: in its foreground, stopped, continued and ended.

use lab::Lab;
use lab::host::Tier;

/// Drives a shell on a new terminal: types each `send:` line, waits until each `expect:` text is
/// shown, and prints `ok`, or the text shown instead. `until:` waits too; a following `absent:`
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
pub(super) fn on_terminal_of(lab: &Lab, steps: &[&str]) {
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let sandbox = format!(
        "{} --policy-data {}",
        lab.program_path().display(),
        policy.display()
    );
    let driver = lab.file("driver.py", DRIVER);
    let steps = lab.file("steps", steps.join("\n").replace("BOX", &sandbox));
    assert_eq!(
        lab.shell(&format!(
            "{} /usr/bin/python3 {} {}",
            lab.as_caller(),
            driver.display(),
            steps.display()
        )),
        "ok\n"
    );
}

#[test]
fn a_command_that_stops_itself_does_not_outlive_its_time() {
    on_terminal(&[
        r"send:BOX -t 1 --grace 0 -- sh -c 'sleep 611 & until grep -q sleep /proc/$!/comm; do :; done; kill -STOP $$'\n",
        "expect:Stopped",
        r"send:while ps -eo args | grep -q '^sleep 61''1'; do sleep 0.1; done; fg; echo RC=$((0+$?))\n",
        "expect:RC=124",
    ]);
}

#[test]
fn a_command_that_nobody_could_continue_is_not_left_stopped() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let sandbox = format!(
        "{} --log-level error --policy-data {}",
        lab.binary(),
        policy.display()
    );
    // Neither the terminal's first program nor a shell without job control (dash stays as the
    // parent, bash does not).
    for shell in ["/bin/bash", "/bin/dash"] {
        // Also if the session leader has no number: in a PID namespace created for a child.
        for namespace in ["", "unshare --pid --fork --mount-proc --kill-child"] {
            let shown = lab.shell(&format!(
                "SHELL={shell} {namespace} script -qec \"{sandbox} -- sh -c 'kill -STOP \\$\\$; \
                 echo went on; exit 3'\" /dev/null; echo $?"
            ));
            assert_eq!(
                shown.replace('\r', ""),
                "went on\n3\n",
                "under {namespace} {shell}"
            );
        }
    }
}

/// Returns the words that run a program in a new PID namespace.
fn pid_namespace() -> &'static str {
    match lab::host::tier() {
        Tier::Root => "unshare --pid --fork --mount-proc --kill-child",
        Tier::Rootless => {
            "unshare --user --map-current-user --pid --fork --mount-proc --kill-child"
        }
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
        "send:stty -a > before; BOX -- sh -c 'stty raw -echo'; stty -a > after; cmp before after \
         && echo SA''ME; rm before after\\n",
        "expect:SAME",
    ]);
}

/// A command that reports each interrupt and each line read.
const LISTENER: &str = r#"send:BOX --grace 1 -- sh -c 'trap "echo IN""TR" INT; echo UP""1; while :; do read a && echo GOT""$a; done'\n"#;

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
    on_terminal(&[
        r"send:BOX -- sh -c 'exit 9'; echo RC=$((0+$?))\n",
        "expect:RC=9",
    ]);
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

/// Takes the place of the program that its words name, with a gateway that never answers.
const SILENT_GATEWAY: &str = r#"
import os, socket, sys
gateway = socket.create_server(("127.0.0.1", 0))
gateway.set_inheritable(True)
endpoint = f"http://127.0.0.1:{gateway.getsockname()[1]}"
os.environ.update(OPENSHELL_ENDPOINT=endpoint, OPENSHELL_SANDBOX_ID="web")
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn a_start_that_takes_long_says_so_on_a_terminal_and_takes_it_back() {
    let lab = Lab::with_web();
    let gateway = lab.file("gateway.py", SILENT_GATEWAY);
    let start = format!(
        "/usr/bin/python3 {} {}",
        gateway.display(),
        lab.program_path().display()
    );
    on_terminal_of(
        &lab,
        &[
            &format!(r"send:{start} -- true\n"),
            "expect:openshell-sandbox: starting: 1 s",
            r"send:\x03",
            "expect:\x1b[K",
            "expect:ended the start",
        ],
    );
}

#[test]
fn a_command_on_a_terminal_reaches_what_the_policy_permits_and_is_named() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let policy = lab.file(
        "reach.yaml",
        super::policy(
            "{web: {endpoints: [{host: web.test, port: 80, allowed_ips: [10.0.0.0/8]}], binaries: \
             [{path: /usr/bin/curl}]}}",
        ),
    );
    let program = lab.program_path().display().to_string();
    let sandbox = format!("{program} -p {}", policy.display());
    on_terminal_of(
        &lab,
        &[
            &format!(
                r"send:{sandbox} -- sh -c 'curl -s http://web.test/; curl -s other.test; true'\n"
            ),
            "expect:hello",
            "expect:/usr/bin/curl -> other.test:80: endpoint_not_in_policy",
            &format!(r#"send:{sandbox} --name term -- sh -c 'echo U""P; sleep 60' &\n"#),
            "expect:UP",
            &format!(r"send:{program} exec term -- curl -s http://web.test/\n"),
            "expect:hello",
            "expect:$ ",
            r"send:kill %1; wait; echo EN''D\n",
            "expect:END",
        ],
    );
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

/// Runs `steps` on a terminal with `command`, a shell script, in a sandbox, and beside it `helper`,
/// a shell script on the host with the supervisor's number in `SUPERVISOR`. It starts when the
/// command has created `ready`, and creates `go` at its end.
#[track_caller]
fn with_helper(helper: &str, command: &str, steps: &[&str]) {
    with_helper_and("", helper, command, steps);
}

/// The same of a sandbox with `flags`.
#[track_caller]
fn with_helper_and(flags: &str, helper: &str, command: &str, steps: &[&str]) {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let policy = lab.file("reloaded.yaml", super::policy("{}"));
    let work = work.display();
    let helper = helper.replace("LOGS", &lab.logs());
    let helper = helper
        .replace("SUPERVISOR", &format!("$(cat {work}/pid)"))
        .replace("POLICY", policy.to_str().unwrap());
    let helper = format!("until test -e {work}/ready; do :; done\n{helper}\ntouch {work}/go\n");
    let helper = lab.file("helper.sh", helper);
    let start = lab.file(
        "start.sh",
        format!(
            "timeout --kill-after=1 100 sh {} & echo $$ > {work}/pid; exec {} --policy-data {} \
             --workdir {work} {flags} -- sh {}",
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
const LOGGED: &str =
    r#"logged() { until test "$(cat LOGS | grep -c "$1")" -ge "$2"; do :; done; }"#;

#[test]
fn a_hang_up_that_was_sent_reloads_the_policy_of_an_interactive_command() {
    let helper = format!("{LOGGED}\nkill -HUP SUPERVISOR\nlogged 'Policy reloaded successfully' 1");
    let command =
        "trap 'exit 7' HUP; touch ready; until test -e go; do :; done; echo DO''NE; exit 3";
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
    assert_eq!(
        std::fs::read_to_string(work.join("hung")).unwrap(),
        "hung up\n"
    );
}

#[test]
fn nothing_is_written_to_the_terminal_that_the_command_draws_on() {
    let reload = "echo wrong: > POLICY; n=0\nwhile [ $n -lt 23 ]; do n=$((n+1)); kill -HUP \
                  SUPERVISOR; logged CONFIG:FAILED $n; done";
    let helper = format!("{LOGGED}\n{reload}");
    let command = "touch ready; until test -e go; do :; done; echo DRA''WN";
    with_helper(
        &helper,
        command,
        &[
            "until:DRAWN",
            "absent:last-known-good",
            "expect:DRAWN",
            "expect:openshell-sandbox: 23 lines held back while the command had the terminal; the \
             last 20 of them:",
            "expect:last-known-good",
            "expect:RC=0",
        ],
    );
}

#[test]
fn a_question_rings_the_bell_of_the_commands_terminal_between_what_the_command_writes() {
    let helper = format!("{LOGGED}\nlogged APPROVAL:ASKED 1");
    let command = "printf '\\033]0;ti'; curl -sS http://web.test/ & touch ready\n\
                   until test -e go; do :; done; printf 'tle\\007END'\n\
                   read line; kill $!; echo DO''NE";
    with_helper_and(
        "--ask",
        &helper,
        command,
        &[
            "until:tle\x07END",
            "absent:\x07",
            "expect:tle\x07END",
            "expect:\x07",
            "send:\\n",
            "expect:DONE",
        ],
    );
}

/// A program that tries to read terminals from sessions of its own: those of its streams, and the
/// controlling one. What it reads is in the file `stolen`, and `up` is there once it tries. Then it
/// runs its arguments.
const THIEF: &str = "
import os, sys
def steal(path, number):
    if os.fork(): return
    os.setsid()
    try: fd = os.open(path, os.O_RDONLY) if isinstance(path, str) else path
    except OSError: os._exit(0)
    open(f'up{number}', 'w').close()
    while True:
        try: got = os.read(fd, 100)
        except OSError: os._exit(0)
        if not got: os._exit(0)
        open('stolen', 'ab').write(got)
for number, path in enumerate([0, 1, 2, '/dev/tty', '/dev/console', '/proc/self/fd/0', '/proc/self/fd/1', '/proc/1/fd/0']):
    steal(path, number)
open('up', 'w').close()
os.execvp(sys.argv[1], sys.argv[1:])
";

/// Runs `command`, in which `THIEF` stands for the thief in a sandbox and `BOX` for the program,
/// and types a password for the shell that comes back; asserts that nobody inside has it.
#[track_caller]
fn a_password_stays_with_the_shell(command: &str, steps: &[&str]) {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let _ = lab.file("work/thief.py", THIEF);
    let thief = format!(
        "BOX --workdir {} --name box -- /usr/bin/python3 thief.py",
        work.display()
    );
    let start = format!(
        "send:cd {}; {}\\n",
        work.display(),
        command.replace("THIEF", &thief)
    );
    let mut all = vec![start.as_str()];
    all.extend(steps);
    all.extend([
        r"send:until test -e up; do :; done; echo REA''DY; read -s pw; echo; echo GO''T:$pw\n",
        "expect:READY",
        r"send:hunter2\n",
        "expect:GOT:hunter2",
        r"send:kill -9 %1 %2; wait; echo EN''D\n",
        "expect:END",
    ]);
    on_terminal_of(&lab, &all);
    let stolen = std::fs::read_to_string(work.join("stolen")).unwrap_or_default();
    assert!(!stolen.contains("hunter"), "{stolen:?} was read inside");
}

#[test]
fn what_is_typed_into_the_callers_shell_is_read_by_nobody_inside() {
    // In the background, with another standard input or not.
    a_password_stays_with_the_shell("THIEF sleep 600 &", &[]);
    a_password_stays_with_the_shell("THIEF sleep 600 < /dev/null &", &[]);
    a_password_stays_with_the_shell("THIEF sleep 600 > out &", &[]);
    // After the command has stopped itself, and after Ctrl-Z.
    a_password_stays_with_the_shell(
        "THIEF sh -c 'kill -STOP $$; sleep 600'",
        &["expect:Stopped"],
    );
    a_password_stays_with_the_shell(
        // A shell that forks (vfork(2)) meanwhile would not stop, as anywhere.
        "THIEF sh -c 'echo U\"\"P; exec sleep 600'",
        &["expect:UP", r"send:\x1a", "expect:Stopped", r"send:bg\n"],
    );
    // After a further command has ended, and beside one in the background.
    for further in [
        "/usr/bin/python3 thief.py true > out",
        "/usr/bin/python3 thief.py sleep 600 & true",
    ] {
        a_password_stays_with_the_shell(
            &format!(
                "BOX --workdir $PWD --name box -- sleep 600 < /dev/null & until $(echo BOX | cut \
                 -d' ' -f1) exec box true 2> no; do :; done; $(echo BOX | cut -d' ' -f1) exec box \
                 -- {further}; echo RA''N"
            ),
            &["expect:RAN"],
        );
    }
}

#[test]
fn a_command_in_a_pipeline_leaves_the_terminal_as_it_is_until_it_reads_it() {
    on_terminal(&[
        // The others of the job see its modes.
        r#"send:BOX -- sh -c 'echo x; exec sleep 1' | (read x; stty -a < /dev/tty | grep -oE ' icanon| echo '; cat; echo COO''KED)\n"#,
        "until:COOKED",
        "expect: icanon",
        "expect: echo ",
        "expect:COOKED",
        // A read takes it.
        r#"send:BOX -- sh -c 'printf WA""IT > /dev/tty; read a < /dev/tty; echo GOT""$a' | cat\n"#,
        "expect:WAIT",
        r"send:six\n",
        "expect:GOTsix",
        "expect:$ ",
        r#"send:BOX -- sh -c 'printf WA""IT >&2; read a; echo $a' > out; echo GOT$(cat out); rm out\n"#,
        "expect:WAIT",
        r"send:seven\n",
        "expect:GOTseven",
        "expect:$ ",
        // And in a script, which is of the same job.
        r#"send:printf '%s\\n' "BOX -- sh -c 'printf W\"\"AIT; read a; echo GOT\\$a'" 'echo NE""XT; read b; echo AND$b' > s; sh s; rm s\n"#,
        "expect:WAIT",
        r"send:eight\n",
        "expect:GOTeight",
        "expect:NEXT",
        r"send:nine\n",
        "expect:ANDnine",
        // Several at once.
        r#"send:printf '1\\n2\\n' | xargs -P 2 -I @ BOX -- sh -c 'echo RUN@' | sort; echo D''ONE\n"#,
        "expect:RUN1",
        "expect:RUN2",
        "expect:DONE",
    ]);
}

#[test]
fn a_terminal_that_stops_output_from_the_background_stops_the_commands() {
    on_terminal(&[
        r"send:stty tostop; BOX -- sh -c 'echo se''en' &\n",
        r"send:until jobs | grep -q Stopped; do :; done; echo ST''OPPED; fg\n",
        "expect:STOPPED",
        "expect:seen",
    ]);
}

#[test]
fn a_command_sees_the_size_and_modes_of_the_callers_terminal_and_its_own_changes_stay_inside() {
    on_terminal(&[
        r"send:stty rows 31 cols 97 -ixon; BOX -- sh -c 'stty size; stty -a | grep -o -- -ixon; stty rows 1 cols 1 ixon; tput smcup'; stty size; stty -a | grep -o -- -ixon\n",
        "expect:31 97",
        "expect:-ixon",
        "expect:31 97",
        "expect:-ixon",
        // Sizes that change are passed on.
        r#"send:(while :; do stty cols 81 < /dev/tty; stty cols 80 < /dev/tty; done) & BOX -- sh -c 'until [ "$(stty size)" = "31 81" ]; do :; done; echo RESI""ZED'; kill %1\n"#,
        "expect:RESIZED",
    ]);
}

#[test]
fn output_is_shown_as_it_is_written() {
    // In the background both terminals would put a carriage return before a line feed.
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let run = |before: &str, after: &str| {
        lab.shell(&format!(
            "script -qec \"{before} {} --log-level error --policy-data {} -- printf 'a\\\\nb\\\\r\\\\nc' {after}\" \
             /dev/null < /dev/null",
            lab.binary(),
            policy.display()
        ))
    };
    for (before, after) in [
        ("", ""),
        ("", "2>&1 < /dev/null"),
        ("env", "; true"),
        ("", "< /etc/passwd"),
    ] {
        assert_eq!(run(before, after), "a\r\nb\r\r\nc", "{before} … {after}");
    }
}

#[test]
fn a_stop_stops_everything_inside_and_what_is_hidden_stays_so() {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let _ = lab.file("work/.env", "old secret");
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{}], hidden: [{}/.env]}}\n",
        super::policy("{}"),
        work.display(),
        work.display()
    );
    let policy = lab.file("hidden.yaml", policy);
    // A daemon in a session of its own counts, and reads the file whenever it can.
    let watch = "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > count; grep secret .env > \
                 leak && echo leaked > leaked; done' & echo U''P; [ $1 ] && exec sleep 600; while \
                 read x; do echo G''OT$x; done";
    let watch = lab.file("work/watch.sh", watch);
    let start = format!(
        "send:cd {}; {} --policy-data {} --workdir . -- sh {}\\n",
        work.display(),
        lab.program_path().display(),
        policy.display(),
        watch.display()
    );
    let still = r"send:a=$(cat count); sleep 0.3; [ $a = $(cat count) ] && echo ST''ILL\n";
    let replace = r"send:echo new secret > new; mv new .env; echo RE''PLACED\n";
    on_terminal_of(
        &lab,
        &[
            &start,
            "expect:UP",
            r"send:\x1a",
            "expect:Stopped",
            still,
            "expect:STILL",
            // A continue without a replacement goes on.
            r"send:fg\n",
            "expect:watch.sh",
            r"send:one\n",
            "expect:GOTone",
            r"send:\x1a",
            "expect:Stopped",
            replace,
            "expect:REPLACED",
            still,
            "expect:STILL",
            r"send:fg; echo RC=$((0+$?))\n",
            "expect:was replaced or renamed outside",
            "expect:RC=1",
            r"send:[ -e leaked ] || echo CL''EAN\n",
            "expect:CLEAN",
        ],
    );
    // A supervisor that is stopped alone stops nobody, and init ends what may not be seen.
    let background = start.replace("watch.sh\\n", "watch.sh quiet &\\n");
    on_terminal_of(
        &lab,
        &[
            &background,
            "expect:UP",
            r"send:a=$(cat count); until [ $a != $(cat count) ]; do :; done; kill -STOP %1; a=$(cat count); until [ $a != $(cat count) ]; do :; done; echo GO''ES\n",
            "expect:GOES",
            replace,
            "expect:REPLACED",
            r"send:until a=$(cat count); sleep 0.2; [ $a = $(cat count) ]; do :; done; echo EN''DED; kill -CONT %1; wait %1; echo RC=$((0+$?))\n",
            "expect:ENDED",
            "expect:was replaced or renamed outside",
            "expect:RC=1",
            r"send:[ -e leaked ] || echo CL''EAN\n",
        ],
    );
}

#[test]
fn what_was_stopped_before_the_job_stays_stopped_after_it() {
    on_terminal(&[
        r#"send:BOX -- sh -c 'sleep 600 & a=$!; kill -STOP $a; sleep 601 & b=$!; echo U""P; read x; for p in $a $b; do cut -d" " -f3 /proc/$p/stat; done; echo D""ONE'\n"#,
        "expect:UP",
        r"send:\x1a",
        "expect:Stopped",
        r"send:fg\n",
        r"send:\n",
        "until:DONE",
        "expect:T",
        "expect:S",
        "expect:DONE",
    ]);
}

#[test]
fn a_terminal_that_does_not_control_the_sandbox_is_not_read() {
    on_terminal(&[
        r#"send:setsid -w BOX -- sh -c 'read a; echo "NOTHI""NG<$a>"'\n"#,
        "expect:NOTHING<>",
        r"send:BOX --no-interactive -- sh -c '[ -t 1 ] && read a; echo NOTHI''NG$a.'\n",
        "expect:NOTHING.",
    ]);
}

#[test]
fn lines_of_the_log_on_standard_error_are_not_taken_out_of_it() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let run = |redirection: &str| {
        lab.shell(&format!(
            "cd /tmp; {} {} --policy-data {} --log-to stderr --log-level info -- sh -c 'cat \
             /proc/self/fd/2 > /dev/null & python3 -c \"import os; os.ftruncate(2, 0)\"; sleep \
             0.2; kill $!; wait $!; echo said >&2' {redirection}",
            lab.as_caller(),
            lab.program_path().display(),
            policy.display()
        ))
    };
    for redirection in [
        "2>&1 | cat",
        "2>&1 < /dev/null > log.$$; cat log.$$; rm log.$$",
    ] {
        let shown = run(redirection);
        for line in [
            "LIFECYCLE:START",
            "CONFIG:ENFORCED",
            "PROC:LAUNCH",
            "said",
            "PROC:TERMINATE",
            "LIFECYCLE:END",
        ] {
            assert!(shown.contains(line), "{line} is missing from {shown}");
        }
    }
}

#[test]
fn refusals_are_red_and_warnings_yellow_on_a_terminal_unless_no_color_is_set() {
    let lab = Lab::with_web();
    let shell = "network_policies: {a: {endpoints: [{host: a.test, port: 443}], binaries: [{path: \
                 /bin/sh}]}}";
    let warned = lab.file("warned.yaml", shell);
    let check = format!(
        "{} check {}",
        lab.program_path().display(),
        warned.display()
    );
    let refused = "BOX -- bash -c 'exec 3<>/dev/tcp/10.99.0.9/80'";
    on_terminal_of(
        &lab,
        &[
            &format!(r"send:{refused}; echo RC=$((0+$?))\n"),
            "expect:\x1b[0;31mopenshell-sandbox: refused by the policy:\x1b[0m",
            "expect:\x1b[0;31m  1 x ",
            "expect:\x1b[0m",
            "expect:      it went past the proxy",
            "expect:RC=1",
            &format!(r"send:{check}\n"),
            "expect:\x1b[0;33mpolicy warning: ",
            "expect:, 1 warning",
            &format!(r"send:{check} | cat\n"),
            "until:, 1 warning",
            "absent:\x1b[0;33m",
            &format!(r"send:export NO_COLOR=1; {refused}; {check}; echo RC=$((1+$?))\n"),
            "until:RC=1",
            "absent:\x1b[0;3",
        ],
    );
}

#[test]
fn work_of_more_than_a_second_is_named_with_its_time_on_a_terminal_until_it_ends() {
    let lab = Lab::with_web();
    let pipe = lab.folder("pipes").join("policy.yaml");
    std::os::unix::fs::chown(lab.folder("pipes"), Some(lab::host::UID), None).unwrap();
    let pipe = pipe.display();
    let program = lab.program_path();
    let program = program.display();
    on_terminal_of(
        &lab,
        &[
            &format!(r"send:mkfifo {pipe}; {program} check {pipe} &\n"),
            "expect:: 2 s",
            &format!(r"send:echo 'network_policies: {{}}' > {pipe}; wait; echo RC=$((0+$?))\n"),
            "expect:\x1b[K",
            "expect:0 warnings",
            "expect:RC=0",
        ],
    );
}

#[test]
fn a_run_at_a_terminal_begins_with_one_line_on_standard_error() {
    let lab = Lab::with_web();
    let policy = "filesystem_policy: {read_write: [/tmp/a, /tmp/b]}\nnetwork_policies: {web: \
                  {endpoints: [{host: a.test, port: 1}, {host: b.test, port: 1}], binaries: [{path: \
                  \"/**\"}]}}\n";
    let policy = lab.file("policy.yaml", policy);
    let run = |flags: &str, streams: &str| {
        let shown = lab.shell(&format!(
            "script -qec \"{} --name web --policy-data {} {flags} -- echo ran {streams}\" /dev/null \
             < /dev/null",
            lab.binary(),
            policy.display()
        ));
        shown.replace('\r', "")
    };
    let shown = run("", "");
    let line = shown.strip_suffix("ran\n").unwrap();
    assert!(
        line.starts_with("openshell-sandbox: web: user ")
            && line.ends_with("; may write /tmp/a, /tmp/b; may reach 2 hosts or patterns\n"),
        "{shown}"
    );
    assert!(run("--network block", "").contains("may reach no network\nran"));
    assert_eq!(run("", "2> /dev/null"), "ran\n");
    assert_eq!(run("--log-level error", ""), "ran\n");
    assert_eq!(run("", "< /dev/null"), "ran\n");
}
