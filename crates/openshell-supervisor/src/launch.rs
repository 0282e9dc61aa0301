//! Asks init to start commands, entrypoint and others alike, and hears what becomes of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::confine::{Confinement, Enforced, Step};
use crate::init::Init;
use crate::init::ipc::{self, Command, NotStarted, Reply, Request, Status};

/// Why a command was not started, or init not confined.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum LaunchError {
    #[error("cannot talk to the sandbox's init")]
    Ipc { source: io::Error },
    #[error("the sandbox's init ended")]
    Gone,
    #[error("{0}")]
    Confinement(String),
    #[error("command not found: {0}")]
    NotFound(String),
    #[error("command cannot be executed: {command}")]
    NotExecutable { command: String, source: io::Error },
    #[error("command cannot be executed: {0} is there, but the interpreter or loader that it names is not")]
    NoInterpreter(String),
    #[error("the command was not started: cannot enter the working directory")]
    Directory { source: io::Error },
    #[error("the command was not started: cannot {step}")]
    Step { step: &'static str, source: io::Error },
    #[error("the sandbox's init could not start the command: {0}")]
    Init(String),
    #[error("cannot start the thread that listens to the sandbox's init")]
    Thread { source: io::Error },
}

/// What becomes of a command.
#[derive(Debug)]
pub enum Event {
    /// It runs.
    Started(Running),
    /// It never ran.
    NotStarted(LaunchError),
    /// Stopped by this signal (Ctrl-Z, say).
    Stopped(i32),
    /// It ended.
    Ended(Status),
    /// Init has ended the sandbox, as [`Launcher::end_after`] asked.
    OutOfTime,
    /// Init is gone, and with it every process of the sandbox; why, if init could still say.
    SandboxGone(Option<String>),
}

/// Where a command's events go. Called on the launcher's thread; must not block.
pub type Listener = Box<dyn Fn(Event) + Send>;

/// An init that is confined and starts commands. Dropping it ends the sandbox.
#[derive(Debug)]
pub struct Launcher {
    init: Arc<Init>,
    registry: Arc<Mutex<Registry>>,
}

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    id: u32,
    init: Arc<Init>,
    /// Its number inside the sandbox.
    pub pid: i32,
    /// Refers to its process alone; `None` where the supervisor had no descriptor left for it.
    pidfd: Option<OwnedFd>,
}

/// Who waits for news of which command.
#[derive(Default)]
struct Registry {
    last_id: u32,
    /// What each command is called in messages, and who listens.
    listeners: HashMap<u32, (String, Arc<Mutex<Listener>>)>,
    /// Init is gone; nothing can be started.
    is_gone: bool,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("last_id", &self.last_id)
            .field("is_gone", &self.is_gone)
            .finish_non_exhaustive()
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
        let ipc = |source| LaunchError::Ipc { source };
        ipc::send(init.socket.as_fd(), &Request::Confine(confinement), network.as_slice()).map_err(ipc)?;
        let enforced = match ipc::receive(init.socket.as_fd()).map_err(ipc)? {
            Some((Reply::Confined(enforced), _)) => enforced,
            Some((Reply::Failed(why), _)) => return Err(LaunchError::Confinement(why)),
            Some(_) | None => return Err(LaunchError::Gone),
        };
        let launcher = Self { init: Arc::new(init), registry: Arc::default() };
        let (init, registry) = (Arc::clone(&launcher.init), Arc::clone(&launcher.registry));
        let listen = move || listen(&init, &registry);
        let thread = std::thread::Builder::new().name("launcher".to_owned()).spawn(listen);
        thread.map_err(|source| LaunchError::Thread { source })?;
        Ok((launcher, enforced))
    }

    /// Has `command` started with `streams` as its standard ones. What becomes of it, `listener` hears: that it runs, or
    /// why it does not, first.
    ///
    /// # Errors
    /// Init cannot be asked.
    pub fn start(
        &self,
        command: &Command,
        streams: [BorrowedFd<'_>; 3],
        listener: Listener,
    ) -> Result<(), LaunchError> {
        let name = command.arguments.first().map(|name| name.display().to_string()).unwrap_or_default();
        let id = {
            let mut registry = lock(&self.registry);
            if registry.is_gone {
                return Err(LaunchError::Gone);
            }
            registry.last_id += 1;
            let id = registry.last_id;
            registry.listeners.insert(id, (name, Arc::new(Mutex::new(listener))));
            id
        };
        let request = Request::Start { id, command: command.clone() };
        ipc::send(self.init.socket.as_fd(), &request, &streams).map_err(|source| {
            lock(&self.registry).listeners.remove(&id);
            LaunchError::Ipc { source }
        })
    }

    /// Has init end the sandbox when `time` has passed, also if the supervisor is stopped by then.
    ///
    /// # Errors
    /// Init cannot be asked.
    pub fn end_after(&self, time: Duration) -> Result<(), LaunchError> {
        let request = Request::EndAfter(time);
        ipc::send(self.init.socket.as_fd(), &request, &[]).map_err(|source| LaunchError::Ipc { source })
    }

    /// Init's number in the supervisor's PID namespace; `nsenter -t` takes it.
    #[must_use]
    pub fn init_pid(&self) -> i32 {
        self.init.pid()
    }

    /// Ends the sandbox; returns when every process of it is gone.
    pub fn end(&self) {
        self.init.end();
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The listening thread holds init too, so init's own end would wait for the thread's.
        self.end();
    }
}

impl Running {
    /// Its number in the supervisor's PID namespace, which is also its process group's.
    ///
    /// # Errors
    /// It has ended, or /proc is not there.
    pub fn outer_pid(&self) -> io::Result<i32> {
        let pidfd = self.pidfd.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
        pid.filter(|pid| *pid > 0).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Sends `signal` to the command's process group.
    ///
    /// # Errors
    /// Init is gone.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        ipc::send(self.init.socket.as_fd(), &Request::Signal { id: self.id, signal }, &[])
    }
}

/// Tells everybody who waits that the sandbox is gone, however listening to it ended.
struct EndNotice<'w> {
    init: &'w Init,
    registry: &'w Mutex<Registry>,
    failure: Option<String>,
    is_out_of_time: bool,
}

impl Drop for EndNotice<'_> {
    fn drop(&mut self) {
        // A reply that cannot be read ends the sandbox as surely as the end of the socket.
        let _ = rustix::net::shutdown(&self.init.socket, rustix::net::Shutdown::Both);
        let listeners = {
            let mut registry = lock(self.registry);
            registry.is_gone = true;
            std::mem::take(&mut registry.listeners)
        };
        for (_, listener) in listeners.into_values() {
            lock(&listener)(match self.is_out_of_time {
                true => Event::OutOfTime,
                false => Event::SandboxGone(self.failure.clone()),
            });
        }
    }
}

/// Hands init's replies to those who wait for them, until init ends.
fn listen(init: &Arc<Init>, registry: &Mutex<Registry>) {
    let mut notice = EndNotice { init, registry, failure: None, is_out_of_time: false };
    while let Ok(Some((reply, descriptors))) = ipc::receive(init.socket.as_fd()) {
        match reply {
            Reply::Started { id, pid } => {
                let pidfd = descriptors.into_iter().next();
                notify(registry, id, |_| Event::Started(Running { id, init: Arc::clone(init), pid, pidfd }));
            }
            Reply::NotStarted { id, why } => {
                notify(registry, id, |name| Event::NotStarted(not_started(name, why)));
                lock(registry).listeners.remove(&id);
            }
            Reply::Stopped { id, signal } => notify(registry, id, |_| Event::Stopped(signal)),
            Reply::Exited { id, status } => {
                notify(registry, id, |_| Event::Ended(status));
                lock(registry).listeners.remove(&id);
            }
            Reply::Failed(why) => notice.failure = Some(why),
            Reply::OutOfTime => notice.is_out_of_time = true,
            Reply::Up | Reply::NoProc(_) | Reply::Confined(_) => {}
        }
    }
}

/// Tells the listener of `id`, outside the lock that others wait for.
fn notify(registry: &Mutex<Registry>, id: u32, event: impl FnOnce(&str) -> Event) {
    let found = lock(registry).listeners.get(&id).map(|(name, listener)| (name.clone(), Arc::clone(listener)));
    if let Some((name, listener)) = found {
        lock(&listener)(event(&name));
    }
}

fn not_started(name: &str, why: NotStarted) -> LaunchError {
    let (name, source) = (name.to_owned(), io::Error::from_raw_os_error);
    match why {
        NotStarted::NotFound => LaunchError::NotFound(name),
        NotStarted::NoInterpreter => LaunchError::NoInterpreter(name),
        NotStarted::NotExecutable { errno } => LaunchError::NotExecutable { command: name, source: source(errno) },
        NotStarted::Step(failed) if failed.step == Step::WorkingDirectory => {
            LaunchError::Directory { source: source(failed.errno) }
        }
        NotStarted::Step(failed) => LaunchError::Step { step: failed.step.as_str(), source: source(failed.errno) },
        NotStarted::Init { what } => LaunchError::Init(what),
    }
}

/// What is behind the locks is whole at every moment, so a panic elsewhere spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
