//! Policies of a command line: hosts, paths and presets without a file, and beside one.

use std::path::Path;

use lab::host::UID;
use lab::{Lab, Sandbox};
use rustix::process::Signal;

/// Returns a run in a folder of the workload's user, with `flags` and no policy file.
pub(crate) fn in_project<'l>(lab: &'l Lab, flags: &[&str]) -> Sandbox<'l> {
    let folder = lab.folder("project");
    std::os::unix::fs::chown(&folder, Some(UID), Some(UID)).unwrap();
    // For root, who has called sudo.
    let user = UID.to_string();
    Sandbox::bare(lab)
        .env("SUDO_UID", &user)
        .env("SUDO_GID", &user)
        .current_dir(folder.to_str().unwrap())
        .args(flags)
}

#[test]
fn without_a_file_the_current_folder_is_writable_and_nothing_else_and_named_hosts_are_reached_by_all_programs()
 {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let [other, seen] = ["other", "seen"].map(|name| lab.folder(name).display().to_string());
    lab.shell(&format!(
        "echo visible > {seen}/file; chmod -R a+rX {seen} {other}"
    ))
    .clear();
    std::fs::write(lab.folder("project").join(".env"), "s3cret").unwrap();
    let script = format!(
        "touch made && echo made; touch {other}/x; cat {seen}/file; touch {seen}/x; cat .env; for \
         method in GET POST; do curl -s -X $method -o /dev/null -w '%{{http_code}}\\n' \
         http://10.99.0.1:8080/; done; curl -s -o /dev/null -w '%{{http_connect}}' https://a.test"
    );
    let finished = in_project(
        &lab,
        &[
            "--read",
            &seen,
            "--hide",
            ".env",
            "--allow",
            "10.99.0.1:8080=read-only",
        ],
    )
    .sh(&script);
    assert_eq!(
        finished.stdout, "made\nvisible\n200\n403\n403",
        "{finished:?}"
    );
    let refused = |why: &str| finished.stderr.matches(why).count();
    assert_eq!(
        (
            refused("Permission denied"),
            refused("Read-only file system")
        ),
        (1, 2),
        "{finished:?}"
    );
    assert!(!finished.stderr.contains("policy warning"), "{finished:?}");
}

#[test]
fn a_path_that_leads_up_means_what_the_kernel_takes_it_for() {
    let lab = Lab::with_web();
    let [seen, far] =
        ["seen", "far/inner"].map(|name| lab.folder("project").parent().unwrap().join(name));
    std::fs::create_dir_all(&seen).unwrap();
    std::fs::create_dir_all(&far).unwrap();
    let made = format!(
        "echo near > {0}/file; echo above > {1}/../file; chmod -R a+rX {0} {1}/..",
        seen.display(),
        far.display()
    );
    assert_eq!(lab.shell(&made), "");
    std::os::unix::fs::symlink(&far, lab.folder("project").join("link")).unwrap();
    let above = far.join("../file").display().to_string();
    let finished = in_project(
        &lab,
        &[
            "--read",
            "../seen",
            "--read",
            &above,
            "--read",
            "../missing/",
        ],
    )
    .sh(&format!("cat ../seen/file {above}"));
    assert_eq!(finished.ok(), "near\nabove", "{finished:?}");
    if lab::host::tier() == lab::host::Tier::Root {
        let led = in_project(&lab, &["--read", "link/../file"]).sh("echo ran");
        assert!(
            led.stderr.contains("--read link/../file: ") && led.stderr.contains("symlink"),
            "{led:?}"
        );
        assert_eq!(led.stdout, "");
    }
    let missing = in_project(&lab, &["--read", "nothing/../seen"]).sh("echo ran");
    assert!(
        missing
            .stderr
            .contains("--read nothing/../seen: No such file")
            && missing.stdout.is_empty(),
        "{missing:?}"
    );
}

#[test]
fn the_printed_policy_means_what_the_command_line_means() {
    let lab = Lab::with_web();
    let flags = [
        "--allow",
        "a.test",
        "--allow",
        "[2001:db8::1]:53=tcp",
        "--preset",
        "git-read,models",
        "--hide",
        "**/.env",
        "--write",
        "out",
    ];
    let printed = in_project(&lab, &flags)
        .args(&["--print-policy"])
        .run(&["ignored"]);
    let text = printed.ok();
    let folder = lab.folder("project").display().to_string();
    for part in [
        &folder,
        &format!("{folder}/out"),
        "'**/.env'",
        "host: a.test",
        "protocol: tcp",
        "git-read:",
        "models:",
    ] {
        assert!(
            text.replace('"', "'").contains(part.trim_matches('\'')),
            "{part}: {text}"
        );
    }
    let again = lab.file("printed.yaml", text).display().to_string();
    let beside = Sandbox::bare(&lab)
        .args(&["-p", &again, "--print-policy", "--allow", "b.test:80=full"])
        .run(&["true"]);
    let beside = beside.ok();
    assert!(
        beside.starts_with(text.lines().next().unwrap()) && beside.contains("command-line-2:"),
        "{beside}"
    );
    assert!(
        text.lines().all(|line| beside.contains(line)),
        "{beside}\n{text}"
    );
}

#[test]
fn what_a_command_line_cannot_mean_is_one_line() {
    let lab = Lab::with_web();
    for (flags, expected) in [
        (
            &["--preset", "nope"][..],
            "--preset nope is unknown; there are aider, apt, claude-code",
        ),
        (
            &["--allow", "a.test=rw"],
            "`rw` is not one of read-only, read-write, full, tcp",
        ),
        (&["--allow", "*"], "matches all hosts"),
        (&["--allow", "a.test:0"], "a port is a whole number"),
        (&["--hide", "."], "is hidden, and"),
        (
            &["--allow", "a.test", "--workdir", "/nowhere"],
            "--workdir /nowhere does not exist",
        ),
    ] {
        let refused = in_project(&lab, flags).sh("echo ran");
        assert!(
            refused.code() > 0 && refused.stderr.contains(expected) && refused.stdout.is_empty(),
            "{refused:?}"
        );
    }
    for (current, home) in [("/", "/root"), ("/usr", "/usr")] {
        let refused = Sandbox::bare(&lab)
            .current_dir(current)
            .env("HOME", home)
            .args(&["--allow", "a.test"])
            .sh("echo ran");
        assert!(
            refused.code() == 1 && refused.stderr.contains("name one with --workdir"),
            "{refused:?}"
        );
    }
}

#[test]
fn an_observed_run_needs_no_policy_and_writes_the_one_that_it_needs() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let script = "curl -s -o made -w '%{http_code}' http://web.test:8080/; ls";
    let learnt = in_project(&lab, &["--observe", &observed]).sh(script);
    assert_eq!(learnt.ok(), "200made", "{learnt:?}");
    let enforced = in_project(&lab, &["-p", &observed]).sh(script);
    assert_eq!(enforced.ok(), "200made", "{enforced:?}");
    let refused = in_project(&lab, &["-p", &observed])
        .sh("curl -s -o /dev/null -w '%{http_code}' -X POST http://web.test:8080/");
    assert_eq!(refused.ok(), "403", "{refused:?}");
}

#[test]
fn a_command_adds_no_preset_for_the_next_run_and_replaces_none_that_is_built_in() {
    let lab = Lab::with_web();
    let config = lab.folder("project").join("config");
    let run = |flags: &[&str], script: &str| {
        in_project(&lab, flags)
            .env("XDG_CONFIG_HOME", config.to_str().unwrap())
            .sh(script)
    };
    let script = "mkdir -p config/openshell/presets; echo {} > config/openshell/presets/mine.yaml; \
                  mv config other; ls config/openshell";
    for flags in [&["--allow", "a.test"][..], &["--preset", "git-read"]] {
        let tried = run(flags, script);
        assert_eq!(tried.ok(), "presets", "{tried:?}");
        assert!(
            tried.stderr.contains("Read-only file system") && tried.stderr.contains("cannot move"),
            "{tried:?}"
        );
    }
    assert!(!config.exists(), "the placeholder goes with the run");
    let folder = config.join("openshell/presets");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["git-read", "mine"] {
        std::fs::write(
            folder.join(format!("{name}.yaml")),
            "filesystem_policy: {read_only: [/srv/mine]}\nnetwork_policies: {}\n",
        )
        .unwrap();
    }
    let printed = run(&["--preset", "git-read", "--print-policy"], "true");
    assert!(
        printed.ok().contains("codeload.github.com") && !printed.ok().contains("/srv/mine"),
        "{printed:?}"
    );
    assert!(
        run(&["--preset", "mine", "--print-policy"], "true")
            .ok()
            .contains("/srv/mine")
    );
    let shared = lab.shell(&format!("chmod a+w {}/mine.yaml", folder.display()));
    assert_eq!(shared, "");
    let refused = run(&["--preset", "mine"], "echo ran");
    assert!(
        refused.code() == 1 && refused.stderr.contains("others can write to"),
        "{refused:?}"
    );
}

#[test]
fn what_hides_nothing_and_a_folder_that_the_user_may_not_write_to_are_said_at_the_start() {
    let lab = Lab::with_web();
    let roots = lab.folder("roots");
    lab.shell(&format!("chown 0:0 {0}; chmod 755 {0}", roots.display()))
        .clear();
    let flags = [
        "--hide",
        "**/.env",
        "--hide",
        "nosuch",
        "--write",
        roots.to_str().unwrap(),
        "--write",
        roots.to_str().unwrap(),
    ];
    let finished = in_project(&lab, &flags).sh("true");
    let project = lab.folder("project").display().to_string();
    for line in [
        format!("filesystem_policy.hidden: {project}/**/.env hides nothing"),
        format!("filesystem_policy.hidden: {project}/nosuch hides nothing"),
        format!("cannot write to {}: its owner", roots.display()),
    ] {
        assert_eq!(
            finished.stderr.matches(&line).count(),
            1,
            "{line}: {finished:?}"
        );
    }
    assert!(
        !finished
            .stderr
            .contains(&format!("cannot write to {project}:")),
        "{finished:?}"
    );
    std::fs::write(lab.folder("project").join(".env"), "s3cret").unwrap();
    let quiet = in_project(&lab, &["--hide", "**/.env"]).sh("true");
    assert_eq!(quiet.stderr, "", "what protects is no news");
    let usr = in_project(&lab, &["--hide", "/usr"]).sh("true");
    assert!(
        usr.stderr.contains("/usr holds /usr, which programs need"),
        "{usr:?}"
    );
}

#[test]
fn a_policy_in_the_working_directory_is_not_read() {
    let lab = Lab::with_web();
    let folder = lab.folder("project");
    for name in [
        "policy.yaml",
        "openshell.yaml",
        ".openshell.yaml",
        "openshell-sandbox.yaml",
    ] {
        std::fs::write(
            folder.join(name),
            "filesystem_policy: {read_only: [/var]}\nnetwork_policies: {}\n",
        )
        .unwrap();
    }
    let finished = in_project(&lab, &["--allow", "a.test"]).sh("ls /var/lib");
    assert_eq!(finished.ok(), "", "{finished:?}");
}

/// Returns true if a preset permits git a request.
fn is_permitted(lab: &Lab, preset: &str, host: &str, method: &str, path: &str) -> bool {
    let own =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../data/presets/{preset}.yaml"));
    let file = lab.file(&format!("{preset}.yaml"), std::fs::read(own).unwrap());
    let file = file.display();
    let binary = lab.binary();
    let explain = format!(
        "{binary} explain {file} --binary /usr/bin/git --host {host} --port 443 --method {method} \
         --path '{path}'; echo $?"
    );
    let printed = lab.shell(&explain);
    println!("{printed}");
    printed.ends_with("\n0\n")
}

#[test]
fn presets_for_git_fetch_and_do_not_push_unless_asked() {
    let lab = Lab::new(&[("20.0.0.7", "github.com"), ("20.0.0.8", "api.github.com")]);
    for (path, method, is_fetch) in [
        ("/a/b.git/info/refs?service=git-upload-pack", "GET", true),
        ("/a/b.git/git-upload-pack", "POST", true),
        ("/a/b.git/info/refs?service=git-receive-pack", "GET", false),
        ("/a/b.git/git-receive-pack", "POST", false),
        ("/a/b/settings", "POST", false),
    ] {
        assert_eq!(
            is_permitted(&lab, "git-read", "github.com", method, path),
            is_fetch,
            "{method} {path}"
        );
        assert!(
            is_permitted(&lab, "github", "github.com", method, path),
            "{method} {path}"
        );
    }
    for (method, path, expected) in [
        ("POST", "/repos/a/b/pulls", true),
        ("DELETE", "/repos/a/b", false),
        ("DELETE", "/repos/a/b/git/refs/heads/c", true),
        ("POST", "/repos/a/b/hooks", false),
        ("POST", "/user/keys", false),
        ("POST", "/user/gpg_keys", false),
        ("POST", "/user/ssh_signing_keys", false),
        ("DELETE", "/repositories/12", false),
        ("GET", "/repositories/12", true),
        ("POST", "/repositories/12/hooks", false),
        ("POST", "/repositories/12/keys", false),
        ("POST", "/orgs/o/hooks", false),
        ("PUT", "/repos/a/b/collaborators/c", false),
        ("PUT", "/repositories/12/collaborators/c", false),
        ("POST", "/repos/a/b/transfer", false),
        ("POST", "/graphql", true),
    ] {
        assert_eq!(
            is_permitted(&lab, "github", "api.github.com", method, path),
            expected,
            "{method} {path}"
        );
    }
}

#[test]
fn presets_of_agents_reach_models_and_nothing_that_is_kept_for_the_owner_of_a_key() {
    let lab = Lab::new(&[
        ("20.0.0.7", "api.anthropic.com"),
        ("20.0.0.8", "api.openai.com"),
        ("20.0.0.9", "chatgpt.com"),
        ("20.0.0.10", "openrouter.ai"),
        ("20.0.0.11", "generativelanguage.googleapis.com"),
        ("20.0.0.12", "api.individual.githubcopilot.com"),
        ("20.0.0.13", "opencode.ai"),
    ]);
    for (preset, host, method, path, expected) in [
        (
            "claude-code",
            "api.anthropic.com",
            "POST",
            "/v1/messages?beta=true",
            true,
        ),
        (
            "claude-code",
            "api.anthropic.com",
            "POST",
            "/v1/messages/batches",
            false,
        ),
        (
            "claude-code",
            "api.anthropic.com",
            "POST",
            "/v1/files",
            false,
        ),
        (
            "claude-code",
            "api.anthropic.com",
            "POST",
            "/api/oauth/file_upload",
            false,
        ),
        (
            "claude-code",
            "api.anthropic.com",
            "POST",
            "/api/oauth/claude_cli/create_api_key",
            false,
        ),
        (
            "claude-code",
            "api.anthropic.com",
            "GET",
            "/api/oauth/profile",
            true,
        ),
        (
            "codex",
            "chatgpt.com",
            "POST",
            "/backend-api/codex/x/files",
            false,
        ),
        ("models", "openrouter.ai", "POST", "/api/v1/keys", false),
        (
            "models",
            "openrouter.ai",
            "POST",
            "/api/v1/chat/completions",
            true,
        ),
        (
            "models",
            "generativelanguage.googleapis.com",
            "POST",
            "/v1beta/openai/files",
            false,
        ),
        (
            "models",
            "generativelanguage.googleapis.com",
            "POST",
            "/v1beta/models/x:generateContent",
            true,
        ),
        (
            "models",
            "generativelanguage.googleapis.com",
            "POST",
            "/v1beta/models/x:streamGenerateContent",
            true,
        ),
        (
            "models",
            "generativelanguage.googleapis.com",
            "POST",
            "/v1beta/models/x:batchGenerateContent",
            false,
        ),
        (
            "models",
            "generativelanguage.googleapis.com",
            "POST",
            "/v1beta/models/x:asyncBatchEmbedContent",
            false,
        ),
        ("codex", "api.openai.com", "POST", "/v1/responses", true),
        ("codex", "api.openai.com", "POST", "/v1/files", false),
        (
            "codex",
            "chatgpt.com",
            "POST",
            "/backend-api/codex/responses",
            true,
        ),
        (
            "codex",
            "chatgpt.com",
            "POST",
            "/backend-api/conversation",
            false,
        ),
        (
            "gemini",
            "generativelanguage.googleapis.com",
            "POST",
            "/v1beta/models/x:streamGenerateContent",
            true,
        ),
        (
            "gemini",
            "generativelanguage.googleapis.com",
            "POST",
            "/upload/v1beta/files",
            false,
        ),
        (
            "gemini",
            "generativelanguage.googleapis.com",
            "POST",
            "/v1beta/cachedContents",
            false,
        ),
        (
            "copilot",
            "api.individual.githubcopilot.com",
            "POST",
            "/chat/completions",
            true,
        ),
        (
            "copilot",
            "api.individual.githubcopilot.com",
            "POST",
            "/uploads",
            false,
        ),
        ("opencode", "opencode.ai", "POST", "/zen/v1/responses", true),
        ("opencode", "opencode.ai", "POST", "/api/share", false),
        ("aider", "openrouter.ai", "GET", "/api/v1/models", true),
        ("aider", "openrouter.ai", "POST", "/api/v1/auth/keys", false),
        ("models", "api.anthropic.com", "POST", "/v1/messages", true),
        ("models", "api.anthropic.com", "POST", "/v1/files", false),
        (
            "models",
            "api.openai.com",
            "POST",
            "/v1/chat/completions",
            true,
        ),
        (
            "models",
            "api.openai.com",
            "POST",
            "/v1/uploads/x/parts",
            false,
        ),
    ] {
        assert_eq!(
            is_permitted(&lab, preset, host, method, path),
            expected,
            "{preset} {host} {method} {path}"
        );
    }
}

#[test]
fn a_sandbox_ends_with_the_process_that_started_it_and_not_with_a_thread_of_it() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let ready = lab.folder("ready");
    std::os::unix::fs::chown(&ready, Some(UID), Some(UID)).unwrap();
    let policy_text = format!(
        "{}filesystem_policy: {{read_write: [{}]}}\n",
        super::policy("{}"),
        ready.display()
    );
    std::fs::write(&policy, policy_text).unwrap();
    let program = "import os, subprocess, sys, threading, time\nwords = [*sys.argv[3:], \
                   '--die-with-parent=%d' % os.getpid(), '-p', sys.argv[1], '--', 'sh', '-c', \
                   'echo $$ > ' + sys.argv[2] + '/pid; exec sleep 600']\nthread = \
                   threading.Thread(target=lambda: subprocess.Popen(words, stderr=open(sys.argv[2] \
                   + '/log', 'w')))\nthread.start(); thread.join()\nwhile not \
                   os.path.exists(sys.argv[2] + '/pid'): time.sleep(0.01)\nprint('started', \
                   flush=True)\ntime.sleep(600)\n";
    let program = lab.file("parent.py", program);
    let as_caller = lab.as_caller();
    let mut words: Vec<_> = as_caller.split_whitespace().collect();
    let policy = policy.display().to_string();
    let folder = ready.display().to_string();
    let program = program.display().to_string();
    let binary = lab.program_path().display().to_string();
    words.extend(["/usr/bin/python3", &program, &policy, &folder, &binary]);
    let parent = lab.program(&words);
    // The thread that forked has ended, and the sandbox runs.
    let log = || std::fs::read_to_string(format!("{folder}/log")).unwrap();
    assert!(
        Path::new(&format!("{folder}/pid")).exists() && !log().contains("ended"),
        "{}",
        log()
    );
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(parent.pid()).unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    wait_until(|| {
        log().contains(
            "the process that started this one has ended (--die-with-parent); the sandbox ends",
        )
    });
    let gone = Sandbox::bare(&lab)
        .args(&["--die-with-parent=1", "-p", &policy])
        .sh("echo ran");
    assert!(
        gone.code() == 1 && gone.stderr.contains("has ended") && gone.stdout.is_empty(),
        "{gone:?}"
    );
}

fn wait_until(is_so: impl FnMut() -> bool) {
    lab::wait_until(is_so, || "not within a minute".to_owned());
}

#[test]
fn variables_are_given_by_name_value_and_file_and_those_that_look_like_secrets_are_named() {
    let lab = Lab::with_web();
    let file = lab
        .file(
            "variables",
            "# of the run\nFROM_FILE=a b=c\nPASSED\n\nEMPTY=\r\n",
        )
        .display()
        .to_string();
    let run =
        |flags: &[&str]| {
            lab.sandbox(&super::policy("{}"))
            .env("PASSED", "passed")
            .env("MY_TOKEN", "t0ken")
            .env("PLAIN", concat!("gh", "p_0123456789012345678901234567890123456789"))
            .args(flags)
            .sh("env | grep -E '^(FROM_FILE|PASSED|EMPTY|SET|MY_TOKEN|PLAIN)=' | sort | tr '\\n' \
                 ';'")
        };
    let all = run(&["--env", "SET=1=2"]);
    assert!(
        all.ok()
            .starts_with("MY_TOKEN=t0ken;PASSED=passed;PLAIN=gh")
            && all.ok().ends_with(";SET=1=2;"),
        "{all:?}"
    );
    let said = "variables of the command look like secrets: MY_TOKEN, PLAIN;";
    assert_eq!(all.stderr.matches(said).count(), 1, "{all:?}");
    let cleared = run(&["--clear-env", "--env-file", &file, "--env", "MY_TOKEN"]);
    assert_eq!(
        cleared.ok(),
        "EMPTY=;FROM_FILE=a b=c;MY_TOKEN=t0ken;PASSED=passed;",
        "{cleared:?}"
    );
    assert!(!cleared.stderr.contains("look like secrets"), "{cleared:?}");
    for (flags, expected) in [
        (
            ["--env", "LD_PRELOAD=/x"],
            "cannot set LD_PRELOAD: it makes programs run other code",
        ),
        (
            ["--env", "https_proxy=x"],
            "cannot set https_proxy: it makes",
        ),
        (["--env", "HOME=/x"], "cannot set HOME: it makes"),
        (["--env", "MISSING"], "--env: there is no such variable"),
        (["--env-file", "/nowhere"], "--env-file /nowhere"),
        (
            ["--env-file", "/proc/self/mem"],
            "--env-file /proc/self/mem",
        ),
    ] {
        let refused = run(&flags);
        assert!(
            refused.code() == 1 && refused.stderr.contains(expected) && refused.stdout.is_empty(),
            "{refused:?}"
        );
    }
    let bad = lab.file("bad", "A=1\nBASH_ENV=x\n").display().to_string();
    assert!(
        run(&["--env-file", &bad])
            .stderr
            .contains("line 2: cannot set BASH_ENV: it makes programs")
    );
    // A line of a secret over several is not shown.
    let bad = lab
        .file("pem", "KEY=-----BEGIN\nMIIEvQIBADAN+/x\nMIIEvQ\n")
        .display()
        .to_string();
    let refused = run(&["--env-file", &bad]);
    assert!(
        refused.stderr.contains("line 2: expected NAME=VALUE") && !refused.stderr.contains("MIIE"),
        "{refused:?}"
    );
}

/// What gets past filters of command lines: copies, heredocs, interpreters, `find -exec`, /proc,
/// scripts, other spellings.
#[test]
fn what_gets_past_filters_of_command_lines_gets_neither_a_hidden_file_nor_the_hosts_variables_nor_a_hook()
 {
    let lab = Lab::with_web();
    let folder = lab.folder("project");
    std::fs::write(folder.join(".env"), "s3cret").unwrap();
    let made = lab.shell(&format!(
        "cd {}; git init -q; chown -R {UID}:{UID} .",
        folder.display()
    ));
    assert_eq!(made, "");
    let attempts = [
        "cp .env /tmp/copy; cat /tmp/copy",
        "cat < .env",
        "find . -name '.e*' -exec cat {} +",
        "python3 -c 'print(open(\".en\" + \"v\").read())'",
        "perl -e 'open F, \".env\"; print <F>'",
        "printf 'cat .env' > /tmp/script; sh /tmp/script",
        "eval $(echo Y2F0IC5lbnY= | base64 -d)",
        "cat /proc/*/environ | tr '\\0' '\\n' | grep MY_TOKEN=",
        "cat /proc/1/root$PWD/.env",
        "cat $PWD/../project/./.env",
        "tar -cf - .env | strings | grep s3cret",
        "ln .env hard; cat hard",
        "ln -s .env soft; cat soft",
        "cd /tmp; ln -s $OLDPWD p; cat p/.env",
        "mv .env env; cat env",
        "git add -f .env; git show :.env",
        "cat <<END > .git/hooks/pre-commit\necho s3cret\nEND\ncat .git/hooks/pre-commit",
        "cp -r .git g; echo 's3cret' > g/hooks/x; rm -rf .git; mv g .git; cat .git/hooks/x",
    ];
    for attempt in attempts {
        let finished = in_project(&lab, &["--hide", "**/.env"])
            .env("MY_TOKEN", "t0ken")
            .args(&["--clear-env"])
            .sh(attempt);
        assert!(
            !finished.stdout.contains("s3cret") && !finished.stdout.contains("t0ken"),
            "{attempt}: {finished:?}"
        );
    }
    assert_eq!(
        std::fs::read_to_string(folder.join(".env")).unwrap(),
        "s3cret"
    );
}

/// Runs `script` with `flags`, and with those that each summary names, until it says `200`. Returns
/// the flags that were added.
fn mended(lab: &Lab, flags: &[&str], script: &str) -> Vec<String> {
    let mut added: Vec<String> = Vec::new();
    for _ in 0..4 {
        let all: Vec<_> = flags
            .iter()
            .copied()
            .chain(added.iter().map(String::as_str))
            .collect();
        let finished = in_project(lab, &all).sh(script);
        if finished.stdout.ends_with("200") {
            return added;
        }
        let tells_address = finished.stdout.contains("10.99.") && !script.contains("10.99.");
        assert!(!tells_address, "{finished:?}");
        let named = finished.stderr.lines();
        let named: Vec<_> = named
            .filter_map(|line| line.strip_prefix("      add "))
            .collect();
        assert!(!named.is_empty(), "{finished:?} under {all:?}");
        for flags in named {
            let words = lab.shell(&format!("printf '%s\\n' {flags}"));
            added.extend(words.lines().map(str::to_owned));
        }
    }
    panic!("refused with {flags:?} and {added:?}");
}

#[test]
fn each_flag_that_a_refusal_names_permits_what_was_refused() {
    let lab = Lab::new(&[
        ("10.99.0.1", "web.test"),
        ("198.51.100.10", "public.test"),
        ("10.99.0.2", "both.test"),
        ("10.99.0.3", "both.test"),
    ]);
    let _servers = [
        "10.99.0.1:8080",
        "10.99.0.1:443",
        "10.99.0.2:8080",
        "198.51.100.10:8080",
    ]
    .map(|address| lab.http(address));
    let curl = |words: &str| format!("curl -s -w '%{{http_code}}' {words}");
    let cases: [(&[&str], String, &[&str]); 9] = [
        (
            &["--write", "."],
            curl("http://public.test:8080/"),
            &["public.test:8080", "public.test:8080@198.51.100.10"],
        ),
        (
            &["--write", "."],
            curl("-p http://public.test:8080/"),
            &["public.test:8080", "public.test:8080@198.51.100.10"],
        ),
        (
            &["--write", "."],
            curl("http://web.test:443/"),
            &["web.test", "web.test@10.99.0.1"],
        ),
        (
            &["--allow", "web.test:8080=read-only"],
            curl("http://web.test:8080/"),
            &["web.test:8080@10.99.0.1"],
        ),
        (
            &["--allow", "both.test:8080"],
            curl("http://both.test:8080/"),
            &["both.test:8080@10.99.0.2", "both.test:8080@10.99.0.3"],
        ),
        (
            &["--allow", "public.test:8080@198.51.100.0/24=read-only"],
            curl("-X POST http://public.test:8080/"),
            &["public.test:8080=read-write"],
        ),
        (
            &["--allow", "public.test:8080@198.51.100.0/24=read-only"],
            format!(
                "{}; {}",
                curl("-X POST http://public.test:8080/"),
                curl("-X DELETE http://public.test:8080/")
            ),
            &["public.test:8080=full", "public.test:8080=read-write"],
        ),
        (
            &["--allow", "web.test:8080@10.0.0.0/8=read-only"],
            curl("-X DELETE http://web.test:8080/"),
            &["web.test:8080=full"],
        ),
        (
            &["--write", "."],
            curl("http://10.99.0.1:8080/"),
            &["10.99.0.1:8080"],
        ),
    ];
    for (flags, script, hosts) in cases {
        let mut added = mended(&lab, flags, &script);
        added.retain(|word| word != "--allow");
        // The resolver sends the addresses of a name in any order.
        added.sort();
        assert_eq!(added, hosts, "{script}");
    }
}

#[test]
fn each_flag_that_a_refused_file_names_permits_it() {
    let lab = Lab::with_web();
    let folder = lab.folder("it's outside");
    let file = folder.join("file");
    std::fs::write(&file, "200").unwrap();
    let written = folder.join("new");
    lab.shell(&format!("chmod -R a+rwX \"{}\"", folder.display()))
        .clear();
    let flags = ["--allow", "a.test", "--log-files"];
    let read = mended(&lab, &flags, &format!("cat \"{}\"", file.display()));
    assert_eq!(read, ["--read", file.to_str().unwrap()]);
    let script = format!("echo > \"{}\" && printf 200", written.display());
    let write = mended(&lab, &flags, &script);
    assert_eq!(write, ["--write", folder.to_str().unwrap()]);
}

#[test]
fn the_addresses_of_a_flag_are_checked() {
    let lab = Lab::with_web();
    for (flag, why) in [
        ("a.test@", "``"),
        ("a.test@10.0.0.5/33", "10.0.0.5/33"),
        ("a.test@169.254.169.254", "169.254.169.254"),
        ("a.test@10.0.0.5@10.0.0.6", "10.0.0.5@10.0.0.6"),
        ("@10.0.0.5", "host"),
    ] {
        let refused = in_project(&lab, &["--allow", flag]).sh("echo ran");
        assert!(
            refused.code() == 1 && refused.stderr.contains(why) && refused.stdout.is_empty(),
            "{flag}: {refused:?}"
        );
    }
}
