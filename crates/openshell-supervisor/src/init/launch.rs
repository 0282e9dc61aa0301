//! Starts commands through init and reports their events.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::calls::waiting_calls::WaitingCalls;
use crate::command::packets;
use crate::command::pty::{Size, Terminal};
use crate::confine::{Confinement, Enforced, Step};
use crate::files::landlock;
use crate::files::protected::Protection;
use crate::init::ipc::{Command, NotStarted, Reply, Request, Status};
use crate::init::{Init, Loss};

/// A failure to confine init or to start a command.
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
    #[error(
        "command cannot be executed: {0} exists, but the interpreter or loader that it names does \
         not"
    )]
    NoInterpreter(String),
    #[error("the command was not started: cannot enter the working directory")]
    Directory { source: io::Error },
    #[error("the command was not started: cannot {step}")]
    Step {
        step: &'static str,
        source: io::Error,
    },
    #[error("the sandbox's init could not start the command: {0}")]
    Init(String),
    #[error("cannot open a terminal; the image must have a /dev/pts")]
    Terminal { source: io::Error },
    #[error(
        "cannot start the thread that listens to the sandbox's init; raise the limit of processes \
         (pids.max, ulimit -u)"
    )]
    Thread { source: io::Error },
}

impl LaunchError {
    /// Returns the exit code that a shell would give: 127 if the command is not found, 126 if it
    /// cannot be executed, otherwise 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } | Self::NoInterpreter(_) => 126,
            _ => 1,
        }
    }
}

/// An event in a command's life.
#[derive(Debug)]
pub enum Event {
    /// The command runs.
    Started(Running),
    /// The command never ran.
    NotStarted(LaunchError),
    /// The command was stopped by this signal, for example SIGTSTP.
    Stopped(i32),
    /// Everything in the sandbox is stopped, after a call of [`Launcher::stop_all`].
    AllStopped,
    /// The command ended.
    Ended(Status),
    /// Init ended the sandbox at the time set by [`Launcher::end_after`].
    OutOfTime,
    /// Init is gone, and with it every process of the sandbox; with the reason, if init could still
    /// report it.
    SandboxGone(Option<String>),
    /// Init ended the sandbox because a path is no longer protected from the workload; with the
    /// message of the [`LossListener`].
    Lost(String),
}

/// A callback for paths that are no longer protected from the workload; it returns a message. It
/// runs on the launcher's thread and must not block.
pub type LossListener = Box<dyn Fn(&Loss) -> String + Send>;

/// A callback for a command's events. It runs on the launcher's thread and must not block.
pub type Listener = Box<dyn Fn(Event) + Send>;

/// A callback for a terminal. It runs on the launcher's thread and must not block.
pub type TerminalListener = Box<dyn FnOnce(Result<Terminal, LaunchError>) + Send>;

/// A confined init that starts commands. Dropping it ends the sandbox.
#[derive(Debug)]
pub struct Launcher {
    init: Arc<Init>,
    registry: Arc<Mutex<Registry>>,
}

/// A running command.
#[derive(Debug)]
pub struct Running {
    id: u32,
    init: Arc<Init>,
    /// The PID inside the sandbox.
    pub pid: i32,
    /// The pidfd of the process; `None` if the supervisor had no free descriptor to receive it.
    pidfd: Option<OwnedFd>,
}

/// The listeners of all commands and of the terminals that were asked for.
#[derive(Default)]
struct Registry {
    last_id: u32,
    terminals: HashMap<u32, (Size, TerminalListener)>,
    /// The name of each command, for messages, and its listener.
    listeners: HashMap<u32, (String, Arc<Mutex<Listener>>)>,
    on_loss: Option<LossListener>,
    /// True once init is gone; then no command can be started.
    is_gone: bool,
}

impl Registry {
    fn next_id(&mut self) -> Result<u32, LaunchError> {
        if self.is_gone {
            return Err(LaunchError::Gone);
        }
        self.last_id += 1;
        Ok(self.last_id)
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("last_id", &self.last_id)
            .field("is_gone", &self.is_gone)
            .finish_non_exhaustive()
    }
}

/// An init that is confining itself. Its descriptor is readable when it is done.
#[derive(Debug)]
pub struct Confining {
    init: Init,
}

impl Confining {
    /// Makes `init` confine itself, up to the point at which it enters the network.
    ///
    /// # Errors
    /// Fails if init is gone.
    pub fn start(init: Init, confinement: Confinement) -> Result<Self, LaunchError> {
        let request = Request::Confine(Box::new(confinement));
        packets::send(init.socket.as_fd(), &request, &[])
            .map_err(|source| LaunchError::Ipc { source })?;
        Ok(Self { init })
    }

    /// Makes init continue, in the network `namespace` if given. `firewall_probe` is a listener
    /// that the egress firewall must refuse, and `outputs` are files that the command gets as its
    /// outputs.
    pub fn enter(
        &self,
        namespace: Option<BorrowedFd<'_>>,
        firewall_probe: Option<SocketAddrV4>,
        outputs: &[BorrowedFd<'_>],
    ) {
        // If init is gone, its last reply tells why.
        let request = Request::Enter {
            is_own: namespace.is_some(),
            firewall_probe,
        };
        let descriptors = [namespace.as_slice(), outputs].concat();
        let _ = packets::send(self.init.socket.as_fd(), &request, &descriptors);
    }

    /// Returns the init.
    #[must_use]
    pub fn init(&self) -> &Init {
        &self.init
    }

    /// Waits until init is confined. From then on, the returned calls of the sandbox wait for an
    /// answer: every connect if there is an egress firewall, and the calls about files that the
    /// confinement selects.
    ///
    /// # Errors
    /// Fails if a mechanism is missing or could not be proved (the message names it), or if init is
    /// gone.
    pub fn finish(self) -> Result<(Launcher, Enforced, Option<WaitingCalls>), LaunchError> {
        let reply = packets::receive(self.init.socket.as_fd())
            .map_err(|source| LaunchError::Ipc { source })?;
        let (enforced, descriptors) = match reply {
            Some((Reply::Confined(enforced), descriptors)) => (*enforced, descriptors),
            Some((Reply::Failed(why), _)) => return Err(LaunchError::Confinement(why)),
            Some(_) | None => return Err(LaunchError::Gone),
        };
        let calls = descriptors.into_iter().next().map(WaitingCalls::new);
        let launcher = Launcher {
            init: Arc::new(self.init),
            registry: Arc::default(),
        };
        let init = Arc::clone(&launcher.init);
        let registry = Arc::clone(&launcher.registry);
        let listen = move || listen(&init, &registry);
        let thread = std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(listen);
        thread.map_err(|source| LaunchError::Thread { source })?;
        Ok((launcher, enforced, calls))
    }
}

impl AsFd for Confining {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.init.socket.as_fd()
    }
}

impl Launcher {
    /// Starts `command` with `streams` as its standard input, output and error. The first event
    /// that `listener` receives is [`Event::Started`] or [`Event::NotStarted`].
    ///
    /// # Errors
    /// Fails if the request cannot be sent to init.
    pub fn start(
        &self,
        command: &Command,
        streams: [BorrowedFd<'_>; 3],
        listener: Listener,
    ) -> Result<(), LaunchError> {
        self.start_with(command, &streams, listener)
    }

    /// Starts `command` like [`Self::start`]; `terminal` is the terminal of its
    /// [`crate::init::Session::Job`].
    ///
    /// # Errors
    /// Fails if the request cannot be sent to init.
    pub fn start_job(
        &self,
        command: &Command,
        [input, output, errors]: [BorrowedFd<'_>; 3],
        terminal: BorrowedFd<'_>,
        listener: Listener,
    ) -> Result<(), LaunchError> {
        self.start_with(command, &[input, output, errors, terminal], listener)
    }

    fn start_with(
        &self,
        command: &Command,
        descriptors: &[BorrowedFd<'_>],
        listener: Listener,
    ) -> Result<(), LaunchError> {
        let name = command
            .arguments
            .first()
            .map(|name| name.display().to_string())
            .unwrap_or_default();
        let id = {
            let mut registry = self.registry.lock();
            let id = registry.next_id()?;
            registry
                .listeners
                .insert(id, (name, Arc::new(Mutex::new(listener))));
            id
        };
        let request = Request::Start {
            id,
            command: command.clone(),
        };
        packets::send(self.init.socket.as_fd(), &request, descriptors).map_err(|source| {
            self.registry.lock().listeners.remove(&id);
            LaunchError::Ipc { source }
        })
    }

    /// Calls `listener` when the sandbox ends, and only then.
    ///
    /// # Errors
    /// Fails if the sandbox has already ended.
    pub fn on_end(&self, listener: Listener) -> Result<(), LaunchError> {
        let mut registry = self.registry.lock();
        let id = registry.next_id()?;
        registry
            .listeners
            .insert(id, (String::new(), Arc::new(Mutex::new(listener))));
        Ok(())
    }

    /// Calls `listener` for paths that are no longer protected from the workload.
    pub fn on_loss(&self, listener: LossListener) {
        self.registry.lock().on_loss = Some(listener);
    }

    /// Makes init stop every process of the sandbox. The listener of `running` then gets
    /// [`Event::AllStopped`]. If init has ended, this does nothing; that end has its own event.
    pub fn stop_all(&self, running: &Running) {
        let _ = packets::send(
            self.init.socket.as_fd(),
            &Request::StopAll { id: running.id },
            &[],
        );
    }

    /// Makes init, if it still runs, continue what it stopped.
    pub fn continue_all(&self) {
        let _ = packets::send(self.init.socket.as_fd(), &Request::ContinueAll, &[]);
    }

    /// Opens a terminal of `size` in the sandbox.
    ///
    /// # Errors
    /// Fails if the request cannot be sent to init.
    pub fn open_terminal(&self, size: Size, listener: TerminalListener) -> Result<(), LaunchError> {
        let id = {
            let mut registry = self.registry.lock();
            let id = registry.next_id()?;
            registry.terminals.insert(id, (size, listener));
            id
        };
        packets::send(self.init.socket.as_fd(), &Request::OpenTerminal { id }, &[]).map_err(
            |source| {
                self.registry.lock().terminals.remove(&id);
                LaunchError::Ipc { source }
            },
        )
    }

    /// Makes init end the sandbox after `time`, even if the supervisor is stopped by then.
    ///
    /// # Errors
    /// Fails if the request cannot be sent to init.
    pub fn end_after(&self, time: Duration) -> Result<(), LaunchError> {
        let request = Request::EndAfter(time);
        packets::send(self.init.socket.as_fd(), &request, &[])
            .map_err(|source| LaunchError::Ipc { source })
    }

    /// Returns the protection of the files that the supervisor reads again. `landlock` are the file
    /// rules, and `secrets` are the protected files that hold secrets.
    #[must_use]
    pub fn protection(
        &self,
        enforced: &Enforced,
        secrets: &[PathBuf],
        landlock: landlock::Request,
    ) -> Protection {
        let mounted = enforced.protected.0.clone();
        let is_covered = |path: &&PathBuf| mounted.iter().any(|point| point.path == **path);
        let secrets = secrets.iter().filter(is_covered).cloned().collect();
        let program = std::env::current_exe().ok();
        Protection {
            init: self.init.pid(),
            mounted,
            secrets,
            program,
            landlock,
        }
    }

    /// Returns init's PID in the supervisor's PID namespace, for example for `nsenter -t`.
    #[must_use]
    pub fn init_pid(&self) -> i32 {
        self.init.pid()
    }

    /// Kills all processes of the sandbox, without waiting until they are gone.
    pub fn kill(&self) {
        self.init.kill();
    }

    /// Ends the sandbox and waits until all of its processes are gone.
    pub fn end(&self) {
        self.init.end();
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The listening thread holds a reference to init, so dropping this one would end nothing.
        self.end();
    }
}

impl Running {
    /// Returns the PID in the supervisor's PID namespace, which is also the number of the process
    /// group.
    ///
    /// # Errors
    /// Fails if the command has ended, its pidfd is missing, or /proc is not mounted.
    pub fn outer_pid(&self) -> io::Result<i32> {
        let pidfd = self.pidfd.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let pid = text
            .lines()
            .find_map(|line| line.strip_prefix("Pid:"))
            .and_then(|pid| pid.trim().parse().ok());
        pid.filter(|pid| *pid > 0)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Continues the command's process group. If the command has [`crate::init::Session::Job`], it
    /// first gets or loses the foreground of its terminal. If init has ended, this does nothing;
    /// that end has its own event.
    pub fn continue_in(&self, is_foreground: bool) {
        let _ = packets::send(
            self.init.socket.as_fd(),
            &Request::Continue {
                id: self.id,
                is_foreground,
            },
            &[],
        );
    }

    /// Sends `signal` to the command's process group.
    ///
    /// # Errors
    /// Fails if init is gone.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        packets::send(
            self.init.socket.as_fd(),
            &Request::Signal {
                id: self.id,
                signal,
            },
            &[],
        )
    }
}

/// A value that reports the end of the sandbox to all listeners on drop, however the listening
/// thread ends.
struct EndNotice<'w> {
    init: &'w Init,
    registry: &'w Mutex<Registry>,
    failure: Option<String>,
    /// The message about the loss that makes init end the sandbox.
    loss: Option<String>,
    is_out_of_time: bool,
}

impl Drop for EndNotice<'_> {
    fn drop(&mut self) {
        // An unreadable reply ends the sandbox as well.
        let _ = rustix::net::shutdown(&self.init.socket, rustix::net::Shutdown::Both);
        let (listeners, terminals) = {
            let mut registry = self.registry.lock();
            registry.is_gone = true;
            (
                std::mem::take(&mut registry.listeners),
                std::mem::take(&mut registry.terminals),
            )
        };
        for (_, listener) in terminals.into_values() {
            listener(Err(LaunchError::Gone));
        }
        for (_, listener) in listeners.into_values() {
            listener.lock()(match &self.loss {
                Some(message) => Event::Lost(message.clone()),
                None if self.is_out_of_time => Event::OutOfTime,
                None => Event::SandboxGone(self.failure.clone()),
            });
        }
    }
}

/// Dispatches init's replies to the listeners until init ends.
fn listen(init: &Arc<Init>, registry: &Mutex<Registry>) {
    let mut notice = EndNotice {
        init,
        registry,
        failure: None,
        loss: None,
        is_out_of_time: false,
    };
    while let Ok(Some((reply, descriptors))) = packets::receive(init.socket.as_fd()) {
        match reply {
            Reply::Started { id, pid } => {
                let pidfd = descriptors.into_iter().next();
                notify(registry, id, |_| {
                    Event::Started(Running {
                        id,
                        init: Arc::clone(init),
                        pid,
                        pidfd,
                    })
                });
            }
            Reply::NotStarted { id, why } => {
                notify(registry, id, |name| {
                    Event::NotStarted(not_started(name, why))
                });
                registry.lock().listeners.remove(&id);
            }
            Reply::Terminal { id } => {
                // The descriptor is missing if the supervisor had no free one.
                let master = descriptors
                    .into_iter()
                    .next()
                    .ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE));
                opened(registry, id, master);
            }
            Reply::NoTerminal { id, errno } => {
                opened(registry, id, Err(io::Error::from_raw_os_error(errno)))
            }
            Reply::Stopped { id, signal } => notify(registry, id, |_| Event::Stopped(signal)),
            Reply::Exited { id, status } => {
                notify(registry, id, |_| Event::Ended(status));
                registry.lock().listeners.remove(&id);
            }
            Reply::AllStopped { id } => notify(registry, id, |_| Event::AllStopped),
            Reply::Lost(loss) => {
                let message = lost(registry, &loss);
                if loss.is_end {
                    notice.loss = Some(message);
                }
            }
            Reply::Failed(why) => notice.failure = Some(why),
            Reply::OutOfTime => notice.is_out_of_time = true,
            Reply::Up | Reply::NoProc(_) | Reply::Confined(_) => {}
        }
    }
}

/// Tells the listener of a loss; returns its message.
fn lost(registry: &Mutex<Registry>, loss: &Loss) -> String {
    match &registry.lock().on_loss {
        Some(on_loss) => on_loss(loss),
        None => "a path was replaced outside".to_owned(),
    }
}

/// Calls the listener of `id` with the event, without holding the lock of the registry.
fn notify(registry: &Mutex<Registry>, id: u32, event: impl FnOnce(&str) -> Event) {
    let found = registry
        .lock()
        .listeners
        .get(&id)
        .map(|(name, listener)| (name.clone(), Arc::clone(listener)));
    if let Some((name, listener)) = found {
        listener.lock()(event(&name));
    }
}

/// Calls the listener of terminal `id` with its master, without holding the lock of the registry.
fn opened(registry: &Mutex<Registry>, id: u32, master: io::Result<OwnedFd>) {
    let found = registry.lock().terminals.remove(&id);
    if let Some((size, listener)) = found {
        let terminal = master.and_then(|master| Terminal::of_master(master, size));
        listener(terminal.map_err(|source| LaunchError::Terminal { source }));
    }
}

fn not_started(name: &str, why: NotStarted) -> LaunchError {
    let name = name.to_owned();
    let source = io::Error::from_raw_os_error;
    match why {
        NotStarted::NotFound => LaunchError::NotFound(name),
        NotStarted::NoInterpreter => LaunchError::NoInterpreter(name),
        NotStarted::NotExecutable { errno } => LaunchError::NotExecutable {
            command: name,
            source: source(errno),
        },
        NotStarted::Step(failed) if failed.step == Step::WorkingDirectory => {
            LaunchError::Directory {
                source: source(failed.errno),
            }
        }
        NotStarted::Step(failed) => LaunchError::Step {
            step: failed.step.as_str(),
            source: source(failed.errno),
        },
        NotStarted::Init { what } => LaunchError::Init(what),
    }
}
