//! Init: the sandbox's first process, PID 1 of its namespace, single-threaded for its whole life.
//!
//! Init starts every command and reaps every orphan. It dies with the supervisor, and the kernel
//! then ends every process of the sandbox.

mod child;
mod children;
pub(crate) mod ipc;
pub mod launch;
mod leader;
mod serve;
mod suspend;
mod watch;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::command::packets;
use crate::host::privilege::is_root_mapped;
use crate::host::switches;
use crate::sys::{self, Cloned};
use ipc::Reply;
pub use ipc::{Command, IgnoredSignals, Loss, NotStarted, Session, Status};

/// A failure to start init.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum InitError {
    #[error("cannot make the socket to the sandbox's init")]
    Socket { source: io::Error },
    #[error(
        "cannot make the sandbox's init in PID, mount and IPC namespaces of its own; let the \
         container's profile permit them, or raise the limits (user.max_pid_namespaces, \
         user.max_mnt_namespaces, user.max_ipc_namespaces)"
    )]
    Clone { source: io::Error },
    #[error("the sandbox's init ended before it was up")]
    Gone,
    #[error("the sandbox's init could not start: {0}")]
    Failed(String),
    #[error("the sandbox's init could not start: cannot {0}")]
    NoProc(String),
}

/// The handle of the sandbox's init. Dropping it ends the sandbox.
#[derive(Debug)]
pub struct Init {
    /// The socket that carries requests and replies.
    pub(crate) socket: OwnedFd,
    /// Init's PID in the supervisor's PID namespace.
    pub(crate) pid: Pid,
    /// The pidfd of init.
    pub(crate) pidfd: OwnedFd,
    /// The /proc that shows the sandbox's processes; `None` until init is up.
    pub(crate) processes: Option<OwnedFd>,
    /// The file system of [`crate::runs::sandbox_files`]; `None` until init is up, if it cannot be
    /// made, and after it was taken.
    pub(crate) files: Option<OwnedFd>,
    /// The reason why the sandbox does not have a separate PID namespace; `None` if it has one.
    pub(crate) shared_pids: Option<String>,
}

/// The two sides of a fork.
pub enum Forked<T> {
    /// The supervisor, with its handle of init.
    Supervisor(T),
    /// Init, which has finished; the caller returns from `main`.
    Init,
}

/// Forks init, which then sets itself up. Call this before any thread exists and before any secret
/// is read.
///
/// # Errors
/// Fails if the socket or the namespaces cannot be created.
pub fn fork() -> Result<Forked<PendingInit>, InitError> {
    fork_into(serve::Isolation::OwnPids, None)
}

/// An init that is setting itself up.
#[derive(Debug)]
pub struct PendingInit(Init);

impl PendingInit {
    /// Waits until init is up. Call this before any secret is read, because init may have to be
    /// forked again: a container's masked /proc may forbid mounting a new one. Init then shares the
    /// supervisor's PID namespace and is the sandbox's subreaper. Before that, `settle` has to end
    /// every thread.
    ///
    /// # Errors
    /// Fails if init cannot set itself up.
    pub fn finish(self, settle: impl FnOnce()) -> Result<Forked<Init>, InitError> {
        match self.up() {
            Err(InitError::NoProc(why)) => {
                settle();
                sys::wait_for_single_thread();
                match fork_into(serve::Isolation::SharedPids, Some(why))? {
                    Forked::Supervisor(init) => init.up().map(Forked::Supervisor),
                    Forked::Init => Ok(Forked::Init),
                }
            }
            result => result.map(Forked::Supervisor),
        }
    }

    fn up(self) -> Result<Init, InitError> {
        let Self(mut init) = self;
        match packets::receive(init.socket.as_fd())
            .map_err(|source| InitError::Socket { source })?
        {
            Some((Reply::Up, descriptors)) => {
                let mut descriptors = descriptors.into_iter();
                (init.processes, init.files) = (descriptors.next(), descriptors.next());
                Ok(init)
            }
            Some((Reply::NoProc(why), _)) => Err(InitError::NoProc(why)),
            Some((Reply::Failed(why), _)) => {
                let hint = switches::powerless_user_namespace().filter(|_| !is_root_mapped());
                Err(InitError::Failed(
                    hint.map_or(why.clone(), |hint| format!("{why}; {hint}")),
                ))
            }
            Some(_) | None => Err(InitError::Gone),
        }
    }
}

fn fork_into(
    isolation: serve::Isolation,
    shared_pids: Option<String>,
) -> Result<Forked<PendingInit>, InitError> {
    let pair = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let (ours, theirs) = pair.map_err(|errno| InitError::Socket {
        source: errno.into(),
    })?;
    match sys::clone_process(isolation.namespaces())
        .map_err(|source| InitError::Clone { source })?
    {
        Cloned::Child => {
            drop(ours);
            serve::run(&theirs, isolation);
            Ok(Forked::Init)
        }
        Cloned::Parent { pid, pidfd } => {
            drop(theirs);
            Ok(Forked::Supervisor(PendingInit(Init {
                socket: ours,
                pid,
                pidfd,
                processes: None,
                files: None,
                shared_pids,
            })))
        }
    }
}

impl Init {
    /// Returns init's PID in the supervisor's PID namespace, for example for `nsenter -t`.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Kills init and every process of the sandbox. If the sandbox has a PID namespace, the kernel
    /// kills all of its processes; otherwise init kills them itself when its socket closes.
    pub fn kill(&self) {
        // A failure means that init has ended already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        if self.shared_pids.is_none() {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
    }

    /// Kills everything like [`Self::kill`], and waits until all processes are gone.
    pub fn end(&self) {
        self.kill();
        let _ = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }

    /// Returns the /proc that shows the sandbox's processes, and init's PID in it.
    ///
    /// # Errors
    /// Fails if init is not up, or if no more descriptors are available.
    pub fn processes(&self) -> io::Result<(OwnedFd, i32)> {
        let processes = self.processes.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let pid = if self.shared_pids.is_some() {
            self.pid()
        } else {
            Pid::INIT.as_raw_nonzero().get()
        };
        Ok((processes.try_clone()?, pid))
    }

    /// Takes the file system for the sandbox's files; `None` if init could not make one.
    pub fn take_files(&mut self) -> Option<OwnedFd> {
        self.files.take()
    }

    /// Returns the reason why the sandbox does not have a separate PID namespace; `None` if it has
    /// one.
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
