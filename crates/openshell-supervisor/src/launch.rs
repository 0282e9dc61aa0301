//! Asks init to start commands, entrypoint and others alike, and hears what becomes of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use rustix::process::Signal;

use crate::confine::{Confinement, Enforced};
use crate::init::Init;
use crate::init::wire::{self, Command, NotStarted, Reply, Request, Status};

/// Why a command was not started, or init not confined.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum LaunchError {
    #[error("cannot talk to the sandbox's init")]
    Wire { source: io::Error },
    #[error("the sandbox's init ended")]
    Gone,
    #[error("{0}")]
    Confinement(String),
    #[error("command not found: {0}")]
    NotFound(String),
    #[error("command cannot be executed: {command}")]
    NotExecutable { command: String, source: io::Error },
    #[error("the command was not started: cannot {step}")]
    Step { step: &'static str, source: io::Error },
    #[error("the sandbox's init could not start the command: {0}")]
    Init(String),
    #[error("cannot start the thread that listens to the sandbox's init")]
    Thread { source: io::Error },
}

/// What becomes of a command that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Stopped by this signal (Ctrl-Z, say).
    Stopped(i32),
    /// It ended.
    Ended(Status),
    /// Init is gone, and with it every process of the sandbox.
    SandboxGone,
}

/// Where a command's events go. Called on the launcher's thread; must not block.
pub type Listener = Box<dyn Fn(Event) + Send>;

/// An init that is confined and starts commands.
#[derive(Debug)]
pub struct Launcher {
    init: Arc<Init>,
    waiting: Arc<Mutex<Waiting>>,
}

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    id: u32,
    init: Arc<Init>,
    /// Its number inside the sandbox.
    pub pid: i32,
    /// Refers to its process alone.
    pub pidfd: OwnedFd,
}

/// A command's number inside the sandbox and its pidfd, or why there is none.
type Started = Result<(i32, OwnedFd), NotStarted>;

#[derive(Default)]
struct Waiting {
    last: u32,
    starting: HashMap<u32, mpsc::SyncSender<Started>>,
    running: HashMap<u32, Listener>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("last", &self.last).finish_non_exhaustive()
    }
}

impl Launcher {
    /// Has `init` confine itself, inside `network` where there is one.
    ///
    /// # Errors
    /// A mechanism is missing or was not proved; its message names which.
    pub fn confine(
        init: Init,
        confinement: Confinement,
        network: Option<BorrowedFd<'_>>,
    ) -> Result<(Self, Enforced), LaunchError> {
        let wire = |source| LaunchError::Wire { source };
        wire::send_request(init.socket.as_fd(), &Request::Confine(confinement), network.as_slice()).map_err(wire)?;
        let enforced = match wire::receive_reply(init.socket.as_fd()).map_err(wire)? {
            Some((Reply::Confined(enforced), _)) => enforced,
            Some((Reply::Failed(why), _)) => return Err(LaunchError::Confinement(why)),
            Some(_) | None => return Err(LaunchError::Gone),
        };
        let launcher = Self { init: Arc::new(init), waiting: Arc::default() };
        let (init, waiting) = (Arc::clone(&launcher.init), Arc::clone(&launcher.waiting));
        let listen = move || listen(&init, &waiting);
        let thread = std::thread::Builder::new().name("launcher".to_owned()).spawn(listen);
        thread.map_err(|source| LaunchError::Thread { source })?;
        Ok((launcher, enforced))
    }

    /// Starts `command` with `streams` as its standard ones and returns when it runs.
    ///
    /// # Errors
    /// It is not found, cannot be executed, or a step of its confinement failed; it never ran then.
    pub fn start(
        &self,
        command: &Command,
        streams: [BorrowedFd<'_>; 3],
        listener: Listener,
    ) -> Result<Running, LaunchError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let id = {
            let mut waiting = lock(&self.waiting);
            waiting.last += 1;
            let id = waiting.last;
            waiting.starting.insert(id, sender);
            waiting.running.insert(id, listener);
            id
        };
        let request = Request::Start { id, command: command.clone() };
        let sent = wire::send_request(self.init.socket.as_fd(), &request, &streams);
        let started = match sent {
            Ok(()) => receiver.recv().map_err(|_| LaunchError::Gone),
            Err(source) => Err(LaunchError::Wire { source }),
        };
        match started {
            Ok(Ok((pid, pidfd))) => Ok(Running { id, init: Arc::clone(&self.init), pid, pidfd }),
            Ok(Err(why)) => {
                lock(&self.waiting).running.remove(&id);
                Err(not_started(command, why))
            }
            Err(error) => {
                let mut waiting = lock(&self.waiting);
                waiting.starting.remove(&id);
                waiting.running.remove(&id);
                Err(error)
            }
        }
    }

    /// Init's number in the supervisor's PID namespace; `nsenter -t` takes it.
    #[must_use]
    pub fn init_pid(&self) -> i32 {
        self.init.pid()
    }

    /// Kills init, and the kernel with it every process of the sandbox.
    pub fn end(&self) {
        // A graceless end is the only one init has: its namespace's processes are the kernel's to end. Where it shares
        // the supervisor's PIDs it ends them itself, at the end of its socket.
        let _ = rustix::net::shutdown(&self.init.socket, rustix::net::Shutdown::Both);
        if self.init.shared_pids.is_none() {
            let _ = rustix::process::pidfd_send_signal(&self.init.pidfd, Signal::KILL);
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.end();
    }
}

impl Running {
    /// Its number in the supervisor's PID namespace, which is also its process group's.
    ///
    /// # Errors
    /// It has ended, or /proc is not there.
    pub fn outer_pid(&self) -> io::Result<i32> {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.pidfd.as_raw_fd()))?;
        let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
        pid.filter(|pid| *pid > 0).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Sends `signal` to the command's process group.
    ///
    /// # Errors
    /// Init is gone.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        wire::send_request(self.init.socket.as_fd(), &Request::Signal { id: self.id, signal }, &[])
    }
}

/// Hands init's replies to those who wait for them, until init ends.
fn listen(init: &Init, waiting: &Mutex<Waiting>) {
    while let Ok(Some((reply, descriptor))) = wire::receive_reply(init.socket.as_fd()) {
        let mut waiting = lock(waiting);
        match (reply, descriptor) {
            (Reply::Started { id, pid }, Some(pidfd)) => answer(&mut waiting, id, Ok((pid, pidfd))),
            (Reply::Started { id, .. }, None) => {
                answer(&mut waiting, id, Err(NotStarted::Init { what: "it sent no pidfd".to_owned() }));
            }
            (Reply::NotStarted { id, why }, _) => answer(&mut waiting, id, Err(why)),
            (Reply::Stopped { id, signal }, _) => {
                if let Some(listener) = waiting.running.get(&id) {
                    listener(Event::Stopped(signal));
                }
            }
            (Reply::Exited { id, status }, _) => {
                if let Some(listener) = waiting.running.remove(&id) {
                    listener(Event::Ended(status));
                }
            }
            (Reply::Up | Reply::Failed(_) | Reply::Confined(_), _) => break,
        }
    }
    let mut waiting = lock(waiting);
    waiting.starting.clear();
    waiting.running.drain().for_each(|(_, listener)| listener(Event::SandboxGone));
}

fn answer(waiting: &mut Waiting, id: u32, result: Started) {
    // Who asked has a place for one answer, or has gone.
    let _ = waiting.starting.remove(&id).map(|sender| sender.try_send(result));
}

fn not_started(command: &Command, why: NotStarted) -> LaunchError {
    let name = command.arguments.first().map(|name| name.display().to_string()).unwrap_or_default();
    let source = io::Error::from_raw_os_error;
    match why {
        NotStarted::NotFound => LaunchError::NotFound(name),
        NotStarted::NotExecutable { errno } => LaunchError::NotExecutable { command: name, source: source(errno) },
        NotStarted::Step(failed) => LaunchError::Step { step: failed.step.as_str(), source: source(failed.errno) },
        NotStarted::Init { what } => LaunchError::Init(what),
    }
}

/// What is behind the lock is whole at every moment, so a panic elsewhere spoils nothing.
fn lock(waiting: &Mutex<Waiting>) -> std::sync::MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
