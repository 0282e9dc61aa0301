//! The sandbox that sessions run in.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::init::launch::Launcher;
use tokio::net::{TcpListener, TcpStream};

use crate::main_process::MainProcess;

/// Something that opens a socket inside.
pub type Opening<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// The network of the sandbox.
pub trait Inside: Send + Sync {
    /// Connects to `port` of the loopback address inside.
    fn dial(&self, port: u16) -> Opening<TcpStream>;

    /// Listens at `port` of the loopback address inside; 0 has the kernel choose one.
    fn listen(&self, port: u16) -> Opening<TcpListener>;
}

/// Everything that a session needs of the sandbox.
pub struct Workload {
    /// Starts commands.
    pub launcher: Arc<Launcher>,
    /// Environment of the main command.
    pub environment: Environment,
    /// Directories where a command may start, in order of preference.
    pub directories: Vec<PathBuf>,
    /// True if shells in terminals read the user's profile.
    pub has_login_shells: bool,
    /// Program and arguments of the SFTP server.
    pub sftp: Vec<String>,
    /// The same of the helper for Unix sockets, less what it shall do.
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
