//! The sandbox's own first process: PID 1 of its namespace, single-threaded for its whole life.
//!
//! It starts every command of the sandbox and reaps every orphan. When it dies, and it dies with the supervisor, the
//! kernel ends every process of the sandbox.

mod child;
pub(crate) mod ipc;
mod serve;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::sys::{self, Cloned};
use ipc::Reply;
pub use ipc::{Command, NotStarted, Session, Status};

/// Why there is no init.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum InitError {
    #[error("cannot make the socket to the sandbox's init")]
    Socket { source: io::Error },
    #[error(
        "cannot make the sandbox's init in PID, mount and IPC namespaces of its own; run as root with CAP_SYS_ADMIN"
    )]
    Clone { source: io::Error },
    #[error("the sandbox's init ended before it was up")]
    Gone,
    #[error("the sandbox's init could not start: {0}")]
    Failed(String),
    #[error("the sandbox's init could not start: cannot {0}")]
    NoProc(String),
}

/// The sandbox's init, seen from the supervisor. Dropping it ends the sandbox.
#[derive(Debug)]
pub struct Init {
    /// Where requests go and replies come from.
    pub(crate) socket: OwnedFd,
    /// Its number in the supervisor's PID namespace.
    pub(crate) pid: Pid,
    /// Refers to it alone.
    pub(crate) pidfd: OwnedFd,
    /// Why the sandbox has no PID namespace of its own, if it has none.
    pub(crate) shared_pids: Option<String>,
}

/// Which side of the fork the caller of [`fork`] is on.
pub enum Forked {
    /// The supervisor, with its new init.
    Supervisor(Init),
    /// Init, whose life is over: the caller returns from `main`.
    Init,
}

/// Makes init. To be called before any thread exists and before any secret is read.
///
/// # Errors
/// The namespaces are refused, or init cannot set itself up in them.
pub fn fork() -> Result<Forked, InitError> {
    match fork_into(serve::Isolation::OwnPids, None) {
        // A masked /proc may keep a fresh one from being mounted; then init shares the supervisor's PIDs and keeps
        // the sandbox's orphans as a subreaper.
        Err(InitError::NoProc(why)) => fork_into(serve::Isolation::SharedPids, Some(why)),
        result => result,
    }
}

fn fork_into(isolation: serve::Isolation, shared_pids: Option<String>) -> Result<Forked, InitError> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|errno| InitError::Socket { source: errno.into() })?;
    match sys::clone_process(isolation.namespaces()).map_err(|source| InitError::Clone { source })? {
        Cloned::Child => {
            drop(ours);
            serve::run(&theirs, isolation);
            Ok(Forked::Init)
        }
        Cloned::Parent { pid, pidfd } => {
            drop(theirs);
            let init = Init { socket: ours, pid, pidfd, shared_pids };
            match ipc::receive(init.socket.as_fd()).map_err(|source| InitError::Socket { source })? {
                Some((Reply::Up, _)) => Ok(Forked::Supervisor(init)),
                Some((Reply::NoProc(why), _)) => Err(InitError::NoProc(why)),
                Some((Reply::Failed(why), _)) => Err(InitError::Failed(why)),
                Some(_) | None => Err(InitError::Gone),
            }
        }
    }
}

impl Init {
    /// Init's number in the supervisor's PID namespace; `nsenter -t` takes it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Ends init, and with it every process of the sandbox: by the kernel where it has a PID namespace, else by init
    /// itself at the end of its socket. Returns when they are gone.
    pub fn end(&self) {
        // Whatever fails here has ended already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        if self.shared_pids.is_none() {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
        let _ = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }

    /// Why the sandbox has no PID namespace of its own; `None` where it has one.
    #[must_use]
    pub fn shared_pids(&self) -> Option<&str> {
        self.shared_pids.as_deref()
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        self.end();
    }
}
