//! File access of the workload. Each refusal has a counterpart: the same act outside the sandbox,
//! as the same user, succeeds, which shows that the sandbox refuses it.

use std::path::Path;

use lab::Lab;
use lab::host::UID;
use lab::only_as_root;

/// Runs a script outside a sandbox as the tests' user.
fn as_user(lab: &Lab, script: &str) -> String {
    lab.shell(&format!(
        "setpriv --reuid {UID} --regid {UID} --clear-groups sh -c '{script}'"
    ))
}

// Conformance: FS-01, FS-02.
#[test]
fn system_folders_cannot_be_written_and_scratch_can() {
    let lab = Lab::with_web();
    let script = "for f in /usr/x /etc/x /x; do touch $f 2>/dev/null && echo wrote $f; done; touch \
                  /tmp/$$ && rm /tmp/$$ && echo tmp";
    assert_eq!(lab.sandbox(&super::policy("{}")).sh(script).ok(), "tmp");
}

// Conformance: FS-12.
#[test]
fn a_policy_that_lists_nothing_grants_the_baseline_where_it_exists() {
    let lab = Lab::with_web();
    let script = "for d in /usr /lib /etc /var/log /proc; do ls $d >/dev/null || echo no $d; done; \
                  head -c1 /dev/urandom >/dev/null || echo no urandom; touch /tmp/$$ && rm /tmp/$$ \
                  || echo no /tmp; for d in /app /sandbox; do ! [ -e $d ] || ls $d >/dev/null || \
                  echo no $d; done; echo done";
    assert_eq!(lab.sandbox(&super::policy("{}")).sh(script).ok(), "done");
}

// Conformance: FS-03, FS-04.
#[test]
fn what_is_not_listed_is_out_of_reach_although_its_modes_allow_it() {
    let lab = Lab::with_web();
    let folder = lab.folder("unlisted");
    let path = folder.display();
    let script =
        format!("echo x > {path}/file; cat {path}/file; ls {path} > /dev/null && echo listed");
    assert_eq!(as_user(&lab, &script), "x\nlisted\n", "the twin outside");
    let refused =
        format!("{script}; cat /root/.bashrc; for name in /opt /home /srv; do ls $name; done");
    let finished = lab.sandbox(&super::policy("{}")).sh(&refused);
    assert_eq!(finished.stdout, "", "{finished:?}");
}

// Conformance: FS-05, FS-06, PRV-12.
#[test]
fn the_working_directory_is_granted_where_the_policy_includes_it() {
    let lab = Lab::with_web();
    let folder = lab.folder("work");
    let path = folder.to_str().unwrap();
    let included = lab
        .sandbox(&super::policy("{}"))
        .args(&["--workdir", path])
        .sh("pwd; touch made && echo wrote");
    assert_eq!(included.ok(), format!("{path}\nwrote"), "PRV-12");
    let policy = format!(
        "{}filesystem_policy: {{include_workdir: false}}\n",
        super::policy("{}")
    );
    let left_out = lab
        .sandbox(&policy)
        .args(&["--workdir", path])
        .sh("touch again && echo wrote");
    assert_eq!(left_out.stdout, "");
}

// Conformance: FS-07, FS-08.
#[test]
fn paths_that_are_missing_are_given_up_in_one_line_or_stop_the_start() {
    let lab = Lab::with_web();
    let policy = format!(
        "{}filesystem_policy: {{read_only: [/nowhere, /no/where]}}\n",
        super::policy("{}")
    );
    let finished = lab
        .sandbox(&policy)
        .sh("touch /etc/x 2>/dev/null || echo refused");
    assert_eq!(finished.ok(), "refused");
    let [line] = finished.logged("[MED] not enforced (best effort)")[..] else {
        panic!("{}", finished.log)
    };
    assert!(
        line.contains("/nowhere (") && line.contains("/no/where ("),
        "{line}"
    );
    let hard = lab
        .sandbox(&format!(
            "{policy}landlock: {{compatibility: hard_requirement}}\n"
        ))
        .sh("echo ran");
    assert_eq!((hard.code(), hard.stdout.as_str()), (1, ""), "{hard:?}");
    assert!(hard.stderr.contains("/nowhere"), "{hard:?}");
}

#[test]
fn where_everything_is_there_hard_requirement_starts_and_nothing_is_given_up() {
    let lab = Lab::with_web();
    let policy = format!(
        "{}landlock: {{compatibility: hard_requirement}}\n",
        super::policy("{}")
    );
    let finished = lab.sandbox(&policy).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    assert_eq!(finished.logged("DEGRADED"), Vec::<&str>::new());
}

// Conformance: FS-09, FS-10, FS-13.
#[test]
fn listed_paths_are_made_left_alone_and_never_weakened() {
    let lab = Lab::with_web();
    let folder = lab.folder("grants");
    let made = folder.join("made/deep");
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{}, /etc]}}\n",
        super::policy("{}"),
        made.display()
    );
    let script = format!(
        "stat -c '%u %a' {0}; touch {0}/x && echo wrote; [ -w /etc ] || echo etc-is-roots",
        made.display()
    );
    let finished = lab.sandbox(&policy).sh(&script);
    assert_eq!(finished.ok(), format!("{UID} 755\nwrote\netc-is-roots"));
    // Now Unix permissions refuse /etc, not the sandbox: the user can write its own file there.
    let owned = format!(
        "mount -t tmpfs lab /etc/alternatives && touch /etc/alternatives/f && chown {UID} \
         /etc/alternatives/f"
    );
    assert_eq!(lab.shell(&owned), "");
    assert_eq!(
        lab.sandbox(&policy)
            .sh("echo x > /etc/alternatives/f && echo wrote")
            .ok(),
        "wrote"
    );
    assert_eq!(
        lab.sandbox(&super::policy("{}"))
            .sh("echo x > /etc/alternatives/f || echo refused")
            .stdout,
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
        "ln -s {outside}/secret s; cat s; ln {outside}/secret h; cat h; mv {outside}/secret m; cat \
         m; cat /proc/self/root{outside}/secret; cat /proc/1/root{outside}/secret; cp \
         {outside}/secret c; : > {outside}/secret; truncate -s 0 {outside}/secret; rm \
         {outside}/secret"
    );
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--workdir", inside.to_str().unwrap()])
        .sh(&script);
    assert_eq!(finished.stdout, "", "{finished:?}");
    assert_eq!(std::fs::read(folder.join("secret")).unwrap(), b"secret");
}

#[test]
fn files_move_between_granted_folders() {
    let lab = Lab::with_web();
    let folder = lab.folder("tree");
    let script = "mkdir a b && touch a/f && mv a/f b/f && ln b/f a/g && echo moved";
    assert_eq!(
        lab.sandbox(&super::policy("{}"))
            .args(&["--workdir", folder.to_str().unwrap()])
            .sh(script)
            .ok(),
        "moved"
    );
}

#[test]
fn files_move_between_granted_trees_and_into_no_other() {
    let lab = Lab::with_web();
    let [from, to, other] = ["from", "to", "other"].map(|name| lab.folder(name));
    let from = from.display();
    let to = to.display();
    let other = other.display();
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{from}, {to}]}}\n",
        super::policy("{}")
    );
    let script = format!(
        "cd {from} && touch f && mv f {to}/f && ln {to}/f g && mkdir d && mv d {to}/ && echo \
         moved; mv {from}/g {other}/g; ln {from}/g {other}/h; ls {other}"
    );
    assert_eq!(lab.sandbox(&policy).sh(&script).stdout, "moved\n");
    assert_eq!(
        as_user(&lab, &format!("mv {from}/g {other}/g && ls {other}")),
        "g\n",
        "the twin outside"
    );
}

#[test]
fn what_may_only_be_read_cannot_be_truncated() {
    let lab = Lab::with_web();
    let folder = lab.folder("truncate");
    // Root's, so that it is no mount of its own for a user of root's choice.
    std::os::unix::fs::chown(&folder, Some(0), Some(0)).unwrap();
    let file = folder.join("file");
    let program = format!(
        "import os\npath = {:?}\nfor attempt in (lambda: os.truncate(path, 0), lambda: open(path, \
         'w'), lambda: open(path, 'r+'), lambda: os.open(path, os.O_RDONLY | os.O_TRUNC)):\n  try: \
         attempt(); print('done')\n  except OSError: print('refused')",
        file
    );
    for (list, expected) in [
        ("read_only", "refused\nrefused\nrefused\nrefused"),
        ("read_write", "done\ndone\ndone\ndone"),
    ] {
        std::fs::write(&file, "kept").unwrap();
        std::os::unix::fs::chown(&file, Some(UID), Some(UID)).unwrap();
        let policy = format!(
            "{}filesystem_policy: {{{list}: [{}]}}\n",
            super::policy("{}"),
            folder.display()
        );
        assert_eq!(
            lab.sandbox(&policy).python(&program, &[]).ok(),
            expected,
            "{list}"
        );
    }
}

#[test]
fn files_and_devices_are_listed_by_themselves() {
    let lab = Lab::with_web();
    let folder = lab.folder("alone");
    let path = folder.display();
    let made = format!(
        "cd {path} && for f in read written beside; do echo $f > $f; done; mknod zero c 1 5; mknod \
         other c 1 5; chmod 666 *; chown {UID} *"
    );
    assert_eq!(lab.shell(&made), "");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{path}/read], read_write: [{path}/written, \
         {path}/zero]}}\n",
        super::policy("{}")
    );
    let script = format!(
        "cd {path}; cat read; echo x > read; echo more >> written; cat written; cat beside; head \
         -c 3 zero | wc -c; head -c 3 other | wc -c; echo x > zero && echo device; rm read written \
         zero; touch new; ls"
    );
    assert_eq!(
        lab.sandbox(&policy).sh(&script).stdout,
        "read\nwritten\nmore\n3\n0\ndevice\n"
    );
    assert_eq!(
        as_user(
            &lab,
            &format!("cd {path}; cat read beside; head -c 3 other | wc -c")
        ),
        "read\nbeside\n3\n",
        "the twin outside"
    );
}

/// RNDGETENTCNT, which every user may call on the random device.
const ENTROPY: &str = "import fcntl, struct; fcntl.ioctl(open('/dev/urandom'), 0x80045200, \
                       bytearray(4)); print('asked')";

#[test]
fn device_ioctls_need_a_device_that_is_listed() {
    let lab = Lab::with_web();
    let file = lab.file("entropy.py", ENTROPY);
    assert_eq!(
        as_user(&lab, &format!("/usr/bin/python3 {}", file.display())),
        "asked\n",
        "the twin outside"
    );
    let refused = lab.sandbox(&super::policy("{}")).python(ENTROPY, &[]);
    assert!(
        refused.stdout.is_empty() && refused.stderr.contains("Inappropriate ioctl"),
        "{refused:?}"
    );
    let listed = format!(
        "{}filesystem_policy: {{read_write: [/dev/urandom]}}\n",
        super::policy("{}")
    );
    assert_eq!(lab.sandbox(&listed).python(ENTROPY, &[]).ok(), "asked");
}

/// Connects to the sockets in the arguments, by path or, after `@`, by abstract name.
const SOCKETS: &str = "
import socket, sys
for name in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(name.replace('@', chr(0)))
        print('reached')
    except OSError as error: print(type(error).__name__)
";

/// Listens on the sockets in the arguments, open to every user, and reports it.
const SERVICES: &str = "
import os, socket, sys, time
held = []
for name in sys.argv[1:]:
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind(name.replace('@', chr(0)))
    held[-1].listen()
    if name[0] == '/': os.chmod(name, 0o777)
print('ready', flush=True)
time.sleep(600)
";

#[test]
fn sockets_of_the_host_are_out_of_reach_by_path_and_by_abstract_name() {
    let lab = Lab::with_web();
    let folder = lab.folder("services");
    let by_path = folder.join("socket");
    let service = "/run/service.socket";
    let names = [by_path.to_str().unwrap(), service, "@lab-service"];
    let _services = lab.program(&[&["/usr/bin/python3", "-c", SERVICES][..], &names].concat());
    let file = lab.file("sockets.py", SOCKETS);
    let outside = as_user(
        &lab,
        &format!("/usr/bin/python3 {} {}", file.display(), names.join(" ")),
    );
    assert_eq!(outside, "reached\nreached\nreached\n", "the twin outside");
    let folder = folder.display();
    for (network, policy, expected) in [
        (
            "proxy",
            super::policy("{}"),
            [
                "FileNotFoundError",
                "FileNotFoundError",
                "ConnectionRefusedError",
            ],
        ),
        (
            "block",
            super::policy("{}"),
            [
                "FileNotFoundError",
                "FileNotFoundError",
                "ConnectionRefusedError",
            ],
        ),
        (
            "allow",
            super::policy("{}"),
            ["FileNotFoundError", "FileNotFoundError", "PermissionError"],
        ),
        (
            "proxy",
            format!(
                "{}filesystem_policy: {{read_write: [{folder}]}}\n",
                super::policy("{}")
            ),
            ["reached", "FileNotFoundError", "ConnectionRefusedError"],
        ),
    ] {
        let finished = lab
            .sandbox(&policy)
            .args(&["--network", network])
            .python(SOCKETS, &names);
        assert_eq!(
            finished.ok().lines().collect::<Vec<_>>(),
            expected,
            "{network}"
        );
    }
}

/// Waits until `argv[1]` exists, then connects to the sockets that follow.
const LATE: &str = "
import os, socket, sys, time
open(sys.argv[1] + '/ready', 'w')
while not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)
for name in sys.argv[2:]:
    try:
        socket.socket(socket.AF_UNIX).connect(name)
        print('reached')
    except OSError as error: print(type(error).__name__)
";

#[test]
fn a_service_that_is_started_later_is_out_of_reach_beside_what_is_granted() {
    let lab = Lab::with_web();
    let made = "mkdir -p /run/granted/deep /run/other && chmod 755 /run /run/granted \
                /run/granted/deep /run/other && touch /run/granted/file && ln -s granted /run/link";
    assert_eq!(lab.shell(made), "");
    let names = [
        "/run/late.socket",
        "/run/other/late.socket",
        "/run/granted/deep/late.socket",
    ];
    for (listed, expected) in [
        (
            "[]",
            "FileNotFoundError\nFileNotFoundError\nFileNotFoundError",
        ),
        (
            "[/run/granted/deep]",
            "FileNotFoundError\nFileNotFoundError\nreached",
        ),
        (
            "[/run/link]",
            "FileNotFoundError\nFileNotFoundError\nreached",
        ),
        // Granted by the policy.
        ("[/run]", "reached\nreached\nreached"),
    ] {
        let folder = tempfile::tempdir_in(lab.folder("late")).unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(lab.shell(&format!("chmod 777 {path}")), "");
        let policy = format!(
            "{}filesystem_policy: {{read_only: {listed}}}\n",
            super::policy("{}")
        );
        let words = [&["/usr/bin/python3", "-c", LATE, path][..], &names].concat();
        let started = lab
            .sandbox(&policy)
            .args(&["--workdir", path])
            .start(&words);
        lab::wait_until(
            || folder.path().join("ready").exists(),
            || "the command did not start".to_owned(),
        );
        let services = lab.program(&[&["/usr/bin/python3", "-c", SERVICES][..], &names].concat());
        std::fs::write(folder.path().join("go"), "").unwrap();
        let finished = started.wait();
        assert_eq!(finished.ok(), expected, "{listed}: {finished:?}");
        drop(services);
        assert_eq!(lab.shell(&format!("rm {}", names.join(" "))), "");
    }
}

#[test]
fn what_is_granted_in_run_keeps_the_owners_and_modes_on_its_way() {
    only_as_root!("it is about a folder that only root may enter");
    let lab = Lab::with_web();
    let made = format!(
        "mkdir -p /run/closed/open /run/mine/open && chmod 700 /run/closed && chown {UID} \
         /run/mine && chmod 700 /run/mine && chmod 755 /run/*/open && touch /run/closed/open/file \
         /run/mine/open/file"
    );
    assert_eq!(lab.shell(&made), "");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [/run/closed/open, /run/mine/open]}}\n",
        super::policy("{}")
    );
    let script = "ls /run/mine/open /run/closed/open; stat -c '%u %a' /run/closed /run/mine; touch \
                  /run/mine/x";
    let finished = lab.sandbox(&policy).sh(script);
    assert_eq!(
        finished.stdout,
        format!("/run/mine/open:\nfile\n0 700\n{UID} 700\n"),
        "{finished:?}"
    );
}

#[test]
fn where_covers_run_out_a_hard_requirement_does_not_start_and_best_effort_says_so_loudly() {
    let lab = Lab::with_web();
    let folder = lab.folder("many");
    let path = folder.display();
    let made =
        format!("mkdir {path}/granted && seq -f '{path}/%g' 1100 | xargs mkdir && echo made");
    assert_eq!(lab.shell(&made), "made\n");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{path}/granted]}}\n",
        super::policy("{}")
    );
    let finished = lab.sandbox(&policy).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    let said = finished
        .logged("CONFIG:DEGRADED [HIGH] the command can reach what the policy does not grant:");
    assert!(
        said.len() == 1 && said[0].contains("no more than 1024 are covered"),
        "{}",
        finished.log
    );
    let hard = lab
        .sandbox(&format!(
            "{policy}landlock: {{compatibility: hard_requirement}}\n"
        ))
        .sh("echo ran");
    assert_eq!((hard.code(), hard.stdout.as_str()), (1, ""), "{hard:?}");
    let expected = "cannot cover everything that the policy does not grant, and \
                    `landlock.compatibility` is hard_requirement";
    assert!(hard.stderr.contains(expected), "{}", hard.stderr);
}

#[test]
fn services_in_a_shared_folder_are_out_of_reach_unless_they_are_listed() {
    let lab = Lab::with_web();
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = folder.path().display();
    assert_eq!(lab.shell(&format!("chmod 755 {path}")), "");
    let name = folder.path().join("agent").to_str().unwrap().to_owned();
    let _services = lab.program(&["/usr/bin/python3", "-c", SERVICES, &name]);
    let file = lab.file("sockets.py", SOCKETS);
    let outside = as_user(&lab, &format!("/usr/bin/python3 {} {name}", file.display()));
    assert_eq!(outside, "reached\n", "the twin outside");
    for (listed, expected) in [
        ("[]", "FileNotFoundError"),
        ("[/tmp]", "PermissionError"),
        (&format!("[{path}]"), "reached"),
    ] {
        let policy = format!(
            "{}filesystem_policy: {{read_write: {listed}}}\n",
            super::policy("{}")
        );
        assert_eq!(
            lab.sandbox(&policy).python(SOCKETS, &[&name]).ok(),
            expected,
            "{listed}"
        );
    }
    // The workload reaches its own sockets there.
    let own = "import os, socket, tempfile; p = tempfile.mkdtemp() + '/s'; s = socket.socket(1); \
               s.bind(p); s.listen(); socket.socket(1).connect(p); print('reached'); os.unlink(p); \
               os.rmdir(os.path.dirname(p))";
    assert_eq!(
        lab.sandbox(&super::policy("{}")).python(own, &[]).ok(),
        "reached"
    );
}

#[test]
fn temporary_files_are_the_sandboxs_own_bounded_shared_by_its_commands_and_gone_at_its_end() {
    let lab = Lab::with_web();
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = folder.path().display().to_string();
    std::fs::write(folder.path().join("file"), "of the host").unwrap();
    lab.shell(&format!("chown -R {UID} {path}")).clear();
    let script = "for d in /tmp /dev/shm; do ls -A $d; echo x > $d/file; stat -c '%a' $d; df \
                  --output=size -B 1M $d | tail -n 1; done; head -c 70000000 /dev/zero > \
                  /tmp/large; echo $?; rm /tmp/large; cp /bin/true /tmp/true && /tmp/true && echo \
                  executed";
    let printed = lab
        .sandbox(&super::policy("{}"))
        .args(&["--tmp-size", "64M"])
        .sh(script);
    assert_eq!(
        printed.ok().split_whitespace().collect::<Vec<_>>(),
        ["1777", "64", "1777", "64", "1", "executed"],
        "{printed:?}"
    );
    assert!(!Path::new("/tmp/large").exists() && !Path::new("/dev/shm/file").exists());
    // What is listed there is the host's, with nothing beside it.
    let listed = format!(
        "{}filesystem_policy: {{read_write: [{path}]}}\n",
        super::policy("{}")
    );
    let named = Path::new(&path).file_name().unwrap().to_str().unwrap();
    let script = format!("ls -A /tmp; cat {path}/file; echo x > {path}/made");
    assert_eq!(
        lab.sandbox(&listed).sh(&script).ok(),
        format!("{named}\nof the host")
    );
    let script = format!("cat file; touch ../other-{named}; rm {path}/made && echo removed");
    assert_eq!(
        lab.sandbox(&super::policy("{}"))
            .args(&["--workdir", &path])
            .sh(&script)
            .ok(),
        "of the hostremoved"
    );
    assert!(!Path::new(&format!("/tmp/other-{named}")).exists());
    let read = format!(
        "{}filesystem_policy: {{read_only: [{path}]}}\n",
        super::policy("{}")
    );
    let script = format!("cat {path}/file; touch {path}/made; mv {path} /tmp/away; rm {path}/file");
    let finished = lab.sandbox(&read).sh(&script);
    assert_eq!(
        (finished.stdout.as_str(), finished.code()),
        ("of the host", 1),
        "{finished:?}"
    );
    assert!(folder.path().join("file").exists() && !folder.path().join("made").exists());
    // The host's whole, if it is listed itself.
    let whole = format!(
        "{}filesystem_policy: {{read_only: [/tmp]}}\n",
        super::policy("{}")
    );
    assert_eq!(
        lab.sandbox(&whole).sh(&format!("cat {path}/file")).ok(),
        "of the host"
    );
    for size in ["0", "4095", "1T", "x", ""] {
        let refused = lab
            .sandbox(&super::policy("{}"))
            .args(&["--tmp-size", size])
            .sh("echo ran");
        assert!(
            refused.code() > 0 && refused.stderr.contains("a size is a number of bytes"),
            "{refused:?}"
        );
    }
}

/// Listens at `argv[1]` until `argv[2]` exists.
const LISTENER: &str = "
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
";

#[test]
fn a_socket_that_another_sandbox_made_in_a_shared_folder_is_out_of_reach() {
    let lab = Lab::with_web();
    let name = format!("/tmp/e2e-socket-{}", std::process::id());
    let folder = lab.folder("ready");
    let go = folder.join("go");
    let policy = format!(
        "{}filesystem_policy: {{read_write: [/tmp]}}\n",
        super::policy("{}")
    );
    let first = lab
        .sandbox(&policy)
        .args(&["--workdir", folder.to_str().unwrap()])
        .start(&[
            "/usr/bin/python3",
            "-c",
            LISTENER,
            &name,
            go.to_str().unwrap(),
        ]);
    lab::wait_until(|| Path::new(&name).exists(), || "no socket".to_owned());
    let second = lab.sandbox(&policy).python(SOCKETS, &[&name]);
    std::fs::write(go, "").unwrap();
    assert_eq!(first.wait().code(), 0);
    std::fs::remove_file(&name).unwrap();
    assert_eq!(second.ok(), "PermissionError");
}

#[test]
fn a_link_of_roots_grants_what_it_stands_for_where_it_is_listed() {
    let lab = Lab::with_web();
    let store = lab.folder("store");
    std::fs::write(store.join("file"), "stored").unwrap();
    // The lab's folder belongs to root.
    let link = store.with_file_name("current");
    std::os::unix::fs::symlink("store", &link).unwrap();
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{}]}}\nlandlock: {{compatibility: hard_requirement}}\n",
        super::policy("{}"),
        link.display()
    );
    assert_eq!(
        lab.sandbox(&policy)
            .sh(&format!("cat {}/file", link.display()))
            .ok(),
        "stored"
    );
}

#[test]
fn a_link_that_the_workload_planted_grants_nothing_to_the_next() {
    let lab = Lab::with_web();
    let [folder, outside] = ["project", "outside"].map(|name| lab.folder(name));
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let folder = folder.display();
    let outside = outside.display();
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{folder}], read_only: [{folder}/lib]}}\n",
        super::policy("{}")
    );
    let script =
        format!("cat {folder}/lib/secret {outside}/secret; ln -sfn {outside} {folder}/lib");
    let planted = |policy: &str| {
        let finished = lab.sandbox(policy).sh(&script);
        assert_eq!(finished.stdout, "", "{finished:?}");
        finished.code() == 0
    };
    assert!(!planted(&policy), "the path is kept from it");
    assert!(planted(
        &policy.replace(&format!("read_only: [{folder}/lib]"), "")
    ));
    assert!(!planted(&policy));
    let finished = lab.sandbox(&policy).sh("true");
    assert!(
        finished.log.contains(&format!(
            "is a symlink that users other than root can change; list {outside} instead"
        )),
        "{}",
        finished.log
    );
}

/// Creates a terminal, prints its number, and waits.
const TERMINAL: &str =
    "import os, pty, time; a, b = pty.openpty(); print(os.ttyname(b), flush=True); time.sleep(600)";

#[test]
fn terminals_of_the_same_user_outside_are_out_of_reach() {
    let lab = Lab::with_web();
    let user = UID.to_string();
    let _terminal = lab.program(&[
        "setpriv",
        "--reuid",
        &user,
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        TERMINAL,
    ]);
    let open = "for t in /dev/pts/[0-9]*; do (: <> $t) 2>/dev/null && echo opened; done; true";
    assert!(as_user(&lab, open).contains("opened"), "the twin outside");
    let finished = lab.sandbox(&super::policy("{}")).sh(&format!(
        "{open}; python3 -c 'import os, pty; print(os.ttyname(pty.openpty()[1]))'"
    ));
    assert_eq!(
        finished.ok(),
        "/dev/pts/0",
        "only the one that it makes itself"
    );
}

#[test]
fn modes_times_attributes_and_watches_stop_where_the_grants_do() {
    let lab = Lab::with_web();
    let folder = lab.folder("metadata");
    std::fs::write(folder.join("file"), "").unwrap();
    std::os::unix::fs::chown(folder.join("file"), Some(UID), Some(UID)).unwrap();
    let program = "
import ctypes, os, sys
path = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def watch():
    if libc.inotify_add_watch(libc.inotify_init(), os.path.dirname(path).encode(), 0x100) < 0: raise OSError
for attempt in (lambda: os.chmod(path, 0o600), lambda: os.utime(path), lambda: os.setxattr(path, 'user.x', b'x'),
                lambda: os.stat(path), watch):
    try: attempt(); print('done')
    except OSError: print('refused')
";
    let file = lab.file("metadata.py", program);
    let path = folder.join("file");
    let outside = as_user(
        &lab,
        &format!("/usr/bin/python3 {} {}", file.display(), path.display()),
    );
    assert_eq!(outside, "done\n".repeat(5), "the twin outside");
    let inside = lab
        .sandbox(&super::policy("{}"))
        .python(program, &[path.to_str().unwrap()]);
    assert_eq!(inside.ok(), ["refused"; 5].join("\n"));
}

#[test]
fn devices_that_programs_need_work() {
    let lab = Lab::with_web();
    let script = "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; \
                  python3 -c 'import pty, multiprocessing as m; pty.openpty(); print(m.Lock())'";
    let finished = lab.sandbox(&super::policy("{}")).sh(script);
    assert_eq!(finished.ok().lines().count(), 3, "{finished:?}");
}

#[test]
fn a_policy_that_reads_everything_has_no_folder_of_everybodys() {
    let lab = Lab::with_web();
    let shared = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .tempdir_in("/tmp")
        .unwrap();
    let path = shared.path().display();
    let script = format!(
        "ls -d {path}; touch {path}/x /tmp/own /dev/shm/own && echo wrote; ls /tmp; head -c 4 \
         /usr/bin/env"
    );
    for rule in ["read_only: [/]", "read_write: [/]"] {
        let policy = format!(
            "{}filesystem_policy: {{{rule}}}\nlandlock: {{compatibility: hard_requirement}}\n",
            super::policy("{}")
        );
        let finished = lab.sandbox(&policy).sh(&script);
        assert_eq!(finished.stdout, "own\n\u{7f}ELF", "{rule}: {finished:?}");
        assert!(!shared.path().join("x").exists());
    }
}
