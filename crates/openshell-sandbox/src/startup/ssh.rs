//! Starts the SSH server: its doors, and the thread that it runs on. A server that cannot be had is an event, and ends no run.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail};
use openshell_gateway::session::{self, Dialing, RelayTarget};
use openshell_policy::event::Audit;
use openshell_policy::words::{ConfigState, Severity, SshDoor};
use openshell_ssh::doors;
use openshell_ssh::main_process::MainProcess;
use openshell_ssh::preface::Prefaces;
use openshell_ssh::server::{Client, Server};
use openshell_ssh::workload::{Inside as _, Workload};
use openshell_supervisor::environment::Environment;
use openshell_supervisor::launch::Launcher;
use openshell_supervisor::peer;
use rustix::fs::Mode;
use tokio::sync::{mpsc, oneshot};

use crate::config::{SshDoors, SshOverTcp};
use crate::logging;
use crate::startup::inside::InsideNetwork;

/// Longest wait for sessions to tell their clients of the end of the sandbox.
const ENDING: Duration = Duration::from_secs(1);

/// Relays that wait to be taken by the server.
const RELAYS: usize = 64;

/// The sockets of the doors.
#[derive(Default)]
pub(super) struct SshSockets {
    tcp: Option<(TcpListener, Prefaces)>,
    socket: Option<BoundSocket>,
}

/// A socket at a path, removed when this value is dropped.
struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of what is to be removed.
    identity: (u64, u64),
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Another server may have taken its place.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|data| (data.dev(), data.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl SshSockets {
    /// Opens the doors that are named; one that cannot be opened is logged.
    pub(super) fn open(doors: &mut SshDoors) -> Self {
        let mut sockets = Self::default();
        if let Some(SshOverTcp { address, secret, skew }) = doors.tcp.take() {
            let listen = || {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                io::Result::Ok((listener.local_addr()?, listener))
            };
            match listen() {
                Ok((address, listener)) => {
                    log_enabled(&format!("{address}, for clients with the handshake secret"));
                    sockets.tcp = Some((listener, Prefaces::new(&secret, skew)));
                }
                Err(error) => log_failed(&format!("at {address}: {error}")),
            }
        }
        if let Some(path) = &doors.socket {
            match bind(path) {
                Ok(socket) => {
                    log_enabled(&format!("{}, for this user and root", path.display()));
                    sockets.socket = Some(socket);
                }
                Err(error) => log_failed(&format!("at {}: {error:#}", path.display())),
            }
        }
        sockets
    }

    /// Returns true if there is a door, or a gateway's launcher started the supervisor, whose relays are one.
    pub(super) fn is_needed(&self, is_launched: bool) -> bool {
        is_launched || self.tcp.is_some() || self.socket.is_some()
    }
}

fn log_enabled(place: &str) {
    logging::config_event(ConfigState::Enabled, Severity::Info, &format!("SSH at {place}"));
}

fn log_failed(what: &str) {
    logging::config_event(ConfigState::Failed, Severity::High, &format!("no SSH {what}"));
}

/// Listens at `path`, for this user and root alone: missing folders are made for them alone, and one that is there must not be open to
/// others. Replaces the socket of a server that is gone.
fn bind(path: &Path) -> anyhow::Result<BoundSocket> {
    let folder = path.parent().context("it names no file")?;
    if !folder.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).context("its folder cannot be made")?;
    }
    let data = std::fs::metadata(folder).context("its folder cannot be looked at")?;
    let own = rustix::process::geteuid().as_raw();
    if data.uid() != own && data.uid() != 0 || data.mode() & 0o022 != 0 && data.mode() & 0o1000 == 0 {
        bail!("others may write to its folder");
    }
    match std::fs::symlink_metadata(path) {
        Ok(data) if data.file_type().is_socket() && UnixStream::connect(path).is_err() => {
            std::fs::remove_file(path).context("the socket of an ended server is in its place")?;
        }
        Ok(_) => bail!("something else is in its place"),
        Err(_) => {}
    }
    // Between binding and a change of permissions others could connect.
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(mask);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    let data = std::fs::symlink_metadata(path)?;
    Ok(BoundSocket { listener, path: path.to_owned(), identity: (data.dev(), data.ino()) })
}

/// What sessions run in.
pub(super) fn workload(
    launcher: Arc<Launcher>,
    environment: Environment,
    directories: Vec<PathBuf>,
    main_process: Option<Arc<MainProcess>>,
    inside: Arc<InsideNetwork>,
) -> Workload {
    // Init's children are this program until they execute another.
    let internal = |service: &str| ["/proc/self/exe", "--internal", service].map(str::to_owned).to_vec();
    let (sftp, helper) = (internal("sftp"), internal("socket"));
    Workload { launcher, environment, directories, sftp, helper, main_process, inside }
}

/// A relay of a gateway on its way to the server.
type Relayed = (UnixStream, String);

/// The SSH server. Dropping it ends its connections.
pub(crate) struct SshServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    relays: mpsc::Sender<Relayed>,
    /// Path of its socket, removed last.
    _socket: Option<BoundSocket>,
}

impl Drop for SshServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl SshServer {
    /// Starts the server; `None` if it cannot be had, which is logged.
    pub(super) fn start(workload: Workload, audit: Arc<dyn Audit>, sockets: SshSockets) -> Option<Self> {
        match Self::try_start(workload, audit, sockets) {
            Ok(server) => Some(server),
            Err(error) => {
                log_failed(&format!("server: {error:#}"));
                None
            }
        }
    }

    fn try_start(workload: Workload, audit: Arc<dyn Audit>, sockets: SshSockets) -> anyhow::Result<Self> {
        let init = workload.launcher.init_pid();
        let server = Server::new(workload, audit)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (relays, mut relayed) = mpsc::channel::<Relayed>(RELAYS);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let SshSockets { tcp, socket } = sockets;
        let listener = socket.as_ref().map(|socket| socket.listener.try_clone()).transpose()?;
        let sessions = Arc::clone(&server);
        let serve = async move {
            if let Some((listener, prefaces)) = tcp
                && let Ok(listener) = tokio::net::TcpListener::from_std(listener)
            {
                tokio::spawn(doors::tcp(listener, prefaces, Arc::clone(&server)));
            }
            if let Some(listener) = listener
                && let Ok(listener) = tokio::net::UnixListener::from_std(listener)
            {
                let name = move |socket: BorrowedFd<'_>| peer::outside(socket, init).map(|pid| format!("pid:{pid}"));
                tokio::spawn(doors::socket(listener, Arc::new(name), Arc::clone(&server)));
            }
            let relays = async {
                while let Some((stream, name)) = relayed.recv().await {
                    let client = Client { door: SshDoor::Relay, name, addresses: None };
                    match tokio::net::UnixStream::from_std(stream) {
                        Ok(stream) => drop(tokio::spawn(Arc::clone(&server).serve(stream, client))),
                        Err(error) => tracing::warn!("a relay to the SSH server is lost: {error}"),
                    }
                }
                std::future::pending().await
            };
            tokio::select! {
                () = relays => {}
                _ = stopped => {}
            }
            sessions.finish(ENDING).await;
            // The last messages are on their way to the clients.
            tokio::task::yield_now().await;
        };
        let run = move || {
            runtime.block_on(serve);
            // Everything that is still connected ends here.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("ssh".to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), relays, _socket: socket })
    }

    /// The way of relays to the server.
    pub(super) fn door(&self) -> mpsc::Sender<Relayed> {
        self.relays.clone()
    }
}

/// Targets of a gateway's relays.
pub(super) struct Relays {
    pub(super) inside: Arc<InsideNetwork>,
    pub(super) ssh: Option<mpsc::Sender<Relayed>>,
}

impl session::Inside for Relays {
    fn dial(&self, target: RelayTarget, id: &str) -> Dialing {
        let port = match target {
            RelayTarget::Port(port) => port,
            RelayTarget::Ssh => {
                let connected = self.ssh.as_ref().map(|ssh| connect(ssh, id));
                let connected = connected.unwrap_or_else(|| Err(io::Error::other("the SSH server does not run")));
                return Box::pin(async move { Ok(Box::new(connected?) as Box<dyn session::Connection>) });
            }
        };
        let dialing = self.inside.dial(port);
        Box::pin(async move { Ok(Box::new(dialing.await?) as Box<dyn session::Connection>) })
    }
}

/// Connects a relay to the server.
fn connect(ssh: &mpsc::Sender<Relayed>, id: &str) -> io::Result<tokio::net::UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    for stream in [&ours, &theirs] {
        rustix::io::ioctl_fionbio(stream.as_fd(), true)?;
    }
    ssh.try_send((theirs, id.to_owned())).map_err(io::Error::other)?;
    tokio::net::UnixStream::from_std(ours)
}
