//! Runs of the binary from its command line.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::host::{Lab, Tier, UID, give_to_caller, tier};

/// Longest wait of a test for a sandbox.
const PATIENCE: Timespec = Timespec {
    tv_sec: 120,
    tv_nsec: 0,
};

/// Path of the binary under test, built once with the profile of the calling test.
///
/// # Panics
/// The build fails.
pub fn binary() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--package",
            "openshell-sandbox",
            "--bin",
            "openshell-sandbox",
        ]);
        // Test programs are in `deps`, beside the binaries of their profile.
        let this = std::env::current_exe().unwrap();
        let folder = this
            .ancestors()
            .skip(1)
            .find(|folder| !folder.ends_with("deps"))
            .unwrap();
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(
            build.status().unwrap().success(),
            "the binary does not build"
        );
        folder.join("openshell-sandbox")
    })
}

/// Makes `command` run as the user of this run's tier.
pub fn as_caller(command: &mut Command) {
    if tier() == Tier::Rootless {
        command.uid(UID).gid(UID);
    }
}

/// A sandbox before its start.
#[derive(Debug)]
pub struct Sandbox<'l> {
    lab: &'l Lab,
    command: Command,
    input: Vec<u8>,
}

impl<'l> Sandbox<'l> {
    pub(crate) fn new(lab: &'l Lab, policy: &str) -> Self {
        let file = tempfile::NamedTempFile::new_in(lab.folder("policies")).unwrap();
        let (mut file, path) = file.keep().unwrap();
        file.write_all(policy.as_bytes()).unwrap();
        give_to_caller(&path);
        let mut sandbox = Self::bare(lab);
        sandbox.command.arg("--policy-data").arg(path);
        sandbox
    }

    /// Returns a run of the binary on `lab` without a policy, with PATH as its only variable.
    #[must_use]
    pub fn bare(lab: &'l Lab) -> Self {
        let mut command = lab.command();
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .current_dir("/tmp");
        if tier() == Tier::Rootless {
            command.envs(lab.variables());
        }
        Self {
            lab,
            command,
            input: Vec::new(),
        }
    }

    /// Adds arguments before the command.
    #[must_use]
    pub fn args(mut self, words: &[&str]) -> Self {
        self.command.args(words);
        self
    }

    /// Sets a variable of the supervisor.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets its working directory, /tmp by default.
    #[must_use]
    pub fn current_dir(mut self, path: &str) -> Self {
        self.command.current_dir(path);
        self
    }

    /// Sets the standard input of the command.
    #[must_use]
    pub fn input(mut self, bytes: &[u8]) -> Self {
        self.input = bytes.to_vec();
        self
    }

    /// Runs `script` by sh inside the sandbox.
    #[must_use]
    pub fn sh(self, script: &str) -> Finished {
        self.run(&["sh", "-c", script])
    }

    /// Runs a Python program inside the sandbox.
    #[must_use]
    pub fn python(self, program: &str, arguments: &[&str]) -> Finished {
        self.run(&[&["/usr/bin/python3", "-c", program], arguments].concat())
    }

    /// Runs `words` inside the sandbox.
    #[must_use]
    pub fn run(self, words: &[&str]) -> Finished {
        self.start(words).wait()
    }

    /// Starts `words` inside the sandbox.
    ///
    /// # Panics
    /// The binary cannot be started.
    #[must_use]
    pub fn start(mut self, words: &[impl AsRef<OsStr>]) -> Started<'l> {
        self.command
            .arg("--")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut command = self.command;
        let mut child = self.lab.inside(move || command.spawn().unwrap());
        let mut stdin = child.stdin.take().unwrap();
        let input = self.input;
        // A command may end without reading its input.
        thread::spawn(move || drop(stdin.write_all(&input)));
        let reading = [
            collect(child.stdout.take().unwrap()),
            collect(child.stderr.take().unwrap()),
        ];
        Started {
            lab: self.lab,
            child,
            reading: Some(reading),
        }
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// A running sandbox. Dropping it kills it with all its processes.
#[derive(Debug)]
pub struct Started<'l> {
    lab: &'l Lab,
    child: Child,
    reading: Option<[JoinHandle<Vec<u8>>; 2]>,
}

impl Started<'_> {
    /// Process number of the supervisor.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the supervisor.
    ///
    /// # Panics
    /// The supervisor has ended.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.process(), signal).unwrap();
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// The wait exceeds its limit.
    #[must_use]
    pub fn wait(mut self) -> Finished {
        let pidfd = rustix::process::pidfd_open(self.process(), PidfdFlags::empty()).unwrap();
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        let count = rustix::event::poll(&mut ended, Some(&PATIENCE)).unwrap();
        assert_eq!(count, 1, "the sandbox did not end");
        let status = self.child.wait().unwrap();
        let [output, errors] = self.reading.take().unwrap();
        let text = |reading: JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&reading.join().unwrap()).into_owned()
        };
        let log = self.lab.log();
        Finished {
            status,
            stdout: text(output),
            stderr: text(errors),
            log,
        }
    }

    fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        // It has usually ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sandbox that has ended.
#[derive(Debug)]
pub struct Finished {
    status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error, the supervisor's included.
    pub stderr: String,
    /// Content of the host's log file.
    pub log: String,
}

impl Finished {
    /// Returns the exit code.
    ///
    /// # Panics
    /// The supervisor was killed.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("the supervisor was killed: {self:?}"))
    }

    /// Returns the standard output of a run with exit code 0.
    ///
    /// # Panics
    /// The exit code is another one.
    #[must_use]
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert_eq!(self.status.code(), Some(0), "{self:?}");
        self.stdout.trim_end()
    }

    /// Returns the lines of the log that contain `text`.
    #[must_use]
    pub fn logged(&self, text: &str) -> Vec<&str> {
        self.log
            .lines()
            .filter(|line| line.contains(text))
            .collect()
    }
}
