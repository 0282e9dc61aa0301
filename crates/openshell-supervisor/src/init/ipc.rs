//! What the supervisor and init say to each other over a SOCK_SEQPACKET pair.
//!
//! A message's text is the packet, or lies in a memory file where it is larger, as an environment may be; its descriptors
//! follow.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::confine::{Confinement, Enforced, StepFailed};

/// To init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Confine yourself; with the network namespace, if there is one.
    Confine(Confinement),
    /// Start a command; with its three standard streams.
    Start { id: u32, command: Command },
    /// Send a signal to the process group of a command that runs.
    Signal { id: u32, signal: i32 },
    /// End, and everything with you, when this much time has passed.
    EndAfter(Duration),
}

/// From init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Init is up.
    Up,
    /// Init cannot have a /proc of its own, and ends.
    NoProc(String),
    /// Init cannot go on and ends.
    Failed(String),
    /// All commands will be confined so.
    Confined(Enforced),
    /// The command runs, or will in a moment; with its pidfd.
    Started { id: u32, pid: i32 },
    /// The command never ran.
    NotStarted { id: u32, why: NotStarted },
    /// The command was stopped by a signal.
    Stopped { id: u32, signal: i32 },
    /// The command ended.
    Exited { id: u32, status: Status },
    /// The time has passed after which init ends.
    OutOfTime,
}

/// A command to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// The program, looked up in `PATH` of the environment unless it has a slash, and its arguments.
    pub arguments: Vec<OsString>,
    /// Names and values.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it starts: the first of these that it may enter.
    pub directories: Vec<PathBuf>,
    /// Its place among sessions and terminals.
    pub session: Session,
}

/// A command's place among sessions and terminals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Session {
    /// A session of its own, without a terminal.
    New,
    /// The supervisor's session, in the foreground of its terminal.
    Foreground,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// Why a command never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotStarted {
    /// There is no such program.
    NotFound,
    /// The program cannot be executed.
    NotExecutable {
        /// The system's error number.
        errno: i32,
    },
    /// The program is there; what it names as its interpreter, or its loader, is not.
    NoInterpreter,
    /// A step of its confinement failed.
    Step(StepFailed),
    /// Init could not fork, or was told nonsense.
    Init {
        /// What went wrong.
        what: String,
    },
}

/// Bytes of text that go into the packet itself; larger ones go into a memory file. What init says of a command is always
/// smaller, so that hearing it takes no descriptor, of which a workload can leave the supervisor none.
const PACKET_BYTES: usize = 32 * 1024;

/// Descriptors that come with one message, a memory file among them.
const MAX_DESCRIPTORS: usize = 5;

/// Sends `message` with `descriptors`, which stay open here.
pub(crate) fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() <= PACKET_BYTES {
        return send_packet(socket, &text, descriptors);
    }
    let mut file = File::from(rustix::fs::memfd_create("message", MemfdFlags::CLOEXEC)?);
    file.write_all(&text)?;
    let all: Vec<_> = std::iter::once(file.as_fd()).chain(descriptors.iter().copied()).collect();
    send_packet(socket, IN_FILE, &all)
}

/// The packet of a message whose text is in a file; no message is a bare blank.
const IN_FILE: &[u8] = b" ";

fn send_packet(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message and its descriptors; `None` at the end of the socket. Descriptors are missing where the receiver has
/// no room for them.
pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut text = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut text, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            // The other end died with a packet unread.
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
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
    file.rewind()?;
    Ok(Some((serde_json::from_reader(io::BufReader::new(file))?, descriptors)))
}
