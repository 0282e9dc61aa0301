//! Answers that outlast the run: lines that are written into the policy's file, or into another.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use lab::Lab;
use lab::sandbox::Sandbox;
use serde_json::Value;

use super::approvals::{Asking, List, line};
use super::reload::LOADED;

const URL: &str = "http://web.test/v1/items";

const CURL: &[&str] = &["curl", "-sS", "-m", "60", "-w", " %{http_code}\\n", URL];

/// A policy as a person writes it.
const POLICY: &str = "\
# Hosts of the tool.
filesystem_policy:
  include_workdir: true

network_policies:  # by name
    other:  # for now
        endpoints:
            - {host: other.test, port: 443, protocol: tcp}
        binaries:
            - {path: /usr/bin/curl}
    # more to come

# Nothing else.
";

/// Puts `text` into a file of the caller's, in a folder of the caller's.
fn file(lab: &Lab, name: &str, text: &str) -> PathBuf {
    let path = lab.folder("saved").join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let caller = lab::host::caller();
    std::os::unix::fs::chown(&path, Some(caller), Some(caller)).unwrap();
    path
}

/// Returns a run under the policy in the file `path`.
fn run_under<'l>(lab: &'l Lab, path: &Path) -> Sandbox<'l> {
    Sandbox::bare(lab).args(&["--policy-data", path.to_str().unwrap()])
}

#[test]
fn a_line_that_is_saved_is_in_the_file_and_the_next_run_needs_no_answer() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let path = file(&lab, "hosts.yaml", POLICY);
    let before = fs::metadata(&path).unwrap();
    let sandbox = run_under(&lab, &path).args(&["--watch"]);
    let asking = Asking::of(sandbox, &lab, CURL);
    let question = asking.held();
    let wanted = line(&question).to_owned();
    let id = question["id"].as_str().unwrap();
    let (said, code) = asking.approvals(&format!("decide {id} save"));
    assert_eq!(code, 0, "{said}");
    let place = format!("{}, line 12:\n+    {wanted}", path.display());
    assert!(said.ends_with(&format!("written to {place}")), "{said}");
    let first = fs::metadata(&path).unwrap();
    assert_ne!(first.ino(), before.ino(), "written as a whole");
    let second = asking.held();
    asking.decide(&second, "save");
    let finished = asking.wait();
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
    let second = line(&second);
    let saved = fs::read_to_string(&path).unwrap();
    let added = format!("come\n    {wanted}\n    {second}\n");
    assert_eq!(saved, POLICY.replace("come\n", &added));
    let after = fs::metadata(&path).unwrap();
    assert_eq!(
        (after.uid(), after.gid(), after.mode()),
        (before.uid(), before.gid(), before.mode())
    );
    assert!(
        finished.logged(LOADED).is_empty(),
        "what it wrote is no change: {}",
        finished.log
    );
    assert_eq!(finished.logged("[scope:save]").len(), 2, "{}", finished.log);
    let folder = fs::read_dir(path.parent().unwrap()).unwrap();
    let mut names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(
        names.all(|name| !name.contains("hosts.yaml.")),
        "nothing is left"
    );
    let again = run_under(&lab, &path).run(CURL);
    assert_eq!(again.stdout, "hello 200\n", "{}", again.log);
}

#[test]
fn a_change_of_somebody_else_after_saving_is_loaded() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let path = file(&lab, "hosts.yaml", POLICY);
    let sandbox = run_under(&lab, &path).args(&["--watch"]);
    let script = format!("{}; sleep 60", CURL.join(" "));
    let asking = Asking::of(sandbox, &lab, &["sh", "-c", &script]);
    asking.decide(&asking.held(), "save");
    let saved = fs::read_to_string(&path).unwrap();
    fs::write(&path, saved.replace("Nothing else", "Nothing at all")).unwrap();
    super::ssh::wait_for(&lab, LOADED);
    // The file has the line, so the run needs its own no longer.
    super::ssh::wait_for(&lab, "the new policy permits the same");
    let second = asking.held();
    asking.decide(&second, "save");
    assert!(fs::read_to_string(&path).unwrap().contains("at all"));
}

#[test]
fn what_cannot_be_saved_says_why_and_stays_held() {
    let lab = Lab::with_web();
    let flow = "network_policies: {other: {endpoints: [{host: other.test, port: 443, protocol: \
                tcp}], binaries: [{path: /usr/bin/curl}]}}\n";
    let plain = file(&lab, "plain.yaml", POLICY);
    let in_flow = file(&lab, "flow.yaml", flow);
    let read_only = file(&lab, "read-only.yaml", POLICY);
    fs::set_permissions(&read_only, fs::Permissions::from_mode(0o440)).unwrap();
    let link = lab.folder("links").join("link.yaml");
    symlink(&plain, &link).unwrap();
    let changed = file(&lab, "changed.yaml", POLICY);
    let work = lab.folder("work");
    let granted = work.join("granted.yaml");
    fs::rename(file(&lab, "granted.yaml", POLICY), &granted).unwrap();
    let work = work.to_str().unwrap();
    let others = file(&lab, "others.yaml", POLICY);
    std::os::unix::fs::chown(&others, Some(lab::host::caller() + 1), None).unwrap();
    for (path, words, why) in [
        (&in_flow, &[][..], "are not a block with one key a line"),
        (&read_only, &[], "it is read-only"),
        (&link, &[], "it is a symlink; name the file itself"),
        (&changed, &[], "was changed since it was loaded"),
        (
            &granted,
            &["--workdir", work],
            "the command can write it too",
        ),
        (&plain, &["--write", work], "start with --save FILE"),
        (&others, &[], "not to you"),
    ] {
        let before = fs::read_to_string(path).unwrap();
        let asking = Asking::of(run_under(&lab, path).args(words), &lab, CURL);
        let question = asking.held();
        if *path == changed {
            fs::write(path, format!("{before}# Mine.\n")).unwrap();
        }
        let now = fs::read_to_string(path).unwrap();
        let id = question["id"].as_str().unwrap();
        let (said, code) = asking.approvals(&format!("decide {id} save 2>&1"));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(why), "{why}: {said}");
        assert_eq!(asking.held()["id"], question["id"], "it stays held");
        assert_eq!(fs::read_to_string(path).unwrap(), now);
        asking.decide(&question, "deny");
        assert_eq!(asking.wait().logged("[scope:run]").len(), 0);
    }
}

#[test]
fn a_line_that_the_disk_has_no_room_for_holds_for_the_run() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let folder = lab.folder("full");
    let shown = folder.display();
    let caller = lab::host::caller();
    let is_rootless = lab::host::tier() == lab::host::Tier::Rootless;
    if !is_rootless {
        let _ = lab.shell(&format!("mount -t tmpfs -o size=8k full {shown}"));
    }
    let path = folder.join("hosts.yaml");
    let name = path.display();
    let _ = lab.shell(&format!("cat > {name} <<'E'\n{POLICY}E"));
    let _ = lab.shell(&format!("chown {caller} {name}"));
    if is_rootless {
        // Only root can fill a disk of its own; a folder that takes no file fails as late.
        let _ = lab.shell(&format!("chown 0 {shown}; chmod 755 {shown}"));
    } else {
        let _ = lab.shell(&format!("cat /dev/zero > {shown}/rest; true"));
    }
    let asking = Asking::of(run_under(&lab, &path), &lab, CURL);
    let question = asking.held();
    let id = question["id"].as_str().unwrap();
    let (said, code) = asking.approvals(&format!("decide {id} save 2>&1"));
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("for this run only (grant g1), not saved"),
        "{said}"
    );
    asking.decide(&asking.held(), "once");
    let finished = asking.wait();
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
    assert_eq!(lab.shell(&format!("cat {}", path.display())), POLICY);
    assert_eq!(lab.shell(&format!("ls -A {shown} | grep -c hosts")), "1\n");
}

#[test]
fn the_file_of_save_has_flags_presets_and_answers_and_is_a_policy_by_itself() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let folder = lab.folder("out");
    let out = folder.join("policy.yaml");
    let shown = out.to_str().unwrap();
    let words = ["--allow", "other.test", "--save", shown];
    let asking = Asking::of(Sandbox::bare(&lab).args(&words), &lab, CURL);
    asking.decide(&asking.held(), "save");
    let saved = fs::read_to_string(&out).unwrap();
    assert!(
        saved.contains("other.test") && saved.contains("web.test"),
        "{saved}"
    );
    asking.decide(&asking.held(), "run");
    let finished = asking.wait();
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
    let saved = fs::read_to_string(&out).unwrap();
    assert!(
        saved.contains("# Permitted for this run only: ask_web.test_80"),
        "{saved}"
    );
    let check = lab.shell(&format!("{} check {shown} 2>&1; echo $?", lab.binary()));
    assert!(check.ends_with("0\n"), "{check}");
    // The next run writes it again, and one that begins anew does not keep what is there.
    let again = Sandbox::bare(&lab).args(&words).run(&["true"]);
    assert_eq!(again.code(), 0, "{}", again.stderr);
    let saved = fs::read_to_string(&out).unwrap();
    assert!(
        saved.contains("other.test") && !saved.contains("web.test"),
        "{saved}"
    );
    let foreign = lab.file("out/mine.yaml", "network_policies: {}\n");
    let words = ["--allow", "other.test", "--save", foreign.to_str().unwrap()];
    let refused = Sandbox::bare(&lab).args(&words).run(&["true"]);
    assert_eq!(refused.code(), 1);
    assert!(
        refused.stderr.contains("not written by --save"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        fs::read_to_string(&foreign).unwrap(),
        "network_policies: {}\n"
    );
}

#[test]
fn a_person_saves_after_the_difference_was_on_the_screen() {
    for size in [(80, 24), (40, 8)] {
        let lab = Lab::with_web();
        let _web = lab.http("10.99.0.1:80");
        let path = file(&lab, "hosts.yaml", POLICY);
        let asking = Asking::of(run_under(&lab, &path), &lab, CURL);
        let list = List::open(&lab, size);
        list.shows("web.test:80");
        list.keys("Down Enter");
        list.shows("line 1 of");
        list.press_until("Down", "path or a query");
        list.press_until("s", "any other key: no");
        assert_eq!(fs::read_to_string(&path).unwrap(), POLICY, "not yet");
        list.press_until("Down", "y: permit this line");
        list.press_until("y", "save: grant g1, written to");
        asking.decide(&asking.held(), "once");
        assert_eq!(asking.wait().stdout, "hello 200\n");
        assert!(
            fs::read_to_string(&path)
                .unwrap()
                .contains("    ask_web.test_80: {")
        );
    }
}

#[test]
fn a_saved_line_that_is_taken_back_stays_in_its_file_and_the_answer_says_so() {
    let lab = Lab::with_web();
    let path = file(&lab, "hosts.yaml", POLICY);
    let script = format!("{}; sleep 60", CURL.join(" "));
    let asking = Asking::of(run_under(&lab, &path), &lab, &["sh", "-c", &script]);
    asking.decide(&asking.held(), "save");
    let (listed, _) = asking.approvals("--json web");
    let lines = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let grants: Vec<_> = lines.filter(|line| line["grant"].is_string()).collect();
    assert_eq!(grants[0]["file"], path.to_str().unwrap(), "{listed}");
    let (said, code) = asking.approvals("revoke g1");
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains(&format!("the line stays in {}", path.display())),
        "{said}"
    );
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .contains("ask_web.test_80")
    );
}
