//! Messages between the supervisor and init over a SOCK_SEQPACKET pair.
//!
//! A message is one packet of JSON. Larger ones, with a big environment for example, are passed in a memory file.
//! Descriptors follow.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Seek, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddrV4;
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

/// Request to init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Confine init, up to its entry into the network.
    Confine(Confinement),
    /// Finish that in this network; carries the namespace, if the workload's `is_own`.
    Enter { is_own: bool, firewall_probe: Option<SocketAddrV4> },
    /// Open a terminal.
    OpenTerminal { id: u32 },
    /// Start a command; carries its three standard streams.
    Start { id: u32, command: Command },
    /// Send a signal to the process group of a running command.
    Signal { id: u32, signal: i32 },
    /// End the sandbox after this time.
    EndAfter(Duration),
}

/// Reply from init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Init is up.
    Up,
    /// Init cannot mount a /proc of its own, and ends.
    NoProc(String),
    /// Init failed, and ends.
    Failed(String),
    /// Init is confined; carries the listener of connects, if there is an egress firewall.
    Confined(Enforced),
    /// The terminal was opened; carries its master.
    Terminal { id: u32 },
    /// The terminal could not be opened.
    NoTerminal { id: u32, errno: i32 },
    /// The command was executed; carries its pidfd.
    Started { id: u32, pid: i32 },
    /// The command never ran.
    NotStarted { id: u32, why: NotStarted },
    /// The command was stopped by a signal.
    Stopped { id: u32, signal: i32 },
    /// The command ended.
    Exited { id: u32, status: Status },
    /// The time set by [`Request::EndAfter`] has passed.
    OutOfTime,
}

/// A command to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments. A program without a slash is looked up in `PATH` of the environment.
    pub arguments: Vec<OsString>,
    /// Names and values of variables.
    pub environment: Vec<(OsString, OsString)>,
    /// Candidate working directories; the first that the workload may enter counts.
    pub directories: Vec<PathBuf>,
    /// Session and terminal.
    pub session: Session,
}

/// Session and terminal of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Session {
    /// A new session without a terminal.
    New,
    /// The supervisor's session, as foreground process group of its terminal.
    Foreground,
    /// A new session with the standard input as its terminal.
    Terminal,
}

/// Exit status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// Exited with this code.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
}

/// Reason why a command never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotStarted {
    /// No such program exists.
    NotFound,
    /// The program cannot be executed.
    NotExecutable {
        /// System error number.
        errno: i32,
    },
    /// The program exists, but its interpreter or loader does not.
    NoInterpreter,
    /// A step of its confinement failed.
    Step(StepFailed),
    /// Init could not fork, or received an invalid request.
    Init {
        /// Description of the failure.
        what: String,
    },
}

/// Largest message in a packet, in bytes; larger ones are passed in a memory file. Replies about commands are always
/// smaller: a workload can use up the supervisor's descriptors, and receiving them takes none.
const PACKET_BYTES: usize = 32 * 1024;

/// Descriptors per message, including a memory file.
const MAX_DESCRIPTORS: usize = 5;

/// Sends `message` and duplicates of `descriptors`.
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

/// Packet that stands for a message in a memory file; no JSON message is a single blank.
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

/// Receives a message and its descriptors; `None` at the end of the socket. Descriptors are missing if the receiver has
/// no free ones.
pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut text = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut text, &mut control, RecvFlags::CMSG_CLOEXEC) {
            // A reset tells once that the other end died with a packet unread; its own last packets follow, then the end.
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
    file.rewind()?;
    Ok(Some((serde_json::from_reader(io::BufReader::new(file))?, descriptors)))
}
