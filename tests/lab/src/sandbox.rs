//! The binary, run as its users run it.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::host::Lab;

/// No test waits longer for a sandbox.
const PATIENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// The binary under test, built once with the profile of whoever asks.
///
/// # Panics
/// It does not build.
pub fn binary() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "openshell-sandbox", "--bin", "openshell-sandbox"]);
        // Tests lie in `deps` beside the binaries of their profile.
        let this = std::env::current_exe().unwrap();
        let folder = this.ancestors().skip(1).find(|folder| !folder.ends_with("deps")).unwrap();
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the binary does not build");
        folder.join("openshell-sandbox")
    })
}

/// A sandbox that is to be run.
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
        let mut sandbox = Self::bare(lab);
        sandbox.command.arg("--policy-data").arg(path);
        sandbox
    }

    /// A run of the binary on `lab` without a policy, in an environment of nothing but PATH.
    #[must_use]
    pub fn bare(lab: &'l Lab) -> Self {
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").current_dir("/tmp");
        Self { lab, command, input: Vec::new() }
    }

    /// Adds words before the command.
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

    /// Starts it elsewhere than in /tmp.
    #[must_use]
    pub fn current_dir(mut self, path: &str) -> Self {
        self.command.current_dir(path);
        self
    }

    /// What the command reads.
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
        self.command.arg("--").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = self.command;
        let mut child = self.lab.inside(move || command.spawn().unwrap());
        let mut stdin = child.stdin.take().unwrap();
        let input = self.input;
        // A command that does not read its input ends with it unread.
        thread::spawn(move || drop(stdin.write_all(&input)));
        let reading = [collect(child.stdout.take().unwrap()), collect(child.stderr.take().unwrap())];
        Started { lab: self.lab, child, reading: Some(reading) }
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// A sandbox that runs. It is killed when it is dropped, and with it everything inside.
#[derive(Debug)]
pub struct Started<'l> {
    lab: &'l Lab,
    child: Child,
    reading: Option<[JoinHandle<Vec<u8>>; 2]>,
}

impl Started<'_> {
    /// The supervisor.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the supervisor.
    ///
    /// # Panics
    /// It is gone.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.process(), signal).unwrap();
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// It takes too long.
    #[must_use]
    pub fn wait(mut self) -> Finished {
        let pidfd = rustix::process::pidfd_open(self.process(), PidfdFlags::empty()).unwrap();
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        let count = rustix::event::poll(&mut ended, Some(&PATIENCE)).unwrap();
        assert_eq!(count, 1, "the sandbox did not end");
        let status = self.child.wait().unwrap();
        let [output, errors] = self.reading.take().unwrap();
        let text = |reading: JoinHandle<Vec<u8>>| String::from_utf8_lossy(&reading.join().unwrap()).into_owned();
        let log = self.lab.shell("cat /var/log/openshell.*.log");
        Finished { status, stdout: text(output), stderr: text(errors), log }
    }

    fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        // Ended already, in the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sandbox that has ended.
#[derive(Debug)]
pub struct Finished {
    status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors, the supervisor's included.
    pub stderr: String,
    /// The host's log file.
    pub log: String,
}

impl Finished {
    /// The exit code; a supervisor that was killed has none.
    ///
    /// # Panics
    /// It was killed.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("the supervisor was killed: {self:?}"))
    }

    /// What it printed, if it went well.
    ///
    /// # Panics
    /// It did not.
    #[must_use]
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert_eq!(self.status.code(), Some(0), "{self:?}");
        self.stdout.trim_end()
    }

    /// The lines of the log that hold `text`.
    #[must_use]
    pub fn logged(&self, text: &str) -> Vec<&str> {
        self.log.lines().filter(|line| line.contains(text)).collect()
    }
}
