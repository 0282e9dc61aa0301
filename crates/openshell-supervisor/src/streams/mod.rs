//! Standard streams of a command, made from those of the supervisor.

mod kind;
mod relay;
pub mod retained;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use crate::pty::Terminal;
use kind::{Kind, Treatment};
use relay::{Direction, Relay, Tapped};
use retained::{Output, Tap};

/// Names of the streams in messages.
const NAMES: [&str; 3] = ["standard input", "standard output", "standard error"];

/// Failure to pass a standard stream to a command.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum StreamError {
    #[error(
        "{stream} is {kind}, and {danger}; give the sandbox a pipe or a file instead (`… | openshell-sandbox … | …`)"
    )]
    Refused { stream: &'static str, kind: &'static str, danger: &'static str },
    #[error("cannot look at {stream}")]
    Inspect { stream: &'static str, source: io::Error },
    #[error("cannot relay {stream}")]
    Relay { stream: &'static str, source: io::Error },
}

/// The caller's standard streams with their treatment.
#[derive(Debug)]
pub struct Inspected<'s> {
    given: [(BorrowedFd<'s>, Treatment); 3],
}

/// Examines the caller's standard input, output and error.
///
/// # Errors
/// A stream cannot be examined, or is of a kind that no command may have.
pub fn inspect(streams: [BorrowedFd<'_>; 3]) -> Result<Inspected<'_>, StreamError> {
    let mut given = streams.map(|stream| (stream, Treatment::Pass));
    for ((fd, treatment), stream) in given.iter_mut().zip(NAMES) {
        let kind = kind::of(*fd).map_err(|source| StreamError::Inspect { stream, source })?;
        *treatment = kind.treatment();
        if let Treatment::Refuse(danger) = *treatment {
            return Err(StreamError::Refused { stream, kind: Kind::as_str(kind), danger });
        }
    }
    Ok(Inspected { given })
}

/// A standard stream of a command.
#[derive(Debug)]
enum Stream {
    /// Descriptor of the caller.
    Passed(OwnedFd),
    /// Command's end of the relay with this index.
    Relayed(usize),
}

/// The standard streams of a command.
#[derive(Debug)]
pub struct Streams {
    streams: [Stream; 3],
    relays: Vec<Relay>,
}

/// Key of a relay: device, inode and direction. Streams of one open file share a relay, so that writes to either keep
/// their order.
type Source = (u64, u64, Direction);

impl Inspected<'_> {
    /// Returns true if a stream needs a relay.
    #[must_use]
    pub fn has_relays(&self) -> bool {
        self.given.iter().any(|(_, treatment)| matches!(treatment, Treatment::RelaySocket | Treatment::RelayFile))
    }

    /// Opens the streams and starts their relays; a `tap` gets everything that the command writes to an output that is not a
    /// terminal. To be called in the network namespace to which the new sockets shall belong.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated, or a socket pair, pipe or thread cannot be created.
    pub fn open(self, tap: Option<&Tap>) -> Result<Streams, StreamError> {
        let mut relays: Vec<(Source, Relay)> = Vec::new();
        let mut open = |index: usize| {
            let (fd, treatment) = self.given[index];
            let output = if index == 2 { Output::Error } else { Output::Standard };
            let tapped = tap.filter(|_| index > 0).map(|tap| Tapped { tap: Arc::clone(tap), output });
            let relay = match treatment {
                Treatment::RelaySocket => relay_of(&mut relays, fd, Direction::Both, tapped)?,
                Treatment::RelayFile => relay_of(&mut relays, fd, direction_of(fd, index == 0)?, tapped)?,
                Treatment::Pass if tapped.is_some() && !rustix::termios::isatty(fd) => {
                    relay_of(&mut relays, fd, Direction::Outward, tapped)?
                }
                Treatment::Pass | Treatment::Refuse(_) => return Ok(Stream::Passed(fd.try_clone_to_owned()?)),
            };
            Ok(Stream::Relayed(relay))
        };
        let mut open = |index| open(index).map_err(|source| StreamError::Relay { stream: NAMES[index], source });
        // An output that is also the input shares the relay that is tapped.
        let [output, errors, input] = [open(1)?, open(2)?, open(0)?];
        let streams = [input, output, errors];
        Ok(Streams { streams, relays: relays.into_iter().map(|(_, relay)| relay).collect() })
    }
}

/// Returns the index of the relay for `fd`, and starts it if there is none yet.
fn relay_of(
    relays: &mut Vec<(Source, Relay)>,
    fd: BorrowedFd<'_>,
    direction: Direction,
    tapped: Option<Tapped>,
) -> io::Result<usize> {
    let data = rustix::fs::fstat(fd)?;
    let source = (data.st_dev, data.st_ino, direction);
    if let Some(known) = relays.iter().position(|(known, _)| *known == source) {
        return Ok(known);
    }
    let (ours, command_end) = match direction {
        Direction::Both => {
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?
        }
        Direction::Inward => {
            let (reading, writing) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            (writing, reading)
        }
        Direction::Outward => rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?,
    };
    let outer = fd.try_clone_to_owned()?;
    rustix::io::fcntl_setfd(&outer, FdFlags::CLOEXEC)?;
    if direction != Direction::Both {
        set_nonblocking(ours.as_fd())?;
    }
    // A non-blocking stream stays non-blocking for the command.
    if rustix::fs::fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
        set_nonblocking(command_end.as_fd())?;
    }
    relays.push((source, Relay::start(outer, ours, command_end, direction, tapped)?));
    Ok(relays.len() - 1)
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// Returns the direction of a file: as it was opened, or that of the stream if it was opened for both.
fn direction_of(fd: BorrowedFd<'_>, is_input: bool) -> io::Result<Direction> {
    let access = rustix::fs::fcntl_getfl(fd)? & OFlags::RWMODE;
    let is_inward = access == OFlags::RDONLY || (access == OFlags::RDWR && is_input);
    Ok(if is_inward { Direction::Inward } else { Direction::Outward })
}

impl Streams {
    /// Opens `terminal` as all three streams. What the command writes goes to `output`, for as long as that takes it, and to `tap`.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated, or the thread cannot be created.
    pub fn on_terminal(terminal: Terminal, output: BorrowedFd<'_>, tap: Tap) -> Result<Self, StreamError> {
        let (master, slave) = terminal.into_parts();
        let tapped = Some(Tapped { tap, output: Output::Standard });
        let start = |outer| Relay::start(outer, master, slave, Direction::Outward, tapped);
        let relay = output.try_clone_to_owned().and_then(start);
        let relay = relay.map_err(|source| StreamError::Relay { stream: "the terminal", source })?;
        Ok(Self { streams: [Stream::Relayed(0), Stream::Relayed(0), Stream::Relayed(0)], relays: vec![relay] })
    }

    /// Descriptors for a command: standard input, output, error.
    #[must_use]
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        [0, 1, 2].map(|index| match &self.streams[index] {
            Stream::Passed(fd) => fd.as_fd(),
            Stream::Relayed(relay) => self.relays[*relay].command_end(),
        })
    }

    /// Returns true if [`Self::finish`] may have to wait.
    #[must_use]
    pub fn has_relays(&self) -> bool {
        !self.relays.is_empty()
    }

    /// Waits up to `timeout` until everything that the sandbox wrote has been copied; returns false if something is
    /// left. To be called when no process of the sandbox is left.
    #[must_use]
    pub fn finish(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let flushing: Vec<_> = self.relays.into_iter().map(Relay::end).collect();
        // Nothing is ever sent; the channel disconnects when the relay is done.
        flushing.iter().all(|flushed| {
            let left = deadline.saturating_duration_since(Instant::now());
            flushed.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
        })
    }
}

#[cfg(test)]
mod tests;
