//! The SSH server, with the clients that people have.

use std::path::PathBuf;

use lab::Lab;
use lab::host::{Tier, UID, tier};
use lab::sandbox::{Finished, Sandbox, Started};
use rustix::process::Signal;

const SECRET: &str = "open sesame";

/// A running sandbox with an SSH server.
struct Box<'l> {
    lab: &'l Lab,
    started: Started<'l>,
    port: u16,
    config: PathBuf,
    /// Writable inside, and the working directory of commands.
    folder: PathBuf,
}

impl<'l> Box<'l> {
    fn start(lab: &'l Lab) -> Self {
        Self::of(lab, lab.sandbox(&super::policy("{}")), &["sleep", "600"])
    }

    /// Starts `command` in `sandbox`, with a server behind prefaces.
    fn of(lab: &'l Lab, sandbox: Sandbox<'l>, command: &[&str]) -> Self {
        let folder = lab.folder("work");
        let workdir = folder.to_str().unwrap();
        let sandbox = sandbox
            .args(&[
                "--workdir",
                workdir,
                "--ssh-listen-addr",
                "127.0.0.1:0",
                "--log-level",
                "error",
            ])
            .env("OPENSHELL_SSH_HANDSHAKE_SECRET", SECRET);
        let started = sandbox.start(command);
        let line = wait_for(lab, "SSH at 127.0.0.1:");
        let port = line
            .split("SSH at 127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
            .unwrap();
        wait_for(lab, "PROC:LAUNCH");
        let port: u16 = port.parse().unwrap();
        let proxy = lab.file("nssh1.py", include_str!("data/nssh1.py"));
        let config = format!(
            "Host box\n HostName box\n User any\n StrictHostKeyChecking no\n UserKnownHostsFile \
             /dev/null\n LogLevel ERROR\n ProxyCommand python3 {} 127.0.0.1 {port} '{SECRET}'\n",
            proxy.display()
        );
        let config = lab.file("ssh_config", config);
        Self {
            lab,
            started,
            port,
            config,
            folder,
        }
    }

    /// Runs a script on the host in which `ssh`, `scp`, `sftp` know the host `box`.
    fn shell(&self, script: &str) -> String {
        let config = self.config.display();
        let folder = self.folder.display();
        self.lab
            .shell(&format!(
                "cd {folder}; ssh() {{ command ssh -F {config} \"$@\"; }}; scp() {{ command scp -F \
             {config} \"$@\"; }}; sftp() {{ command sftp -F {config} \"$@\"; }}; export \
             RSYNC_RSH='/usr/bin/ssh -F {config}' SSH_CONFIG={config}; {script}"
            ))
            .replace('\r', "")
    }

    fn end(self) -> Finished {
        self.started.signal(Signal::TERM);
        self.started.wait()
    }
}

/// Waits for a line of the log that contains `text`.
pub(super) fn wait_for(lab: &Lab, text: &str) -> String {
    let find = || {
        let log = lab.log();
        log.lines()
            .find(|line| line.contains(text))
            .map(str::to_owned)
    };
    lab::wait_for(find, || format!("{text} is not in the log: {}", lab.log()))
}

// Conformance: SSH-06, SSH-07.
#[test]
fn a_command_line_is_run_by_a_shell_that_reads_no_profile_as_the_workloads_user() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "errors=$(mktemp); ssh box 'id -u; shopt -q login_shell || echo no login; pwd; cat; echo \
         oops >&2; exit 5' < /etc/hostname 2> $errors; echo $?; cat $errors; rm $errors; ssh box \
         'kill -TERM $$'; echo $?; ssh box nosuchprogram; echo $?; ssh box \"cd '/' && A='b c' sh -c \
         'pwd; echo \\$A'\"",
    );
    let host = std::fs::read_to_string("/etc/hostname").unwrap();
    let folder = sandbox.folder.display();
    let not_found = "/bin/bash: line 1: nosuchprogram: command not found";
    assert_eq!(
        seen,
        format!("{UID}\nno login\n{folder}\n{host}5\noops\n255\n{not_found}\n127\n/\nb c\n")
    );
    let finished = sandbox.end();
    let lines = finished.logged("SSH:");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("SSH:OPEN [INFO] ALLOWED 127.0.0.1:")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("SSH:AUTH") && line.contains("[auth:NSSH1]")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("SSH:AUTH") && line.contains("[auth:none]")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("SSH:EXEC") && line.contains("[cmd:cd '/' && A=… sh -c")),
        "{lines:#?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("SSH:CLOSE") && line.contains("[exit:5] [in:")),
        "{lines:#?}"
    );
}

// Conformance: SSH-06.
#[test]
fn what_a_profile_prints_comes_before_no_protocol() {
    for (without, greeting) in [("", "welcome"), ("1", "")] {
        let lab = Lab::with_web();
        let profile = "mount -t tmpfs -o mode=755 profile /etc/profile.d && echo 'echo welcome' > \
                       /etc/profile.d/greeting.sh";
        assert_eq!(lab.shell(profile), "");
        let sandbox = lab
            .sandbox(&super::policy("{}"))
            .env("OPENSHELL_NO_LOGIN_SHELL", without);
        let sandbox = Box::of(&lab, sandbox, &["sleep", "600"]);
        let seen = sandbox.shell(
            "echo content > file; ssh box true | wc -c; mkdir out; rsync -a box:file out/; cat \
             out/file; ssh -tt box 'echo in a terminal' < /dev/null; ssh box env | grep -c \
             NO_LOGIN",
        );
        let greeting = if greeting.is_empty() {
            String::new()
        } else {
            format!("{greeting}\n")
        };
        assert_eq!(seen, format!("0\ncontent\n{greeting}in a terminal\n0\n"));
        sandbox.end();
    }
}

/// Prints everything of a process that confinement decides.
pub(super) const PROBE: &str = "import os, re
keys = 'Uid Gid Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters Umask'.split()
status = open('/proc/self/status').read()
for key in keys: print(re.search(key + ':.*', status)[0])
for name in sorted(os.listdir('/proc/self/ns')): print(name, os.readlink('/proc/self/ns/' + name))
print(open('/proc/self/limits').read(), open('/proc/self/oom_score_adj').read(), os.getcwd())
print([int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd) and int(fd) > 2])
def fails(what):
    try: what(); return 'done'
    except OSError as error: return error.errno
import socket
print(fails(lambda: open('/usr/x', 'w')), fails(lambda: open('/etc/shadow')), fails(lambda: os.listdir('/root')))
print(fails(lambda: socket.create_connection(('10.99.0.1', 8080), 5)), fails(lambda: os.unshare(os.CLONE_NEWUSER) if hasattr(os, 'unshare') else open('/usr/y', 'w')))
ignored = 'PATH TERM SSH_CONNECTION SSH_TTY PWD OLDPWD _ SHLVL'.split()
print(sorted((k, v) for k, v in os.environ.items() if k not in ignored))
";

// Conformance: SSH-10, SSH-11.
#[test]
fn every_way_in_gives_one_picture() {
    let lab = Lab::with_web();
    let folder = lab.folder("work").display().to_string();
    let probe = format!("{folder}/probe.py");
    std::fs::write(&probe, PROBE).unwrap();
    let main = format!("/usr/bin/python3 {probe} > {folder}/main; sleep 600");
    let sandbox = Box::of(
        &lab,
        lab.sandbox(&super::policy("{}")),
        &["bash", "-c", &main],
    );
    let seen = sandbox.shell(&format!(
        "ssh box '/usr/bin/python3 {probe} > exec'; echo '/usr/bin/python3 {probe} > shell' | ssh \
         box; echo 'exec /usr/bin/python3 {probe} > terminal' | ssh -tt box > /dev/null; until [ \
         -s main ]; do sleep 0.05; done; for way in exec shell terminal; do diff main $way && echo \
         $way is the same; done; ssh box 'echo $TERM; env | grep -c SSH_HANDSHAKE; echo \
         $HTTPS_PROXY; test -r $SSL_CERT_FILE && echo trusted'; ssh -tt box 'echo $TERM; echo \
         $SSH_TTY' < /dev/null | tr -d '\\r'; TERM=screen ssh -tt box 'echo $TERM' < /dev/null"
    ));
    let proxy = "http://10.200.0.1:3128";
    let same = "exec is the same\nshell is the same\nterminal is the same\n";
    let rest = format!("dumb\n0\n{proxy}\ntrusted\nxterm-256color\n/dev/pts/0\nscreen\n");
    let shown = seen
        .replace("xterm\n/dev/pts", "xterm-256color\n/dev/pts")
        .replace("dumb\n/dev/pts", "xterm-256color\n/dev/pts");
    assert_eq!(shown, format!("{same}{rest}"));
    drop(sandbox.end());
}

// Conformance: SSH-01.
#[test]
fn a_door_without_a_secret_is_no_start() {
    let lab = Lab::with_web();
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--ssh-listen-addr", "127.0.0.1:0"])
        .sh("echo ran");
    assert_eq!((finished.code(), finished.stdout.as_str()), (1, ""));
    assert!(
        finished.stderr.contains("OPENSHELL_SSH_HANDSHAKE_SECRET"),
        "{}",
        finished.stderr
    );
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--ssh-socket-path", "@name"])
        .sh("echo ran");
    assert!(
        finished.code() == 1 && finished.stderr.contains("abstract"),
        "{}",
        finished.stderr
    );
}

// Conformance: SSH-02, SSH-03, SSH-04, SSH-05.
#[test]
fn prefaces_with_another_secret_an_old_clock_or_a_used_nonce_are_refused() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let port = sandbox.port;
    let proxy = lab.folder("work").parent().unwrap().join("nssh1.py");
    let try_with = |rest: &str| {
        format!(
            "python3 {} 127.0.0.1 {port} {rest} < /dev/null | head -c 12; echo;",
            proxy.display()
        )
    };
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let seen = lab.shell(
        &[
            try_with("'open sesame' one"),
            try_with("'open sesame' one"),
            try_with("other two"),
            try_with(&format!("'open sesame' three {}", now - 400)),
            try_with(&format!("'open sesame' four {}", now + 400)),
            format!(
                "printf 'GET / HTTP/1.1\\r\\n\\r\\n' | nc -N 127.0.0.1 {port}; head -c 2000 \
                 /dev/zero | nc -N 127.0.0.1 {port}"
            ),
        ]
        .concat(),
    );
    let refused = "preface: b'ERR\\n', then b''\n";
    let expected = format!("SSH-2.0-open\n{refused}\n{refused}\n{refused}\n{refused}\nERR\nERR\n");
    assert_eq!(seen, expected);
    let finished = sandbox.end();
    let finding = finished.logged("FINDING:BLOCKED [HIGH] \"NSSH1 Nonce Replay Attack\"");
    assert_eq!(finding.len(), 1, "{}", finished.log);
    assert_eq!(finished.logged("NSSH1 Wrong MAC").len(), 1);
    assert_eq!(finished.logged("NSSH1 Clock Skew").len(), 2);
    assert!(!finished.log.contains("open sesame") && !finished.stderr.contains("open sesame"));
}

// Conformance: SSH-08, SSH-09.
#[test]
fn forwarding_leads_to_servers_inside_and_from_programs_inside_and_nowhere_else() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let outside = lab.http("127.0.0.1:9000");
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "ssh box 'for at in 127.0.0.1:8001 ::1:8002; do python3 -m http.server --bind ${at%:*} \
         ${at##*:} > /dev/null 2>&1 & done; until curl -s -o /dev/null 127.0.0.1:8001 && curl -g \
         -s -o /dev/null [::1]:8002; do sleep 0.05; done; echo page > page'; get='GET /page \
         HTTP/1.0\\r\\n\\r\\n'; for at in 127.0.0.1:8001 127.1.2.3:8001 localhost:8001 [::1]:8002 \
         localhost:8002; do printf \"$get\" | ssh -W $at box | tail -1; done; for at in \
         10.0.0.5:80 web.test:8080 10.99.0.1:8080 10.200.0.1:3128 0.0.0.0:8001 localhost:9000; do \
         printf \"$get\" | ssh -W $at box || echo no $at; done; ssh -M -S control -f -N -L \
         $PWD/local:localhost:8001 -R 7001:127.0.0.1:9000 -D 127.0.0.1:1080 box; curl -s \
         --unix-socket $PWD/local http://x/page; ssh -S control box 'curl -s -m 10 127.0.0.1:7001; \
         echo'; curl -s -m 10 --socks5 127.0.0.1:1080 http://127.0.0.1:8001/page; curl -s -m 10 \
         --socks5 127.0.0.1:1080 http://10.99.0.1:8080/ || echo refused; ssh -S control -O exit \
         box",
    );
    let refused = "stdio forwarding failed\n";
    let all = [
        "10.0.0.5:80",
        "web.test:8080",
        "10.99.0.1:8080",
        "10.200.0.1:3128",
        "0.0.0.0:8001",
        "localhost:9000",
    ];
    let all: String = all.map(|at| format!("{refused}no {at}\n")).concat();
    assert_eq!(
        seen,
        format!(
            "{}{all}page\nhello\npage\nrefused\nExit request sent.\n",
            "page\n".repeat(5)
        )
    );
    assert_eq!(outside.seen().len(), 1, "by -R alone");
    let finished = sandbox.end();
    assert!(
        !finished
            .logged("SSH:FORWARD [MED] DENIED 127.0.0.1:")
            .is_empty(),
        "{}",
        finished.log
    );
}

#[test]
fn unix_sockets_are_forwarded_as_far_as_the_workloads_user_may_reach_them() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "serve='import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); \
         s.listen()\nwhile True: c = s.accept()[0]; c.sendall(c.recv(100).upper()); c.close()'; \
         printf \"$serve\" > serve.py; ssh box '(python3 serve.py inside > /dev/null 2>&1 &); \
         until [ -S inside ]; do sleep 0.05; done'; (python3 serve.py outside & echo $! > server); \
         until [ -S outside ]; do sleep 0.05; done; ssh -M -S control -f -N -L \
         $PWD/local:$PWD/inside -L $PWD/denied:/run/no.sock -R $PWD/remote:$PWD/outside box; \
         ask='import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
         s.sendall(b\"hello\"); print(s.recv(100))'; python3 -c \"$ask\" local; python3 -c \
         \"$ask\" denied 2> /dev/null | grep HELLO || echo refused; ssh -S control box \"python3 \
         -c '$ask' remote; stat -c %a remote\"; ssh -S control -O forward -R \
         /usr/bad.sock:$PWD/outside box 2>&1 | grep -c 'forwarding failed'; ssh -S control -O exit \
         box; until ! ssh box 'test -e remote'; do sleep 0.05; done; kill $(cat server)",
    );
    assert_eq!(
        seen,
        "b'HELLO'\nrefused\nb'HELLO'\n600\n1\nExit request sent.\n"
    );
    let finished = sandbox.end();
    assert_eq!(
        finished.logged("SSH:FORWARD [MED] DENIED").len(),
        2,
        "{}",
        finished.log
    );
}

#[test]
fn a_display_and_an_agent_are_refused() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "eval $(ssh-agent) > /dev/null; ssh -A box 'echo agent: $SSH_AUTH_SOCK'; kill \
         $SSH_AGENT_PID; DISPLAY=:9 ssh -o ForwardX11Trusted=yes -X box 'echo display: $DISPLAY' \
         2> /dev/null",
    );
    assert_eq!(seen, "agent:\ndisplay:\n");
    drop(sandbox.end());
}

// Conformance: SSH-12.
#[test]
fn files_come_and_go_by_every_tool() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "head -c 3000000 /dev/urandom > sent; mkdir -p tree/a/b; echo x > tree/a/b/x; ln -s x \
         tree/a/b/link; scp -q sent box:by_sftp; ssh box 'mkdir copy'; rsync -a tree box:copy/; \
         rsync -a box:copy/tree back; scp -q -r box:tree back2; printf 'put sent by_put\\nget \
         by_put got\\nchmod 640 by_put\\nln -s by_put link\\nls -1 by_*\\nmkdir d\\nrename by_put \
         d/x\\nrmdir nosuch\\n' | sftp -q box 2>&1 | grep -v '^sftp>'; for f in by_sftp got d/x; \
         do cmp sent $f && echo $f; done; stat -c '%a %u' d/x; diff -r tree back/tree && diff -r \
         tree back2 && readlink back/tree/a/b/link; printf 'put sent /usr/x\\n' | sftp -q box 2>&1 \
         | grep -c denied; printf 'get /etc/shadow x\\n' | sftp -q box 2>&1 | grep -c denied; ssh \
         -s box nosuch; echo $?",
    );
    let owner = UID;
    let expected = format!(
        "by_put\nby_sftp\nremote rmdir \"{}/nosuch\": No such file or directory\n",
        sandbox.folder.display()
    );
    let expected = format!(
        "{expected}by_sftp\ngot\nd/x\n640 {owner}\nx\n1\n1\nsubsystem request failed on channel \
         0\n255\n"
    );
    assert_eq!(seen, expected);
    drop(sandbox.end());
}

#[test]
fn the_older_protocol_of_scp_works_for_a_user_with_a_name() {
    // scp looks its user up; only root can choose one that has a name.
    if tier() == Tier::Rootless {
        return;
    }
    let lab = Lab::with_web();
    let policy = "process: {run_as_user: nobody}\nfilesystem_policy: {read_write: \
                  [/tmp]}\nnetwork_policies: {}\n";
    let sandbox = Box::of(&lab, lab.sandbox(policy), &["sleep", "600"]);
    let seen = sandbox.shell(
        "head -c 3000000 /dev/urandom > sent; ssh box 'mkdir /tmp/scp.$PPID; echo /tmp/scp.$PPID' \
         > folder; read folder < folder; scp -q -O sent box:$folder/x; scp -q -O -r box:$folder \
         copy; cmp sent copy/x && echo same; ssh box rm -r $folder",
    );
    assert_eq!(seen, "same\n");
    drop(sandbox.end());
}

#[test]
fn the_flow_of_a_runner_works_from_its_files_to_streamed_output_and_results() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    // Each line waits until the one before was read outside.
    let agent = "#!/bin/sh\\ncd in\\nfor n in 1 2 3 4 5; do echo \"{\\\\\"n\\\\\": $n, \
                 \\\\\"dir\\\\\": \\\\\"$OUTPUT_DIR\\\\\"}\"; until [ -e ack.$n ]; do sleep 0.02; \
                 done; done\\n";
    let seen = sandbox.shell(&format!(
        "mkdir host; printf '{agent}' > host/agent.sh; chmod 755 host/agent.sh; printf 'set \
         -a\\nfor f in in/env.d/*.env; do . ./$f; done\\n' > host/env; echo OUTPUT_DIR=/out > \
         host/extra.env; ssh box 'mkdir -p in/env.d in/repo/.git/hooks'; scp -q host/agent.sh \
         box:in/; scp -q host/env box:in/.env; scp -q host/extra.env box:in/env.d/; ssh -n box '. \
         in/.env && in/agent.sh' | while read -r line; do echo \"$line\"; n=$((n + 1)); : > \
         in/ack.$n; done; ssh box 'cd in/repo; echo result > result; ln -s /etc/passwd stolen; ln \
         -s result link; echo x > .git/hooks/post-checkout; echo c > .git/config'; rsync -a \
         --no-links --exclude .git/hooks/ box:in/repo/ host/repo/ 2>&1 | grep -v skipping; cd \
         host/repo; find . -type f | sort; cat result",
    ));
    let lines: String = (1..=5)
        .map(|n| format!("{{\"n\": {n}, \"dir\": \"/out\"}}\n"))
        .collect();
    assert_eq!(seen, format!("{lines}./.git/config\n./result\nresult\n"));
    drop(sandbox.end());
}

#[test]
fn the_requests_of_an_editor_start_a_server_inside_and_reach_it() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    // A script on the input of a shell, which leaves a server at a port of its own choice and says
    // it; then connections by SOCKS.
    let script = "uname -sm > host; cat > server.py <<'PY'\nimport http.server, socketserver\ns = \
                  socketserver.TCPServer((\"127.0.0.1\", 0), \
                  http.server.SimpleHTTPRequestHandler)\nopen(\"port\", \
                  \"w\").write(str(s.server_address[1]))\ns.serve_forever()\nPY\nnohup python3 \
                  server.py > server.log 2>&1 < /dev/null &\nuntil [ -s port ]; do sleep 0.02; \
                  done; echo \"listeningOn==$(cat port)==\"\n";
    std::fs::write(sandbox.folder.join("script"), script).unwrap();
    let seen = sandbox.shell(
        "ssh -T -D 127.0.0.1:1091 box bash < script > said & client=$!; until grep -q listeningOn \
         said 2>/dev/null; do sleep 0.05; done; sed 's/[0-9]/N/g; s/N*==$/N==/' said; wait \
         $client; $RSYNC_RSH -N -D 127.0.0.1:1091 box 2>/dev/null & client=$!; port=$(cat port); \
         until curl -s -m 10 --socks5-hostname 127.0.0.1:1091 http://localhost:$port/host -o got; \
         do sleep 0.1; done; cmp got host && echo same; for i in 1 2 3 4 5 6 7 8 9 10; do curl -s \
         -m 20 --socks5-hostname 127.0.0.1:1091 http://127.0.0.1:$port/server.py | cmp - server.py \
         || echo differs; done; kill $client",
    );
    assert_eq!(seen.replace("Terminated\n", ""), "listeningOn==N==\nsame\n");
    drop(sandbox.end());
}

#[test]
fn raw_terminals_pass_every_byte_and_full_screen_programs_draw() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 200)' > bytes; (until \
         [ -e raw ]; do sleep 0.02; done; cat bytes) | ssh -tt box 'stty raw -echo; : > raw; head \
         -c 51200' | cmp - bytes && echo clean; ssh box \"echo 'in vim' > text\"; tmux -S \
         $PWD/tmux -f /dev/null new-session -d -x 90 -y 30; screen() { until tmux -S $PWD/tmux \
         capture-pane -p | grep -q \"$1\"; do sleep 0.05; done; }; type() { tmux -S $PWD/tmux \
         send-keys \"$@\"; }; type \"ssh -F $SSH_CONFIG -t box\" Enter; screen '\\$'; type 'vim -u \
         NONE text' Enter; screen 'in vim'; type 'Ofrom outside' Escape ':wq' Enter; until grep -q \
         'from outside' text; do sleep 0.05; done; cat text; prompt() { until tmux -S $PWD/tmux \
         capture-pane -p | grep -v '^$' | tail -1 | grep -q '[$] *$'; do sleep 0.05; done; }; type \
         'top -d 0.5' Enter; screen 'PID USER'; type q; prompt; type htop Enter; screen 'F10Quit'; \
         type F10; prompt; type 'tmux -S ./own -f /dev/null' Enter; screen '\\[0'; type 'tty > \
         inner' Enter; until [ -s inner ]; do sleep 0.05; done; grep -c pts inner; tmux -S \
         $PWD/tmux kill-server",
    );
    assert_eq!(seen, "clean\nfrom outside\nin vim\n1\n");
    drop(sandbox.end());
}

#[test]
fn a_terminal_has_its_size_job_control_and_interrupts() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let client = "import os, pty, select, sys, fcntl, termios, struct, signal
pid, fd = pty.fork()
if pid == 0: os.execvp('ssh', ['ssh', '-F', sys.argv[1], '-t', 'box'])
seen = b''
def until(text):
    global seen
    while text not in seen:
        ready = select.select([fd], [], [], 60)[0]
        assert ready, seen
        seen += os.read(fd, 65536)
    seen = seen.split(text, 1)[1]
def size(rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
    os.kill(pid, signal.SIGWINCH)
size(31, 97)
def run(line): os.write(fd, line + b'\\n')
run(b'PS1=pro\"\"mpt; stty size; bind \"set enable-bracketed-paste off\"'); until(b'31 97'); until(b'prompt')
for rows in range(40, 90): size(rows, 100)
run(b'until [ \"$(stty size)\" = \"89 100\" ]; do sleep 0.05; done; echo resi\"\"zed'); until(b'resized'); until(b'prompt')
run(b'sh -c \"echo run\\'\\'ning; exec sleep 600\"'); until(b'\\nrunning')
os.write(fd, b'\\x03'); until(b'prompt'); run(b'echo code $?'); until(b'code 130'); until(b'prompt')
run(b'sh -c \"echo run\\'\\'ning; exec cat\"'); until(b'\\nrunning')
os.write(fd, b'\\x1a'); until(b'Stopped'); until(b'prompt')
run(b'fg'); until(b'exec cat\"\\r\\n'); run(b'back in cat'); until(b'back in cat\\r\\nback in cat')
os.write(fd, b'\\x04'); until(b'prompt'); run(b'tty; exit 9'); until(b'/dev/pts/0')
while True:
    try:
        if not os.read(fd, 65536): break
    except OSError: break
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    let client = lab.file("client.py", client);
    let seen = lab.shell(&format!(
        "/usr/bin/python3 {} {}",
        client.display(),
        sandbox.config.display()
    ));
    assert_eq!(seen, "9\n");
    drop(sandbox.end());
}

#[test]
fn what_a_client_leaves_hears_of_it_and_what_left_the_session_stays() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "$RSYNC_RSH -n box 'trap \"echo hup > hup; exit\" HUP; echo up > up; while :; do sleep \
         0.05; done' & client=$!; until [ -s up ]; do sleep 0.05; done; kill $client; until [ -s \
         hup ]; do sleep 0.05; done; cat hup; $RSYNC_RSH -n box 'trap \"\" HUP; echo $$ > deaf; \
         while :; do sleep 0.05; done' & client=$!; until [ -s deaf ]; do sleep 0.05; done; kill \
         $client; ssh -n box 'while kill -0 $(cat deaf) 2>/dev/null; do sleep 0.1; done; echo deaf \
         one is gone'; ssh -n box 'setsid sleep 611 > /dev/null 2>&1 < /dev/null & nohup sleep 612 \
         > /dev/null 2>&1 & echo left'; ssh -n box 'pgrep -fc \"^sleep 61[12]$\"'",
    );
    assert_eq!(seen, "hup\ndeaf one is gone\nleft\n2\n");
    drop(sandbox.end());
}

#[test]
fn long_streams_are_whole_both_ways_at_once_also_for_a_reader_that_pauses() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "head -c 50000000 /dev/urandom > big; ssh box cat < big | (sleep 2; cat) | cmp - big && \
         echo same; ssh box 'head -c 30000000 /dev/zero; cat' < big | (sleep 1; tail -c 50000000) \
         | cmp - big && echo same; ssh box 'cat big >&2' 2>&1 >/dev/null | cmp - big && echo same; \
         ssh box 'sleep 1; head -c 5' < big | wc -c; for i in 1 2 3 4 5 6 7 8; do (ssh box cat < \
         big | cmp - big && echo same) & done; wait",
    );
    assert_eq!(seen, format!("same\nsame\nsame\n5\n{}", "same\n".repeat(8)));
    drop(sandbox.end());
}

#[test]
fn one_connection_runs_any_number_of_commands_and_forwards_one_after_the_other() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "ssh -M -S control -f -N box; for i in $(seq 100); do ssh -S control box true < /dev/null \
         || echo $i failed; done; for i in $(seq 70); do ssh -S control -W localhost:1 box < \
         /dev/null 2> /dev/null; done; ssh box '(python3 -m http.server --bind 127.0.0.1 8055 > \
         /dev/null 2>&1 &); until curl -s -o /dev/null 127.0.0.1:8055; do sleep 0.05; done'; for i \
         in $(seq 70); do printf 'HEAD / HTTP/1.0\\r\\n\\r\\n' | ssh -S control -W localhost:8055 \
         box | head -1 | grep -vq ' 200 ' && echo $i failed; done; ssh -S control box 'echo still \
         in'; ssh -S control -O exit box",
    );
    assert_eq!(seen, "still in\nExit request sent.\n");
    drop(sandbox.end());
}

#[test]
fn a_terminals_output_is_whole_for_a_client_that_pauses() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let seen = sandbox.shell(
        "ssh -tt box 'stty -opost; seq 900000' < /dev/null | (sleep 2; md5sum); seq \
                       900000 | md5sum",
    );
    let sums: Vec<_> = seen.lines().collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "{seen}");
    drop(sandbox.end());
}

#[test]
fn only_processes_outside_enter_by_the_socket_and_it_is_gone_after_the_run() {
    let lab = Lab::with_web();
    let folder = lab.folder("door");
    // Where the workload's user is another one, it must not own the folder.
    let socket = match tier() {
        Tier::Root => folder.parent().unwrap().join("ssh/ssh.sock"),
        Tier::Rootless => folder.join("ssh/ssh.sock"),
    };
    let path = socket.to_str().unwrap();
    let client = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry: \
                  s.connect(sys.argv[1]); print(s.recv(20))\nexcept OSError as e: print('no way \
                  in', e.errno)\n";
    let client = lab.file("client.py", client);
    // The most that a policy could give away.
    let granted = [folder.as_path(), socket.parent().unwrap()]
        .map(|path| path.display().to_string())
        .join(", ");
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{granted}]}}\n",
        super::policy("{}")
    );
    let inside = format!(
        "while [ ! -e {0}/go ]; do sleep 0.05; done; /usr/bin/python3 {1} {path}; ls {path}",
        folder.display(),
        client.display()
    );
    let started = lab
        .sandbox(&policy)
        .args(&["--ssh-socket-path", path])
        .start(&["sh", "-c", &inside]);
    wait_for(&lab, "PROC:LAUNCH");
    let as_caller = lab.as_caller();
    let seen = lab.shell(&format!(
        "{as_caller} /usr/bin/python3 {0} {path}; setpriv --reuid 12345 --clear-groups \
         /usr/bin/python3 {0} {path}; stat -c %a {path}",
        client.display()
    ));
    assert_eq!(seen, "b'SSH-2.0-openshell\\r\\n'\nno way in 13\n600\n");
    std::fs::write(folder.join("go"), "").unwrap();
    let finished = started.wait();
    assert!(!finished.stdout.contains("SSH-2.0"), "{finished:?}");
    assert!(!socket.exists());
    assert_eq!(
        finished.logged("SSH:OPEN [INFO] ALLOWED pid:").len(),
        1,
        "{}",
        finished.log
    );
}

/// Runs a client that asks for too much, on the host, and returns what it saw; the supervisor stays
/// below 200 MB.
fn abuse(name: &str) -> String {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let client = lab.file("abuse.py", include_str!("data/ssh_abuse.py"));
    let seen = lab.shell(&format!(
        "timeout 100 /usr/bin/python3 {} {} '{SECRET}' {name} 2>&1",
        client.display(),
        sandbox.port
    ));
    assert_eq!(
        sandbox.shell("ssh box 'echo still in'"),
        "still in\n",
        "{seen}"
    );
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", sandbox.started.pid())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap()
        .trim()
        .trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 200_000, "{peak}");
    drop(sandbox.end());
    seen
}

#[test]
fn a_thousand_clients_that_never_authenticate_hold_nobody_up() {
    assert_eq!(abuse("unauthenticated"), "(0, 'in\\n')\n");
}

#[test]
fn channels_of_a_connection_are_bounded() {
    assert_eq!(abuse("channels"), "64 136\n(0, 'in\\n')\n(0, 'in\\n')\n");
}

#[test]
fn variables_of_a_session_are_bounded() {
    assert_eq!(abuse("variables"), "0 True\n");
}

#[test]
fn command_lines_that_are_too_long_are_refused() {
    let too_long = "openshell-sandbox: command cannot be executed: /bin/bash: Argument list too \
                    long (os error 7)";
    assert_eq!(
        abuse("commands"),
        format!("(0, 'in\\n')\n(126, '{too_long}\\n')\ndisconnected\n")
    );
}

#[test]
fn windows_that_clients_break_bound_what_is_kept_for_them() {
    assert_eq!(abuse("windows"), "0 10000\n(0, 'in\\n')\n(0, 'gone\\n')\n");
}

#[test]
fn requests_that_do_not_exist_end_their_own_connection_at_most() {
    assert_eq!(
        abuse("unknown"),
        "None\nrefused\n(0, 'in\\n')\n(0, 'in\\n')\n"
    );
}

#[test]
fn paths_and_handles_that_no_file_has_are_answered() {
    let paths =
        "b'pppppppppp' None\nb'd/d/d/d/d/' None\nb'a\\x00b' None\nb'folder/fil' 2\n13\nTrue\n";
    assert_eq!(abuse("paths"), format!("{paths}2\n2\n2\n2\nb''\nb'xt'\n"));
}

#[test]
fn large_folders_deep_trees_and_large_files_go_by_sftp() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let long = "d".repeat(200);
    let seen = sandbox.shell(&format!(
        "ssh box 'mkdir many; cd many; seq 100000 | xargs touch'; echo 'ls -1 many' | sftp -q -b - \
         box | grep -c ^many/; ssh box 'for i in $(seq 18); do mkdir {long}; cd {long}; done; echo \
         deep > file'; echo 'get -r {long} out' | sftp -q -b - box > /dev/null; find out -name \
         file | xargs cat; truncate -s 1G up; printf end >> up; printf 'put up up2\\nget up2 \
         down\\n' | sftp -q -b - box > /dev/null; cmp up down && echo same",
    ));
    assert_eq!(seen, "100000\ndeep\nsame\n");
    drop(sandbox.end());
}

#[test]
fn clients_in_python_run_commands_and_move_files() {
    let lab = Lab::with_web();
    let sandbox = Box::start(&lab);
    let program = format!(
        "import asyncio, asyncssh, hashlib, hmac, io, paramiko, socket, secrets, time\n\
         def enter():\n    \
         seconds, nonce = int(time.time()), secrets.token_hex(8)\n    \
         mac = hmac.new(b'{SECRET}', f't|{{seconds}}|{{nonce}}'.encode(), hashlib.sha256).hexdigest()\n    \
         s = socket.create_connection(('127.0.0.1', {}))\n    \
         s.sendall(f'NSSH1 t {{seconds}} {{nonce}} {{mac}}\\n'.encode())\n    \
         assert s.recv(3) == b'OK\\n'\n    return s\n\
         transport = paramiko.Transport(enter())\ntransport.start_client()\ntransport.auth_none('any')\n\
         channel = transport.open_session()\nchannel.set_environment_variable('LANG', 'C.UTF-8')\n\
         channel.exec_command('echo out $LANG; echo err >&2; exit 3')\n\
         print(channel.makefile().read(), channel.makefile_stderr().read(), channel.recv_exit_status())\n\
         sftp = paramiko.SFTPClient.from_transport(transport)\nsftp.putfo(io.BytesIO(b'x' * 1000000), 'p')\n\
         print(sftp.stat('p').st_size, len(sftp.open('p').read()), sftp.normalize('.'), 'p' in sftp.listdir())\n\
         transport.close()\n\
         async def main():\n    \
         async with asyncssh.connect('box', username='any', known_hosts=None, proxy_command=PROXY) as c:\n        \
         r = await c.run('cat; exit 4', input='hello')\n        print(r.stdout, r.exit_status)\n        \
         async with c.start_sftp_client() as s:\n            \
         await s.put('/etc/hostname', 'q'); print(await s.exists('q'), (await s.statvfs('.')).bsize > 0)\n\
         asyncio.run(main())\n",
        sandbox.port
    );
    let nssh1 = lab.folder("work").parent().unwrap().join("nssh1.py");
    let proxy = format!(
        "['/usr/bin/python3', '{}', '127.0.0.1', '{}', '{SECRET}']",
        nssh1.display(),
        sandbox.port
    );
    let program = program.replace("PROXY", &proxy);
    let program = lab.file("clients.py", program);
    let seen = lab.shell(&format!(
        "/usr/bin/python3 -W ignore {} 2>&1",
        program.display()
    ));
    let folder = sandbox.folder.display();
    assert_eq!(
        seen,
        format!(
            "b'out C.UTF-8\\n' b'err\\n' 3\n1000000 1000000 {folder} True\nhello 4\nTrue True\n"
        )
    );
    drop(sandbox.end());
}
