//! Common programs under the whole confinement, which must work unchanged.

use std::path::Path;

use lab::{Finished, Lab};

/// Runs a shell script in a writable folder, with further grants of the policy.
fn run(lab: &Lab, read_only: &str, script: &str) -> Finished {
    let work = lab.folder("work");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{read_only}]}}\n",
        super::policy("{}")
    );
    let arguments = ["--workdir", work.to_str().unwrap()];
    lab.sandbox(&policy)
        .args(&arguments)
        .sh(&format!("export HOME=$PWD TMPDIR=$PWD; {script}"))
}

#[test]
fn node_runs_children_workers_servers_and_watches() {
    let lab = Lab::with_web();
    let program = r"
const fs = require('fs'), net = require('net'), { Worker } = require('worker_threads');
console.log(require('child_process').execSync('echo child').toString().trim());
new Worker('process.exit(3)', { eval: true }).on('exit', code => console.log('worker', code));
const server = net.createServer(socket => socket.end('served')).listen(0, '127.0.0.1', () =>
  net.connect(server.address().port, '127.0.0.1').on('data', data => { console.log(data.toString()); server.close(); }));
const watcher = fs.watch('.', () => { console.log('watched'); watcher.close(); });
fs.writeFileSync('file', 'x');
fs.promises.readFile('file').then(() => console.log(Object.keys(require('os').networkInterfaces()).includes('lo')));
";
    let file = lab.file("program.js", program);
    let finished = run(
        &lab,
        file.to_str().unwrap(),
        &format!("node {}", file.display()),
    );
    let mut lines: Vec<_> = finished.ok().lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["child", "served", "true", "watched", "worker 3"],
        "{finished:?}"
    );
}

#[test]
fn python_shares_work_locks_and_memory_between_processes() {
    let lab = Lab::with_web();
    let program = "
import asyncio, multiprocessing as m, multiprocessing.shared_memory as s, subprocess
def square(x): return x * x
if __name__ == '__main__':
    for method in ('fork', 'spawn', 'forkserver'):
        with m.get_context(method).Pool(4) as pool: print(sum(pool.map(square, range(100))))
    memory = s.SharedMemory(create=True, size=16); memory.unlink()
    queue = m.Queue(); queue.put(1); print(queue.get())
    async def child(): return await (await asyncio.create_subprocess_exec('true')).wait()
    print(asyncio.run(child()))
";
    let file = lab.file("program.py", program);
    let finished = run(
        &lab,
        file.to_str().unwrap(),
        &format!("/usr/bin/python3 {}", file.display()),
    );
    assert_eq!(
        finished.ok(),
        "328350\n328350\n328350\n1\n0",
        "{finished:?}"
    );
}

#[test]
fn git_keeps_histories_and_packs() {
    let lab = Lab::with_web();
    let script = "git init -q a && cd a && git config user.name a && git config user.email \
                  a@lab.test && for n in 1 2 3; do echo $n > f && git add f && git commit -qm $n; \
                  done; git gc -q && git clone -q . ../b && git -C ../b worktree add -q ../c && \
                  git -C ../c log --format=%s | tr '\\n' ' '";
    assert_eq!(run(&lab, "/usr", script).ok(), "3 2 1");
}

#[test]
fn cargo_builds_and_runs() {
    let lab = Lab::with_web();
    // The toolchain may be in a folder of root's.
    let toolchain = Path::new(env!("CARGO"))
        .ancestors()
        .nth(2)
        .unwrap()
        .display();
    let here = lab.folder("toolchain");
    assert_eq!(
        lab.shell(&format!("mount --bind {toolchain} {}", here.display())),
        ""
    );
    let script = format!(
        "export PATH={}/bin:$PATH; cargo new -q --vcs none hello && cd hello && cargo test -q \
         --offline >/dev/null && cargo run -q --release --offline",
        here.display()
    );
    let finished = run(&lab, here.to_str().unwrap(), &script);
    assert_eq!(finished.ok(), "Hello, world!", "{finished:?}");
}

#[test]
fn tmux_script_and_ssh_keygen_have_their_terminals_and_keys() {
    let lab = Lab::with_web();
    let tmux = "export TMUX_TMPDIR=$PWD TERM=xterm; tmux -f /dev/null new-session -d 'echo in tmux \
                > out' && while ! grep -s tmux out; do sleep 0.05; done";
    assert_eq!(run(&lab, "/usr", tmux).ok(), "in tmux");
    assert!(
        run(&lab, "/usr", "script -qc tty /dev/null")
            .ok()
            .starts_with("/dev/pts/")
    );
    let keys = "ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -yf key | cut -d' ' -f1 && \
                echo x | ssh-keygen -q -Y sign -f key -n file | head -1";
    // It looks up its user's name, so it needs a user with a name.
    let uid = lab::host::UID;
    let passwd = lab.file(
        "passwd",
        format!("root:x:0:0::/root:/bin/sh\nagent:x:{uid}:{uid}::/nonexistent:/bin/sh\n"),
    );
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/passwd", passwd.display())),
        ""
    );
    let finished = lab
        .sandbox("process: {run_as_user: agent}")
        .sh(&format!("cd $(mktemp -d) && {keys}; rm -r $PWD"));
    assert_eq!(finished.ok(), "ssh-ed25519\n-----BEGIN SSH SIGNATURE-----");
}

#[test]
fn a_headless_browser_shows_a_page() {
    let lab = Lab::with_web();
    // Its own sandbox needs a user namespace, which would restore every capability; it runs in this
    // sandbox instead.
    let script = "chromium-headless-shell --no-sandbox --dump-dom 'data:text/html,<p \
                  id=x></p><script>x.append(6*7)</script>'";
    let finished = run(&lab, "/usr", script);
    assert!(
        finished.stdout.contains("<p id=\"x\">42</p>"),
        "{finished:?}"
    );
}

#[test]
fn ssh_reads_what_the_hosts_settings_include_whoever_the_files_belong_to_inside() {
    let lab = Lab::with_web();
    let folder = lab.folder("ssh").display().to_string();
    let made = format!(
        "chmod 755 {folder}; chown 0:0 {folder}; mkdir {folder}/ssh_config.d; mount --bind \
         {folder} /etc/ssh; echo 'Include /etc/ssh/ssh_config.d/*.conf' > /etc/ssh/ssh_config; \
         printf 'Host *\\n User included\\n' > /etc/ssh/real; ln -s ../real \
         /etc/ssh/ssh_config.d/20-lab.conf; chmod -R a+rX /etc/ssh"
    );
    assert_eq!(lab.shell(&made), "");
    // ssh looks its user up.
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let users = lab.file(
        "passwd",
        users + &format!("agent:x:{0}:{0}::/tmp:/bin/sh\n", lab::host::UID),
    );
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/passwd", users.display())),
        ""
    );
    let finished = lab
        .sandbox(&super::policy("{}"))
        .sh("ssh -T -G web.test | grep '^user '; touch /etc/ssh/ssh_config.d/x");
    assert_eq!(finished.stdout, "user included\n", "{finished:?}");
    assert!(
        finished.stderr.starts_with("touch: ") && finished.stderr.lines().count() == 1,
        "{finished:?}"
    );
}
