//! The supervisor's side of the control socket.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use openshell_events::event::Audit;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::identity::peer;
use openshell_supervisor::init::launch::Launcher;
use openshell_supervisor::network::netns::Netns;
use rustix::net::sockopt;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::approvals::{self, Approvals};
use super::wire::{Description, Reply, Request};
use crate::packet_socket::PacketSocket;

/// Most clients at once.
const CLIENTS: usize = 512;

/// Most commands of clients at once.
const COMMANDS: usize = 256;

/// Time within which a client must send its first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);

/// Wait before the next client if the system has no more descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// The part of a sandbox's description that changes while it runs.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Number of the policy in force, from 1 on.
    pub generation: u64,
    /// Connections open at the proxy.
    pub connections: usize,
}

/// Everything that clients use of a sandbox.
pub struct Control {
    /// Starts commands.
    pub launcher: Arc<Launcher>,
    /// Takes the events of commands.
    pub audit: Arc<dyn Audit>,
    /// Environment of the main command.
    pub environment: Environment,
    /// Directories in which a command may start, in order of preference.
    pub directories: Vec<PathBuf>,
    /// Network namespace of the commands, if it is not the host's.
    pub netns: Option<Netns>,
    /// Returns the part of the description that changes.
    pub state: Box<dyn Fn() -> State + Send + Sync>,
    /// The name in its log lines.
    pub name: String,
    /// Words of the main command.
    pub command: Vec<String>,
    /// When the sandbox was started.
    pub started: SystemTime,
    /// The questions to a person; `None` if nobody is asked.
    pub approvals: Option<Arc<dyn Approvals>>,
    /// Permits for the commands that clients may still start.
    pub slots: Arc<Semaphore>,
}

/// Returns the permits for as many commands as may run at once.
#[must_use]
pub fn slots() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(COMMANDS))
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Serves the clients of `listener` for as long as the future is polled. Clients in a sandbox,
    /// and those of other users, are not served.
    pub async fn serve(self, listener: OwnedFd) {
        let listener = match PacketSocket::new(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!("cannot watch the control socket: {error}");
                return std::future::pending().await;
            }
        };
        let control = Arc::new(self);
        let mut clients = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = clients.join_next() => continue,
            };
            match accepted {
                Ok(socket) if clients.len() < CLIENTS => {
                    clients.spawn(Arc::clone(&control).serve_client(socket));
                }
                Ok(_) => {}
                Err(_) => sleep(BREATH).await,
            }
        }
    }

    async fn serve_client(self: Arc<Self>, socket: OwnedFd) {
        let pid = match peer::outside(socket.as_fd(), self.launcher.init_pid()) {
            Ok(pid) => pid,
            Err(reason) => {
                tracing::warn!("the control socket refuses a client: {reason}");
                return;
            }
        };
        // A client that has gone needs no answer.
        let _ = self.answer(socket, pid).await;
    }

    async fn answer(&self, socket: OwnedFd, pid: i32) -> io::Result<()> {
        let client = PacketSocket::new(socket)?;
        let mut request = timeout(FIRST_MESSAGE, client.receive::<Request>()).await??;
        if let Some((Request::Describe, _)) = request {
            client.send(&Reply::Described(self.describe()), &[]).await?;
            request = timeout(FIRST_MESSAGE, client.receive::<Request>()).await??;
        }
        match request {
            Some((Request::Exec(exec), streams)) => self.exec(&client, pid, exec, streams).await,
            Some((request @ (Request::Questions { .. } | Request::Answer(_)), _)) => {
                let uid = sockopt::socket_peercred(&client)?.uid.as_raw();
                approvals::serve(self.approvals.as_ref(), &client, request, uid).await
            }
            Some((Request::Describe | Request::Signal(_) | Request::Continue { .. }, _)) | None => {
                Ok(())
            }
        }
    }

    fn describe(&self) -> Description {
        let state = (self.state)();
        Description {
            name: self.name.clone(),
            pid: rustix::process::getpid().as_raw_pid().cast_unsigned(),
            started: self
                .started
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
            command: self.command.clone(),
            generation: state.generation,
            connections: state.connections,
        }
    }
}
