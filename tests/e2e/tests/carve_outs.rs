//! Parts of granted folders that the policy takes out: read-only, hidden, or where nothing may be
//! executed.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lab::host::UID;
use lab::{Lab, Sandbox};

use super::reload::wait_for_lines;

/// A project of the workload's user.
pub(super) struct Project<'l> {
    lab: &'l Lab,
    pub(super) folder: PathBuf,
}

impl<'l> Project<'l> {
    /// Makes the project by `script`, which runs in its folder.
    pub(super) fn new(lab: &'l Lab, script: &str) -> Self {
        let project = Self {
            lab,
            folder: lab.folder("project"),
        };
        project.run(script);
        project
    }

    /// Runs `script` outside, and gives what it makes to the user.
    pub(super) fn run(&self, script: &str) -> String {
        let folder = self.folder.display();
        self.lab.shell(&format!(
            "cd {folder}; export HOME={folder}; {script}\nchown -hR {UID}:{UID} {folder}"
        ))
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Returns a sandbox that may write to the project, with `rest` as further lists of paths, `@`
    /// for the project.
    pub(super) fn sandbox(&self, rest: &str) -> Sandbox<'l> {
        let folder = self.folder.display().to_string();
        let rest = rest.replace('@', &self.folder.display().to_string());
        let policy = super::policy("{}");
        self.lab
            .sandbox(&format!(
                "{policy}filesystem_policy: {{read_write: [{folder}], {rest}}}\n"
            ))
            .current_dir(&folder)
    }
}

/// Runs a line after the other, and prints of each its end: `ok`, or the reason.
const ATTEMPTS: &str = r#"
while read -r line; do
  said=$( (eval "$line") 2>&1 ) && said=ok
  case $said in
    *'Read-only file system'*) said=EROFS ;; *'Device or resource busy'*) said=EBUSY ;; *'Permission denied'*) said=EACCES ;;
    *'Invalid cross-device link'*) said=EXDEV ;; *'failed to map segment'*) said=EPERM ;;
  esac
  echo "$said"
done
"#;

/// Asserts the ends of `attempts`, each with its line.
pub(super) fn assert_attempts(sandbox: Sandbox<'_>, attempts: &[(&str, &str)]) {
    let lines: String = attempts
        .iter()
        .map(|(line, _)| format!("{line}\n"))
        .collect();
    let finished = sandbox.input(lines.as_bytes()).sh(ATTEMPTS);
    let ends: Vec<_> = finished.ok().lines().collect();
    assert_eq!(ends.len(), attempts.len(), "{finished:?}");
    let wrong: Vec<_> = attempts
        .iter()
        .zip(&ends)
        .filter(|((_, expected), end)| expected != *end)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", finished.stderr);
}

#[test]
fn a_read_only_part_of_a_writable_folder_is_neither_changed_nor_renamed_away_at_any_depth() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p a/b/keep/in a/b/keep/free; echo 1 > a/b/keep/f; echo 1 > a/single; ln -s \
         a/b/keep link; ln -s b a/up",
    );
    let sandbox = |rest| project.sandbox(rest).args(&["--no-placeholders"]);
    assert_attempts(
        sandbox("read_only: [@/a/b/keep, @/a/single], include_workdir: true"),
        &[
            ("cat a/b/keep/f", "ok"),
            ("echo 2 > a/b/keep/f", "EROFS"),
            ("touch a/b/keep/new", "EROFS"),
            ("touch a/b/keep/in/new", "EROFS"),
            ("touch a/b/keep/free/new", "EROFS"),
            ("chmod 777 a/b/keep/f", "EROFS"),
            ("rm a/b/keep/f", "EROFS"),
            ("touch link/new", "EROFS"),
            ("touch a/up/keep/new", "EROFS"),
            ("mv a/b/keep a/b/kept", "EBUSY"),
            ("mv a/b a/c", "EBUSY"),
            ("mv a c", "EBUSY"),
            ("ln -sfn / link", "ok"),
            ("touch a/up/keep/new", "EROFS"),
            ("rm -r a/b/keep", "EROFS"),
            ("mkdir x && mv -T x a/b/keep", "EBUSY"),
            ("ln a/b/keep/f hard", "EXDEV"),
            ("echo 2 > a/single", "EROFS"),
            ("rm a/single", "EBUSY"),
            ("echo 2 > y && mv y a/single", "EBUSY"),
            ("truncate -s 0 a/single", "EROFS"),
            ("cp -r a copy && echo 2 > copy/b/keep/f", "ok"),
            (
                "touch a/b/other && mv a/b/other a/other && rm a/other",
                "ok",
            ),
        ],
    );
    // Without the carve-out.
    assert_attempts(
        sandbox(""),
        &[
            ("touch a/b/keep/new", "ok"),
            ("mv a/b/keep a/b/kept", "ok"),
            ("mv a c", "ok"),
        ],
    );
}

#[test]
fn grants_and_carve_outs_nest_and_the_deepest_counts() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p ro/rw/ro/rw; echo 1 > ro/rw/ro/f; echo s > ro/rw/secret",
    );
    let write = project.path("ro/rw");
    let inner = project.path("ro/rw/ro/rw");
    let rest = format!(
        "read_only: [@/ro, @/ro/rw/ro], hidden: [@/ro/rw/secret], include_workdir: {}",
        true
    );
    let policy = super::policy("{}");
    let folder = project.folder.display().to_string();
    let sandbox = lab
        .sandbox(&format!(
            "{policy}filesystem_policy: {{read_write: [{folder}, {write}, {inner}], {}}}\n",
            rest.replace('@', &folder)
        ))
        .current_dir(&folder);
    assert_attempts(
        sandbox,
        &[
            ("touch ro/x", "EROFS"),
            ("touch ro/rw/x", "ok"),
            ("touch ro/rw/ro/x", "EROFS"),
            ("touch ro/rw/ro/rw/x", "ok"),
            ("mv ro/rw ro/w", "EROFS"),
            ("mv ro/rw/ro ro/rw/r", "EBUSY"),
            ("cat ro/rw/secret", "EACCES"),
            ("rm ro/rw/secret", "EBUSY"),
        ],
    );
}

#[test]
fn a_hidden_path_is_neither_read_nor_listed_wherever_it_lies() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p keys/deep 'sub/a b' other; echo s3cret | tee keys/deep/key .env 'sub/a b/.env' \
         other/public > /dev/null; ln -s keys/deep door",
    );
    let library = lab.folder("library");
    lab.shell(&format!(
        "mkdir {0}/private; echo s3cret > {0}/private/f; chmod -R a+rX {0}",
        library.display()
    ))
    .clear();
    let rest = format!(
        "hidden: [@/keys, \"**/.env\", {0}/private, ~/.nothing], read_only: [{0}]",
        library.display()
    );
    let library = library.display();
    assert_attempts(
        project.sandbox(&rest.replace("~", "/var")),
        &[
            ("cat keys/deep/key", "EACCES"),
            ("ls keys", "EACCES"),
            ("cat door/key", "EACCES"),
            ("cat .env", "EACCES"),
            ("cat 'sub/a b/.env'", "EACCES"),
            ("cp .env copy", "EACCES"),
            ("chmod 644 .env", "EROFS"),
            ("mv .env env", "EBUSY"),
            ("mv sub bus", "EBUSY"),
            ("ln .env hard", "EXDEV"),
            ("grep -rq s3cret keys sub .env; test $? = 2", "ok"),
            ("cat other/public", "ok"),
            (&format!("ls {library}"), "ok"),
            (&format!("cat {library}/private/f"), "EACCES"),
            ("tar -cf t.tar keys", "EACCES"),
        ],
    );
    assert_attempts(
        project.sandbox(""),
        &[("cat keys/deep/key", "ok"), ("mv .env env", "ok")],
    );
}

#[test]
fn a_pattern_without_a_folder_hides_in_a_working_directory_that_can_only_be_read() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p sub; echo s3cret | tee .env sub/.env > /dev/null; echo hello > sub/public",
    );
    for (granted, cat) in [
        ("$WORKDIR", "cat .env sub/.env"),
        ("$WORKDIR/sub, $WORKDIR/sub/public", "cat sub/.env"),
        ("$WORKDIR/sub/public, $WORKDIR/sub", "cat sub/.env"),
        ("/", "cat .env sub/.env"),
    ] {
        let policy = format!(
            "process: {{run_as_user: \"{}\"}}\nfilesystem_policy: {{include_workdir: false, \
             read_only: [{granted}], hidden: [\"**/.env\"]}}\nnetwork_policies: {{}}\n",
            UID
        );
        let policy = lab.file("read.yaml", policy);
        let folder = project.folder.to_str().unwrap();
        let finished = Sandbox::bare(&lab)
            .args(&[
                "--policy-data",
                policy.to_str().unwrap(),
                "--workdir",
                folder,
            ])
            .sh(&format!("{cat}; cat sub/public"));
        assert_eq!(finished.stdout, "hello\n", "{granted}: {finished:?}");
        assert!(
            finished.stderr.contains("Permission denied"),
            "{finished:?}"
        );
    }
}

#[test]
fn a_file_that_the_sandbox_shows_in_place_of_the_hosts_can_be_hidden_too() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, "");
    assert_attempts(
        project.sandbox("hidden: [/etc/hosts], read_only: [/etc]"),
        &[("cat /etc/hosts", "EACCES"), ("cat /etc/passwd", "ok")],
    );
}

#[test]
fn patterns_find_names_that_are_no_text() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, "");
    let name = std::ffi::OsStr::from_bytes(b"k\xff\n .key");
    std::fs::create_dir(project.folder.join("d\n")).unwrap();
    std::fs::write(project.folder.join("d\n").join(name), "s3cret").unwrap();
    project.run("");
    let finished = project
        .sandbox("hidden: [\"$WORKDIR/*/*.key\"]")
        .sh("cat d*/* 2>&1 | grep -c 'Permission denied'; mv d* e 2>&1 | grep -c busy");
    assert_eq!(finished.ok(), "1\n1", "{finished:?}");
}

#[test]
fn nothing_is_executed_nor_mapped_as_code_where_that_is_taken_out() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p build/deep; printf '#!/bin/sh\\necho ran\\n' > build/script; chmod 755 \
         build/script",
    );
    let map = "import mmap, os, sys; f = os.open(sys.argv[1], os.O_RDONLY); \
               mmap.mmap(f, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)";
    let map =
        |file: &str| format!("python3 -c '{map}' {file} 2>&1 | grep -o 'Operation not permitted'");
    let attempts = |folder: &str, is_kept: bool| {
        let end = |denied: &'static str| if is_kept { denied } else { "ok" };
        let file = format!("{folder}/true");
        [
            (format!("cp /bin/true {file}"), "ok"),
            (file.clone(), end("EACCES")),
            (format!("/lib64/ld-linux-x86-64.so.2 {file}"), end("EPERM")),
            (format!("rm -f hard && ln {file} hard"), end("EXDEV")),
        ]
    };
    let run = |rest: &str, attempts: &[(String, &'static str)]| {
        let attempts: Vec<_> = attempts
            .iter()
            .map(|(line, end)| (line.as_str(), *end))
            .collect();
        assert_attempts(project.sandbox(rest), &attempts);
    };
    run("noexec: [@/build, @/later]", &attempts("build/deep", true));
    run("noexec: [@/build, @/later]", &attempts("later", true));
    run(
        "noexec: [@/build]",
        &[
            ("build/script".to_owned(), "EACCES"),
            ("sh build/script".to_owned(), "ok"),
        ],
    );
    run(
        "noexec: [/]",
        &[("cp /bin/true t && ./t".to_owned(), "EACCES")],
    );
    let mapped = project
        .sandbox("noexec: [@/build]")
        .sh(&format!("{}; true", map("build/deep/true")));
    assert_eq!(mapped.ok(), "Operation not permitted", "{mapped:?}");
    run("", &attempts("build/deep", false));
}

#[test]
fn nothing_is_executed_in_folders_of_the_sandboxs_own_nor_in_what_is_granted_within_the_part() {
    let lab = Lab::with_web();
    let place = tempfile::Builder::new()
        .prefix("lab-noexec-")
        .tempdir_in("/tmp")
        .unwrap();
    let below_tmp = place.path().display().to_string();
    let project = Project::new(&lab, "mkdir -p tools/bin; cp /bin/true tools/bin/program");
    assert_eq!(
        lab.shell(&format!(
            "mkdir {below_tmp}/write; chown -R {UID}:{UID} {below_tmp}"
        )),
        ""
    );
    let tools = project.path("tools");
    let run = |grants: &str, noexec: &str, attempts: &[(&str, &str)]| {
        let rest = format!("filesystem_policy: {{{grants} noexec: [{noexec}]}}\n");
        assert_attempts(
            lab.sandbox(&format!("{}{rest}", super::policy("{}"))),
            attempts,
        );
    };
    let copied =
        |folder: &str, end: &'static str| (format!("cp /bin/true {folder}/t && {folder}/t"), end);
    for folder in ["/tmp", "/dev/shm", "/tmp/later"] {
        let (line, end) = copied(folder, "EACCES");
        run("", folder, &[(&line, end)]);
    }
    let (line, end) = copied("/tmp", "ok");
    run("", "/tmp/later", &[(&line, end)]);
    let write = format!("{below_tmp}/write");
    for part in ["/tmp", &below_tmp] {
        let (line, end) = copied(&write, "EACCES");
        run(&format!("read_write: [{write}],"), part, &[(&line, end)]);
    }
    let program = format!("{tools}/bin/program");
    run(
        &format!("read_only: [{tools}/bin],"),
        &tools,
        &[(&program, "EACCES")],
    );
    run(
        &format!("read_only: [{tools}/bin],"),
        "/",
        &[(&program, "ok")],
    );
}

#[test]
fn a_symlink_in_a_read_only_part_leads_to_a_part_without_executables() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir read code; ln -s ../code read/tools; cp /bin/true code/program",
    );
    assert_attempts(
        project.sandbox("read_only: [@/read], noexec: [@/read/tools]"),
        &[
            ("read/tools/program", "EACCES"),
            ("code/program", "EACCES"),
            ("echo x > read/new", "EROFS"),
            ("mv read/tools read/other", "EROFS"),
            ("echo x > code/new", "ok"),
        ],
    );
}

/// Makes a repository with a submodule at deep/sub, and a linked work tree.
const REPOSITORY: &str = "
git='git -c protocol.file.allow=always -c user.name=a -c user.email=a@b -c safe.directory=*'
for tree in other main; do mkdir $tree; (cd $tree; $git init -q; $git commit -q --allow-empty -m first); done
(cd main; $git submodule --quiet add $PWD/../other deep/sub 2>&1; $git worktree add -q ../linked; $git commit -q -m second)";

#[test]
fn hooks_and_attributes_of_a_writable_work_tree_are_read_only_and_git_works() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, REPOSITORY);
    let tree = |name: &str| {
        let policy = super::policy("{}");
        let folder = project.path(name);
        let all = project.folder.display();
        let written = if name == "linked" {
            format!("{folder}, {all}/main/.git")
        } else {
            folder.clone()
        };
        lab.sandbox(&format!(
            "{policy}filesystem_policy: {{read_write: [{written}]}}\n"
        ))
        .current_dir(&folder)
    };
    let git = "git -c user.name=a -c user.email=a@b";
    let commit = format!("echo 1 > f && {git} add f && {git} commit -qm third");
    assert_attempts(
        tree("main"),
        &[
            ("echo x > .git/hooks/pre-commit", "EROFS"),
            ("echo x > .git/info/attributes", "EROFS"),
            ("mv .git/hooks .git/h", "EBUSY"),
            ("mv .git/info .git/i", "EBUSY"),
            ("mv .git .git.bak", "EBUSY"),
            (
                "mv .git .git.bak; cp -a .git.bak .git; echo x > .git/hooks/pre-commit",
                "EROFS",
            ),
            (
                "echo x > .git/modules/deep/sub/hooks/post-checkout",
                "EROFS",
            ),
            ("mv .git/modules/deep .git/modules/d", "EBUSY"),
            ("echo gitdir: /tmp > deep/sub/.git", "EROFS"),
            ("mv deep/sub/.git x", "EBUSY"),
            ("mv deep d", "EBUSY"),
            ("echo /x > .git/worktrees/linked/commondir", "EROFS"),
            ("mv .git/worktrees .git/w", "EBUSY"),
            (&commit, "ok"),
            ("git branch b && git status", "ok"),
        ],
    );
    assert_attempts(
        tree("linked"),
        &[
            ("echo x > .git", "EROFS"),
            ("echo x > ../main/.git/hooks/pre-commit", "EROFS"),
        ],
    );
    assert_attempts(
        tree("main").args(&["--git-config", "rw"]),
        &[
            ("git config user.name x && git remote add o /x", "ok"),
            ("echo x > .git/hooks/pre-commit", "EROFS"),
        ],
    );
    assert_attempts(
        tree("main"),
        &[
            (
                "git config core.hooksPath evil 2>/dev/null; grep -c evil .git/config; test $? = 1",
                "ok",
            ),
            ("echo x > .git/config", "EROFS"),
            ("echo ../evil > .git/commondir", "EROFS"),
            (&commit.replace("echo 1", "echo 2"), "ok"),
        ],
    );
    // By name.
    let policy = super::policy("{}");
    let named = format!(
        "{policy}filesystem_policy: {{read_write: [{0}, {0}/.git/hooks]}}\n",
        project.path("main")
    );
    assert_attempts(
        lab.sandbox(&named).current_dir(&project.path("main")),
        &[
            ("echo x > .git/hooks/pre-commit", "ok"),
            ("echo x > .git/info/attributes", "EROFS"),
        ],
    );
    // Nothing stays behind.
    let left = project.run("find . -name attributes -o -name commondir | grep -v worktrees");
    assert_eq!(left, "");
}

#[test]
fn a_missing_path_is_kept_by_a_placeholder_that_goes_with_the_last_sandbox_unless_it_is_changed() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, "mkdir sub");
    let rest = "hidden: [@/.env], read_only: [@/sub/deep/settings]";
    let attempts = [
        ("cat .env", "EACCES"),
        ("echo x > .env", "EROFS"),
        ("echo x > sub/deep/settings", "EROFS"),
        ("touch sub/deep/other && rm sub/deep/other", "ok"),
        ("mv sub/deep sub/d", "EBUSY"),
    ];
    assert_attempts(project.sandbox(rest), &attempts);
    assert_eq!(project.run("find ."), ".\n./sub\n");
    // Two at once: the second keeps what the first has made.
    let first = project.sandbox(rest).start(&[
        "sh",
        "-c",
        "until test -e end; do sleep 0.01; done; exit 1",
    ]);
    let wait = "until test -e .env; do sleep 0.01; done; stat -c '%u %s %F' .env";
    assert_eq!(project.run(wait), format!("{UID} 0 regular empty file\n"));
    wait_for_lines(&lab, "PROC:LAUNCH", 2);
    let second = project.sandbox(rest).start(&[
        "sh",
        "-c",
        "until test -e go; do sleep 0.01; done; cat .env",
    ]);
    wait_for_lines(&lab, "PROC:LAUNCH", 3);
    let sign = |name: &str| std::fs::write(project.path(name), "").unwrap();
    sign("end");
    assert_eq!(first.wait().code(), 1);
    assert_eq!(project.run("rm end; ls -A"), ".env\nsub\n");
    sign("go");
    let second = second.wait();
    assert!(second.stderr.contains("Permission denied"), "{second:?}");
    assert_eq!(project.run("rm go; find ."), ".\n./sub\n");
    // What somebody has written into it is theirs.
    let third = project
        .sandbox(rest)
        .args(&["--carve-out-lost", "warn"])
        .start(&["sh", "-c", "until test -e go; do sleep 0.01; done"]);
    wait_for_lines(&lab, "PROC:LAUNCH", 4);
    assert_eq!(project.run("echo KEY=1 > .env"), "");
    sign("go");
    assert_eq!(third.wait().ok(), "");
    assert_eq!(project.run("cat .env"), "KEY=1\n");
}

#[test]
fn without_placeholders_a_missing_path_is_named_and_an_error_under_hard_requirement() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, "ln -s nowhere dangling");
    for (rest, name) in [
        ("hidden: [@/.env]", ".env"),
        ("read_only: [@/dangling]", "dangling"),
    ] {
        let expected = format!(
            "{} does not exist, and the command can create it: ",
            project.path(name)
        );
        let said = project
            .sandbox(rest)
            .args(&["--no-placeholders"])
            .sh("echo ran");
        assert!(
            said.ok() == "ran" && said.stderr.contains(&expected),
            "{said:?}"
        );
        let hard = format!(
            "{}landlock: {{compatibility: hard_requirement}}\nfilesystem_policy: {{read_write: \
             [{}], {}}}\n",
            super::policy("{}"),
            project.folder.display(),
            rest.replace('@', &project.folder.display().to_string())
        );
        let refused = lab
            .sandbox(&hard)
            .args(&["--no-placeholders"])
            .sh("echo ran");
        assert!(
            refused.code() == 1 && refused.stderr.contains(&expected),
            "{refused:?}"
        );
    }
    // An earlier command may have made it, to have what is listed elsewhere.
    let planted = project
        .sandbox("read_only: [@/dangling]")
        .sh("echo ran > nowhere");
    assert!(
        planted.code() == 1
            && planted
                .stderr
                .contains("dangling is a symlink to nothing; remove it"),
        "{planted:?}"
    );
    assert_eq!(project.run("ls -A"), "dangling\n");
}

#[test]
fn placeholders_are_folders_where_a_slash_says_so_and_json_where_the_name_does() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, "true");
    let rest = "read_only: [@/rules/, @/deep/er/, @/hooks.json, @/text]";
    let seen = project.sandbox(rest).sh(
        "ls -A rules deep/er; cat hooks.json text; echo x > rules/x; echo x > hooks.json; \
             mkdir deep/er/x; ls",
    );
    assert_eq!(
        seen.stdout, "deep/er:\n\nrules:\n{}\ndeep\nhooks.json\nrules\ntext\n",
        "{seen:?}"
    );
    assert_eq!(
        seen.stderr.matches("Read-only file system").count(),
        3,
        "{seen:?}"
    );
    assert_eq!(project.run("ls -A"), "");
    // What somebody has written into one meanwhile is theirs, also if it is as long as before.
    let started = project
        .sandbox(rest)
        .args(&["--carve-out-lost", "warn"])
        .start(&["sh", "-c", "until test -e go; do sleep 0.01; done"]);
    wait_for_lines(&lab, "PROC:LAUNCH", 2);
    assert_eq!(project.run("echo '[]' > hooks.json; touch go"), "");
    assert_eq!(started.wait().ok(), "");
    assert_eq!(project.run("cat hooks.json; ls -A"), "[]\ngo\nhooks.json\n");
}

#[test]
fn a_carve_out_that_is_replaced_or_renamed_outside_is_said_and_a_hidden_one_ends_the_sandbox() {
    for (rest, act, change, is_end) in [
        ("hidden: [@/key]", None, "echo other > x; mv x key", true),
        (
            "hidden: [@/sub/key]",
            None,
            "mv sub sub2; mkdir sub; echo other > sub/key",
            true,
        ),
        ("hidden: [@/key]", Some("warn"), "rm key", false),
        ("read_only: [@/sub]", None, "mv sub sub2", false),
        ("read_only: [@/sub]", Some("end"), "mv sub sub2", true),
    ] {
        let lab = Lab::with_web();
        let project = Project::new(&lab, "mkdir sub; echo s3cret | tee key > sub/key");
        let flags: Vec<_> = act
            .iter()
            .flat_map(|act| ["--carve-out-lost", act])
            .collect();
        let run = project.sandbox(rest).args(&flags).start(&[
            "sh",
            "-c",
            "touch ready; until test -e go; do sleep 0.01; done; echo ran",
        ]);
        let lines = "what is there now (--carve-out-lost) sandbox=";
        project.run(&format!(
            "until test -e ready; do sleep 0.01; done; {change}"
        ));
        wait_for_lines(&lab, lines, 1);
        if !is_end {
            project.run("touch go");
        }
        let finished = run.wait();
        assert_eq!(finished.logged(lines).len(), 1, "{rest}: {finished:?}");
        assert_eq!(finished.stdout == "ran\n", !is_end, "{rest}: {finished:?}");
        assert_eq!(finished.code() == 0, !is_end, "{rest}: {finished:?}");
    }
}

#[test]
fn what_a_mount_cannot_keep_is_an_error_before_the_command_starts() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "echo 1 > f; ln f hard; mkdir many; for n in $(seq 1001); do : > many/$n.env; done",
    );
    for (rest, expected) in [
        ("hidden: [@/f]", "has further names (hard links)"),
        ("read_only: [@/f]", "has further names (hard links)"),
        ("hidden: [@]", "is hidden, and"),
        (
            "hidden: [\"**/*.env\"]",
            "more than 1000 paths match, or in more than 4000 folders; name the folder that holds \
             them, for example /",
        ),
        ("hidden: [/proc/self]", "cannot be hidden"),
        ("hidden: [.env]", "`.env` is not an absolute path"),
    ] {
        let refused = project.sandbox(rest).sh("echo ran");
        assert!(
            refused.code() == 1 && refused.stderr.contains(expected),
            "{rest}: {refused:?}"
        );
        assert_eq!(refused.stdout, "", "{rest}");
    }
    let policy = format!(
        "{}filesystem_policy: {{hidden: [{}]}}\n",
        super::policy("{}"),
        project.path("many")
    );
    let refused = lab
        .sandbox(&policy)
        .args(&["--workdir", &project.path("many")])
        .sh("echo ran");
    assert!(
        refused.code() == 1 && refused.stderr.contains("holds the working directory"),
        "{refused:?}"
    );
}

#[test]
fn other_names_of_a_carve_out_by_bind_mounts_are_kept_too() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p keys/in keep/in alias whole; echo s3cret > keys/in/key",
    );
    let bound = [("keys/in", "alias"), (".", "whole")]
        .map(|(from, to)| (project.path(from), project.path(to)));
    lab.inside(move || {
        for (from, to) in bound {
            rustix::mount::mount_bind(Path::new(&from), Path::new(&to)).unwrap();
        }
    });
    assert_attempts(
        project.sandbox("hidden: [@/keys], read_only: [@/keep]"),
        &[
            ("cat keys/in/key", "EACCES"),
            ("cat alias/key", "EACCES"),
            ("cat whole/keys/in/key", "EACCES"),
            ("touch whole/keep/in/x", "EROFS"),
            ("mv whole/keep whole/k", "EBUSY"),
            ("touch whole/x", "ok"),
        ],
    );
}

#[test]
fn what_an_earlier_command_has_planted_has_the_supervisor_make_nothing_outside() {
    let lab = Lab::with_web();
    let victim = lab.folder("victim").display().to_string();
    lab.shell(&format!(
        "cd {victim}; mkdir repository; touch repository/HEAD; chmod -R a+rX ."
    ))
    .clear();
    let before = lab.shell(&format!("cd {victim}; find . -printf '%p %u %m\n' | sort"));
    let plants = [
        "ln -s VICTIM .git",
        "mkdir .git; ln -s VICTIM .git/modules",
        "mkdir .git; ln -s VICTIM .git/info",
        "echo gitdir: VICTIM/repository > .git",
        "mkdir .git; echo VICTIM/repository > .git/commondir",
        "ln -s VICTIM deep",
        "mkdir -p .git/modules/e; mkfifo .git/config .git/commondir .git/modules/e/HEAD",
        "mkdir -p .git/modules/e; cd .git/modules/e; touch HEAD hooks; ln hooks h2; cd ../../..",
        "mkdir -p .git/modules; cd .git/modules; for n in $(seq 1100); do : > f$n; done; cd ../..",
        "mkfifo .git",
    ];
    for plant in plants {
        let project = Project::new(
            &lab,
            &format!("rm -rf .git deep; {}", plant.replace("VICTIM", &victim)),
        );
        let rest = "read_only: [@/deep/a/settings], hidden: [\"**/.env\"]";
        let finished = project.sandbox(rest).sh("echo ran; touch deep/a/settings");
        // What git would read, and is no file or has other names, cannot be kept.
        let is_refused = plant.contains("mkfifo .git/") || plant.contains("ln hooks");
        assert_eq!(
            finished.stdout,
            if is_refused { "" } else { "ran\n" },
            "{plant}: {finished:?}"
        );
        let says_what_to_do = ["remove it", "replace it by a copy"]
            .iter()
            .any(|remedy| finished.stderr.contains(remedy));
        assert!(
            !is_refused || says_what_to_do && finished.stderr.contains("/.git/"),
            "{plant}: {finished:?}"
        );
        assert!(finished.code() != 0, "{plant}: {finished:?}");
        assert_eq!(
            lab.shell(&format!("cd {victim}; find . -printf '%p %u %m\n' | sort")),
            before,
            "{plant}"
        );
    }
}

#[test]
fn a_symlink_or_a_file_above_a_carve_out_takes_nothing_of_it_away() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p real/keep; ln -s real way; touch file; echo s3cret > real/.env",
    );
    assert_attempts(
        project.sandbox(
            "read_only: [@/way/keep, @/file/settings], hidden: [@/way/.env, @/way/missing]",
        ),
        &[
            ("touch real/keep/x", "EROFS"),
            ("cat real/.env", "EACCES"),
            ("echo x > way/missing", "EROFS"),
            ("rm way", "EBUSY"),
            ("mv real r", "EBUSY"),
            ("rm file", "EBUSY"),
        ],
    );
    assert_eq!(project.run("ls -A real"), ".env\nkeep\n");
}

#[test]
fn a_hidden_path_below_what_is_no_folder_stops_the_start_and_is_named() {
    let lab = Lab::with_web();
    for make in [
        "ln -s nothing sub",
        "ln -s nothing sub; mkdir other; ln -s ../sub/x other/y",
        "mkfifo sub",
    ] {
        let project = Project::new(&lab, &format!("rm -rf sub other; {make}"));
        let finished = project.sandbox("hidden: [@/sub/.env]").sh("echo ran");
        assert!(finished.stdout.is_empty(), "{make}: {finished:?}");
        assert!(
            finished.stderr.contains("/sub ") && finished.stderr.contains("remove it"),
            "{make}: {finished:?}"
        );
    }
}

#[test]
fn what_a_pattern_finds_is_no_reason_to_hide_what_every_program_needs() {
    let lab = Lab::with_web();
    for target in ["/usr", "/proc", "/tmp", "."] {
        let project = Project::new(
            &lab,
            &format!("rm -f sub/.env; mkdir -p sub; ln -s {target} sub/.env; echo s > .env"),
        );
        let finished = project
            .sandbox("hidden: [\"**/.env\"]")
            .sh("cat .env 2>&1 | grep -c 'Permission denied'");
        assert_eq!(finished.ok(), "1", "{target}: {finished:?}");
    }
}

/// A neighbour: as fast as it can, it renames what is in its folder away and back, and with `all`
/// exchanges it with symlinks, FIFOs, files and folders, until the file `stop` is there.
const NEIGHBOUR: &str = r#"
import ctypes, os, sys
work, victim, act = sys.argv[1:4]
os.chdir(work)
libc = ctypes.CDLL(None, use_errno=True)
def exchange(a, b): libc.renameat2(-100, a.encode(), -100, b.encode(), 2)
def away(a):
    try: os.rename(a, a + '.away'); os.rename(a + '.away', a)
    except OSError: pass
for place in ['', 'sub/', '.git/', 'own/']:
    os.symlink(victim + '/file', place + 'link'); os.symlink(victim + '/closed', place + 'way')
    os.mkfifo(place + 'fifo'); os.mkdir(place + 'folder'); open(place + 'other', 'w').close()
open('up', 'w').close()
names = {'': ['sub', '.git', 'list', 'made', 'made.json'], 'sub/': ['.env'], '.git/': ['config', 'hooks', 'info']}
if act == 'own': names = {'': ['own'], 'own/': ['run', 'log', 'ca', 'tls', 'health']}
while not os.path.exists('stop'):
    for place, all in names.items():
        for name in all:
            for other in ['link', 'way', 'fifo', 'folder', 'other']:
                if act != 'away': exchange(place + name, place + other); exchange(place + name, place + other)
            # What is renamed over a mount takes it away.
            if name != '.env': away(place + name)
"#;

/// Starts sandboxes with `flags`, `count` in all, beside a neighbour that does `act`; returns what
/// went wrong, and `done`. One at least starts, the last one when the neighbour is gone.
fn beside_a_neighbour(act: &str, count: u32, flags: &str) -> String {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let victim = lab.folder("victim");
    let neighbour = lab.file("neighbour.py", NEIGHBOUR);
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{work}], read_only: [{work}/list], hidden: \
         [{work}/sub/.env, {work}/made/, {work}/made.json]}}\n",
        super::policy("{}"),
        work = match act {
            "own" => lab.folder("elsewhere"),
            _ => work.clone(),
        }
        .display()
    );
    let policy = lab.file("neighbour.yaml", policy);
    let work = work.display();
    let victim = victim.display();
    let as_user = format!("setpriv --reuid {UID} --regid {UID} --clear-groups");
    lab.shell(&format!(
        "cd {work}; mkdir -p own sub .git/hooks .git/info list {victim}/closed; git init -q . 2> \
         no; printf hush > sub/.env; touch {victim}/file; chown -R {UID}:{UID} {work}; chown -R \
         0:0 {victim}; chmod 600 {victim}/file; chmod 700 {victim}/closed; {caller} mkdir -m 700 \
         own/run own/log own/ca own/tls own/health; before=$(stat -c '%a %u %g %Z' {victim}/file \
         {victim}/closed); {as_user} timeout --kill-after=1 300 /usr/bin/python3 {neighbour} \
         {work} {victim} {act} & until [ -e up ]; do :; done; started=0; for n in $(seq {count}); \
         do timeout 15 {caller} {program} --policy-data {policy} --carve-out-lost warn {flags} -- \
         sh -c 'dd if=sub/.env iflag=nonblock 2> /dev/null; echo ran' > {victim}/out 2> \
         {victim}/err; rc=$?; [ {act} = away ] && grep -q hush {victim}/out && echo LEAKED; if \
         grep -q ran {victim}/out; then started=$((started+1)); elif [ $rc = 124 ]; then echo \
         HUNG; else grep -q '{work}\\|git' {victim}/err || cat {victim}/err; fi; done; touch stop; \
         wait; [ \"$before\" = \"$(stat -c '%a %u %g %Z' {victim}/file {victim}/closed)\" ] || \
         echo CHANGED; [ $started -gt 0 ] || {caller} {program} --policy-data {policy} {flags} -- \
         true 2> {victim}/err || cat {victim}/err; echo done",
        caller = lab.as_caller(),
        program = lab.program_path().display(),
        policy = policy.display(),
        neighbour = neighbour.display()
    ))
}

#[test]
fn a_neighbour_that_exchanges_every_name_changes_nothing_outside_and_hangs_no_start() {
    assert_eq!(beside_a_neighbour("all", 200, "--workdir ."), "done\n");
}

#[test]
fn a_neighbour_that_renames_folders_away_and_back_gets_past_no_carve_out() {
    assert_eq!(beside_a_neighbour("away", 100, "--workdir ."), "done\n");
}

#[test]
fn a_neighbour_that_exchanges_the_folders_of_the_supervisor_leads_none_of_its_files_elsewhere() {
    let flags = "--run-dir own/run --log-dir own/log --ca-dir own/ca --tls-dir $PWD/own/tls \
                 --health-socket own/health/socket";
    assert_eq!(beside_a_neighbour("own", 30, flags), "done\n");
}
