//! Into a running sandbox, to OpenSSH's server on the same host.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::Lab;
use lab::host::UID;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::results::{self, KB, MILLI, SECONDS, SPEED, Unit};
use super::{pairs, policy};

/// A sandbox with an SSH server, and OpenSSH's server, with a configuration for clients that names
/// both.
struct Servers {
    lab: Lab,
    /// The supervisor, and sshd.
    children: [Child; 2],
    config: String,
    folder: String,
}

impl Servers {
    fn start() -> Self {
        let lab = Lab::with_web();
        let folder = lab.folder("work").display().to_string();
        let socket = lab.folder("sockets").parent().unwrap().join("ssh/ssh.sock");
        let policy = lab.file("policy.yaml", policy(0));
        let mut command = lab.command();
        command
            .args(["--name", "box", "--workdir", &folder, "--ssh-socket-path"])
            .arg(&socket);
        command
            .arg("--policy-data")
            .arg(policy)
            .args(["--", "/bin/sleep", "3600"]);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let sandbox = lab.inside(move || command.stderr(Stdio::null()).spawn().unwrap());
        let keys = lab.folder("keys").display().to_string();
        assert_eq!(
            lab.shell(&format!(
                "mkdir -p /run/sshd; cd {keys}; for key in host user; do ssh-keygen -q -t ed25519 \
                 -N '' -f $key; done; chmod 600 *"
            )),
            ""
        );
        let server = format!(
            "Port 2022\nListenAddress 127.0.0.1\nHostKey {keys}/host\nAuthorizedKeysFile \
             {keys}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin \
             yes\nMaxStartups 1000\nMaxSessions 100\nSubsystem sftp /usr/lib/openssh/sftp-server\n"
        );
        let server = lab.file("sshd_config", server).display().to_string();
        // Its user's shell reads the profile of an empty home, as that of the sandbox does.
        let passwd = lab.file(
            "passwd",
            format!(
                "root:x:0:0::{keys}:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
            ),
        );
        let script = "mount --bind \"$1\" /etc/passwd && exec /usr/sbin/sshd -D -f \"$2\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(passwd)
            .arg(&server)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let sshd = lab.inside(move || command.spawn().unwrap());
        let config = format!(
            "Host *\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n \
             ProxyUseFdpass yes\n User root\n IdentityFile {keys}/user\nHost box\n ProxyCommand \
             {0} client connect {1}\nHost sshd\n ProxyCommand {0} client connect 127.0.0.1:2022\n",
            super::this(),
            socket.display()
        );
        let config = lab.file("ssh_config", config).display().to_string();
        let servers = Self {
            lab,
            children: [sandbox, sshd],
            config,
            folder,
        };
        for host in ["box", "sshd"] {
            let deadline = Instant::now() + Duration::from_secs(30);
            while servers.shell(&format!("ssh {host} echo in")) != "in\n" {
                assert!(Instant::now() < deadline, "{host} lets nobody in");
            }
        }
        servers
    }

    /// Runs a script with `ssh`, `sftp` and `rsync` for both, in the folder that both may write to.
    fn shell(&self, script: &str) -> String {
        let config = &self.config;
        let folder = &self.folder;
        self.lab.shell(&format!(
            "cd {folder}; ssh() {{ command ssh -F {config} \"$@\"; }}; sftp() {{ command sftp -F \
             {config} \"$@\"; }}; export RSYNC_RSH='ssh -F {config}'; {script}"
        ))
    }

    /// Seconds of a script for `host`, which it knows as `$host`.
    fn time(&self, host: &str, script: &str) -> f64 {
        let start = Instant::now();
        let printed = self.shell(&format!("host={host}; {script}"));
        assert_eq!(printed, "", "{host}: {script}");
        start.elapsed().as_secs_f64()
    }

    fn both(&self, name: &str, unit: Unit, value: impl Fn(f64) -> f64, script: &str) {
        pairs(
            name,
            unit,
            || value(self.time("sshd", script)),
            || value(self.time("box", script)),
        );
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // sshd's children end with their clients.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Connects to `place`, an address or the path of a socket, and hands the connection to ssh(1)
/// (ssh_config(5), ProxyUseFdpass).
pub(crate) fn connect(place: &str) {
    let connection: OwnedFd = match place.strip_prefix('/') {
        Some(_) => UnixStream::connect(place).unwrap().into(),
        None => TcpStream::connect(place).unwrap().into(),
    };
    // The server looks at the process that connected: it is there until it has been admitted.
    let mut readable = [PollFd::new(&connection, PollFlags::IN)];
    rustix::event::poll(&mut readable, None).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [connection.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    rustix::net::sendmsg(
        std::io::stdout(),
        &[IoSlice::new(&[0])],
        &mut control,
        SendFlags::empty(),
    )
    .unwrap();
}

/// One command by one connection.
pub(crate) fn command(name: &str) {
    let servers = Servers::start();
    servers.both(
        name,
        MILLI,
        |time| time / 10.0,
        "for i in 1 2 3 4 5 6 7 8 9 10; do ssh $host true; done",
    );
}

/// A gibibyte of output, and files of that size in both directions.
pub(crate) fn bytes(name: &str) {
    let servers = Servers::start();
    servers.both(
        name,
        SPEED,
        f64::recip,
        "ssh $host 'head -c 1073741824 /dev/zero' > /dev/null",
    );
    let _ = servers.shell(&format!(
        "head -c 1073741824 /dev/zero > up; chown {UID} up; ssh box 'cp up down'"
    ));
    let up = "echo \"put up up.$host\" | sftp -q -b - $host > /dev/null";
    servers.both(
        "ssh: sftp up, 1 GiB, speed / sshd",
        SPEED,
        f64::recip,
        &format!("cd {}; {up}", servers.folder),
    );
    let down = format!(
        "cd {0}; echo \"get {0}/down /dev/null\" | sftp -q -b - $host > /dev/null",
        servers.folder
    );
    servers.both(
        "ssh: sftp down, 1 GiB, speed / sshd",
        SPEED,
        f64::recip,
        &down,
    );
}

/// Twenty thousand small files by rsync.
pub(crate) fn files(name: &str) {
    let servers = Servers::start();
    let made = "mkdir files; for d in $(seq 100); do mkdir files/$d; for f in $(seq 200); do echo \
                $f > files/$d/$f; done; done";
    assert_eq!(servers.shell(made), "");
    let script = format!(
        "rsync -a files $host:{0}/copy.$host/ 2>&1; ssh $host rm -r {0}/copy.$host",
        servers.folder
    );
    servers.both(name, SECONDS, |time| time, &script);
}

/// Two hundred sessions at once: memory of the supervisor for each that is idle.
pub(crate) fn sessions(name: &str) {
    let servers = Servers::start();
    let resident = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", servers.children[0].id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap()
    };
    let before = resident();
    // As programs of their own: a function's subshell keeps the shell's standard streams.
    let clients = format!(
        "for i in $(seq 200); do /usr/bin/ssh -F {} box \"touch in.$i; sleep 600\" > /dev/null \
         2>&1 & done; until [ $(ls | grep -c ^in) = 200 ]; do sleep 0.1; done",
        servers.config
    );
    assert_eq!(servers.shell(&clients), "");
    results::figure(name, (resident() - before) / 200.0, KB);
    assert_eq!(servers.shell("ssh box 'pkill -f ^sleep.600'; true"), "");
}

/// A further command by the control socket, to a container of bubblewrap's.
pub(crate) fn exec(name: &str) {
    let servers = Servers::start();
    let bwrap = "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev /bin/true";
    let ours = format!(
        "{} exec box /bin/true",
        super::installed(&servers.lab).display()
    );
    pairs(
        name,
        MILLI,
        || super::run(&servers.lab, bwrap),
        || super::run(&servers.lab, &ours),
    );
}
