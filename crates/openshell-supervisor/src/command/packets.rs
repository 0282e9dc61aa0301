//! Sends and receives messages with descriptors over SOCK_SEQPACKET sockets (unix(7)).
//!
//! A message is one packet of JSON. A larger message, for example with a big environment, is passed
//! in a memory file. The message's descriptors follow.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest message in a packet, in bytes; larger ones are passed in a memory file. Replies
/// about commands are always smaller, so that receiving them needs no descriptor: a workload can
/// use up the supervisor's descriptors.
const PACKET_BYTES: usize = 32 * 1024;

/// The largest number of descriptors in a message, including a memory file.
const MAX_DESCRIPTORS: usize = 5;

/// The largest message in a memory file, in bytes.
const FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Sends `message` and duplicates of `descriptors`, of which there are at most four.
///
/// # Errors
/// Fails if the other end is gone, or the message is larger than a memory file may be. On a
/// non-blocking socket also fails if the queue of the other end is full (`WouldBlock`).
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() <= PACKET_BYTES {
        return send_packet(socket, &text, descriptors);
    }
    if text.len() as u64 > FILE_BYTES {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    let mut file = File::from(rustix::fs::memfd_create("message", MemfdFlags::CLOEXEC)?);
    file.write_all(&text)?;
    let all: Vec<_> = std::iter::once(file.as_fd())
        .chain(descriptors.iter().copied())
        .collect();
    send_packet(socket, IN_FILE, &all)
}

/// The largest number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Returns a non-blocking socket that listens at `path` for this user and root only.
///
/// # Errors
/// Fails if something is there already, or the file system refuses.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    at(path, |address| rustix::net::bind(&socket, address))?;
    // Nobody can connect before the socket listens.
    rustix::fs::chmod(path, Mode::from_raw_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a socket that [`listen`] made.
///
/// # Errors
/// Fails if nobody listens there, or this user may not connect.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = open(SocketFlags::CLOEXEC)?;
    at(path, |address| rustix::net::connect(&socket, address))?;
    Ok(socket)
}

/// Accepts a connection. The connection does not block.
///
/// # Errors
/// Fails if no connection waits (`WouldBlock`), or descriptors are exhausted.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(
        listener,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    )?)
}

fn open(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Calls `act` with the address of `path`. A path that is too long for an address is reached
/// through its folder.
fn at(path: &Path, act: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>) -> io::Result<()> {
    if let Ok(address) = SocketAddrUnix::new(path) {
        return Ok(act(&address)?);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = rustix::fs::open(
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let path = Path::new("/proc/self/fd")
        .join(folder.as_raw_fd().to_string())
        .join(name);
    Ok(act(&SocketAddrUnix::new(&path)?)?)
}

/// The packet that stands for a message in a memory file. No JSON message is a single blank.
const IN_FILE: &[u8] = b" ";

fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives a message and its descriptors; `None` at the end of the socket. Descriptors are missing
/// if the receiver has no free ones.
///
/// # Errors
/// Fails if the packet is not such a message, or the message is too large. On a non-blocking socket
/// also fails if no message has arrived (`WouldBlock`).
pub fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut text = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut text, &mut control, RecvFlags::CMSG_CLOEXEC) {
            // A reset means that the other end died with a packet unread, and is reported only
            // once. The packets that it had sent follow, then the end.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            result => break result?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if bytes != IN_FILE {
        return Ok(Some((serde_json::from_slice(&bytes)?, descriptors)));
    }
    if descriptors.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut file = File::from(descriptors.remove(0));
    // Reading from any other file could block. Only memory files have seals.
    let data = file.metadata()?;
    if rustix::fs::fcntl_get_seals(&file).is_err() || data.len() > FILE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    file.rewind()?;
    Ok(Some((
        serde_json::from_reader(io::BufReader::new(file.take(FILE_BYTES)))?,
        descriptors,
    )))
}
