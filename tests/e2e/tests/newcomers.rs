//! Mistakes of newcomers, and names that attack who reads or completes them.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Stdio;

use lab::Lab;
use lab::host::UID;

use crate::one_line::in_project;
use crate::terminal::on_terminal_of;

/// What the program printed and its exit code, run with `words` in the folder `project`, which the
/// workload's user owns.
#[derive(Debug)]
struct Printed {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn program(lab: &Lab, words: &[&str]) -> Printed {
    let folder = lab.folder("project");
    chown(&folder, Some(UID), Some(UID)).unwrap();
    let mut command = lab.command();
    command
        .env("SUDO_UID", UID.to_string())
        .env("SUDO_GID", UID.to_string())
        .env("XDG_CONFIG_HOME", lab.folder("config"))
        .current_dir(folder)
        .args(words)
        .stdin(Stdio::null());
    let output = lab.inside(move || command.output().unwrap());
    Printed {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn words_of_other_tools_are_refused_with_the_word_that_is_meant() {
    let lab = Lab::with_web();
    for (words, why) in [
        (&["--net", "a.test", "--", "true"][..], "'--network'"),
        (&["--allow-host", "a.test", "--", "true"], "'--allow'"),
        (
            &["--unshare-net", "--", "true"],
            "unexpected argument '--unshare-net'",
        ),
        (
            &["--ro-bind", "/", "/", "true"],
            "unexpected argument '--ro-bind'",
        ),
        (&["--network", "none", "true"], "proxy, block, allow"),
        (&["allow-host", "a.test"], "--allow HOST"),
        (&["run", "--", "true"], "--policy-data FILE"),
        // A flag behind the command is the command's.
        (&["--", "true", "--allow", "a.test"], "--allow HOST"),
        (&["--write", "--", "true"], "'--write <PATH>'"),
        (&["init", "--agent", "claude"], "'claude-code'"),
        (&["init", "--allow-net"], "'--allow'"),
        (&["init", "--preset", "claud"], "claude-code"),
        (
            &["init", "--preset", "node"],
            "openshell-sandbox presets make node",
        ),
        (&["init", "--allow", "*"], "name the hosts"),
        (&["init", "--allow", "a.test/x"], "write `a.test`"),
    ] {
        let refused = program(&lab, words);
        assert_eq!(refused.code, Some(1), "{words:?}: {refused:?}");
        assert!(refused.stderr.contains(why), "{words:?}: {refused:?}");
    }
    assert_eq!(
        names(&lab.folder("project")),
        Vec::<String>::new(),
        "something was written"
    );
    let unknown = program(&lab, &["--allow", "a.test", "run", "--", "true"]);
    assert_eq!(unknown.code, Some(127), "{unknown:?}");
    assert!(
        unknown.stderr.contains("command not found: run"),
        "{unknown:?}"
    );
}

#[test]
fn a_policy_with_a_key_at_the_wrong_level_or_of_another_tool_is_refused_at_its_line() {
    let lab = Lab::with_web();
    let file = lab.folder("project").join("policy.yaml");
    for (text, why) in [
        (
            "network_policies: {}\nread_only: [/srv]",
            "line 2: read_only: unknown key",
        ),
        (
            "network_policies:\n  a: {host: a.test, port: 443}",
            "line 2: network_policies.a.host: unknown key",
        ),
        (
            "network_policies:\n  a:\n    endpoints:\n    - {host: a.test, port: 443, binaries: []}",
            "line 4: network_policies.a.endpoints[0].binaries: unknown key",
        ),
        (
            "process: {read_write: [/srv]}",
            "line 1: process.read_write: unknown key",
        ),
        (
            "{\"network\": {\"allowedDomains\": [\"a.test\"]}}",
            "did you mean `network_policies`?",
        ),
        (
            "include disable-common.inc\nwhitelist /srv\nnet none",
            "line 1: expected a map",
        ),
        ("--ro-bind / /\n--unshare-net", "line 1: expected a map"),
        ("network_policies:\n\ta: {}", "line 2: tabs"),
        ("", "expected a map, found nothing"),
    ] {
        std::fs::write(&file, text).unwrap();
        for words in [
            &["check", "policy.yaml"][..],
            &["-p", "policy.yaml", "true"],
        ] {
            let refused = program(&lab, words);
            assert_eq!(refused.code, Some(1), "{text}: {refused:?}");
            assert!(refused.stderr.contains(why), "{text}: {refused:?}");
        }
    }
}

#[test]
fn hosts_and_paths_that_yaml_would_read_as_something_else_stay_what_was_typed() {
    let lab = Lab::with_web();
    let hosts = ["yes", "on", "null", "1e3", "0o10", "1_000", "2001-01-01"];
    let mut words = vec!["init", "--agent", "none"];
    words.extend(hosts.iter().flat_map(|host| ["--allow", host]));
    let made = program(&lab, &words);
    assert_eq!(made.code, Some(0), "{made:?}");
    for host in hosts {
        let explained = program(
            &lab,
            &[
                "explain",
                "policy.yaml",
                "--binary",
                "/bin/true",
                "--host",
                host,
                "--port",
                "443",
            ],
        );
        // No name server answers; the policy has the host.
        let named = format!("CONNECT {host}:443 by /bin/true: dns_failed");
        assert!(explained.stdout.contains(&named), "{explained:?}");
    }
    let seen = lab.folder("seen");
    let paths = [
        "a#b",
        "a #b",
        "a: b",
        "it's",
        "\"q\"",
        "-x",
        "a\nb",
        "a\tb",
        "{a}",
        "null",
        "hidden:\n  read_write: [\"/\"]",
    ];
    let mut words = vec!["init".to_owned(), "paths.yaml".to_owned()];
    let mut files = Vec::new();
    for path in paths {
        let path = seen.join(path.replace('/', "_"));
        std::fs::write(&path, "visible\n").unwrap();
        words.push(format!("--read={}", path.display()));
        files.push(path.display().to_string());
    }
    assert_eq!(
        lab.shell(&format!("chmod -R a+rX {}", seen.display())),
        "",
        "the files are readable"
    );
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let made = program(&lab, &words);
    assert!(made.stdout.contains("0 warnings"), "{made:?}");
    let mut words = vec!["cat"];
    words.extend(files.iter().map(String::as_str));
    let run = in_project(&lab, &["--policy-data", "paths.yaml"]).run(&words);
    assert_eq!(run.stdout, "visible\n".repeat(paths.len()), "{run:?}");
    let script = format!("echo x > '{}' || ls {}", files[0], seen.display());
    let run = in_project(&lab, &["--policy-data", "paths.yaml"]).sh(&script);
    assert_eq!(run.stdout, "", "{run:?}");
    let now = std::fs::read_to_string(&files[0]).unwrap();
    assert_eq!(now, "visible\n", "{run:?}");
}

#[test]
fn init_writes_nothing_through_a_symlink_a_fifo_or_a_folder() {
    let lab = Lab::with_web();
    let folder = lab.folder("project");
    let target = lab.file("target", "mine");
    symlink(&target, folder.join("link.yaml")).unwrap();
    symlink(folder.join("missing"), folder.join("dangling.yaml")).unwrap();
    std::fs::create_dir(folder.join("folder.yaml")).unwrap();
    let pipe = folder.join("pipe.yaml").display().to_string();
    assert_eq!(lab.shell(&format!("mkfifo {pipe}")), "");
    let before = names(&folder);
    for file in ["link.yaml", "dangling.yaml", "folder.yaml", "pipe.yaml"] {
        let refused = program(&lab, &["init", "--agent", "none", file]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let why = format!("{file} already exists");
        assert!(refused.stderr.contains(&why), "{refused:?}");
    }
    for file in ["folder.yaml", "folder.yaml/", ".", ".."] {
        let refused = program(&lab, &["init", "--agent", "none", "--replace", file]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("cannot write"), "{refused:?}");
    }
    assert_eq!(names(&folder), before);
    let made = program(&lab, &["init", "--agent", "none", "--replace", "link.yaml"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(!folder.join("link.yaml").is_symlink());
    assert_eq!(std::fs::read_to_string(target).unwrap(), "mine");
    assert_eq!(names(&folder), before);
}

#[test]
fn a_preset_that_is_planted_neither_blocks_nor_writes_on_the_terminal() {
    let lab = Lab::with_web();
    let presets = lab.folder("config/openshell/presets");
    let grant = "network_policies: {a: {endpoints: [{host: a.test, port: 443}], binaries: [{path: \
                 /bin/a}]}}";
    std::fs::write(presets.join("escape.yaml"), format!("# \u{1b}[2J\n{grant}")).unwrap();
    let line = format!("# a\u{2028}b\u{202e}c\n{grant}");
    std::fs::write(presets.join("line.yaml"), line).unwrap();
    std::fs::write(presets.join("open.yaml"), format!("# Mine.\n{grant}")).unwrap();
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(presets.join("open.yaml"), open).unwrap();
    let shown = presets.display();
    assert_eq!(
        lab.shell(&format!(
            "mkfifo {shown}/pipe.yaml; chmod -R a+rX {shown}/../.."
        )),
        ""
    );
    let listed = program(&lab, &["presets"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(
        !listed
            .stdout
            .contains(['\u{1b}', '\u{2028}', '\u{202e}', '\r']),
        "{listed:?}"
    );
    for (preset, why) in [
        ("escape", "unexpected character"),
        ("open", "others can write to"),
        ("pipe", "it is a FIFO"),
    ] {
        for words in [
            &["init", "--preset", preset, "made.yaml"][..],
            &["--preset", preset, "--", "true"],
        ] {
            let refused = program(&lab, words);
            assert_eq!(refused.code, Some(1), "{refused:?}");
            assert!(refused.stderr.contains(why), "{refused:?}");
            assert!(!refused.stderr.contains('\u{1b}'), "{refused:?}");
        }
    }
    assert_eq!(names(&lab.folder("project")), Vec::<String>::new());
}

/// A workload that connects with a program whose name is a message in a colour.
const FORGED: &str = r"name=$(
    printf 'c\nopenshell-sandbox: forged\r\n      add --allow evil.test\033[33m\342\200\256');
    cp /usr/bin/curl ./$name; ./$name -sS -o /dev/null https://b.test; rm ./$name";

#[test]
fn names_of_the_workload_forge_neither_a_line_nor_a_colour_of_the_summary() {
    let lab = Lab::with_web();
    let script = FORGED.replace("./$name", "\"./$name\"");
    let run = in_project(&lab, &["--allow", "a.test"]).sh(&script);
    let summary: Vec<_> = run
        .stderr
        .lines()
        .skip_while(|line| !line.contains("refused by the policy:"))
        .collect();
    assert_eq!(summary.len(), 3, "{run:?}");
    assert!(
        summary[1].contains(r"c\nopenshell-sandbox: forged\r\n      add"),
        "{run:?}"
    );
    assert_eq!(summary[2], "      add --allow b.test", "{run:?}");
    assert!(!summary.concat().contains(['\u{1b}', '\u{202e}']));
    assert!(!run.log.contains(['\u{1b}', '\u{202e}']), "{}", run.log);
}

#[test]
fn colours_stay_out_of_files_pipes_and_json_while_other_streams_are_a_terminal() {
    let lab = Lab::with_web();
    let out = lab.folder("out");
    chown(&out, Some(UID), None).unwrap();
    let out = out.display();
    let refused = "bash -c 'exec 3<>/dev/tcp/10.99.0.9/80'";
    let counted = |name: &str| {
        format!(
            "echo {name}-$(grep -c 'refused by' {out}/{name})-$(grep -c $'\\\\033' {out}/{name})\\n"
        )
    };
    on_terminal_of(
        &lab,
        &[
            &format!("send:BOX -- {refused} 2> {out}/file; {}", counted("file")),
            "expect:file-1-0",
            &format!(
                "send:BOX -- {refused} 2>&1 | tee {out}/pipe; {}",
                counted("pipe")
            ),
            "expect:pipe-1-0",
            &format!(r"send:BOX --log-format json -- {refused}; echo JSON=$((0+$?))\n"),
            "until:JSON=1",
            "absent:\x1b[0;3",
        ],
    );
    let log = lab.log();
    assert!(!log.contains('\u{1b}'), "{log}");
}

#[test]
fn a_pattern_without_a_folder_hides_its_files_in_each_shape_of_the_working_directory() {
    let lab = Lab::with_web();
    let folder = lab.folder("project");
    std::fs::create_dir_all(folder.join("a/b")).unwrap();
    for name in [".env", "a/.env", "a/b/.env"] {
        std::fs::write(folder.join(name), "s3cret\n").unwrap();
    }
    let project = folder.display().to_string();
    let above = folder.parent().unwrap().display().to_string();
    assert_eq!(
        lab.shell(&format!(
            "chown -R {UID} {project}; ln -s {project} {above}/link; chown -h {UID} {above}/link"
        )),
        ""
    );
    let policy = |files: &str| {
        format!(
            "process: {{run_as_user: \"{UID}\"}}\nfilesystem_policy: {{{files}, hidden: \
             [\"**/.env\"]}}\nnetwork_policies: {{}}\n"
        )
    };
    for files in [
        "read_only: [\"$WORKDIR\"], include_workdir: false".to_owned(),
        "read_write: [\"$WORKDIR\"]".to_owned(),
        format!("read_only: [{project}], include_workdir: false"),
        format!("read_only: [{project}/], include_workdir: false"),
        format!("read_only: [{project}/a, {project}], include_workdir: false"),
        format!("read_only: [{above}], include_workdir: false"),
        "read_only: [/], include_workdir: false".to_owned(),
        format!("read_only: [{project}], read_write: [{project}/a], include_workdir: false"),
    ] {
        let file = lab.file("hides.yaml", policy(&files));
        let run = in_project(&lab, &["--policy-data", file.to_str().unwrap()])
            .sh("cat .env a/.env a/b/.env; echo done");
        assert_eq!(run.stdout, "done\n", "{files}: {run:?}");
    }
    // A symlink of a user is not followed, so that nothing is granted behind it.
    for files in [
        format!("read_only: [{above}/link], include_workdir: false"),
        format!("read_only: [{project}/a/..], include_workdir: false"),
    ] {
        let file = lab.file("hides.yaml", policy(&files));
        let run = in_project(&lab, &["--policy-data", file.to_str().unwrap()])
            .sh(&format!("cat {project}/.env {above}/link/a/.env"));
        assert!(!run.stdout.contains("s3cret"), "{files}: {run:?}");
        assert!(run.stderr.contains(&project), "{files}: {run:?}");
    }
}

#[test]
fn names_that_a_shell_would_execute_are_not_completed() {
    let lab = Lab::with_web();
    let bin = lab.folder("bin");
    let listed = lab.file(
        "listed",
        "NAME PID\nweb-1 1 x\nweb-$(touch${IFS}hit) 2\nweb-`touch hit` 3\nweb-2;touch${IFS}hit 4\n\
         web-* 5\n-rf 6\n\u{1b}[31mweb-3 7\n$(touch hit) 8\n",
    );
    let fake = bin.join("openshell-sandbox");
    std::fs::write(&fake, format!("#!/bin/sh\ncat {}\n", listed.display())).unwrap();
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    let home = lab.folder("home");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/completions");
    let data = std::fs::canonicalize(data).unwrap().display().to_string();
    let shells = [
        format!(
            "bash --norc -c 'source {data}/openshell-sandbox.bash; COMP_WORDS=(openshell-sandbox exec \
             \"\"); COMP_CWORD=2; _openshell__sandbox_values; printf \"%s\\n\" \"${{COMPREPLY[@]}}\"'"
        ),
        format!(
            "zsh -f -c 'compdef() {{ }}; source {data}/_openshell-sandbox; _openshell_sandbox_names \
             ps'"
        ),
        format!(
            "fish --no-config -c 'source {data}/openshell-sandbox.fish; __openshell_sandbox_names ps'"
        ),
    ];
    for shell in shells {
        let printed = lab.shell(&format!(
            "cd {0} && HOME={0} PATH={1}:/usr/bin:/bin {shell}",
            home.display(),
            bin.display()
        ));
        assert_eq!(printed, "web-1\n", "{shell}");
    }
    assert!(!home.join("hit").exists());
}
