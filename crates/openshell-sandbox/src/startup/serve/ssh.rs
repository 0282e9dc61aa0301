//! Starts the SSH server: its doors, and the thread that it runs on. If the server cannot start,
//! that is logged, and the run goes on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use openshell_access::main_process::MainProcess;
use openshell_access::ssh::doors::{self, Closed};
use openshell_access::ssh::server::{Client, Server};
use openshell_access::workload::{Inside as _, Workload};
use openshell_events::event::Audit;
use openshell_events::words::SshDoor;
use openshell_gateway::session::{self, Dialing, RelayTarget};
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::identity::peer;
use openshell_supervisor::init::launch::Launcher;
use tokio::sync::{mpsc, oneshot};

use crate::bound_socket::BoundSocket;
use crate::startup::plan::ssh_sockets::{SshSockets, log_failed};
use crate::startup::serve::inside::InsideNetwork;

/// The longest wait for sessions to tell their clients that the sandbox ends.
const ENDING: Duration = Duration::from_secs(1);

/// The most relays that wait for the server to take them.
const RELAYS: usize = 64;

/// Returns what sessions run in.
pub(crate) fn workload(
    launcher: Arc<Launcher>,
    environment: Environment,
    directories: Vec<PathBuf>,
    has_login_shells: bool,
    main_process: Option<Arc<MainProcess>>,
    inside: Arc<InsideNetwork>,
) -> Workload {
    // The path works because init's children are this program until they execute another.
    let internal = |service: &str| {
        ["/proc/self/exe", "--internal", service]
            .map(str::to_owned)
            .to_vec()
    };
    let sftp = internal("sftp");
    let helper = internal("socket");
    Workload {
        launcher,
        environment,
        directories,
        has_login_shells,
        sftp,
        helper,
        main_process,
        inside,
    }
}

/// A gateway's relay on its way to the server, with the relay's name.
type Relayed = (UnixStream, String);

/// The SSH server. Dropping it ends its connections.
pub(crate) struct SshServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    relays: mpsc::Sender<Relayed>,
    /// The path of the server's socket, removed last.
    _socket: Option<BoundSocket>,
}

impl Drop for SshServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // If the thread panicked, that has been printed already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl SshServer {
    /// Starts the server; `None` if that fails, which is logged.
    pub(crate) fn start(
        workload: Workload,
        audit: Arc<dyn Audit>,
        sockets: SshSockets,
        closed: Closed,
    ) -> Option<Self> {
        match Self::try_start(workload, audit, sockets, closed) {
            Ok(server) => Some(server),
            Err(error) => {
                log_failed(&format!("cannot start the SSH server: {error:#}"));
                None
            }
        }
    }

    fn try_start(
        workload: Workload,
        audit: Arc<dyn Audit>,
        sockets: SshSockets,
        mut closed: Closed,
    ) -> anyhow::Result<Self> {
        let init = workload.launcher.init_pid();
        let server = Server::new(workload, audit)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (relays, mut relayed) = mpsc::channel::<Relayed>(RELAYS);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let SshSockets { tcp, socket } = sockets;
        let listener = socket
            .as_ref()
            .map(|socket| socket.listener())
            .transpose()?;
        let sessions = Arc::clone(&server);
        let serve = async move {
            if let Some((listener, prefaces)) = tcp
                && let Ok(listener) = tokio::net::TcpListener::from_std(listener)
            {
                tokio::spawn(doors::tcp(
                    listener,
                    prefaces,
                    Arc::clone(&server),
                    closed.clone(),
                ));
            }
            if let Some(listener) = listener
                && let Ok(listener) = tokio::net::UnixListener::from_std(listener)
            {
                let name = move |socket: BorrowedFd<'_>| {
                    peer::outside(socket, init).map(|pid| format!("pid:{pid}"))
                };
                tokio::spawn(doors::socket(
                    listener,
                    Arc::new(name),
                    Arc::clone(&server),
                    closed.clone(),
                ));
            }
            let relays = serve_relays(&server, &mut relayed, &mut closed);
            tokio::select! {
                () = relays => {}
                _ = stopped => {}
            }
            sessions.finish(ENDING).await;
            // Lets the last messages leave for the clients.
            tokio::task::yield_now().await;
        };
        let run = move || {
            runtime.block_on(serve);
            // Ends everything that is still connected.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("ssh".to_owned())
            .spawn(run)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
            relays,
            _socket: socket,
        })
    }

    /// Returns the channel on which relays reach the server.
    pub(crate) fn door(&self) -> mpsc::Sender<Relayed> {
        self.relays.clone()
    }
}

/// Where a gateway's relays can lead.
pub(crate) struct Relays {
    pub(crate) inside: Arc<InsideNetwork>,
    pub(crate) ssh: Option<mpsc::Sender<Relayed>>,
    pub(crate) closed: Closed,
}

impl session::Inside for Relays {
    fn dial(&self, target: RelayTarget, id: &str) -> Dialing {
        if *self.closed.borrow() {
            return Box::pin(async {
                Err(io::Error::other(
                    "the sandbox is ending, and accepts no more connections",
                ))
            });
        }
        let port = match target {
            RelayTarget::Port(port) => port,
            RelayTarget::Ssh => {
                let connected = self.ssh.as_ref().map(|ssh| connect(ssh, id));
                let connected = connected
                    .unwrap_or_else(|| Err(io::Error::other("the SSH server does not run")));
                return Box::pin(async move {
                    Ok(Box::new(connected?) as Box<dyn session::Connection>)
                });
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
    ssh.try_send((theirs, id.to_owned()))
        .map_err(io::Error::other)?;
    tokio::net::UnixStream::from_std(ours)
}

/// Serves clients that come through a relay, until the run is over. Does not end by itself.
async fn serve_relays(
    server: &Arc<Server>,
    relayed: &mut mpsc::Receiver<Relayed>,
    closed: &mut Closed,
) {
    while let Some((stream, name)) = tokio::select! {
        biased;
        () = doors::until(closed) => None,
        relayed = relayed.recv() => relayed,
    } {
        let client = Client {
            door: SshDoor::Relay,
            name,
            addresses: None,
        };
        match tokio::net::UnixStream::from_std(stream) {
            Ok(stream) => drop(tokio::spawn(Arc::clone(server).serve(stream, client))),
            Err(error) => tracing::warn!("a relay to the SSH server is lost: {error}"),
        }
    }
    // Relays that are not served yet end with their streams.
    relayed.close();
    while relayed.try_recv().is_ok() {}
    std::future::pending().await
}
