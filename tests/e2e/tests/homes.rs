//! What a sandbox sees of homes, and of other folders that are not granted: names are missing
//! there, and not forbidden.

use std::path::{Path, PathBuf};

use lab::host::UID;
use lab::{Finished, Lab, Sandbox};

/// Returns the home of the workload's user, with settings, a key and a project, beside another
/// folder of the user's.
fn home(lab: &Lab) -> PathBuf {
    let home = lab.folder("home");
    let passwd = lab.file(
        "passwd",
        format!(
            "root:x:0:0::/root:/bin/sh\nkim:x:{UID}:{UID}::{}:/bin/bash\n",
            home.display()
        ),
    );
    let made = lab.shell(&format!(
        "mount --bind {} /etc/passwd; cd {}; mkdir -p .ssh .config/git .config/tool project/sub \
         .cache; echo key > .ssh/id; echo '[user] name = kim' > .gitconfig; echo '[core] pager = \
         cat' > .config/git/config; echo 'echo from bashrc' > .bashrc; cp .bashrc .profile; echo s \
         > .config/tool/settings; chown -R {UID}:{UID} .; chmod 700 . .ssh",
        passwd.display(),
        home.display()
    ));
    assert_eq!(made, "");
    home
}

/// Runs `script` in the project of `home` with `flags`, as its user.
fn run(lab: &Lab, home: &Path, flags: &[&str], script: &str) -> Finished {
    let user = UID.to_string();
    let home = home.to_str().unwrap();
    Sandbox::bare(lab)
        .env("SUDO_UID", &user)
        .env("SUDO_GID", &user)
        .env("HOME", home)
        .env(
            "PATH",
            &format!(
                "{home}/.local/bin:{home}/.cargo/bin:/root/.cargo/bin:/usr/local/bin:/usr/bin:/bin"
            ),
        )
        .current_dir(&format!("{home}/project"))
        .args(flags)
        .sh(script)
}

#[test]
fn a_program_that_is_not_installed_is_missing_for_shells_languages_make_and_git() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let python = "import subprocess\ntry: subprocess.run(['nosuch'])\nexcept OSError as error: \
                  print(type(error).__name__)";
    let node = "require('child_process').execFile('nosuch', error => console.log(error.code))";
    let script = format!(
        "for shell in sh bash; do $shell -c nosuch; echo $?; done; python3 -c \"{python}\"; node \
         -e \"{node}\"; printf 'all:\\n\\t@nosuch\\n' > Makefile; make; gh; echo $?; git nosuch; \
         git init -q; git add Makefile && git commit -qm 1; echo $?; git log --format=%s; bash -ic \
         'echo interactive'; bash -lc 'echo login'"
    );
    let git = "export GIT_AUTHOR_NAME=k GIT_AUTHOR_EMAIL=k@lab.test GIT_COMMITTER_NAME=k \
               GIT_COMMITTER_EMAIL=k@lab.test; ";
    let finished = run(&lab, &home, &["--write", "."], &format!("{git}{script}"));
    let expected = "127\n127\nFileNotFoundError\nENOENT\n127\n0\n1\ninteractive\nlogin\n";
    assert_eq!(finished.stdout, expected, "{finished:?}");
    assert!(
        !finished.stderr.contains("ermission denied"),
        "{}",
        finished.stderr
    );
    assert!(
        !finished.stderr.contains("warning:") && !finished.stderr.contains("unable to"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_home_shows_what_is_granted_and_a_masked_folder_shows_nothing() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let other = lab.folder("other");
    lab.shell(&format!(
        "echo x > {0}/file; chown -R {UID} {0}; chmod 755 {0}",
        other.display()
    ))
    .clear();
    let outside = format!(
        "setpriv --reuid {UID} --regid {UID} --clear-groups cat {0}/.ssh/id {1}/file",
        home.display(),
        other.display()
    );
    assert_eq!(lab.shell(&outside), "key\nx\n", "the twin outside");
    let script = format!(
        "ls -A ~; ls -A ~/.config; cat ~/.config/tool/settings; stat -c %A ~ ~/.ssh {0}; ls -A \
         {0}; cat ~/.ssh/id {0}/file; for at in ~ ~/.config ~/.ssh {0}; do mkdir $at/new; done; \
         chmod 777 ~ {0}; rm -r ~/.config",
        other.display()
    );
    let flags = [
        "--write",
        ".",
        "--read",
        "~/.config/tool",
        "--read",
        "~/.gitconfig",
    ];
    let finished = run(&lab, &home, &flags, &script);
    assert_eq!(
        finished.stdout, ".config\n.gitconfig\nproject\ntool\ns\ndrwx------\ndr-xr-xr-x\n",
        "{finished:?}"
    );
    let count = |what: &str| finished.stderr.matches(what).count();
    assert_eq!(
        count("No such file or directory"),
        4,
        "what is missing: {finished:?}"
    );
    assert_eq!(
        count("Read-only file system"),
        6,
        "what may not be written: {finished:?}"
    );
    assert_eq!(
        std::fs::read_to_string(home.join(".ssh/id")).unwrap(),
        "key\n"
    );
}

#[test]
fn what_is_hidden_or_beside_a_grant_outside_of_homes_stays_refused() {
    let lab = Lab::with_web();
    let home = home(&lab);
    std::fs::write(home.join("project/.env"), "s3cret").unwrap();
    let beside = lab.folder("beside");
    std::fs::write(beside.join("file"), "x").unwrap();
    std::fs::create_dir(beside.join("granted")).unwrap();
    let script = format!(
        "cat .env {}/file; ls sub; touch made && mv made sub/ && ls sub",
        beside.display()
    );
    let granted = beside.join("granted");
    let flags = [
        "--write",
        ".",
        "--hide",
        "**/.env",
        "--read",
        granted.to_str().unwrap(),
    ];
    let finished = run(&lab, &home, &flags, &script);
    assert_eq!(finished.stdout, "made\n", "{finished:?}");
    assert_eq!(
        finished.stderr.matches("Permission denied").count(),
        2,
        "{finished:?}"
    );
}

#[test]
fn two_grants_in_a_home_are_two_file_systems_for_a_rename_and_each_can_be_written() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let rename = "import os\ntry: os.rename('made', os.path.expanduser('~/.cache/made'))\nexcept \
                  OSError as error: print(error.strerror)";
    let script =
        format!("echo x > made; python3 -c \"{rename}\"; mv made ~/.cache/ && cat ~/.cache/made");
    let finished = run(
        &lab,
        &home,
        &["--write", ".", "--write", "~/.cache"],
        &script,
    );
    assert_eq!(
        finished.ok(),
        "Invalid cross-device link\nx",
        "{finished:?}"
    );
    assert_eq!(
        std::fs::read_to_string(home.join(".cache/made")).unwrap(),
        "x\n",
        "it is the host's"
    );
}

#[test]
fn settings_hooks_and_hidden_files_of_a_project_in_a_home_are_kept() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let project = home.join("project").display().to_string();
    let made = format!(
        "cd {project}; git init -q; mkdir sub/.vscode; echo mine > sub/.vscode/tasks.json; echo \
         s3cret > sub/.env; chown -R {UID}:{UID} ."
    );
    assert_eq!(lab.shell(&made), "");
    let script = "echo x > sub/.vscode/tasks.json; echo x > .git/hooks/pre-commit; echo x >> \
                  .git/config; mv sub else; cat sub/.env; echo x > sub/made";
    let finished = run(&lab, &home, &["--write", ".", "--hide", "**/.env"], script);
    assert_eq!(finished.stdout, "", "{finished:?}");
    let check = "cat sub/.vscode/tasks.json sub/.env sub/made; ls .git/hooks/pre-commit; grep -c \
                 x$ .git/config";
    assert_eq!(
        lab.shell(&format!("cd {project}; {{ {check}; }} 2>/dev/null")),
        "mine\ns3cret\nx\n0\n"
    );
}

#[test]
fn a_home_that_the_user_may_not_enter_is_empty_with_a_working_directory_and_programs_in_it() {
    let lab = Lab::with_web();
    let home = lab.folder("roots");
    lab.shell(&format!(
        "mkdir -p {0}/bin {0}/project; cp /bin/true {0}/bin/tool; chmod 700 {0}",
        home.display()
    ))
    .clear();
    let finished = lab
        .sandbox(&super::policy("{}"))
        .env("HOME", home.to_str().unwrap())
        .env("PATH", &format!("{}/bin:/usr/bin:/bin", home.display()))
        .current_dir(home.join("project").to_str().unwrap())
        .sh(&format!("tool; echo $?; ls -A {}", home.display()));
    assert_eq!(finished.stdout, "127\n", "{finished:?}");
    assert!(
        !finished.stderr.contains("ermission denied"),
        "{finished:?}"
    );
}

#[test]
fn accesses_to_what_exists_outside_are_logged_although_it_looks_missing() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let finished = run(
        &lab,
        &home,
        &["--log-files", "--write", "."],
        "cat ~/.ssh/id ~/.bashrc; ls -A ~ > /dev/null",
    );
    let lines = finished.logged("FILE:REFUSE").join("\n");
    for name in [".ssh/id", ".bashrc"] {
        assert!(
            lines.contains(&format!(
                "read {}/{name} [reason:no rule grants it]",
                home.display()
            )),
            "{lines}"
        );
    }
    let summary = format!("add --read {}/.ssh/id\n", home.display());
    assert!(finished.stderr.contains(&summary), "{}", finished.stderr);
}

#[test]
fn another_program_of_the_same_name_is_said_at_the_start() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let made =
        "mkdir -p .local/bin; printf '#!/bin/sh\necho mine\n' > .local/bin/sh; chmod -R 755 .local";
    lab.shell(&format!(
        "cd {}; {made}; chown -R {UID}:{UID} .local",
        home.display()
    ))
    .clear();
    let own = home.join(".local/bin/sh").display().to_string();
    let finished = run(&lab, &home, &["--write", "."], "echo theirs");
    assert_eq!(finished.stdout, "theirs\n", "{finished:?}");
    let line = format!(
        "the policy does not grant {own}, so the sandbox runs /usr/bin/sh; --read {own} grants it"
    );
    assert!(finished.stderr.contains(&line), "{}", finished.stderr);
    let granted = run(
        &lab,
        &home,
        &["--write", ".", "--read", &own],
        "echo theirs",
    );
    assert_eq!(granted.stdout, "mine\n", "{granted:?}");
    assert_eq!(granted.stderr, "", "nothing to say");
}
