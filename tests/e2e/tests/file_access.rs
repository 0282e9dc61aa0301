//! Accesses to files: those that are refused, in logs, and those that an observed run learns.

use std::path::PathBuf;

use lab::host::UID;
use lab::{Lab, Sandbox};

/// Returns the home of the workload's user, with a key, a configuration, and files of a tool.
fn home(lab: &Lab) -> PathBuf {
    let home = lab.folder("home");
    let passwd = lab.file(
        "passwd",
        format!(
            "root:x:0:0::/root:/bin/sh\nkim:x:{UID}:{UID}::{}:/bin/sh\n",
            home.display()
        ),
    );
    let made = lab.shell(&format!(
        "mount --bind {} /etc/passwd; cd {}; mkdir -p .ssh .tool/lib .config/other .cache/tool; \
         echo key > .ssh/id; echo mine > .toolrc; echo other > .config/other/settings; for name in \
         a b c; do echo $name > .tool/lib/$name; done; chown -R {UID}:{UID} .; chmod 700 . .ssh",
        passwd.display(),
        home.display()
    ));
    assert_eq!(made, "");
    home
}

/// Returns a run in a folder of the workload's user, with `flags` and no policy file.
fn in_project<'l>(lab: &'l Lab, flags: &[&str]) -> Sandbox<'l> {
    let user = UID.to_string();
    let folder = lab.folder("project");
    Sandbox::bare(lab)
        .env("SUDO_UID", &user)
        .env("SUDO_GID", &user)
        .current_dir(folder.to_str().unwrap())
        .args(flags)
}

#[test]
fn each_refused_access_is_logged_with_its_program_and_summed_up_with_the_line_that_would_permit_it()
{
    for network in ["proxy", "block"] {
        let lab = Lab::with_web();
        let seen = lab.folder("seen");
        lab.shell(&format!(
            "echo x > {}/file; chmod 644 {0}/file",
            seen.display()
        ))
        .clear();
        let folder = seen.display().to_string();
        let project = lab.folder("project").display().to_string();
        std::fs::write(lab.folder("project").join(".env"), "s3cret").unwrap();
        let script = format!(
            "for i in 1 2; do cat {folder}/file; done; ln -s {folder} way; cat way/file; cat \
             /proc/self/root{folder}/file; rm way; ls {folder}; mkdir {folder}/new; cat .env; \
             touch made; rm made; ln -s x {folder}/link; echo x > /etc/made; mkdir -p {folder}; \
             cat /usr/nothing; cat /proc/self/status > /dev/null; cd /etc; cat ../{}/file",
            folder.trim_start_matches('/')
        );
        let flags = [
            "--network",
            network,
            "--log-files",
            "--hide",
            ".env",
            "--write",
            ".",
        ];
        let finished = in_project(&lab, &flags).sh(&script);
        let lines = finished.logged("FILE:REFUSE");
        let expected = [
            format!(
                "[LOW] DENIED /usr/bin/cat(N) -> read {folder}/file [reason:no rule grants it]"
            ),
            format!("[LOW] DENIED /usr/bin/ls(N) -> list {folder} [reason:no rule grants it]"),
            format!(
                "[LOW] DENIED /usr/bin/mkdir(N) -> write {folder}/new [reason:no rule grants it]"
            ),
            format!("[MED] DENIED /usr/bin/cat(N) -> read {project}/.env [reason:it is hidden]"),
            format!(
                "[LOW] DENIED /usr/bin/ln(N) -> write {folder}/link [reason:no rule grants it]"
            ),
            "[LOW] DENIED /usr/bin/dash(N) -> write /etc/made [reason:no rule grants it]"
                .to_owned(),
        ];
        let without_pid = |line: &&str| {
            let (_, line) = line.split_once("FILE:REFUSE ").unwrap();
            let (start, rest) = line.split_once('(').unwrap();
            let (pid, rest) = rest.split_once(')').unwrap();
            assert!(pid.parse::<i32>().unwrap() > 1, "{line}");
            format!("{start}(N){}", rest.split_once(" sandbox=").unwrap().0)
        };
        assert_eq!(
            lines.iter().map(without_pid).collect::<Vec<_>>(),
            expected,
            "{finished:?}"
        );
        let summary = format!(
            "openshell-sandbox: files refused:\n  5 x /usr/bin/cat: read {folder}/file: no rule \
             grants it\n  "
        );
        assert!(finished.stderr.contains(&summary), "{}", finished.stderr);
        let hint = format!("add --write {folder}\n");
        assert!(finished.stderr.contains(&hint), "{}", finished.stderr);
        assert!(
            finished
                .stderr
                .contains("the mode of /etc refuses it to the user"),
            "{}",
            finished.stderr
        );
        // The line of policy is what it says, and without the flag nothing is logged.
        let finished = in_project(&lab, &["--read", &format!("{folder}/file")])
            .sh(&format!("cat {folder}/file; ls {folder}"));
        assert_eq!(finished.stdout, "x\n", "{finished:?}");
        assert!(
            finished.logged("FILE:REFUSE").len() == expected.len()
                && !finished.stderr.contains("files refused"),
            "{finished:?}"
        );
    }
}

#[test]
fn the_log_and_the_kernel_agree_on_what_is_refused() {
    let lab = Lab::with_web();
    let base = lab.folder("seen").display().to_string();
    let made = lab.shell(&format!(
        "cd {base}; mkdir -p ro rw/ro/rw rw/hidden rw/noexec other; for folder in ro rw rw/ro \
         rw/ro/rw rw/hidden rw/noexec other; do for name in read write append both trunc there \
         list exec rmdir unlink rename link truncate handle look tmp loader; do case $name in \
         list|rmdir|tmp) mkdir $folder/$name;; *) printf '#!/bin/sh\\n:' > $folder/$name;; esac; \
         done; done; chown -R {UID}:{UID} .; chmod -R 777 ."
    ));
    assert_eq!(made, "");
    let policy = format!(
        "process: {{run_as_user: \"{UID}\", run_as_group: \"{UID}\"}}\nnetwork_policies: \
         {{}}\nfilesystem_policy:\n  read_only: [{base}/ro, {base}/rw/ro]\n  read_write: \
         [{base}/rw, {base}/rw/ro/rw]\n  hidden: [{base}/rw/hidden]\n  noexec: \
         [{base}/rw/noexec]\n"
    );
    let script = r#"
import errno, os, subprocess, sys
base = sys.argv[1]
def close(number): os.close(number)
acts = {
    "read": lambda p: close(os.open(p, os.O_RDONLY)),
    "write": lambda p: close(os.open(p, os.O_WRONLY)),
    "append": lambda p: close(os.open(p, os.O_WRONLY | os.O_APPEND)),
    "both": lambda p: close(os.open(p, os.O_RDWR)),
    "trunc": lambda p: close(os.open(p, os.O_RDONLY | os.O_TRUNC)),
    "there": lambda p: close(os.open(p, os.O_RDONLY | os.O_CREAT)),
    "new": lambda p: close(os.open(p, os.O_RDONLY | os.O_CREAT | os.O_EXCL)),
    "list": os.listdir,
    "exec": lambda p: subprocess.run([p], check=True),
    "mkdir": os.mkdir, "mkfifo": os.mkfifo, "rmdir": os.rmdir, "unlink": os.unlink,
    "rename": lambda p: os.rename(p, p + "d"),
    "link": lambda p: os.link(p, p + "ed"),
    "symlink": lambda p: os.symlink("x", p),
    "truncate": lambda p: os.truncate(p, 0),
    "tmp": lambda p: close(os.open(p, os.O_RDWR | os.O_TMPFILE)),
    "handle": lambda p: close(os.open(p, os.O_PATH)),
    "look": os.stat,
}
for folder in ["ro", "rw", "rw/ro", "rw/ro/rw", "rw/hidden", "rw/noexec", "other"]:
    for name, act in acts.items():
        path = f"{base}/{folder}/{name}"
        try:
            act(path)
            outcome = "done"
        except OSError as error:
            refusals = (errno.EACCES, errno.EPERM, errno.EROFS) + ((errno.ENOENT,) if folder == "other" else ())
            outcome = "refused" if error.errno in refusals else os.strerror(error.errno)
        print(folder, name, outcome)
"#;
    let finished = lab
        .sandbox(&policy)
        .args(&["--log-files"])
        .python(script, &[&base]);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines = finished.logged("FILE:REFUSE");
    let mut counts = [0; 2];
    for line in finished.stdout.lines() {
        let words: Vec<_> = line.splitn(3, ' ').collect();
        let [folder, name, outcome] = words[..] else {
            panic!("{line}")
        };
        let is_meant = |text: &&&str| {
            let path = text
                .split_once(" -> ")
                .and_then(|(_, rest)| rest.split(' ').nth(1))
                .unwrap_or_default();
            path.strip_prefix(&format!("{base}/{folder}/{name}"))
                .is_some_and(|rest| ["", "d", "ed"].contains(&rest))
        };
        let is_logged = lines.iter().any(|line| is_meant(&line));
        // Whoever only looks is refused by a mask, and has used nothing.
        let is_look = ["handle", "look"].contains(&name);
        assert!(["done", "refused"].contains(&outcome), "{line}");
        assert_eq!(
            is_logged,
            outcome == "refused" && !is_look,
            "{line}: {lines:#?}"
        );
        counts[usize::from(is_logged)] += 1;
    }
    assert!(counts[0] > 50 && counts[1] > 50, "{counts:?}");
}

#[test]
fn calls_end_as_they_do_without_the_log_whatever_they_name() {
    let lab = Lab::with_web();
    let script = r#"
import ctypes, mmap, os, platform, threading
libc = ctypes.CDLL(None, use_errno=True)
OPENAT, OPENAT2, STATX, UNLINKAT = (257, 437, 332, 263) if platform.machine() == "x86_64" else (56, 437, 291, 35)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return os.strerror(ctypes.get_errno()) if result < 0 else "ok"
page = mmap.mmap(-1, 8192)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
libc.mprotect(ctypes.c_void_p(address + 4096), 4096, 0)
def at_the_end(path):
    page[4096 - len(path):4096] = path
    return ctypes.c_void_p(address + 4096 - len(path))
HERE = ctypes.c_long(-100)
long = ctypes.c_char_p(b"/" + b"a" * 5000)
print(call(OPENAT, HERE, None, 0), call(OPENAT, HERE, ctypes.c_void_p(1), 0))
print(call(OPENAT, HERE, at_the_end(b"/etc/passwd\0"), 0), call(OPENAT, HERE, at_the_end(b"/etc/passwd"), 0))
print(call(OPENAT, HERE, long, 0), call(OPENAT, HERE, b"", 0), call(OPENAT, ctypes.c_long(99), b"a", 0))
print(call(OPENAT, ctypes.c_long(0x1_0000_0000 - 100), b"/etc/passwd", 0))
print(call(OPENAT2, HERE, b"/etc/passwd", None, 24), call(OPENAT2, HERE, b"/etc/passwd", ctypes.c_void_p(1), 24))
print(call(UNLINKAT, HERE, b"/", 0), call(UNLINKAT, HERE, b"/etc/passwd", 0), call(UNLINKAT, HERE, b"..", 0))
print(call(OPENAT, HERE, b"/etc/passwd/x", 0), call(OPENAT, HERE, b"/proc/self/exe", 0), call(OPENAT, HERE, b"/dev/fd/0/x", 0))
os.symlink("loop", "loop")
print(call(OPENAT, HERE, b"loop", 0), call(OPENAT, HERE, b"../" * 40 + b"etc/passwd", 0))
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
print(call(OPENAT, HERE, b"x", 0), call(OPENAT, HERE, b".", 0))
def many():
    for _ in range(200):
        open("/etc/passwd").close()
threads = [threading.Thread(target=many) for _ in range(16)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print("done")
"#;
    let run = |flags: &[&str]| {
        lab.shell(&format!("rm -rf {}/*", lab.folder("project").display()))
            .clear();
        let flags = [&["--write", "."], flags].concat();
        let finished = in_project(&lab, &flags).python(script, &[]);
        assert_eq!(finished.code(), 0, "{finished:?}");
        finished.stdout
    };
    let plain = run(&[]);
    assert_eq!(plain.lines().count(), 10, "{plain}");
    assert_eq!(run(&["--log-files"]), plain);
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    assert_eq!(run(&["--observe-files", "--observe", &observed]), plain);
}

#[test]
fn an_observed_run_learns_the_files_that_it_read_and_passes_under_what_it_learnt() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let script = "cat ~/.toolrc ~/.tool/lib/*; ls ~/.tool; ls -la ~ > /dev/null; stat -c %n \
                  ~/.config/missing/x; echo c > ~/.cache/tool/c; cat ~/.cache/tool/c; cat \
                  ~/.ssh/id; touch made && echo made; ls ~/.tool/lib";
    let learnt = in_project(&lab, &["--observe-files", "--observe", &observed])
        .sh(&format!("{script}; echo x >> ~/.toolrc; rm -r ~/.tool"));
    let expected = "mine\na\nb\nc\nlib\nc\nmade\na\nb\nc\n";
    assert_eq!(learnt.stdout, expected, "{learnt:?}");
    assert!(
        learnt.stderr.contains(".ssh/id: Permission denied"),
        "{learnt:?}"
    );
    assert!(
        learnt.stderr.contains("stat: cannot statx") && learnt.stderr.contains("No such file"),
        "{learnt:?}"
    );
    assert_eq!(
        learnt.stderr.matches("ermission denied").count(),
        1,
        "{learnt:?}"
    );
    assert!(
        learnt
            .stderr
            .contains("observed.yaml will differ from this one: it does not grant writing to "),
        "{learnt:?}"
    );
    // What was written to the home ended with the run.
    assert_eq!(
        std::fs::read_to_string(home.join(".toolrc")).unwrap(),
        "mine\n"
    );
    assert!(home.join(".tool/lib/c").exists() && !home.join(".cache/tool/c").exists());
    let text = std::fs::read_to_string(&observed).unwrap();
    let files = "filesystem_policy:\n  read_only:\n    - \"~/.config/missing/\"\n    - \
                 \"~/.tool\"\n    - \"~/.toolrc\"\n  # Caches: ";
    assert!(
        text.contains(files) && text.contains("\n    - \"~/.cache/tool\"\n"),
        "{text}"
    );
    let toolrc = home.join(".toolrc").display().to_string();
    for comment in [
        format!("# Not granted: writing to {toolrc:?};"),
        format!("# Left out: the names in {:?}", home.display().to_string()),
    ] {
        assert!(text.contains(&comment), "{comment}: {text}");
    }
    assert!(!text.contains(".ssh") && !text.contains("other"), "{text}");
    let again = in_project(&lab, &["-p", &observed, "--log-files"]).sh(script);
    assert_eq!(again.stdout, expected, "{again:?}");
    assert!(
        !again.stderr.contains("OBSERVING") && again.stderr.contains("No such file"),
        "{again:?}"
    );
    assert_eq!(
        std::fs::read_to_string(home.join(".cache/tool/c")).unwrap(),
        "c\n",
        "the cache is kept"
    );
    for refused in [
        "cat ~/.config/other/settings",
        "cat ~/.ssh/id",
        "echo x >> ~/.toolrc",
        "touch ~/.tool/x",
        "touch ~/.config/missing",
    ] {
        let finished = in_project(&lab, &["-p", &observed]).sh(refused);
        let whys = [
            "Permission denied",
            "Read-only file system",
            "No such file or directory",
        ];
        let is_refused = whys.iter().any(|why| finished.stderr.contains(why));
        assert!(finished.code() > 0 && is_refused, "{refused}: {finished:?}");
    }
    // A further run adds to it, and takes nothing of what is writable away.
    let cached = ["--observe-files", "--observe", &observed, "--observe-merge"];
    let cached = in_project(&lab, &cached)
        .sh("cat ~/.cache/tool/c; cat ~/.cache/tool/later; head -c0 ~/.tool/lib/d");
    assert_eq!(cached.stdout, "c\n", "{cached:?}");
    let written = in_project(&lab, &["-p", &observed])
        .sh("echo d > ~/.cache/tool/c && echo later > ~/.cache/tool/later");
    assert_eq!(written.code(), 0, "{written:?}");
    let merged = in_project(
        &lab,
        &["--observe-files", "--observe", &observed, "--observe-merge"],
    )
    .sh("cat ~/.config/other/settings");
    assert_eq!(merged.stdout, "other\n", "{merged:?}");
    let text = std::fs::read_to_string(&observed).unwrap();
    for line in [
        "~/.config/missing/",
        "~/.config/other/settings",
        "~/.tool",
        "~/.toolrc",
        "~/.cache/tool",
    ] {
        assert!(
            text.contains(&format!("\n    - \"{line}\"\n")),
            "{line}: {text}"
        );
    }
}

#[test]
fn programs_behind_symlinks_and_folders_that_stand_in_for_missing_ones_are_found_again() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let user = format!("{UID}:{UID}");
    let made = lab.shell(&format!(
        "cd {}; mkdir -p .local/bin .local/share/tool/1.2; cp /bin/dash .local/share/tool/sh; \
         printf '#!%s\\necho tool $0\\n' $PWD/.local/share/tool/sh > .local/share/tool/1.2/run; \
         chmod 755 .local/share/tool/1.2/run; ln -s ../share/tool/1.2/run .local/bin/tool; chown \
         -hR {user} .local",
        home.display()
    ));
    assert_eq!(made, "");
    let preset = home.join(".config/openshell/presets");
    std::fs::create_dir_all(&preset).unwrap();
    std::fs::write(
        preset.join("agent.yaml"),
        "filesystem_policy: {read_only: [$WORKDIR/.agent/], read_write: [$WORKDIR]}\n",
    )
    .unwrap();
    lab.shell(&format!("chown -R {user} {}/.config", home.display()))
        .clear();
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let path = format!("{}/.local/bin:/usr/bin:/bin", home.display());
    let run = |flags: &[&str]| {
        in_project(&lab, flags)
            .env("HOME", home.to_str().unwrap())
            .env("PATH", &path)
            .sh("tool; ls -d .agent/; ls .agent")
    };
    let expected = format!("tool {}/.local/bin/tool\n.agent/\n", home.display());
    let learnt = run(&[
        "--preset",
        "agent",
        "--observe-files",
        "--observe",
        &observed,
    ]);
    assert_eq!(learnt.stdout, expected, "{learnt:?}");
    let text = std::fs::read_to_string(&observed).unwrap();
    for line in [
        "    - \"~/.local/bin\"\n",
        "    - \"~/.local/share/tool/1.2/run\"\n",
        "    - \"~/.local/share/tool/sh\"\n",
        ".agent/\"\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let enforced = run(&["-p", &observed]);
    assert_eq!(enforced.stdout, expected, "{enforced:?}");
}

#[test]
fn other_names_of_a_home_and_mounts_in_it_give_an_observed_run_nothing() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let alias = lab.folder("alias");
    let shown = lab.folder("shown");
    let mount = home.join("mount");
    lab.shell(&format!(
        "cd {}; echo x > file; chmod 644 file; chown {UID}:{UID} file",
        shown.display()
    ))
    .clear();
    let made = lab.shell(&format!(
        "cd {}; mkdir mount; mount -t tmpfs none mount; echo host > mount/file; mkdir -p secrets; \
         echo 'credentials: {{KEY: {{value: s3cret-of-the-run, hosts: [a.test]}}}}' > \
         secrets/creds.yaml; chown -R {UID}:{UID} mount secrets; chmod 600 secrets/creds.yaml; \
         mount --bind . {}",
        home.display(),
        alias.display()
    ));
    assert_eq!(made, "");
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let credentials = home.join("secrets/creds.yaml").display().to_string();
    let script = format!(
        "chmod 4777 {shown}/file; touch -d 2001-01-01 {shown}/file; echo changed > {mount}/file; \
         echo new > {mount}/new; cat {mount}/file; for place in ~ {alias}; do cat $place/.ssh/id \
         $place/secrets/creds.yaml; cat $place/.toolrc; done",
        shown = shown.display(),
        mount = mount.display(),
        alias = alias.display()
    );
    let flags = [
        "--credentials",
        &credentials,
        "--observe-files",
        "--observe",
        &observed,
    ];
    let finished = in_project(&lab, &flags)
        .env("HOME", home.to_str().unwrap())
        .sh(&script);
    assert_eq!(finished.stdout, "host\nmine\nmine\n", "{finished:?}");
    assert_eq!(
        lab.shell(&format!("cat {0}/file; ls {0}", mount.display())),
        "host\nfile\n"
    );
    assert_eq!(
        lab.shell(&format!(
            "find {} -perm 644 -newermt 2020-01-01 -name file",
            shown.display()
        ))
        .lines()
        .count(),
        1
    );
}

#[test]
fn keys_in_a_home_that_the_user_database_does_not_know_stay_hidden_from_an_observed_run() {
    let lab = Lab::with_web();
    let home = lab.folder("home").display().to_string();
    let made = format!(
        "cd {home}; mkdir .ssh; echo key > .ssh/id; echo mine > .toolrc; chown -R {UID}:{UID} ."
    );
    assert_eq!(lab.shell(&made), "");
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let run = in_project(&lab, &["--observe-files", "--observe", &observed]).env("HOME", &home);
    let finished = run.sh(&format!("cat {home}/.ssh/id {home}/.toolrc"));
    assert_eq!(finished.stdout, "mine\n", "{finished:?}");
    let learnt = std::fs::read_to_string(&observed).unwrap();
    assert!(
        learnt.contains(&format!("{home}/.toolrc")) && !learnt.contains(".ssh"),
        "{learnt}"
    );
}

#[test]
fn what_the_sandbox_itself_gives_its_command_is_no_refusal() {
    let lab = Lab::with_web();
    let sandbox = lab.sandbox(&super::policy("{}")).args(&["--log-files"]);
    let run = sandbox.sh("cat $SSL_CERT_FILE /etc/resolv.conf > /dev/null && echo x > ~/new");
    assert_eq!(
        (run.code(), run.logged("FILE:")),
        (0, Vec::new()),
        "{run:?}"
    );
}

#[test]
fn services_in_what_an_observed_run_shows_stay_out_of_reach() {
    let lab = Lab::with_web();
    let home = home(&lab);
    let socket = home.join(".tool/service").display().to_string();
    let serve = format!(
        "import os, socket\ns = \
         socket.socket(socket.AF_UNIX)\ns.bind('{socket}')\nos.chmod('{socket}', \
         0o777)\ns.listen()\nprint('up', flush=True)\nwhile True: s.accept()[0].sendall(b'served')"
    );
    let _service = lab.program(&["python3", "-c", &serve]);
    let ask = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{socket}'); print(s.recv(9))"
    );
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let refused = in_project(&lab, &["--observe-files", "--observe", &observed]).python(&ask, &[]);
    assert!(
        refused.code() == 1 && !refused.stdout.contains("served"),
        "{refused:?}"
    );
    // Who lists the folder means it.
    let granted = in_project(&lab, &["--read", home.to_str().unwrap()]).python(&ask, &[]);
    assert_eq!(granted.stdout, "b'served'\n", "{granted:?}");
}
