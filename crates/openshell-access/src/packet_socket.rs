//! Asynchronous sockets for messages that carry descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use openshell_supervisor::command::packets;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket for messages of [`packets`].
#[derive(Debug)]
pub struct PacketSocket(AsyncFd<OwnedFd>);

impl PacketSocket {
    /// Wraps a non-blocking socket. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if the runtime cannot watch it.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does \
                      not"
        )]
        Ok(Self(AsyncFd::new(socket)?))
    }

    /// Waits for a message and its descriptors; `None` at the end of the connection.
    ///
    /// # Errors
    /// Fails if what arrives is not such a message.
    pub async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.0
            .async_io(Interest::READABLE, |socket| {
                packets::receive(socket.as_fd())
            })
            .await
    }

    /// Sends a message with duplicates of `descriptors`.
    ///
    /// # Errors
    /// Fails if the other end is gone.
    pub async fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.0
            .async_io(Interest::WRITABLE, |socket| {
                packets::send(socket.as_fd(), message, descriptors)
            })
            .await
    }

    /// Waits for a connection at a listening socket.
    ///
    /// # Errors
    /// Fails if descriptors are exhausted.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        self.0
            .async_io(Interest::READABLE, |socket| packets::accept(socket.as_fd()))
            .await
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
