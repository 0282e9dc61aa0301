//! Files of the supervisor in folders that the policy grants: the workload neither changes,
//! replaces nor, if they hold secrets, reads them.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use lab::host::UID;
use lab::{Lab, Sandbox};
use rustix::process::Signal;

const SECRET: &str = "s3cret-Value.42";

/// A project of the workload's user that holds all files of a run.
struct Project {
    folder: PathBuf,
}

impl Project {
    fn new(lab: &Lab) -> Self {
        let folder = lab.folder("project");
        let project = Self { folder };
        for folder in ["conf", "conf/deep", "logs", "run"] {
            std::fs::create_dir(project.folder.join(folder)).unwrap();
        }
        let built_in = include_str!("../../../data/sandbox-policy.rego");
        project.file(
            "conf/deep/policy.yaml",
            &project.policy("read_write"),
            0o644,
        );
        project.file(
            "conf/rules.rego",
            &format!("# Not the built-in ones.\n{built_in}"),
            0o644,
        );
        project.file("token", SECRET, 0o600);
        let token = project.path("token");
        project.file(
            "conf/creds.yaml",
            &format!("credentials: {{API_KEY: {{file: {token}, hosts: [web.test]}}}}"),
            0o600,
        );
        project.file("conf/key", SECRET, 0o600);
        let route = "{name: a, endpoint: \"https://web.test/v1\", model: m, protocols: \
                     [openai_chat_completions], api_key_file: KEY}";
        let route = route.replace("KEY", &project.path("conf/key"));
        project.file("routes.yaml", &format!("routes: [{route}]\n"), 0o600);
        assert_eq!(
            lab.shell(&format!(
                "chown -R {UID}:{UID} {0}; chown -R {1} {0}/logs {0}/run",
                project.path(""),
                lab::host::caller()
            )),
            ""
        );
        project
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn file(&self, name: &str, text: &str, mode: u32) {
        std::fs::write(self.folder.join(name), text).unwrap();
        std::fs::set_permissions(self.folder.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }

    /// A policy that grants the project.
    fn policy(&self, how: &str) -> String {
        format!(
            "{}filesystem_policy: {{{how}: [{}, /tmp]}}\n",
            super::policy("{}"),
            self.folder.display()
        )
    }

    /// The sandbox of the project, with all of its files.
    fn sandbox<'l>(&self, lab: &'l Lab) -> Sandbox<'l> {
        let words = [
            ("--policy-data", "conf/deep/policy.yaml"),
            ("--policy-rules", "conf/rules.rego"),
            ("--credentials", "conf/creds.yaml"),
            ("--inference-routes", "routes.yaml"),
            ("--log-dir", "logs"),
            ("--run-dir", "run"),
            ("--proposals", "proposals.yaml"),
        ];
        let words: Vec<_> = words
            .iter()
            .flat_map(|(flag, name)| [(*flag).to_owned(), self.path(name)])
            .collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        Sandbox::bare(lab).args(&words)
    }
}

/// Attempts everything on the files of a project, and prints what succeeded.
const ATTEMPTS: &str = r#"
import os, sys
top = sys.argv[1]
readable = ['conf/deep/policy.yaml', 'conf/rules.rego', 'proposals.yaml']
secret = ['conf/creds.yaml', 'conf/key', 'token', 'routes.yaml']
folders = ['conf', 'conf/deep', 'logs', 'run']
def attempt(name, act):
    try: act()
    except OSError: return
    print(name)
def write(path):
    with open(path, 'a'): pass
for name in readable + secret:
    path = os.path.join(top, name)
    attempt('write ' + name, lambda: write(path))
    attempt('truncate ' + name, lambda: os.truncate(path, 0))
    attempt('mode ' + name, lambda: os.chmod(path, 0o666))
    attempt('times ' + name, lambda: os.utime(path, (1, 1)))
    attempt('attribute ' + name, lambda: os.setxattr(path, 'user.x', b'y'))
    attempt('link ' + name, lambda: os.link(path, os.path.join(top, 'linked')))
    attempt('rename ' + name, lambda: os.rename(path, path + '.old'))
    attempt('remove ' + name, lambda: os.remove(path))
    open(os.path.join(top, 'other'), 'w').close()
    attempt('replace ' + name, lambda: os.rename(os.path.join(top, 'other'), path))
for name in secret:
    attempt('read ' + name, lambda: open(os.path.join(top, name)).read())
for name in folders:
    path = os.path.join(top, name)
    attempt('rename ' + name, lambda: os.rename(path, path + '.old'))
for name in ['logs', 'run']:
    path = os.path.join(top, name)
    attempt('make in ' + name, lambda: open(os.path.join(path, 'new'), 'w'))
    attempt('mode ' + name, lambda: os.chmod(path, 0o777))
    for entry in os.listdir(path):
        attempt(f'rename in {name}', lambda: os.rename(os.path.join(path, entry), os.path.join(top, 'moved')))
for folder, _, names in os.walk(os.path.join(top, 'run')):
    attempt('mode in run', lambda: os.chmod(folder, 0o777))
    attempt('make below run', lambda: open(os.path.join(folder, 'new'), 'w'))
    for path in [os.path.join(folder, name) for name in names]:
        attempt('write in run', lambda: write(path))
        attempt('mode in run', lambda: os.chmod(path, 0o666))
        attempt('times in run', lambda: os.utime(path, (1, 1)))
        attempt('remove in run', lambda: os.remove(path))
os.mkdir(os.path.join(top, 'conf/own')); os.rename(os.path.join(top, 'conf/own'), os.path.join(top, 'conf/mine'))
print('done')
"#;

#[test]
fn the_supervisors_files_are_neither_changed_nor_replaced_nor_its_secrets_read() {
    let lab = Lab::with_web();
    let project = Project::new(&lab);
    let before = lab.shell(&format!(
        "cd {}; cat conf/deep/* conf/* token routes.yaml 2>/dev/null",
        project.path("")
    ));
    let finished = project.sandbox(&lab).python(ATTEMPTS, &[&project.path("")]);
    assert_eq!(finished.ok(), "done", "{finished:?}");
    let files = format!(
        "cd {}; rmdir conf/mine; cat conf/deep/* conf/* token routes.yaml 2>/dev/null",
        project.path("")
    );
    assert_eq!(lab.shell(&files), before);
    let proposals = std::fs::read_to_string(project.folder.join("proposals.yaml")).unwrap();
    assert!(proposals.starts_with("# "), "{proposals}");
    // The twin: outside of a sandbox the same user does all of it.
    let attempts = lab.file("attempts.py", ATTEMPTS);
    let words = format!(
        "/usr/bin/python3 {} {}",
        attempts.display(),
        project.path("")
    );
    let twin = lab.shell(&format!(
        "chown -R {UID} {}; setpriv --reuid {UID} --regid {UID} --clear-groups {words}",
        project.path("")
    ));
    for act in [
        "write conf/deep/policy.yaml",
        "replace token",
        "mode conf/rules.rego",
        "read conf/creds.yaml",
        "rename conf",
    ] {
        assert!(twin.lines().any(|line| line == act), "{act}: {twin}");
    }
}

#[test]
fn what_may_only_be_read_cannot_be_changed_by_its_owner_either() {
    let lab = Lab::with_web();
    let project = Project::new(&lab);
    project.file("conf/deep/policy.yaml", &project.policy("read_only"), 0o644);
    let program = ATTEMPTS.replace("open(os.path.join(top, 'other'), 'w').close()", "pass");
    let program = program
        .lines()
        .filter(|line| !line.contains("conf/own"))
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!(
        project
            .sandbox(&lab)
            .python(&program, &[&project.path("")])
            .ok(),
        "done"
    );
}

/// Runs a reload while a command of `project` waits, after `change` outside; returns the log.
fn reloaded(lab: &Lab, project: &Project, change: &str) -> String {
    let go = project.path("go");
    let script = format!("touch {0}.ready; until test -e {go}; do :; done", go);
    let running = project.sandbox(lab).start(&["sh", "-c", &script]);
    let wait = format!(
        "until test -e {go}.ready; do :; done; cd {}; {change}",
        project.path("")
    );
    assert_eq!(lab.shell(&wait), "");
    running.signal(Signal::HUP);
    let done = "Policy reloaded successfully\\|reload failed";
    let log = lab.shell(&format!(
        "until grep -qs '{done}' {0}/openshell.*.log; do :; done; touch {go}; cat \
         {0}/openshell.*.log",
        project.path("logs")
    ));
    assert_eq!(running.wait().code(), 0);
    log
}

#[test]
fn a_policy_that_is_edited_in_place_is_read_again_and_one_that_was_replaced_is_not() {
    let lab = Lab::with_web();
    let project = Project::new(&lab);
    let log = reloaded(&lab, &project, "echo '# edited' >> conf/deep/policy.yaml");
    assert!(log.contains("Policy reloaded successfully"), "{log}");
    let lab = Lab::with_web();
    let project = Project::new(&lab);
    let log = reloaded(
        &lab,
        &project,
        "cp conf/deep/policy.yaml new && mv new conf/deep/policy.yaml",
    );
    assert!(
        log.contains("conf/deep/policy.yaml was replaced or linked, so the workload has access"),
        "{log}"
    );
    assert!(
        log.contains("keeping last-known-good policy [generation:1"),
        "{log}"
    );
}

#[test]
fn a_file_with_a_second_name_stops_the_start() {
    let lab = Lab::with_web();
    for name in ["conf/deep/policy.yaml", "token"] {
        let project = Project::new(&lab);
        assert_eq!(
            lab.shell(&format!(
                "ln {} {}",
                project.path(name),
                project.path("second")
            )),
            ""
        );
        let refused = project.sandbox(&lab).sh("echo ran");
        assert_eq!(
            (refused.code(), refused.stdout.as_str()),
            (1, ""),
            "{refused:?}"
        );
        assert!(
            refused.stderr.contains("has further names (hard links)"),
            "{refused:?}"
        );
        std::fs::remove_dir_all(&project.folder).unwrap();
    }
}

#[test]
fn modes_and_times_of_what_may_only_be_read_stay_and_folders_in_it_are_written() {
    let lab = Lab::with_web();
    let tree = lab.folder("tree");
    let tree = tree.display();
    assert_eq!(
        lab.shell(&format!(
            "cd {tree}; mkdir own mount listed; mount -t tmpfs none mount; mount -t tmpfs none listed; \
             touch mount/file listed/file; echo x > file; chown -R {UID}:{UID} ."
        )),
        ""
    );
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{tree}, {tree}/listed], read_write: [{tree}/own]}}\n",
        super::policy("{}")
    );
    let script = format!(
        "cd {tree}; cat file; chmod 4777 file && echo mode; touch -d 2000-01-01 file && echo time; \
         chmod 777 . && echo folder; for other in mount listed; do chmod 777 $other/file && echo \
         $other; done; echo y > own/y && mkdir own/d && mv own/y own/d/ && chmod 700 \
         own/d && cat own/d/y"
    );
    assert_eq!(lab.sandbox(&policy).sh(&script).ok(), "x\ny");
}

#[test]
fn a_secret_that_is_replaced_outside_ends_the_run() {
    let lab = Lab::with_web();
    let project = Project::new(&lab);
    let ready = project.path("ready");
    let running = project.sandbox(&lab).start(&[
        "sh",
        "-c",
        &format!("touch {ready}; while :; do sleep 0.05; done"),
    ]);
    let replace = format!(
        "until test -e {ready}; do :; done; cd {}; cp -p token new && mv new token",
        project.path("")
    );
    assert_eq!(lab.shell(&replace), "");
    let finished = running.wait();
    assert_eq!(finished.code(), 1, "{finished:?}");
    assert!(
        finished.stderr.contains("a secret is no longer hidden")
            && finished.stderr.contains("token was replaced"),
        "{finished:?}"
    );
}

#[test]
fn a_reload_takes_no_secret_from_a_file_that_the_workload_can_read() {
    let lab = Lab::with_web();
    let project = Project::new(&lab);
    let change = "cp -p token second && sed -i s/token/second/ conf/creds.yaml";
    let in_place = change.replace(
        "sed -i s/token/second/ conf/creds.yaml",
        "sed s/token/second/ conf/creds.yaml > c && cat c > conf/creds.yaml",
    );
    let log = reloaded(&lab, &project, &in_place);
    assert!(
        log.contains("names")
            && log.contains("/project/second, which the policy lets the workload read"),
        "{log}"
    );
}

#[test]
fn a_grant_of_one_of_the_files_itself_and_a_symlink_in_a_granted_folder_stop_the_start() {
    let lab = Lab::with_web();
    for (listed, text) in [
        (
            "read_write: [LAB/conf/deep/policy.yaml]",
            "that is the policy, which the workload must not change",
        ),
        (
            "read_only: [LAB/conf/creds.yaml]",
            "that is the credentials file, which the workload must not read",
        ),
        (
            "read_only: [LAB/token]",
            "that is the file of a credential, which the workload must not read",
        ),
        (
            "read_write: [LAB/logs]",
            "that is the log folder (--log-dir), which the workload must not change",
        ),
    ] {
        if lab::host::caller() == 0 && listed.contains("logs") {
            // The folder is root's, in which the workload can change nothing.
            continue;
        }
        let project = Project::new(&lab);
        let policy = format!(
            "{}filesystem_policy: {{{}}}\n",
            super::policy("{}"),
            listed.replace("LAB", project.path("").trim_end_matches('/'))
        );
        project.file("conf/deep/policy.yaml", &policy, 0o644);
        let refused = project.sandbox(&lab).sh("echo ran");
        assert_eq!(
            (refused.code(), refused.stdout.as_str()),
            (1, ""),
            "{refused:?}"
        );
        assert!(
            refused.stderr.contains(text) && refused.stderr.contains("filesystem_policy"),
            "{listed}: {refused:?}"
        );
        std::fs::remove_dir_all(&project.folder).unwrap();
    }
    let project = Project::new(&lab);
    std::os::unix::fs::symlink("conf/deep/policy.yaml", project.folder.join("link.yaml")).unwrap();
    let refused = Sandbox::bare(&lab)
        .args(&["--policy-data", &project.path("link.yaml")])
        .sh("echo ran");
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (1, ""),
        "{refused:?}"
    );
    assert!(
        refused.stderr.contains("goes through the symlink")
            && refused.stderr.contains("conf/deep/policy.yaml"),
        "{refused:?}"
    );
}
