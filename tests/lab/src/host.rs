//! A private host.

use std::env::VarError;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use tempfile::TempDir;

use crate::sandbox::{Sandbox, as_caller, binary};
use crate::upstream::Upstream;

/// User of the tests' workloads, without a passwd entry.
pub const UID: u32 = 61184;

/// Privilege of the sandboxes of a test program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Started by root.
    Root,
    /// Started by [`UID`], without capabilities.
    Rootless,
}

/// Returns the tier of this run: that of the variable `TIER`, or [`Tier::Root`].
///
/// # Panics
/// `TIER` names no tier.
#[must_use]
pub fn tier() -> Tier {
    static TIER: OnceLock<Tier> = OnceLock::new();
    *TIER.get_or_init(|| match std::env::var("TIER").as_deref() {
        Ok("root") | Err(VarError::NotPresent) => Tier::Root,
        Ok("rootless") => Tier::Rootless,
        other => panic!("TIER is root or rootless, not {other:?}"),
    })
}

/// Returns the user who starts the sandboxes.
#[must_use]
pub fn caller() -> u32 {
    match tier() {
        Tier::Root => 0,
        Tier::Rootless => UID,
    }
}

/// Ends the calling test unless root starts its sandboxes; the reason says why the claim names
/// root.
#[macro_export]
macro_rules! only_as_root {
    ($why:literal) => {
        if $crate::host::tier() != $crate::host::Tier::Root {
            return;
        }
    };
}

/// Ends the calling test unless a user without capabilities starts its sandboxes; the reason says
/// why.
#[macro_export]
macro_rules! only_rootless {
    ($why:literal) => {
        if $crate::host::tier() != $crate::host::Tier::Rootless {
            return;
        }
    };
}

/// A system call that a host lacks.
#[derive(Clone, Debug)]
pub struct Lacking {
    /// Number of the call.
    pub call: i64,
    /// Arguments that are affected, with their values; all calls if empty.
    pub arguments: Vec<(u8, u64)>,
    /// Error number that it answers.
    pub errno: i32,
}

/// Names of the binary and of the user's state in a lab's folder.
const BINARY: &str = "openshell-sandbox";
const STATE: &str = "state";

type Work = Box<dyn FnOnce() + Send>;

/// A private host. One thread inside its namespaces does all its work, as namespaces belong to
/// threads.
#[derive(Debug)]
pub struct Lab {
    work: mpsc::Sender<Work>,
    folder: TempDir,
}

impl Lab {
    /// Creates a host with the given names, and their addresses on its loopback interface.
    ///
    /// # Panics
    /// The namespaces cannot be created: the tests need root.
    #[must_use]
    pub fn new(hosts: &[(&str, &str)]) -> Self {
        // Not in /tmp, which is writable in every sandbox.
        let folder = tempfile::Builder::new()
            .prefix("lab-")
            .tempdir_in("/var/tmp")
            .expect("a folder for the lab");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let lines: String = hosts
            .iter()
            .map(|(address, name)| format!("{address} {name}\n"))
            .collect();
        std::fs::write(
            folder.path().join("hosts"),
            format!("127.0.0.1 localhost\n{lines}"),
        )
        .unwrap();
        // No server answers there, and no route leads out of the lab.
        std::fs::write(
            folder.path().join("resolv.conf"),
            "nameserver 198.51.100.53\noptions timeout:1 attempts:1\n",
        )
        .unwrap();
        let (work, jobs) = mpsc::channel::<Work>();
        thread::Builder::new()
            .name("lab".to_owned())
            .spawn(move || jobs.into_iter().for_each(|job| job()))
            .unwrap();
        let lab = Self { work, folder };
        let addresses: Vec<_> = hosts
            .iter()
            .map(|(address, _)| (*address).to_owned())
            .collect();
        let files = lab.folder.path().to_owned();
        if tier() == Tier::Rootless {
            drop(lab.folder(STATE));
            std::fs::write(files.join(BINARY), "").unwrap();
        }
        lab.inside(move || enter(&files, &addresses));
        lab
    }

    /// Creates a host with `web.test` at 10.99.0.1, and the lab's own names at 198.51.100.10.
    #[must_use]
    pub fn with_web() -> Self {
        Self::new(&[
            ("10.99.0.1", "web.test"),
            ("198.51.100.10", "public.lab.test"),
            ("127.0.0.1", "loop.lab.test"),
        ])
    }

    /// Runs `job` on the host and returns its result.
    ///
    /// # Panics
    /// The job panicked.
    pub fn inside<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::sync_channel(1);
        let job = Box::new(move || drop(sender.send(job())));
        self.work
            .send(job)
            .expect("the lab's thread lives as long as the lab");
        receiver
            .recv()
            .expect("the job in the lab failed; see above")
    }

    /// Returns the words by which a shell script starts the binary under test, in the tier of the
    /// test program.
    #[must_use]
    pub fn binary(&self) -> String {
        format!("{} {}", self.as_caller(), self.program_path().display())
            .trim_start()
            .to_owned()
    }

    /// Returns the words that make a shell script run a program as the user who starts the
    /// sandboxes.
    #[must_use]
    pub fn as_caller(&self) -> String {
        if tier() == Tier::Root {
            return String::new();
        }
        let variables: Vec<_> = self
            .variables()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        format!(
            "setpriv --reuid {UID} --regid {UID} --clear-groups env {}",
            variables.join(" ")
        )
    }

    /// Path of the binary under test, where the user who starts the sandboxes can execute it.
    #[must_use]
    pub fn program_path(&self) -> PathBuf {
        match tier() {
            Tier::Root => binary().clone(),
            Tier::Rootless => self.folder.path().join(BINARY),
        }
    }

    /// Variables that a login sets for [`UID`].
    pub(crate) fn variables(&self) -> [(&'static str, String); 2] {
        let state = self.folder.path().join(STATE).display().to_string();
        [
            ("XDG_STATE_HOME", state),
            ("XDG_RUNTIME_DIR", format!("/run/user/{UID}")),
        ]
    }

    /// Returns a run of the binary under test by the user who starts the sandboxes.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.program_path());
        as_caller(&mut command);
        command
    }

    /// Returns the pattern of the log files, for a shell.
    #[must_use]
    pub fn logs(&self) -> String {
        match tier() {
            Tier::Root => "/var/log/openshell.*.log".to_owned(),
            Tier::Rootless => self
                .folder
                .path()
                .join(STATE)
                .join("openshell/openshell.*.log")
                .display()
                .to_string(),
        }
    }

    /// Returns the content of the log files.
    #[must_use]
    pub fn log(&self) -> String {
        self.shell(&format!("cat {}", self.logs()))
    }

    /// Creates a folder that is visible on the host and in its sandboxes, owned by the workload's
    /// user.
    #[must_use]
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(UID), Some(UID)).unwrap();
        path
    }

    /// Writes a file that every user may read and execute, owned by the user who starts the
    /// sandboxes.
    #[must_use]
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        give_to_caller(&path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Removes system calls from all processes started on the host from now on: each answers with
    /// its error number, as in a kernel or a container without them.
    pub fn without(&self, lacking: Vec<Lacking>) {
        self.inside(move || {
            for Lacking {
                call,
                arguments,
                errno,
            } in lacking
            {
                let condition = |(index, value): &(u8, u64)| {
                    SeccompCondition::new(*index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value)
                        .unwrap()
                };
                let conditions: Vec<_> = arguments.iter().map(condition).collect();
                let rules = if conditions.is_empty() {
                    vec![]
                } else {
                    vec![SeccompRule::new(conditions).unwrap()]
                };
                let answer = SeccompAction::Errno(errno.cast_unsigned());
                let architecture = std::env::consts::ARCH.try_into().unwrap();
                let filter = SeccompFilter::new(
                    [(call, rules)].into(),
                    SeccompAction::Allow,
                    answer,
                    architecture,
                )
                .unwrap();
                let program: BpfProgram = filter.try_into().unwrap();
                seccompiler::apply_filter(&program).unwrap();
            }
        });
    }

    /// Returns the output of a shell script on the host, errors included.
    #[must_use]
    pub fn shell(&self, script: &str) -> String {
        // A script that hangs fails its test, not the whole run.
        let mut command = Command::new("timeout");
        command
            .args([
                "--kill-after=1",
                "600",
                "sh",
                "-c",
                &format!("{{ {script}\n}} 2>&1"),
            ])
            .current_dir("/tmp");
        let output = self.inside(move || command.output().unwrap());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts a program on the host and waits for its first line. Dropping the result kills it.
    ///
    /// # Panics
    /// The program cannot be started, or ends without a line.
    #[must_use]
    pub fn program(&self, words: &[&str]) -> Program {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdout(Stdio::piped());
        let mut program = Program(self.inside(move || started(command)));
        let mut line = String::new();
        BufReader::new(program.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_ne!(line, "", "{words:?} ended without a line");
        program
    }

    /// Starts a server that answers every request with `hello` and records the bytes that it
    /// receives.
    #[must_use]
    pub fn http(&self, address: &str) -> Upstream {
        Upstream::start(
            self,
            address.parse().unwrap(),
            Some(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        )
    }

    /// Starts an echo server.
    #[must_use]
    pub fn echo(&self, address: SocketAddr) -> Upstream {
        Upstream::start(self, address, None)
    }

    /// Returns a sandbox on this host under `policy`, a YAML document.
    #[must_use]
    pub fn sandbox(&self, policy: &str) -> Sandbox<'_> {
        Sandbox::new(self, policy)
    }
}

/// Makes the user who starts the sandboxes the owner of a file.
pub(crate) fn give_to_caller(path: &Path) {
    if tier() == Tier::Rootless {
        std::os::unix::fs::chown(path, Some(UID), Some(UID)).unwrap();
    }
}

/// A program that runs on a host until it is dropped.
#[derive(Debug)]
pub struct Program(Child);

impl Program {
    /// Returns the process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Moves the calling thread into new namespaces and sets them up.
fn enter(files: &Path, addresses: &[String]) {
    #[expect(
        deprecated,
        reason = "what makes unshare unsafe is the descriptor table, which stays shared here"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS)
        .expect("namespaces: the tests need root");
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private).unwrap();
    for folder in ["/run", "/var/log"] {
        rustix::mount::mount(
            "lab",
            folder,
            "tmpfs",
            MountFlags::empty(),
            Some(c"mode=755"),
        )
        .unwrap();
    }
    for file in ["hosts", "resolv.conf"] {
        rustix::mount::mount_bind(files.join(file), Path::new("/etc").join(file)).unwrap();
    }
    if tier() == Tier::Rootless {
        let runtime = format!("/run/user/{UID}");
        std::fs::create_dir_all(&runtime).unwrap();
        std::fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&runtime, Some(UID), Some(UID)).unwrap();
        // The folder of the build may be closed to the user.
        rustix::mount::mount_bind(binary(), files.join(BINARY)).unwrap();
    }
    let ip = |arguments: &[&str]| {
        let status = Command::new("ip")
            .args(arguments)
            .status()
            .expect("`ip`, of Debian's iproute2");
        assert!(status.success(), "ip {arguments:?}");
    };
    ip(&["link", "set", "lo", "up"]);
    for address in addresses
        .iter()
        .filter(|address| !address.starts_with("127."))
    {
        let address = format!("{address}/32");
        let replace = ["addr", "replace", &address, "dev", "lo"];
        // Without it the kernel looks for duplicates first, and a server cannot have the address
        // yet (RFC 4862 §5.4).
        let at_once = ["nodad"];
        let further = if address.contains(':') {
            &at_once[..]
        } else {
            &[]
        };
        ip(&[&replace[..], further].concat());
    }
}

/// Starts `command`. If its program was written just now, a process that another thread starts at
/// that time has it open until its own program begins (ETXTBSY).
fn started(mut command: Command) -> Child {
    let start = || match command.spawn() {
        Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
        result => Some(result.unwrap()),
    };
    crate::wait_for(start, || "the program stays open for writing".to_owned())
}
