//! The sandbox in which sessions run.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::init::launch::Launcher;
use tokio::net::{TcpListener, TcpStream};

use crate::main_process::MainProcess;

/// A future that opens a socket inside the sandbox.
pub type Opening<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// The network of the sandbox.
pub trait Inside: Send + Sync {
    /// Connects to `port` of the loopback address inside.
    fn dial(&self, port: u16) -> Opening<TcpStream>;

    /// Listens at `port` of the loopback address inside; for 0 the kernel chooses a port.
    fn listen(&self, port: u16) -> Opening<TcpListener>;
}

/// Everything about the sandbox that a session needs.
pub struct Workload {
    /// Starts commands.
    pub launcher: Arc<Launcher>,
    /// Environment of the main command.
    pub environment: Environment,
    /// Directories in which a command may start, in order of preference.
    pub directories: Vec<PathBuf>,
    /// True if shells in terminals read the user's profile.
    pub has_login_shells: bool,
    /// Program and arguments of the SFTP server.
    pub sftp: Vec<String>,
    /// Program and first arguments of the helper for Unix sockets; what it has to do is appended.
    pub helper: Vec<String>,
    /// The main process, if clients may attach to it.
    pub main_process: Option<Arc<MainProcess>>,
    /// Network of the sandbox.
    pub inside: Arc<dyn Inside>,
}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workload")
            .field("launcher", &self.launcher)
            .finish_non_exhaustive()
    }
}
