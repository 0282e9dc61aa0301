//! Tells who makes connections to the supervisor's listeners, as a fact of the connection itself.
//!
//! The kernel hands every connect(2) of the sandbox to the witness (seccomp_unotify(2)). If it leads to a listener of the
//! supervisor, a *door*, the witness takes the socket, describes the caller, and sends the first packet itself, with a nonce in its
//! header; the caller's own call then waits for the connection. The accepted connection carries the nonce, so caller, socket and
//! address are one fact, whatever the caller changes meanwhile. Every other connect goes on by itself; its packets
//! carry a mark that tells the caller where the egress firewall refuses them.

mod connect;
mod connections;
mod nonce;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::switches::{SWITCHES, Switch};
use crate::sys::notify;
use crate::sys::socket;
pub use connections::DOOR_MARK;
use connections::{Askers, Notes, Pending};
pub use nonce::{NONCE_HEADER, save_first_packets};

/// Threads at most. None of them waits for a connection, but one may wait for memory of its caller, or a lock of a socket.
const THREADS: usize = 8;

/// The look-up of callers, and the place for what the witness has to say.
pub trait Callers: Send + Sync + 'static {
    /// Description of a caller, or the reason why there is none.
    type Caller: Send + 'static;
    /// The same as far as logs need it, which is kept for longer.
    type Note: Clone + Send + 'static;

    /// Describes the process of `thread`, a number of the sandbox's PID namespace. The thread waits meanwhile. Must not wait for
    /// anything that the caller can delay.
    fn describe(&self, thread: i32) -> Self::Caller;

    /// Describes the process of `thread` in the same way for logs.
    fn note(&self, thread: i32) -> Self::Note;

    /// Reports a connect that was refused. Must not block.
    fn refused(&self, caller: Option<Self::Caller>, why: Refused);

    /// Reports that the witness has ended, so that every further connect would wait for ever.
    fn failed(&self, error: io::Error);
}

/// Reason for which the witness refuses a connect.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// As many connections wait to be accepted as may.
    #[error("too many connections wait to be accepted")]
    Pending,
    /// The socket was made elsewhere.
    #[error("the socket belongs to another network than the sandbox's")]
    Foreign,
    /// The caller could not be looked at, or its socket not be set; it has no door.
    #[error("the supervisor cannot look at the caller: {0}")]
    Unreadable(io::Error),
}

/// Failure to start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum WitnessError {
    #[error("cannot tell who is calling: {} is {}, and {}; {}", .0.name, .0.forbids, .0.costs, .0.remedy)]
    Forbidden(Switch),
    #[error("cannot tell the sandbox's sockets from others (SO_NETNS_COOKIE, Linux 5.14), which tells who is calling")]
    Namespace { source: io::Error },
    #[error("cannot start the thread that tells who is calling; raise the limit of processes (pids.max, ulimit -u)")]
    Thread { source: io::Error },
}

/// The listener of the sandbox's connects, which wait until a [`Witness`] is started with it.
#[derive(Debug)]
pub struct Connects {
    pub(crate) listener: OwnedFd,
}

/// Returns true for addresses of the supervisor's listeners, at once.
pub type IsDoor = Arc<dyn Fn(SocketAddrV4) -> bool + Send + Sync>;

/// The sandbox's network, as the witness knows it.
#[derive(Clone)]
pub struct Network<'s> {
    /// Tells the addresses of the supervisor's listeners.
    pub doors: IsDoor,
    /// Address of the name server.
    pub name_server: SocketAddrV4,
    /// Address of the sandbox itself.
    pub own: Ipv4Addr,
    /// Index of its interface.
    pub interface: u32,
    /// Any socket of its namespace.
    pub socket: BorrowedFd<'s>,
}

/// A running witness. Its threads end with the last process of the sandbox, or with the supervisor.
pub struct Witness<C: Callers>(Arc<Shared<C>>);

struct Shared<C: Callers> {
    listener: OwnedFd,
    is_door: IsDoor,
    name_server: SocketAddrV4,
    own: Ipv4Addr,
    interface: u32,
    /// Number of the sandbox's network namespace.
    namespace: u64,
    pending: Mutex<Pending<C::Caller>>,
    notes: Mutex<Notes<C::Note>>,
    askers: Mutex<Askers<C::Note>>,
    callers: C,
    /// Threads started, and those of them that are not at a notification.
    threads: AtomicUsize,
    receiving: AtomicUsize,
}

impl<C: Callers> Witness<C> {
    /// Starts to answer `connects`, which come from `network`.
    ///
    /// # Errors
    /// Processes or sockets of the sandbox cannot be looked at, or a thread cannot be started.
    pub fn start(connects: Connects, network: Network<'_>, callers: C) -> Result<Self, WitnessError> {
        let Network { doors: is_door, name_server, own, interface, socket } = network;
        let Connects { listener } = connects;
        let forbidding = SWITCHES.iter().find(|switch| !switch.of_user_namespaces && switch.is_forbidding());
        forbidding.map_or(Ok(()), |switch| Err(WitnessError::Forbidden(*switch)))?;
        let namespace = socket::namespace(socket).map_err(|source| WitnessError::Namespace { source })?;
        notify::wake_on_one_processor(listener.as_fd());
        let shared = Arc::new(Shared {
            listener,
            is_door,
            name_server,
            own,
            interface,
            namespace,
            pending: Mutex::default(),
            notes: Mutex::default(),
            askers: Mutex::default(),
            callers,
            threads: AtomicUsize::new(0),
            receiving: AtomicUsize::new(0),
        });
        shared.start_thread().map_err(|source| WitnessError::Thread { source })?;
        Ok(Self(shared))
    }

    /// Returns the caller whose connect made the accepted connection `accepted`, once.
    #[must_use]
    pub fn caller(&self, accepted: BorrowedFd<'_>) -> Option<C::Caller> {
        let nonce = nonce::take(accepted)?;
        lock(&self.0.pending).take(nonce)
    }

    /// Returns the note of the last socket at `port` that was connected to the name server for datagrams, if it is not forgotten.
    #[must_use]
    pub fn asker(&self, port: u16) -> Option<C::Note> {
        lock(&self.0.askers).get(port)
    }

    /// Returns the note of packets with `mark`, if it is not forgotten.
    #[must_use]
    pub fn noted(&self, mark: u32) -> Option<C::Note> {
        lock(&self.0.notes).get(mark)
    }
}

impl<C: Callers> Shared<C> {
    /// Returns the IPv4 form of `to` if it is one of the doors.
    fn door(&self, to: SocketAddr) -> Option<SocketAddrV4> {
        ipv4(to).filter(|to| (self.is_door)(*to))
    }

    /// Starts a thread that receives, unless there are [`THREADS`].
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let free = |count: usize| (count < THREADS).then_some(count + 1);
        let taken = self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        taken.map_err(|_| io::ErrorKind::QuotaExceeded)?;
        self.receiving.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("witness".to_owned()).spawn(move || shared.serve());
        started.map(drop).inspect_err(|_| {
            self.receiving.fetch_sub(1, Ordering::Relaxed);
            self.threads.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Answers notifications until no process of the sandbox is left.
    fn serve(self: Arc<Self>) {
        let guard = FailureNotice(&self);
        loop {
            let received = notify::receive(self.listener.as_fd());
            match received {
                Ok(notification) => {
                    // One more thread receives, so that calls do not wait for each other; without one they do.
                    if self.receiving.fetch_sub(1, Ordering::Relaxed) == 1 {
                        let _ = self.start_thread();
                    }
                    let answer = self.decide(&notification);
                    // A failure means that the caller was killed.
                    let _ = notify::answer(self.listener.as_fd(), notification.id, answer);
                    self.receiving.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The caller was killed, or no process is left.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    if self.is_deserted() {
                        return std::mem::forget(guard);
                    }
                }
                Err(error) => {
                    std::mem::forget(guard);
                    return self.callers.failed(error);
                }
            }
        }
    }

    /// Returns true if no process of the sandbox is left.
    fn is_deserted(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut listener = [PollFd::new(&self.listener, PollFlags::empty())];
        let polled = rustix::event::poll(&mut listener, Some(&now));
        polled.is_ok() && listener[0].revents().contains(PollFlags::HUP)
    }
}

/// Reports the end of a thread that panicked.
struct FailureNotice<'s, C: Callers>(&'s Shared<C>);

impl<C: Callers> Drop for FailureNotice<'_, C> {
    fn drop(&mut self) {
        self.0.callers.failed(io::Error::other("its thread panicked"));
    }
}

impl<C: Callers> std::fmt::Debug for Witness<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}

/// The IPv4 address of `to`, which may be written in IPv6.
fn ipv4(to: SocketAddr) -> Option<SocketAddrV4> {
    match to.ip().to_canonical() {
        IpAddr::V4(address) => Some(SocketAddrV4::new(address, to.port())),
        IpAddr::V6(_) => None,
    }
}

/// Locks a value that is consistent at every moment, so a poisoned lock is used all the same.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
