//! Settings of projects that git, editors, shells and agents execute, which the command may not
//! write by default.

use lab::Lab;
use lab::host::UID;

use super::carve_outs::{Project, assert_attempts};
use super::reload::wait_for_lines;

/// Makes a work tree of a repository that others push to.
const CLONE: &str = "
exec 2> /dev/null
git config --global user.name a; git config --global user.email a@b; git config --global safe.directory '*'
git init -q --bare -b main bare; git clone -q bare tree; cd tree; git checkout -q -b main
echo 1 > f; git add f; git commit -q -m first; git push -q -u origin main";

/// The identity for commits, and no other settings of the user's.
const GIT: &str = "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b \
                   GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b";

/// Returns a sandbox in `tree` of the project that may write there, and to the bare repository.
fn in_tree<'l>(lab: &'l Lab, project: &Project<'l>, tree: &str) -> lab::Sandbox<'l> {
    let tree = project.path(tree);
    let bare = project.path("bare");
    let policy = super::policy("{}");
    lab.sandbox(&format!(
        "{policy}filesystem_policy: {{read_write: [{tree}, {bare}]}}\n"
    ))
    .current_dir(&tree)
}

#[test]
fn settings_are_read_only_at_any_depth_and_cannot_be_made_at_the_top_of_a_work_tree() {
    let lab = Lab::with_web();
    let make = "mkdir -p tree/a/b/.vscode tree/node_modules/p/.vscode tree/a/c; cd tree; git init \
                -q; echo x > .envrc; echo {} > a/b/.vscode/tasks.json; echo x > a/.bashrc; echo x \
                > a/other; git init -q a/sub";
    let project = Project::new(&lab, make);
    let kept = [
        ("echo x > .envrc", "EROFS"),
        ("rm .envrc", "EBUSY"),
        ("mv a/b a/d", "EBUSY"),
        ("echo x > a/b/.vscode/tasks.json", "EROFS"),
        ("touch a/b/.vscode/settings.json", "EROFS"),
        ("echo x > a/.bashrc", "EROFS"),
        ("mkdir .vscode/x", "EROFS"),
        ("touch .idea/x .devcontainer/x", "EROFS"),
        ("echo x > .mcp.json", "EROFS"),
        ("echo x > .gitmodules", "EROFS"),
        ("echo x > a/sub/.git/config", "EROFS"),
        ("echo x > a/sub/.git/hooks/pre-commit", "EROFS"),
        // What is no setting, and what is no place where one is looked for.
        ("echo x > a/other; touch a/b/new; rm -r node_modules", "ok"),
        ("mkdir a/c/.vscode; echo x > a/c/.envrc", "ok"),
    ];
    assert_attempts(in_tree(&lab, &project, "tree"), &kept);
    assert_eq!(
        project.run("cd tree; ls -A . a"),
        ".:\n.envrc\n.git\na\n\na:\n.bashrc\nb\nc\nother\nsub\n"
    );
    let written = [
        (
            "echo x > .envrc; touch a/b/.vscode/settings.json a/.bashrc",
            "ok",
        ),
        ("mkdir .vscode .idea; echo x > .mcp.json", "ok"),
        ("echo x > .git/hooks/pre-commit", "EROFS"),
    ];
    assert_attempts(
        in_tree(&lab, &project, "tree").args(&["--no-keep-settings"]),
        &written,
    );
}

#[test]
fn a_folder_that_is_no_work_tree_gets_no_placeholders_and_its_settings_are_kept() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        "mkdir -p tree/sub/.vscode bare; touch tree/sub/.envrc",
    );
    let attempts = [
        ("mkdir .vscode .idea; echo x > .envrc", "ok"),
        ("touch sub/.vscode/x", "EROFS"),
        ("echo x > sub/.envrc", "EROFS"),
    ];
    assert_attempts(in_tree(&lab, &project, "tree"), &attempts);
}

#[test]
fn placeholders_are_in_no_commit_and_no_way_of_git_clean() {
    let lab = Lab::with_web();
    let project = Project::new(
        &lab,
        &format!("{CLONE}; git worktree add -q ../linked; echo own > .git/info/exclude"),
    );
    let script = format!(
        "{GIT}; echo 2 > f; echo x > own; git status --short; git add -A; git commit -q -m second; \
         git show --format= --name-only; git clean -fd; ls -A"
    );
    for tree in ["tree", "linked"] {
        let policy = super::policy("{}");
        let tree = project.path(tree);
        let all = project.folder.display();
        let policy = format!(
            "{policy}filesystem_policy: {{read_write: [{tree}, {all}/tree/.git], hidden: \
             [{tree}/.env], read_only: [{tree}/a.json]}}\n"
        );
        let finished = lab.sandbox(&policy).current_dir(&tree).sh(&script);
        let shown = ".devcontainer\n.env\n.envrc\n.git\n.gitmodules\n.idea\n.mcp.json\n.vscode\na.json\nf\nown\n";
        assert_eq!(
            finished.ok(),
            format!(" M f\nf\n{shown}").trim_end(),
            "{finished:?}"
        );
        assert_eq!(project.run(&format!("ls -A {tree}")), ".git\nf\nown\n");
    }
    // The host's list is as it was, and one that is missing is not left there.
    assert_eq!(
        project.run("cat tree/.git/info/exclude; rm tree/.git/info/exclude"),
        "own\n"
    );
    let finished = in_tree(&lab, &project, "tree").sh(&format!("{GIT}; git status --short"));
    assert_eq!(finished.ok(), "?? own", "{finished:?}");
    assert_eq!(project.run("ls tree/.git/info"), "");
}

#[test]
fn hidden_files_are_in_no_commit_and_a_tracked_one_is_said_with_what_has_git_leave_it_alone() {
    let lab = Lab::with_web();
    let own = "echo 1 > tracked.env; git add tracked.env; git commit -q -m env; echo 2 > \
               loose.env; mkdir sub; echo 3 > sub/loose.env; git worktree add -q ../linked; cd \
               ../linked; echo 4 > \"here \\$(touch ran).env\"; git add .; git commit -q -m here";
    let project = Project::new(&lab, &format!("{CLONE}; {own}"));
    let tree = project.path("tree");
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{tree}], hidden: [{tree}/**/*.env]}}\n",
        super::policy("{}")
    );
    let script = format!(
        "{GIT}; echo 2 > f; git stash -q && git stash pop -q && git add -A && git commit -q -m \
         second; git show --format= --name-only; git status --short; cat tracked.env"
    );
    let finished = lab.sandbox(&policy).current_dir(&tree).sh(&script);
    let line = format!("{tree}/tracked.env is hidden, and git tracks it");
    assert_eq!(finished.logged(&line).len(), 1, "{finished:?}");
    assert!(
        !finished.log.contains("loose.env is hidden"),
        "{finished:?}"
    );
    let remedy = finished
        .log
        .split("run outside: `")
        .nth(1)
        .unwrap()
        .split('`')
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(
        project.run(&format!("cd {tree}; git checkout -q f; {remedy}")),
        ""
    );
    let finished = lab.sandbox(&policy).current_dir(&tree).sh(&script);
    assert_eq!(finished.stdout, "f\n", "{finished:?}");
    assert!(
        finished.stderr.contains("tracked.env: Permission denied")
            && finished.log.matches("git tracks it").count() == 1,
        "{finished:?}"
    );
    assert_eq!(
        project.run(&format!(
            "cd {tree}; git show HEAD:tracked.env; cat tracked.env loose.env"
        )),
        "1\n1\n2\n"
    );
    // A work tree has an index of its own, and names that a shell would run.
    let linked = project.path("linked");
    let finished = lab
        .sandbox(&policy.replace(&tree, &linked))
        .args(&["--workdir", &linked])
        .sh("true");
    let lines = finished.logged(&format!(
        "{linked}/here $(touch ran).env is hidden, and git tracks it"
    ));
    assert_eq!(lines.len(), 1, "{finished:?}");
    let remedy = lines[0]
        .split("run outside: `")
        .nth(1)
        .unwrap()
        .split('`')
        .next()
        .unwrap();
    assert_eq!(
        project.run(&format!(
            "cd {linked}; {remedy}; ls; git ls-files -v | grep -c '^S'"
        )),
        "f\nhere $(touch ran).env\ntracked.env\n1\n"
    );
}

#[test]
fn git_works_in_a_linked_work_tree_whose_repository_names_it_and_in_no_other() {
    let lab = Lab::with_web();
    let own = "git worktree add -q ../linked; git init -q ../other; mkdir ../planted; git worktree \
               add -q ../theirs";
    let project = Project::new(
        &lab,
        &format!("{CLONE}; {own}; echo gitdir: $PWD/.git/worktrees/theirs > ../planted/.git"),
    );
    let policy = format!(
        "{}filesystem_policy: {{include_workdir: true}}\n",
        super::policy("{}")
    );
    let run = |tree: &str, script: &str| {
        lab.sandbox(&policy)
            .args(&["--workdir", &project.path(tree)])
            .sh(&format!("{GIT}; {script}"))
    };
    let finished = run(
        "linked",
        "echo 2 > f; git commit -qam second; git log --oneline | grep -c .; git branch new; git \
         status --short",
    );
    assert_eq!(finished.ok(), "2", "{finished:?}");
    let repository = project.path("tree/.git");
    let attempts = format!(
        "cd {repository}; for at in hooks/x config config.worktree info/attributes commondir \
         worktrees/linked/gitdir; do echo x >> $at && echo $at; done 2> /dev/null; mkdir ../new 2> \
         /dev/null || echo f | cmp -s - ../f || echo kept"
    );
    let finished = run("linked", &attempts);
    assert_eq!(finished.stdout, "kept\n", "{finished:?}");
    // A tree that names the repository, and that the repository does not name.
    let finished = run(
        "planted",
        &format!("git status --short; ls {repository} || echo out of reach"),
    );
    assert_eq!(finished.stdout, "out of reach\n", "{finished:?}");
    assert!(
        !finished.log.contains(&format!(
            "{} is a linked work tree",
            project.path("planted")
        )),
        "{finished:?}"
    );
}

#[test]
fn a_list_of_gits_that_leads_elsewhere_shows_nothing_of_there() {
    let lab = Lab::with_web();
    let secret = lab.file("secret", "s3cret\n").display().to_string();
    lab.shell(&format!("chown 0:0 {secret}; chmod 600 {secret}"))
        .clear();
    let project = Project::new(&lab, &format!("{CLONE}; ln -sf {secret} .git/info/exclude"));
    let finished =
        in_tree(&lab, &project, "tree").sh("cat .git/info/exclude 2> /dev/null | grep -c s3cret");
    assert_eq!(
        (finished.stdout.as_str(), finished.code()),
        ("0\n", 1),
        "{finished:?}"
    );
}

#[test]
fn placeholders_that_another_sandbox_shares_outlast_the_one_that_made_them_wherever_its_run_directory_is()
 {
    let lab = Lab::with_web();
    let project = Project::new(&lab, CLONE);
    let wait = |file: &str| format!("until test -e {file}; do sleep 0.01; done");
    let folders = ["a", "b"].map(|name| lab.folder(name).display().to_string());
    let own = format!(
        "chown $({} id -u) {1} {2}; chmod 700 {1} {2}",
        lab.as_caller(),
        folders[0],
        folders[1]
    );
    assert_eq!(lab.shell(&own), "");
    let start = |folder: &str, script: &str| {
        in_tree(&lab, &project, "tree")
            .args(&["--run-dir", folder])
            .start(&["sh", "-c", script])
    };
    let first = start(&folders[0], &wait("end"));
    wait_for_lines(&lab, "PROC:LAUNCH", 1);
    let plant = "touch .vscode/x; echo planted > .envrc; echo planted > .git/config.worktree; true";
    let second = start(
        &folders[1],
        &format!("{}; ({plant}) 2> /dev/null", wait("go")),
    );
    wait_for_lines(&lab, "PROC:LAUNCH", 2);
    assert_eq!(project.run("touch tree/end"), "");
    assert_eq!(first.wait().code(), 0);
    assert_eq!(project.run("touch tree/go"), "");
    let finished = second.wait();
    assert!(
        finished.code() == 0 && !finished.log.contains("was replaced or renamed"),
        "{}",
        finished.log
    );
    assert_eq!(
        project.run("cd tree; ls -A .vscode; cat .envrc .git/config.worktree"),
        ""
    );
}

/// What agents do in a work tree, each step with its exit code where the configuration is
/// read-only.
const STEPS: [(&str, i32); 26] = [
    ("git status --short", 0),
    ("git checkout -q -b feature", 0),
    ("git switch -q -c other", 0),
    ("echo 2 >> f && git commit -qam second", 0),
    ("git push -q origin other", 0),
    ("git push -q -u origin other", 0),
    ("git fetch -q origin", 0),
    ("git checkout -q -b tracking origin/other", 0),
    ("git pull -q origin other", 0),
    (
        "git stash list; echo 3 >> f; git stash -q && git stash pop -q && git checkout -q f",
        0,
    ),
    ("git rebase -q main", 0),
    ("git switch -q main && git merge -q --no-edit other", 0),
    (
        "git cherry-pick --no-commit other~1 2> /dev/null; git reset -q --hard",
        0,
    ),
    ("git revert --no-edit HEAD > /dev/null", 0),
    ("git tag v1", 0),
    ("git branch -q -D feature", 0),
    (
        "git worktree add -q wt v1 2> /dev/null && git worktree remove wt",
        0,
    ),
    (
        "git clone -q . sub && git -C sub config user.name b && rm -rf sub",
        0,
    ),
    (
        "git log --oneline | cat > /dev/null; git diff --stat HEAD~1 > /dev/null; git blame f > \
         /dev/null",
        0,
    ),
    ("git gc -q", 0),
    ("git clean -fdq", 0),
    ("mkdir d && git mv f d/f && git commit -qm moved", 0),
    ("git branch -m tracking renamed", 128),
    ("git remote add second ../bare", 128),
    ("git config user.name c", 4),
    ("git init -q", 128),
];

#[test]
fn the_usual_steps_of_agents_pass_and_with_a_writable_configuration_all_of_git() {
    let lab = Lab::with_web();
    for access in ["ro", "rw"] {
        let project = Project::new(&lab, CLONE);
        let steps: String = STEPS
            .iter()
            .map(|(step, _)| format!("( {step} ) > said 2>&1; echo $?; rm -f said\n"))
            .collect();
        let script = format!(
            "{GIT}; cd /tmp; mkdir s; cd {}; {steps}",
            project.path("tree")
        )
        .replace("said", "/tmp/s/said");
        let finished = in_tree(&lab, &project, "tree")
            .args(&["--git-config", access])
            .sh(&script);
        let ends: Vec<i32> = finished
            .ok()
            .lines()
            .map(|line| line.parse().unwrap())
            .collect();
        let expected = STEPS.map(|(_, end)| if access == "rw" { 0 } else { end });
        let wrong: Vec<_> = STEPS
            .iter()
            .zip(expected)
            .zip(&ends)
            .filter(|((_, expected), end)| expected != *end)
            .collect();
        assert!(
            wrong.is_empty() && ends.len() == STEPS.len(),
            "{access}: {wrong:#?} {finished:?}"
        );
        lab.shell(&format!("rm -rf {}", project.folder.display()))
            .clear();
    }
}

#[test]
fn the_first_refused_change_of_gits_configuration_is_explained_once() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, CLONE);
    let again = "until test -e end; do git config user.name c 2> /dev/null; done; git config \
                 user.name c 2> /dev/null";
    let running = in_tree(&lab, &project, "tree").start(&["sh", "-c", &format!("{GIT}; {again}")]);
    wait_for_lines(&lab, "--git-config rw permits them", 1);
    // The project's own commands give all files to its user, those that come and go in between
    // among them.
    std::fs::write(project.path("tree/end"), "").unwrap();
    let finished = running.wait();
    assert_eq!(
        finished
            .stderr
            .matches("--git-config rw permits them")
            .count(),
        1,
        "{finished:?}"
    );
}

#[test]
fn what_git_runs_outside_is_kept_wherever_its_configuration_puts_it() {
    let lab = Lab::with_web();
    // In the work tree, which the command then tries to plant something in.
    let cases = [
        (
            "mkdir hk; git config --global core.hooksPath hk",
            "hk/pre-commit",
        ),
        (
            "git config --global core.hooksPath .husky/_",
            ".husky/_/pre-commit",
        ),
        (
            "mkdir -p .husky/_; git config core.hooksPath .husky/_",
            ".husky/pre-commit",
        ),
        (
            "git config extensions.worktreeConfig true; git config --worktree core.hooksPath hk",
            "hk/pre-commit",
        ),
        (
            "printf '[core]\\nhooksPath = \\\\\\nhk\\n' >> .git/config",
            "hk/pre-commit",
        ),
        (
            "git config include.path ../i1; printf '[core]\\nhooksPath = hk\\n' > i1",
            "hk/pre-commit",
        ),
        (
            "git config --add include.path ../i1; git config --add include.path ../i2; touch i1 i2",
            "i1",
        ),
        (
            "git config include.path ../i1; printf '[include]\\npath = i2\\n' > i1; touch i2",
            "i2",
        ),
        (
            "printf '[include]\\npath = %s/i3\\n' $PWD >> ~/.gitconfig; touch i3",
            "i3",
        ),
        (
            "git worktree add -q ../out; git config extensions.worktreeConfig true",
            ".git/worktrees/out/config.worktree",
        ),
        (
            "git init -q ../sm; git -C ../sm commit -q --allow-empty -m x; git worktree add -q \
             ../out; cd ../out; git -c protocol.file.allow=always submodule --quiet add ../sm sm; \
             cd ../tree",
            ".git/worktrees/out/modules/sm/config",
        ),
        ("git init -q --bare b.git", "b.git/hooks/pre-receive"),
        ("git init -q --bare d/b.git", "d/b.git/config"),
        (
            "mkdir t; touch t/hk; ln -s t l; ln -s ../../l/hk .git/hooks/pre-commit",
            "t/hk",
        ),
        (
            "touch x; ln -s x l2; ln -s ../../l2 .git/hooks/pre-commit",
            "l2",
        ),
        ("true", ".git/remotes/origin"),
        (
            "mkdir sub; git config core.worktree ../sub; git config core.hooksPath hk",
            "sub/hk/post-checkout",
        ),
        // A repository of dotfiles, which the home leads to.
        (
            "touch gitconfig; ln -sf $PWD/gitconfig ~/.gitconfig",
            "gitconfig",
        ),
        (
            "mkdir git; touch git/config; mkdir ~/.config; ln -s $PWD/git ~/.config/git",
            "git/config",
        ),
        ("touch bashrc; ln -s $PWD/bashrc ~/.bashrc", "bashrc"),
        (
            "mkdir -p tpl/hooks; git config --global init.templateDir $PWD/tpl",
            "tpl/hooks/post-checkout",
        ),
        (
            "git config --global init.templateDir $PWD/tpl",
            "tpl/hooks/post-checkout",
        ),
        ("ln -s nothing .idea", ".idea/workspace.xml"),
    ];
    for (make, path) in cases {
        let project = Project::new(&lab, &format!("{CLONE}; {make}"));
        let plant = format!("rm -f {path}; mkdir -p $(dirname {path}); echo planted > {path}");
        let way = path.split('/').next().unwrap();
        // Nor by another folder in the place of one on the way.
        let other = format!("mv {way} away; mkdir -p $(dirname {path}); echo planted > {path}");
        let finished = in_tree(&lab, &project, "tree")
            .env("HOME", &project.folder.display().to_string())
            .sh(&format!("({plant}) 2>&1; ({other}) 2>&1; true"));
        assert_eq!(
            project.run(&format!("grep -s planted tree/{path}")),
            "",
            "{make}: {finished:?}"
        );
        lab.shell(&format!("rm -rf {}", project.folder.display()))
            .clear();
    }
}

#[test]
fn settings_that_take_too_many_mounts_are_left_out_in_a_line() {
    let lab = Lab::with_web();
    // Names that are short enough for a path.
    let deep = "import os; f = os.open('.', 0)\nfor n in range(1200): os.mkdir('d', dir_fd=f); f = \
                os.open('d', 0, dir_fd=f)\nos.mkdir('.vscode', dir_fd=f)";
    let project = Project::new(
        &lab,
        &format!("mkdir -p bare tree/.vscode; cd tree; git init -q; python3 -c \"{deep}\""),
    );
    let finished = in_tree(&lab, &project, "tree").sh("touch .vscode/x; echo ran");
    assert!(
        finished.stdout == "ran\n" && finished.stderr.contains(".vscode/x"),
        "{finished:?}"
    );
    assert!(
        lab.log()
            .contains("too many files or folders to find all settings in its subfolders"),
        "{}",
        lab.log()
    );
}

#[test]
fn what_cannot_be_kept_of_git_stops_the_start_and_is_named() {
    let lab = Lab::with_web();
    let cases = [
        ("git config core.hooksPath .", "core.hooksPath"),
        (
            "git config core.hooksPath '%(prefix)/x'",
            "is not understood",
        ),
        (
            "echo x > .git/hooks/pre-commit; ln .git/hooks/pre-commit further",
            "hard links",
        ),
        ("echo '[core' > .git/config", "is not a git configuration"),
    ];
    for (make, said) in cases {
        let project = Project::new(&lab, &format!("{CLONE}; {make}"));
        let finished = in_tree(&lab, &project, "tree").sh("echo ran");
        assert!(
            finished.stdout.is_empty() && finished.stderr.contains(said),
            "{make}: {finished:?}"
        );
        lab.shell(&format!("rm -rf {}", project.folder.display()))
            .clear();
    }
}

#[test]
fn what_cannot_be_searched_for_settings_stops_the_start_and_is_named() {
    let lab = Lab::with_web();
    let project = Project::new(&lab, "mkdir -p bare tree/sub/.vscode; chmod 0 tree/sub");
    let finished = in_tree(&lab, &project, "tree").sh("chmod 700 sub; touch sub/.vscode/x");
    assert!(
        finished.code() != 0 && finished.stderr.contains("chmod u+rx "),
        "{finished:?}"
    );
    assert!(finished.stderr.contains("tree/sub"), "{finished:?}");
    assert_eq!(
        project.run(&format!(
            "chmod 700 tree/sub; chown {UID} tree; ls -A tree/sub/.vscode"
        )),
        ""
    );
    // What is in it can be listed, and not be looked at.
    project.run("mkdir -p tree/sub/deep/.idea; chmod 600 tree/sub");
    let finished = in_tree(&lab, &project, "tree").sh("chmod 700 sub; touch sub/deep/.idea/x");
    assert!(
        finished.code() != 0 && finished.stderr.contains("tree/sub for settings that"),
        "{finished:?}"
    );
}
