//! Tells who makes connections to the supervisor's listeners, as a fact of the connection itself.
//!
//! The kernel hands every connect(2) of the sandbox to the witness (seccomp_unotify(2)). If it
//! leads to a listener of the supervisor, a *door*, the witness takes the socket, describes the
//! caller, and sends the first packet itself, with a nonce in its header; the caller's own call
//! then waits for the connection. The accepted connection carries the nonce, so caller, socket and
//! address are one fact, whatever the caller changes meanwhile. Every other connect goes on by
//! itself; its packets carry a mark that tells the caller where the egress firewall refuses them.

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

/// The look-up of callers, and the place for what the witness has to say.
pub trait Callers: Send + Sync + 'static {
    /// Description of a caller, or the reason why there is none.
    type Caller: Send + 'static;
    /// The same as far as logs need it, which is kept for longer.
    type Note: Clone + Send + 'static;

    /// Describes the process of `thread`, a number of the sandbox's PID namespace. The thread waits
    /// meanwhile. Must not wait for anything that the caller can delay.
    fn describe(&self, thread: i32) -> Self::Caller;

    /// Describes the process of `thread` in the same way for logs.
    fn note(&self, thread: i32) -> Self::Note;

    /// Reports that a server inside of the process of `thread` begins to listen at `port`. Must not
    /// wait for anything that the caller can delay.
    fn listens(&self, port: u16, thread: i32);

    /// Reports a connect to `port` inside. Must not block.
    fn reaches(&self, port: u16);

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
    #[error(
        "cannot tell the sandbox's sockets from others (SO_NETNS_COOKIE, Linux 5.14), which tells \
         who is calling"
    )]
    Namespace { source: io::Error },
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

/// The witness. It works once its [`Witness::handler`] answers the waiting calls.
pub struct Witness<C: Callers>(Arc<Shared<C>>);

struct Shared<C: Callers> {
    listener: Arc<OwnedFd>,
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
}

impl<C: Callers> Witness<C> {
    /// Returns a witness of the connects among `calls`, which come from `network`.
    ///
    /// # Errors
    /// Processes or sockets of the sandbox cannot be looked at.
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

    /// Returns the handler of connects, and of servers that begin to listen.
    #[must_use]
    pub fn handler(&self) -> Handler {
        Handler::new(Arc::clone(&self.0) as _)
    }

    /// Returns the caller whose connect made the accepted connection `accepted`, once.
    #[must_use]
    pub fn caller(&self, accepted: BorrowedFd<'_>) -> Option<C::Caller> {
        let nonce = nonce::take(accepted)?;
        self.0.pending.lock().take(nonce)
    }

    /// Returns the note of the last socket at `port` that was connected to the name server for
    /// datagrams, if it is not forgotten.
    #[must_use]
    pub fn asker(&self, port: u16) -> Option<C::Note> {
        self.0.askers.lock().get(port)
    }

    /// Returns the note of packets with `mark`, if it is not forgotten.
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

/// The IPv4 address of `to`, which may be written in IPv6.
fn ipv4(to: SocketAddr) -> Option<SocketAddrV4> {
    match to.ip().to_canonical() {
        IpAddr::V4(address) => Some(SocketAddrV4::new(address, to.port())),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests;
