//! The policy that `init` writes, from flags and from answers.

use std::os::unix::fs::MetadataExt;
use std::process::{Output, Stdio};

use lab::Lab;
use lab::host::UID;

use crate::one_line::in_project;
use crate::terminal::on_terminal_of;

/// What `init` printed.
#[derive(Debug)]
struct Printed {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Printed {
    #[track_caller]
    fn ok(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }
}

/// Runs `init` with `words` in the folder `project`, which the workload's user owns, without a
/// terminal.
fn init(lab: &Lab, words: &[&str]) -> Printed {
    let folder = lab.folder("project");
    std::os::unix::fs::chown(&folder, Some(UID), Some(UID)).unwrap();
    let mut command = lab.command();
    command
        .env("SUDO_UID", UID.to_string())
        .env("SUDO_GID", UID.to_string())
        .current_dir(folder)
        .arg("init")
        .args(words)
        .stdin(Stdio::null());
    let Output {
        status,
        stdout,
        stderr,
    } = lab.inside(move || command.output().unwrap());
    Printed {
        code: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

#[test]
fn a_policy_from_flags_passes_check_without_a_warning_and_grants_what_they_say() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let made = init(
        &lab,
        &[
            "--agent",
            "none",
            "--hide",
            "**/.env",
            "--allow",
            "10.99.0.1:8080=read-only",
        ],
    );
    let printed = made.ok();
    assert!(
        printed.contains("policy.yaml: 1 network policy, 0 warnings"),
        "{printed}"
    );
    let folder = lab.folder("project");
    std::fs::write(folder.join(".env"), "s3cret").unwrap();
    let text = std::fs::read_to_string(folder.join("policy.yaml")).unwrap();
    let comments = text.lines().filter(|line| line.trim().starts_with('#'));
    assert!(comments.count() > 8, "{text}");
    let script = "touch made && echo made; cat .env; echo x >> policy.yaml; for method in GET POST; \
                  do curl -s -X $method -o /dev/null -w '%{http_code}\\n' http://10.99.0.1:8080/; \
                  done";
    let run = in_project(&lab, &["--policy-data", "policy.yaml"]).sh(script);
    assert_eq!(run.stdout, "made\n200\n403\n", "{run:?}");
    let now = std::fs::read_to_string(folder.join("policy.yaml")).unwrap();
    assert_eq!(now, text, "the command changed its own policy: {run:?}");
    assert!(!run.stderr.contains("policy warning"), "{run:?}");
}

#[test]
fn each_agent_gets_a_policy_that_passes_check_and_the_words_that_start_it() {
    let lab = Lab::with_web();
    for (agent, words) in [
        ("claude-code", "-- claude"),
        ("codex", "-- codex --no-daemon"),
        ("opencode", "-- opencode"),
        ("gemini", "-- gemini"),
        ("copilot", "-- copilot"),
        ("aider", "-- aider"),
    ] {
        let file = format!("{agent}.yaml");
        let made = init(&lab, &["--agent", agent, "--preset", "git-read", &file]);
        assert!(made.ok().contains(words), "{made:?}");
        let text = std::fs::read_to_string(lab.folder("project").join(file)).unwrap();
        assert!(text.contains(&format!("\n  {agent}:\n")), "{text}");
        assert!(text.contains("# git over HTTPS"), "{text}");
    }
}

#[test]
fn what_is_there_stays_and_what_fails_leaves_nothing() {
    let lab = Lab::with_web();
    let folder = lab.folder("project");
    std::fs::write(folder.join("policy.yaml"), "mine").unwrap();
    let names = || {
        let entries = std::fs::read_dir(&folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let before = names();
    for (words, why) in [
        (&["--agent", "none"][..], "policy.yaml already exists"),
        (&["none.yaml"], "this is not a terminal"),
        (&["--agent", "vim", "x.yaml"], "claude-code"),
        (&["--preset", "$(id)", "x.yaml"], "a name has only letters"),
        (&["--allow", "a..test", "x.yaml"], "a..test"),
        (&["--agent", "none", "missing/x.yaml"], "missing/x.yaml"),
        (&["--agent", "none", "/proc/x.yaml"], "/proc/x.yaml"),
        (&["--net", "x.yaml"], "unexpected argument '--net'"),
    ] {
        let refused = init(&lab, words);
        assert_eq!(refused.code, Some(1), "{words:?}: {refused:?}");
        assert!(refused.stderr.contains(why), "{words:?}: {refused:?}");
        assert_eq!(names(), before, "{words:?}: {refused:?}");
    }
    let mine = std::fs::read_to_string(folder.join("policy.yaml")).unwrap();
    assert_eq!(mine, "mine");
    let made = init(&lab, &["--agent", "none", "--replace"]);
    assert!(made.ok().contains("0 warnings"), "{made:?}");
    assert_eq!(names(), before);
}

#[test]
fn the_file_belongs_to_the_caller_and_comes_through_no_symlink_to_where_only_root_may_write() {
    let lab = Lab::with_web();
    let project = lab.folder("project");
    let elsewhere = lab.folder("elsewhere");
    std::os::unix::fs::chown(&elsewhere, Some(0), Some(0)).unwrap();
    let link = project.join("link");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(UID), Some(UID)).unwrap();
    for replace in [&[][..], &["--replace"]] {
        let words = [&["--agent", "none", "link/x.yaml"][..], replace].concat();
        let refused = init(&lab, &words);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("link"), "{refused:?}");
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        let words = [&["--agent", "none"][..], replace].concat();
        let made = init(&lab, &words);
        assert!(made.ok().contains("0 warnings"), "{made:?}");
        let owner = std::fs::metadata(project.join("policy.yaml")).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (UID, UID), "{replace:?}");
    }
}

#[test]
fn a_name_of_a_file_cannot_write_lines_into_the_policy_or_on_the_terminal() {
    let lab = Lab::with_web();
    let name = "a\nnetwork_policies: {}\u{1b}[2J $(id).yaml";
    let made = init(&lab, &["--agent", "none", name]);
    assert!(!made.ok().contains('\u{1b}'), "{made:?}");
    let text = std::fs::read_to_string(lab.folder("project").join(name)).unwrap();
    assert_eq!(text.matches("\nnetwork_policies:").count(), 1, "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn answers_in_a_terminal_write_the_policy_and_their_end_writes_none() {
    let lab = Lab::with_web();
    let folder = lab.folder("project");
    std::os::unix::fs::chown(&folder, Some(UID), Some(UID)).unwrap();
    let project = folder.display();
    let program = lab.program_path();
    let program = program.display();
    on_terminal_of(
        &lab,
        &[
            &format!(r"send:export SUDO_UID={UID} SUDO_GID={UID}; cd {project}; {program} init\n"),
            "expect:Which agent",
            r"send:emacs\n",
            "expect:`emacs` is not in the list",
            r"send:none\n",
            "expect:Which hosts",
            r"send:a.test=read-only, b.test:x\n",
            "expect:a port is a whole number",
            r"send:a.test=read-only, b.test:8443\n",
            "expect:may it write?",
            r"send:\n",
            "expect:may it read?",
            r"send:/usr/share/doc\n",
            "expect:may it not see",
            r"send:**/.env\n",
            "expect:0 warnings",
            &format!(r"send:{program} init other.yaml\n"),
            "expect:Which agent",
            r"send:\x04",
            "expect:nothing was written",
            r"send:ls; echo RC=$((0+$?))\n",
            "until:RC=0",
            "absent:other.yaml\r\n",
        ],
    );
    let text = std::fs::read_to_string(folder.join("policy.yaml")).unwrap();
    for part in [
        "host: a.test",
        "access: read-only",
        "port: 8443",
        "- /usr/share/doc",
        "\"**/.env\"",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
