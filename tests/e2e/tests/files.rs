//! What the workload may do with files. Each refusal has a twin: the same act outside the sandbox, as the same user,
//! succeeds, so that it is the sandbox that refuses.

use lab::Lab;
use lab::host::UID;

/// What the tests' user does outside a sandbox.
fn as_user(lab: &Lab, script: &str) -> String {
    lab.shell(&format!("setpriv --reuid {UID} --regid {UID} --clear-groups sh -c '{script}'"))
}

#[test]
fn fs_01_02_system_folders_cannot_be_written_and_scratch_can() {
    let lab = Lab::with_web();
    let script = "for f in /usr/x /etc/x /x; do touch $f 2>/dev/null && echo wrote $f; done; touch /tmp/$$ && rm /tmp/$$ && echo tmp";
    assert_eq!(lab.sandbox(&crate::policy("{}")).sh(script).ok(), "tmp");
}

#[test]
fn fs_03_04_what_is_not_listed_is_out_of_reach_although_its_modes_allow_it() {
    let lab = Lab::with_web();
    let folder = lab.folder("unlisted");
    let path = folder.display();
    let script = format!("echo x > {path}/file; cat {path}/file; ls {path} > /dev/null && echo listed");
    assert_eq!(as_user(&lab, &script), "x\nlisted\n", "the twin outside");
    let refused = format!("{script}; cat /root/.bashrc; ls /opt /home /srv");
    let finished = lab.sandbox(&crate::policy("{}")).sh(&refused);
    assert_eq!(finished.stdout, "", "{finished:?}");
}

#[test]
fn fs_05_06_the_working_directory_is_granted_where_the_policy_includes_it() {
    let lab = Lab::with_web();
    let folder = lab.folder("work");
    let path = folder.to_str().unwrap();
    let included = lab.sandbox(&crate::policy("{}")).args(&["--workdir", path]).sh("pwd; touch made && echo wrote");
    assert_eq!(included.ok(), format!("{path}\nwrote"), "PRV-12");
    let policy = format!("{}filesystem_policy: {{include_workdir: false}}\n", crate::policy("{}"));
    let left_out = lab.sandbox(&policy).args(&["--workdir", path]).sh("touch again && echo wrote");
    assert_eq!(left_out.stdout, "");
}

#[test]
fn fs_07_a_listed_path_that_is_missing_is_skipped_and_named() {
    let lab = Lab::with_web();
    let policy = format!("{}filesystem_policy: {{read_only: [/nowhere]}}\n", crate::policy("{}"));
    let finished = lab.sandbox(&policy).sh("touch /etc/x 2>/dev/null || echo refused");
    assert_eq!(finished.ok(), "refused");
    assert_eq!(finished.logged("/nowhere").len(), 1, "{}", finished.log);
}

#[test]
fn fs_09_10_13_listed_paths_are_made_left_alone_and_never_weakened() {
    let lab = Lab::with_web();
    let folder = lab.folder("grants");
    let made = folder.join("made/deep");
    let policy = format!("{}filesystem_policy: {{read_write: [{}, /etc]}}\n", crate::policy("{}"), made.display());
    let script =
        format!("stat -c '%u %a' {0}; touch {0}/x && echo wrote; [ -w /etc ] || echo etc-is-roots", made.display());
    let finished = lab.sandbox(&policy).sh(&script);
    assert_eq!(finished.ok(), format!("{UID} 755\nwrote\netc-is-roots"));
    // What refuses /etc now is its owner, not the sandbox: a file there that the user owns can be written.
    let owned =
        format!("mount -t tmpfs lab /etc/alternatives && touch /etc/alternatives/f && chown {UID} /etc/alternatives/f");
    assert_eq!(lab.shell(&owned), "");
    assert_eq!(lab.sandbox(&policy).sh("echo x > /etc/alternatives/f && echo wrote").ok(), "wrote");
    assert_eq!(
        lab.sandbox(&crate::policy("{}")).sh("echo x > /etc/alternatives/f || echo refused").stdout,
        "refused\n"
    );
}

#[test]
fn links_and_renames_lead_nowhere_else() {
    let lab = Lab::with_web();
    let folder = lab.folder("outside");
    std::fs::write(folder.join("secret"), "secret").unwrap();
    std::os::unix::fs::chown(folder.join("secret"), Some(UID), None).unwrap();
    let outside = folder.display();
    let inside = lab.folder("inside");
    let script = format!(
        "ln -s {outside}/secret s; cat s; ln {outside}/secret h; cat h; mv {outside}/secret m; cat m; \
         cat /proc/self/root{outside}/secret; cat /proc/1/root{outside}/secret; cp {outside}/secret c; : > {outside}/secret; \
         truncate -s 0 {outside}/secret; rm {outside}/secret"
    );
    let finished = lab.sandbox(&crate::policy("{}")).args(&["--workdir", inside.to_str().unwrap()]).sh(&script);
    assert_eq!(finished.stdout, "", "{finished:?}");
    assert_eq!(std::fs::read(folder.join("secret")).unwrap(), b"secret");
}

#[test]
fn files_move_between_granted_folders() {
    let lab = Lab::with_web();
    let folder = lab.folder("tree");
    let script = "mkdir a b && touch a/f && mv a/f b/f && ln b/f a/g && echo moved";
    assert_eq!(
        lab.sandbox(&crate::policy("{}")).args(&["--workdir", folder.to_str().unwrap()]).sh(script).ok(),
        "moved"
    );
}

#[test]
fn devices_that_programs_need_work() {
    let lab = Lab::with_web();
    let script = "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; \
                  python3 -c 'import pty, multiprocessing as m; pty.openpty(); print(m.Lock())'";
    let finished = lab.sandbox(&crate::policy("{}")).sh(script);
    assert_eq!(finished.ok().lines().count(), 3, "{finished:?}");
}
