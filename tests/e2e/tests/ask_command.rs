//! A program outside of the sandbox that gets each question, and may answer it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lab::Lab;
use lab::sandbox::Sandbox;
use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::approvals::{Asking, policy};

const CURL: &[&str] = &[
    "curl",
    "-sS",
    "-m",
    "60",
    "-w",
    " %{http_code}\\n",
    "http://web.test/v1/items?draft=1",
];

const ONCE: &str = r#"echo '{"decision": "once"}'"#;

/// The program, and the folder in which it leaves what it saw.
struct Hook {
    program: PathBuf,
    seen: PathBuf,
}

impl Hook {
    /// Makes a program of `script`, whose variable `SEEN` is a folder.
    fn new(lab: &Lab, script: &str) -> Self {
        let seen = lab.folder("seen");
        fs::set_permissions(&seen, fs::Permissions::from_mode(0o777)).unwrap();
        let script = format!("#!/bin/sh\nSEEN={}\n{script}\n", seen.display());
        Self {
            program: lab.file("hook", script),
            seen,
        }
    }

    fn words(&self) -> String {
        format!("{} 'an argument'", self.program.display())
    }

    fn of<'l>(&self, lab: &'l Lab) -> Sandbox<'l> {
        lab.sandbox(&policy())
            .args(&["--ask-command", &self.words()])
    }

    /// Returns what it left under `name`, once it has.
    fn left(&self, name: &str) -> String {
        let path = self.seen.join(name);
        let read = || fs::read_to_string(&path).ok();
        lab::wait_for(
            || read().filter(|text| text.ends_with('\n')),
            || format!("{name} is not there"),
        )
    }

    /// Waits until the process that it left under `name` has ended.
    fn ends(&self, name: &str) {
        let pid = self.left(name);
        let process = Path::new("/proc").join(pid.trim());
        lab::wait_until(|| !process.exists(), || format!("{name} runs: {pid}"));
    }
}

#[test]
fn a_program_gets_the_question_as_the_caller_and_its_answer_counts() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let hook = Hook::new(
        &lab,
        &format!(
            "cat >> $SEEN/questions\n{{ echo \"$1\"; pwd; umask; echo $MARK; readlink \
             /proc/self/ns/user; grep -E 'Seccomp:|NoNewPrivs:|SigIgn|SigBlk' /proc/self/status; \
             ls /proc/$$/fd | tr '\\n' ' '; echo; cut -d' ' -f6,7 /proc/$$/stat; echo $$; }} > \
             $SEEN/state\necho careful >&2\n{ONCE}"
        ),
    );
    let sandbox = hook.of(&lab).env("MARK", "of the caller");
    let words = ["--name", "web", "--ask", "--log-level", "debug"];
    let finished = sandbox.args(&words).run(CURL);
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
    assert!(
        finished.stderr.contains("--ask-command: careful"),
        "{}",
        finished.stderr
    );
    let questions = fs::read_to_string(hook.seen.join("questions")).unwrap();
    let questions: Vec<Value> = questions
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(questions.len(), 2, "the request, and its address");
    assert_eq!(questions[0]["query"], "draft=1");
    assert_eq!(questions[0]["sandbox"], "web");
    assert!(questions[0]["seconds_left"].as_u64() > Some(100));
    assert_eq!(questions[1]["kind"], "addresses");
    assert_eq!(finished.logged("[by:command]").len(), 2, "{}", finished.log);
    let state = hook.left("state");
    let lines: Vec<_> = state.lines().collect();
    let outside = lab.shell(&format!("{} readlink /proc/self/ns/user", lab.as_caller()));
    assert_eq!(
        lines[..5],
        ["an argument", "/", "0077", "of the caller", outside.trim()],
        "{state}"
    );
    let has = |line: &str| lines.iter().any(|known| known.replace('\t', " ") == line);
    for line in ["SigBlk: 0000000000000000", "NoNewPrivs: 0", "Seccomp: 0"] {
        assert!(has(line), "{line}: {state}");
    }
    let ignored = lines.iter().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    // The C library lets nobody change the two that it uses itself.
    assert_eq!(ignored & !(3 << 31), 0, "{state}");
    let [.., descriptors, session, pid] = lines.as_slice() else {
        panic!("{state}");
    };
    // The shell has others, from 10 on.
    let standard = descriptors.split_whitespace().filter(|fd| fd.len() == 1);
    assert_eq!(standard.collect::<Vec<_>>(), ["0", "1", "2"], "{state}");
    assert_eq!(**session, format!("{pid} 0"), "no terminal: {state}");
}

#[test]
fn what_is_no_answer_leaves_the_question_to_the_other_ways() {
    for (script, said) in [
        ("true", "did not print one answer"),
        ("echo yes", "did not print one answer"),
        (
            r#"echo '{"decision": "once"} {"decision": "once"}'"#,
            "did not print one answer",
        ),
        (r#"echo '{"decision": "save"}'"#, "did not print one answer"),
        (
            r#"echo '{"decision": "once", "id": "q-0"}'"#,
            "answered another question",
        ),
        ("head -c 1000000 /dev/zero", "more than 65536 bytes"),
        (r#"echo '{"decision": "once"}'; exit 3"#, "status 3"),
        (r#"echo '{"decision": "once"}'; kill -9 $$"#, "signal 9"),
        (r#"echo '{"decision": "pass"}'"#, ""),
    ] {
        let lab = Lab::with_web();
        let _web = lab.http("10.99.0.1:80");
        let hook = Hook::new(&lab, &format!("{script}\necho done > $SEEN/done"));
        let asking = Asking::of(hook.of(&lab), &lab, CURL);
        let question = asking.held();
        if !said.is_empty() {
            super::ssh::wait_for(&lab, said);
        }
        asking.decide(&question, "once");
        asking.decide(&asking.held(), "once");
        let finished = asking.wait();
        assert_eq!(finished.stdout, "hello 200\n", "{script}: {}", finished.log);
        let failures = finished.logged("--ask-command: ");
        let expected = if said.is_empty() { 0 } else { 2 };
        assert_eq!(failures.len(), expected, "{script}: {failures:#?}");
        assert!(failures.iter().all(|line| line.contains("[MED]")));
        assert!(!finished.log.contains("[by:command]"), "{script}");
    }
}

#[test]
fn a_child_that_holds_the_output_of_the_program_holds_up_nothing_and_is_ended() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let script = format!("sleep 600 & echo $! > $SEEN/child\n{ONCE}");
    let hook = Hook::new(&lab, &script);
    let finished = hook.of(&lab).args(&["--ask"]).run(CURL);
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
    hook.ends("child");
}

#[test]
fn a_program_that_hangs_ends_with_the_time_of_its_question() {
    let lab = Lab::with_web();
    // It does not end at a signal that asks it to.
    let hook = Hook::new(
        &lab,
        "trap '' TERM; echo $$ > $SEEN/pid; while :; do sleep 1; done",
    );
    let finished = hook.of(&lab).args(&["--ask=5"]).run(CURL);
    assert!(
        finished.stdout.contains(r#""asked":"expired""#),
        "{finished:?}"
    );
    let silent = finished.logged("the program gave no answer in time");
    assert_eq!(silent.len(), 1, "{}", finished.log);
    hook.ends("pid");
}

#[test]
fn a_program_whose_question_was_answered_elsewhere_is_ended() {
    let lab = Lab::with_web();
    let hook = Hook::new(&lab, "echo $$ > $SEEN/pid; exec sleep 600");
    let asking = Asking::of(hook.of(&lab), &lab, CURL);
    let question = asking.held();
    let _ = hook.left("pid");
    asking.decide(&question, "deny");
    hook.ends("pid");
    assert!(asking.wait().stdout.contains(r#""asked":"denied""#));
}

/// Returns the children of `pid` that have this name.
fn children(pid: u32, name: &str) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let pids = list.split_whitespace().map(|pid| pid.parse().unwrap());
    let is_named = |pid: &i32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    };
    pids.filter(is_named).collect()
}

#[test]
fn without_the_supervisor_neither_the_runner_nor_its_programs_go_on() {
    let lab = Lab::with_web();
    let hook = Hook::new(
        &lab,
        "echo $$ > $SEEN/pid; trap '' TERM; while :; do sleep 1; done",
    );
    let sandbox = hook.of(&lab).args(&["--name", "web", "--ask"]);
    let started = sandbox.start(CURL);
    let _ = hook.left("pid");
    let runners = children(started.pid(), "sandbox-runner");
    assert_eq!(runners.len(), 1);
    // A signal that would orphan its programs has no effect.
    let runner = Pid::from_raw(runners[0]).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        rustix::process::kill_process(runner, signal).unwrap();
    }
    started.signal(Signal::KILL);
    drop(started);
    hook.ends("pid");
    let process = Path::new("/proc").join(runners[0].to_string());
    lab::wait_until(|| !process.exists(), || "the runner goes on".to_owned());
}

#[test]
fn the_memory_of_the_runner_holds_no_secret_and_without_a_program_there_is_none() {
    let lab = Lab::with_web();
    let secret = ["kept", "outside", "0123456789abcdef"].join("-");
    let text = format!("credentials: {{TOKEN: {{value: {secret}, hosts: [other.test]}}}}\n");
    let credentials = lab.file("credentials.yaml", text);
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).unwrap();
    let credentials = credentials.to_str().unwrap();
    let words = ["--credentials", credentials, "--ask"];
    let hook = Hook::new(&lab, "echo $$ > $SEEN/pid; exec sleep 600");
    let started = hook.of(&lab).args(&words).start(CURL);
    let _ = hook.left("pid");
    let runner = children(started.pid(), "sandbox-runner")[0];
    assert_eq!(
        fs::read_to_string(format!("/proc/{runner}/cmdline"))
            .unwrap()
            .trim_matches('\0'),
        "",
        "its arguments are wiped"
    );
    assert!(!memory_has(runner, secret.as_bytes()));
    assert!(memory_has(runner, b"an argument"), "the search works");
    let supervisor = i32::try_from(started.pid()).unwrap();
    assert!(memory_has(supervisor, secret.as_bytes()));
    drop(started);
    let started = lab.sandbox(&policy()).args(&words).start(&["sleep", "600"]);
    super::ssh::wait_for(&lab, "PROC:LAUNCH");
    assert!(children(started.pid(), "sandbox-runner").is_empty());
}

/// Returns true if the memory of the process `pid` has `text`.
fn memory_has(pid: i32, text: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let writable = maps.lines().filter(|line| line.contains(" rw"));
    writable.into_iter().any(|line| {
        let (range, _) = line.split_once(' ').unwrap();
        let (begin, end) = range.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|number| u64::from_str_radix(number, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap()];
        // Some ranges, as those of the kernel, cannot be read.
        let _ = memory.read_exact_at(&mut bytes, begin);
        bytes.windows(text.len()).any(|window| window == text)
    })
}

#[test]
fn a_set_user_id_program_gains_its_user_as_outside() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let id = lab.file("id", fs::read("/usr/bin/id").unwrap());
    let _ = lab.shell(&format!("chown 0:0 {0}; chmod 4755 {0}", id.display()));
    let script = format!("{} -u > $SEEN/user\n{ONCE}", id.display());
    let hook = Hook::new(&lab, &script);
    let finished = hook.of(&lab).args(&["--ask"]).run(CURL);
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
    let outside = lab.shell(&format!("{} {} -u", lab.as_caller(), id.display()));
    assert_eq!(hook.left("user"), outside);
    assert_eq!(outside, "0\n");
}

#[test]
fn a_program_that_is_missing_or_that_the_workload_can_write_stops_the_start() {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let inside = work.join("hook");
    fs::copy(lab.file("outside", "#!/bin/sh\n"), &inside).unwrap();
    let file = lab.file("file", "");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let file = file.to_str().unwrap();
    let (work, inside) = (work.to_str().unwrap(), inside.to_str().unwrap());
    for (command, said) in [
        (
            "no-such-program a",
            "there is no program no-such-program in PATH",
        ),
        ("/no/such/program", "/no/such/program: No such file"),
        (inside, "so it must not run outside"),
        (&format!("sh {inside}"), "so it must not run outside"),
        ("hook", "there is no program hook in PATH"),
        (file, "is no program that you may execute"),
        ("sh 'a", "a quote is not closed"),
        ("", "it names no program"),
    ] {
        let path = format!("{work}:/usr/bin:/bin");
        let finished = lab
            .sandbox(&policy())
            .env("PATH", &path)
            .args(&["--workdir", work, "--ask", "--ask-command", command])
            .run(&["true"]);
        assert_eq!(finished.code(), 1, "{command}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(said),
            "{command}: {}",
            finished.stderr
        );
    }
    let alone = lab.sandbox(&policy()).args(&["--ask-command", "true"]);
    let alone = alone.run(&["true"]);
    assert_eq!(alone.code(), 1);
    assert!(alone.stderr.contains("--ask"), "{}", alone.stderr);
}

/// Puts a sample of the project where every user can execute it; returns its path.
fn sample(lab: &Lab, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/examples/ask");
    let text = fs::read(path.join(name)).unwrap();
    lab.file(name, text).display().to_string()
}

#[test]
fn the_sample_for_a_chat_posts_the_question_and_leaves_the_answer_to_the_list() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let chat = lab.http("10.99.0.1:8081");
    let command = sample(&lab, "webhook.py");
    let sandbox = lab.sandbox(&policy()).args(&["--ask-command", &command]);
    let sandbox = sandbox.env("ASK_WEBHOOK", "http://10.99.0.1:8081/hook");
    let asking = Asking::of(sandbox, &lab, CURL);
    let question = asking.held();
    lab::wait_until(|| !chat.seen().is_empty(), || lab.log());
    let posted = String::from_utf8(chat.seen().concat()).unwrap();
    let id = question["id"].as_str().unwrap();
    assert!(
        posted.contains("POST /hook") && posted.contains(id),
        "{posted}"
    );
    asking.decide(&question, "deny");
    let finished = asking.wait();
    assert!(
        finished.logged("--ask-command: ").is_empty(),
        "{}",
        finished.log
    );
}

#[test]
fn the_sample_for_the_desktop_takes_the_button_that_was_pressed() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    // In place of the desktop's own program, which needs a desktop.
    let folder = lab.folder("bin");
    fs::rename(
        lab.file(
            "notify-send",
            "#!/bin/sh\ncase \"$*\" in *web.test*internal*) echo once;; *) echo deny;; esac\n",
        ),
        folder.join("notify-send"),
    )
    .unwrap();
    let command = sample(&lab, "desktop.py");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", folder.display());
    let sandbox = lab.sandbox(&policy()).env("PATH", &path);
    let finished = sandbox
        .args(&["--ask", "--ask-command", &command])
        .run(CURL);
    assert!(
        finished.stdout.contains(r#""asked":"denied""#),
        "{finished:?}"
    );
    assert_eq!(finished.logged("[by:command]").len(), 1, "{}", finished.log);
}
