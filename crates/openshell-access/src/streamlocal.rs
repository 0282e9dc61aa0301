//! Forwarding to Unix sockets in the sandbox. A helper, which is a confined command like any other,
//! connects or listens and passes each connection out. So the kernel decides which sockets can be
//! reached.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::path::Path;
use std::time::Duration;

use openshell_supervisor::command::packets;
use openshell_supervisor::init::{Command, IgnoredSignals, Session};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::packet_socket::PacketSocket;
use crate::workload::Workload;

/// A message of a helper.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// It listens.
    Listening,
    /// A connection, which the message carries.
    Connected,
    /// It could not do its work, for this reason.
    Failed(String),
}

/// First arguments on the helper's command line.
const CONNECT: &str = "connect";
const LISTEN: &str = "listen";

/// Longest wait for a helper, because the workload may have stopped it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A helper inside, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Helper(PacketSocket);

/// Connects to the socket at `path` inside.
///
/// # Errors
/// Fails if the workload's user may not connect, or if nobody listens there.
pub(crate) async fn connect(workload: &Workload, path: &str) -> io::Result<UnixStream> {
    let helper = Helper::start(workload, CONNECT, path)?;
    timeout(PATIENCE, helper.next()).await?
}

/// Listens at `path` inside.
///
/// # Errors
/// Fails if the workload's user may not create a socket there, or if something is already there.
pub(crate) async fn listen(workload: &Workload, path: &str) -> io::Result<Helper> {
    let helper = Helper::start(workload, LISTEN, path)?;
    match timeout(PATIENCE, helper.message()).await?? {
        (Message::Listening, _) => Ok(helper),
        (Message::Failed(reason), _) => Err(io::Error::other(reason)),
        (Message::Connected, _) => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl Helper {
    fn start(workload: &Workload, act: &str, path: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let words = workload
            .helper
            .iter()
            .map(String::as_str)
            .chain([act, path])
            .map(OsString::from);
        let command = Command {
            arguments: words.collect(),
            environment: Vec::new(),
            directories: workload.directories.clone(),
            session: Session::New,
            ignored: IgnoredSignals::Kept,
        };
        // The messages of the helper, and their end, say everything that there is to know.
        let streams = [theirs.as_fd(), null.as_fd(), null.as_fd()];
        workload
            .launcher
            .start(&command, streams, Box::new(drop))
            .map_err(io::Error::other)?;
        Ok(Self(PacketSocket::new(ours)?))
    }

    async fn message(&self) -> io::Result<(Message, Option<OwnedFd>)> {
        let (message, descriptors) = self
            .0
            .receive()
            .await?
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((message, descriptors.into_iter().next()))
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Fails if no more connections can come.
    pub(crate) async fn next(&self) -> io::Result<UnixStream> {
        match self.message().await? {
            (Message::Connected, Some(socket)) => {
                // A program inside may have taken control of its helper, so this checks that the
                // descriptor really is a connected stream socket.
                let is_stream = socket_domain(&socket)? == AddressFamily::UNIX
                    && socket_type(&socket)? == SocketType::STREAM;
                if !is_stream || rustix::net::getpeername(&socket).is_err() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                rustix::io::ioctl_fionbio(&socket, true)?;
                UnixStream::from_std(StdStream::from(socket))
            }
            (Message::Failed(reason), _) => Err(io::Error::other(reason)),
            (Message::Connected | Message::Listening, _) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Does the work of a helper: `words` are what to do and the path; `socket` leads to the
/// supervisor.
///
/// # Errors
/// Fails if the supervisor has gone, or if `words` are something else.
pub fn serve(socket: BorrowedFd<'_>, words: &[OsString]) -> io::Result<()> {
    let [act, path] = words else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let path = Path::new(path);
    let done = match act.as_bytes() {
        act if act == CONNECT.as_bytes() => connect_without_wait(path)
            .and_then(|stream| packets::send(socket, &Message::Connected, &[stream.as_fd()])),
        act if act == LISTEN.as_bytes() => serve_listener(socket, path),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    // If the supervisor has gone, sending fails too.
    done.or_else(|error| packets::send(socket, &Message::Failed(error.to_string()), &[]))
}

/// Connects to a socket. Fails at once if its queue is full, because nobody could end the wait.
fn connect_without_wait(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

/// Passes connections out until the supervisor has gone, then removes the socket.
fn serve_listener(supervisor: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    // Only this user may connect, as with the sockets of sshd(8).
    rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    let identity = |data: std::fs::Metadata| (data.dev(), data.ino());
    let own = std::fs::symlink_metadata(path).map(identity)?;
    let served = hand_out(supervisor, &listener);
    if std::fs::symlink_metadata(path).map(identity).ok() == Some(own) {
        let _ = std::fs::remove_file(path);
    }
    served
}

fn hand_out(supervisor: BorrowedFd<'_>, listener: &UnixListener) -> io::Result<()> {
    packets::send(supervisor, &Message::Listening, &[])?;
    loop {
        let mut ready = [
            PollFd::new(&supervisor, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        match rustix::event::poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        // The supervisor sends nothing, so this is its end.
        if !ready[0].revents().is_empty() {
            return Ok(());
        }
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                packets::send(supervisor, &Message::Connected, &[stream.as_fd()])?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
