//! Follows one listen(2): a server inside, which nobody outside can reach without the supervisor.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::connect::{inner_thread, pidfd, release, socket_of};
use super::{Callers, Shared};
use crate::sys::notify::{Answer, Notification};
use crate::sys::socket;

impl<C: Callers> Shared<C> {
    /// Reports a server of the sandbox that starts to listen. The call always goes on.
    pub(super) fn note_listen(&self, call: &Notification) -> Answer {
        // No decision depends on this, so what cannot be looked at is ignored.
        if let Ok(Some((port, thread))) = self.server(call) {
            self.callers.listens(port, thread);
        }
        Answer::Continue
    }

    /// Returns the port and the thread of the server; `None` for a socket without a port, or a
    /// socket of another kind.
    fn server(&self, call: &Notification) -> io::Result<Option<(u16, i32)>> {
        let caller = pidfd(call.thread)?;
        // The kernel uses the lower half only.
        let Some(socket) = socket_of(&caller, call.arguments[0] as i32)? else {
            return Ok(None);
        };
        let port = self.port(&socket);
        release(socket);
        match port? {
            Some(port) => Ok(Some((port, inner_thread(&caller)?))),
            None => Ok(None),
        }
    }

    fn port(&self, socket: &OwnedFd) -> io::Result<Option<u16>> {
        let is_internet = matches!(
            sockopt::socket_domain(socket)?,
            AddressFamily::INET | AddressFamily::INET6
        );
        if !is_internet
            || sockopt::socket_type(socket)? != SocketType::STREAM
            || socket::namespace(socket.as_fd())? != self.namespace
        {
            return Ok(None);
        }
        let own = SocketAddr::try_from(rustix::net::getsockname(socket)?);
        Ok(own.ok().map(|own| own.port()).filter(|port| *port != 0))
    }
}
