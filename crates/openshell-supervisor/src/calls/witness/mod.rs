//! Tells who makes connections to the supervisor's listeners, as a fact of the connection itself.
//!
//! The kernel hands every connect(2) of the sandbox to the witness (seccomp_unotify(2)). If the
//! connect leads to a listener of the supervisor, a *door*, the witness takes the socket and
//! describes the caller. It then sends the first packet itself, with a nonce in the packet's
//! header, and the caller's own call waits for the connection. The accepted connection carries the
//! nonce. Caller, socket and address therefore belong together, whatever the caller changes
//! meanwhile. Every other connect goes on by itself. Its packets carry a mark that tells who the
//! caller is when the egress firewall refuses them.

mod connect;
mod connections;
mod listen;
mod nonce;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::calls::waiting_calls::{Handle, Handler, WaitingCalls};
use crate::host::switches::{SWITCHES, Switch};
use crate::sys::notify::{Answer, Notification};
use crate::sys::socket;
pub use connections::DOOR_MARK;
use connections::{Askers, Notes, Pending};
pub use nonce::{NONCE_HEADER, save_first_packets};
use parking_lot::Mutex;

/// Looks up callers, and receives what the witness reports.
pub trait Callers: Send + Sync + 'static {
    /// The description of a caller, or the reason why there is none.
    type Caller: Send + 'static;
    /// The part of that description that logs need. It is kept for longer.
    type Note: Clone + Send + 'static;

    /// Describes the process of `thread`, a number in the sandbox's PID namespace. The thread waits
    /// meanwhile. Must not wait for anything that the caller can delay.
    fn describe(&self, thread: i32) -> Self::Caller;

    /// Describes the process of `thread` in the same way, for logs.
    fn note(&self, thread: i32) -> Self::Note;

    /// Reports that the process of `thread`, a server inside, starts to listen at `port`. Must not
    /// wait for anything that the caller can delay.
    fn listens(&self, port: u16, thread: i32);

    /// Reports a connect to `port` inside. Must not block.
    fn reaches(&self, port: u16);

    /// Reports a connect that was refused. Must not block.
    fn refused(&self, caller: Option<Self::Caller>, why: Refused);

    /// Reports that the witness has ended, so that every further connect would wait forever.
    fn failed(&self, error: io::Error);
}

/// The reason why a connect is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The largest number of connections already wait to be accepted.
    #[error("too many connections wait to be accepted")]
    Pending,
    /// The socket was made in another network namespace.
    #[error("the socket does not belong to the sandbox's network")]
    Foreign,
    /// The caller could not be looked at, or its socket could not be changed. The connect goes on
    /// by itself, and no door is open to it.
    #[error("the supervisor cannot inspect the caller or its socket: {0}")]
    Unreadable(io::Error),
}

/// The reason why the witness cannot start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum WitnessError {
    #[error("cannot identify callers: {} is {}, and {}; {}", .0.name, .0.forbids, .0.costs, .0.remedy)]
    Forbidden(Switch),
    #[error("cannot identify callers: this kernel lacks SO_NETNS_COOKIE; use Linux 5.14 or newer")]
    Namespace { source: io::Error },
}

/// Returns true for the addresses of the supervisor's listeners, without waiting.
pub type IsDoor = Arc<dyn Fn(SocketAddrV4) -> bool + Send + Sync>;

/// The sandbox's network, as the witness knows it.
#[derive(Clone)]
pub struct Network<'s> {
    /// A test for the addresses of the supervisor's listeners.
    pub doors: IsDoor,
    /// The address of the name server.
    pub name_server: SocketAddrV4,
    /// The address of the sandbox itself.
    pub own: Ipv4Addr,
    /// The index of the sandbox's interface.
    pub interface: u32,
    /// Any socket of the sandbox's network namespace.
    pub socket: BorrowedFd<'s>,
}

/// The witness. It works as soon as its [`Witness::handler`] answers the waiting calls.
pub struct Witness<C: Callers>(Arc<Shared<C>>);

struct Shared<C: Callers> {
    listener: Arc<OwnedFd>,
    is_door: IsDoor,
    name_server: SocketAddrV4,
    own: Ipv4Addr,
    interface: u32,
    /// The number of the sandbox's network namespace.
    namespace: u64,
    pending: Mutex<Pending<C::Caller>>,
    notes: Mutex<Notes<C::Note>>,
    askers: Mutex<Askers<C::Note>>,
    callers: C,
}

impl<C: Callers> Witness<C> {
    /// Creates a witness of the connects among `calls`, which come from `network`.
    ///
    /// # Errors
    /// Fails if processes or sockets of the sandbox cannot be looked at.
    pub fn new(
        calls: &WaitingCalls,
        network: Network<'_>,
        callers: C,
    ) -> Result<Self, WitnessError> {
        let Network {
            doors: is_door,
            name_server,
            own,
            interface,
            socket,
        } = network;
        let forbidding = SWITCHES
            .iter()
            .find(|switch| !switch.of_user_namespaces && switch.is_forbidding());
        forbidding.map_or(Ok(()), |switch| Err(WitnessError::Forbidden(*switch)))?;
        let namespace =
            socket::namespace(socket).map_err(|source| WitnessError::Namespace { source })?;
        Ok(Self(Arc::new(Shared {
            listener: calls.listener(),
            is_door,
            name_server,
            own,
            interface,
            namespace,
            pending: Mutex::default(),
            notes: Mutex::default(),
            askers: Mutex::default(),
            callers,
        })))
    }

    /// Returns the handler of connects, and of servers that start to listen.
    #[must_use]
    pub fn handler(&self) -> Handler {
        Handler::new(Arc::clone(&self.0) as _)
    }

    /// Returns the caller whose connect made the accepted connection `accepted`. Returns it only
    /// once.
    #[must_use]
    pub fn caller(&self, accepted: BorrowedFd<'_>) -> Option<C::Caller> {
        let nonce = nonce::take(accepted)?;
        self.0.pending.lock().take(nonce)
    }

    /// Returns the note of the last datagram socket at `port` that was connected to the name
    /// server, unless it has been forgotten.
    #[must_use]
    pub fn asker(&self, port: u16) -> Option<C::Note> {
        self.0.askers.lock().get(port)
    }

    /// Returns the note of packets with `mark`, unless it has been forgotten.
    #[must_use]
    pub fn noted(&self, mark: u32) -> Option<C::Note> {
        self.0.notes.lock().get(mark)
    }
}

impl<C: Callers> Shared<C> {
    /// Returns the IPv4 form of `to` if it is one of the doors.
    fn door(&self, to: SocketAddr) -> Option<SocketAddrV4> {
        ipv4(to).filter(|to| (self.is_door)(*to))
    }
}

impl<C: Callers> Handle for Shared<C> {
    fn answer(&self, call: &Notification) -> Answer {
        match i64::from(call.number) {
            libc::SYS_listen => self.note_listen(call),
            _ => self.decide(call),
        }
    }

    fn failed(&self, error: io::Error) {
        self.callers.failed(error);
    }
}

impl<C: Callers> std::fmt::Debug for Witness<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}

/// Returns the IPv4 address of `to`, which may be written as an IPv6 address.
fn ipv4(to: SocketAddr) -> Option<SocketAddrV4> {
    match to.ip().to_canonical() {
        IpAddr::V4(address) => Some(SocketAddrV4::new(address, to.port())),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests;
