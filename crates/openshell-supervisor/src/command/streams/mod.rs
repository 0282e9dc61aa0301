//! Makes the standard streams of a command from those of the supervisor.

mod bell;
mod kind;
mod relay;
pub mod retained;
mod terminal;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use crate::command::pty::Terminal;
use kind::{Kind, Treatment};
use relay::{Direction, Relay, Tapped};
use retained::{Output, Tap};
pub use terminal::TerminalRelay;

/// Names of the streams in messages.
const NAMES: [&str; 3] = ["standard input", "standard output", "standard error"];

/// The reason why a standard stream cannot be passed to a command.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum StreamError {
    #[error(
        "{stream} is {kind}, and {danger}; give the sandbox a pipe or a file instead (`… | \
         openshell-sandbox … | …`)"
    )]
    Refused {
        stream: &'static str,
        kind: &'static str,
        danger: &'static str,
    },
    #[error("cannot inspect {stream}")]
    Inspect {
        stream: &'static str,
        source: io::Error,
    },
    #[error("cannot relay {stream}")]
    Relay {
        stream: &'static str,
        source: io::Error,
    },
}

/// The caller's standard streams and the treatment of each.
#[derive(Debug)]
pub struct Inspected<'s> {
    given: [Given<'s>; 3],
}

/// A standard stream of the caller.
#[derive(Clone, Copy, Debug)]
struct Given<'s> {
    fd: BorrowedFd<'s>,
    kind: Kind,
    treatment: Treatment,
}

/// Examines the caller's standard input, output and error.
///
/// # Errors
/// Fails if a stream cannot be examined, or is of a kind that no command may have.
pub fn inspect(streams: [BorrowedFd<'_>; 3]) -> Result<Inspected<'_>, StreamError> {
    let mut given = streams.map(|fd| Given {
        fd,
        kind: Kind::Unknown,
        treatment: Treatment::Pass,
    });
    for (given, stream) in given.iter_mut().zip(NAMES) {
        given.kind =
            kind::of(given.fd).map_err(|source| StreamError::Inspect { stream, source })?;
        given.treatment = given.kind.treatment();
        if let Treatment::Refuse(danger) = given.treatment {
            return Err(StreamError::Refused {
                stream,
                kind: given.kind.as_str(),
                danger,
            });
        }
    }
    Ok(Inspected { given })
}

/// A standard stream of a command.
#[derive(Debug)]
enum Stream {
    /// A descriptor of the caller, or one that reads nothing.
    Passed(OwnedFd),
    /// The command's end of the relay with this index.
    Relayed(usize),
    /// The command's terminal.
    Terminal,
}

/// The standard streams of a command.
#[derive(Debug)]
pub struct Streams {
    streams: [Stream; 3],
    relays: Vec<Relay>,
    terminal: Option<CommandTerminal>,
}

/// The terminal of a command.
#[derive(Debug)]
struct CommandTerminal {
    /// The slave side, held open until the command has ended: until then the master does not report
    /// an end.
    slave: OwnedFd,
    /// A slave side for outputs, if nothing can be typed at the terminal.
    output: Option<OwnedFd>,
    /// The relay on the master side, if this process has the master.
    relay: Option<Arc<TerminalRelay>>,
}

/// The key of a relay: device, inode and direction. Streams of one open file share a relay, so that
/// what is written to them keeps its order.
type Source = (u64, u64, Direction);

/// The purpose for which a command's streams are opened.
#[derive(Clone, Copy, Default)]
pub struct Purpose<'p> {
    /// A callback that gets everything that the command writes to an output that is not a terminal.
    pub tap: Option<&'p Tap>,
    /// True if the supervisor's log goes to standard error. The command must not be able to take
    /// lines out of the log or overwrite them.
    pub is_log: bool,
    /// True if the command may read the terminal at standard input. If false, it reads nothing
    /// there.
    pub has_keyboard: bool,
}

impl Inspected<'_> {
    /// Returns true if a stream needs sockets.
    #[must_use]
    pub fn has_sockets(&self) -> bool {
        self.given
            .iter()
            .any(|given| given.treatment == Treatment::RelaySocket)
    }

    /// Opens the streams and starts their relays. Call this in the network namespace that the new
    /// sockets are to belong to.
    ///
    /// # Errors
    /// Fails if a descriptor cannot be duplicated, or a socket pair, pipe or thread cannot be
    /// created.
    pub fn open(self, purpose: Purpose<'_>) -> Result<Streams, StreamError> {
        let mut relays: Vec<(Source, Relay)> = Vec::new();
        let mut open = |index: usize| self.open_stream(index, purpose, &mut relays);
        let mut open = |index| {
            open(index).map_err(|source| StreamError::Relay {
                stream: NAMES[index],
                source,
            })
        };
        // The outputs come first: an output that is also the input then shares the relay that has
        // the tap.
        let [output, errors, input] = [open(1)?, open(2)?, open(0)?];
        let streams = [input, output, errors];
        Ok(Streams {
            streams,
            relays: relays.into_iter().map(|(_, relay)| relay).collect(),
            terminal: None,
        })
    }

    fn open_stream(
        &self,
        index: usize,
        purpose: Purpose<'_>,
        relays: &mut Vec<(Source, Relay)>,
    ) -> io::Result<Stream> {
        let Given {
            fd,
            kind,
            treatment,
        } = self.given[index];
        let is_input = index == 0;
        let output = if index == 2 {
            Output::Error
        } else {
            Output::Standard
        };
        let tapped = purpose.tap.filter(|_| !is_input).map(|tap| Tapped {
            tap: Arc::clone(tap),
            output,
        });
        let relay = match treatment {
            Treatment::RelaySocket => relay_of(relays, fd, Direction::Both, tapped)?,
            Treatment::RelayFile => relay_of(relays, fd, direction_of(fd, is_input)?, tapped)?,
            Treatment::Pass
                if tapped.is_some() || !is_input && purpose.is_log && self.is_log(fd, kind)? =>
            {
                relay_of(relays, fd, Direction::Outward, tapped)?
            }
            Treatment::OwnTerminal if is_input && !purpose.has_keyboard => {
                let null =
                    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                return Ok(Stream::Passed(null));
            }
            Treatment::OwnTerminal => return Ok(Stream::Terminal),
            Treatment::Pass | Treatment::Refuse(_) => {
                return Ok(Stream::Passed(fd.try_clone_to_owned()?));
            }
        };
        Ok(Stream::Relayed(relay))
    }

    /// Returns true for an output that is the same pipe or file as standard error.
    fn is_log(&self, fd: BorrowedFd<'_>, kind: Kind) -> io::Result<bool> {
        if ![Kind::Pipe, Kind::RegularFile].contains(&kind) {
            return Ok(false);
        }
        let [of_stream, of_log] = [rustix::fs::fstat(fd)?, rustix::fs::fstat(self.given[2].fd)?];
        Ok((of_stream.st_dev, of_stream.st_ino) == (of_log.st_dev, of_log.st_ino))
    }
}

/// Returns the index of the relay for `fd`. Starts the relay if there is none yet.
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
        Direction::Both => rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?,
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
    relays.push((
        source,
        Relay::start(outer, ours, command_end, direction, tapped)?,
    ));
    Ok(relays.len() - 1)
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fcntl_setfl(
        fd,
        rustix::fs::fcntl_getfl(fd)? | OFlags::NONBLOCK,
    )?)
}

/// Returns the direction of a file: the direction that it was opened for or, if it was opened for
/// both, the direction of the stream.
fn direction_of(fd: BorrowedFd<'_>, is_input: bool) -> io::Result<Direction> {
    let access = rustix::fs::fcntl_getfl(fd)? & OFlags::RWMODE;
    let is_inward = access == OFlags::RDONLY || (access == OFlags::RDWR && is_input);
    Ok(if is_inward {
        Direction::Inward
    } else {
        Direction::Outward
    })
}

impl Streams {
    /// Returns the streams of a command that has a terminal for all of them.
    #[must_use]
    pub fn of_terminal() -> Self {
        Self {
            streams: [Stream::Terminal, Stream::Terminal, Stream::Terminal],
            relays: Vec::new(),
            terminal: None,
        }
    }

    /// Returns true if a stream is a terminal that has yet to be opened by [`Self::relay_terminal`]
    /// or [`Self::set_terminal`].
    #[must_use]
    pub fn need_terminal(&self) -> bool {
        self.terminal.is_none()
            && self
                .streams
                .iter()
                .any(|stream| matches!(stream, Stream::Terminal))
    }

    /// Gives the command `terminal`, with or without a keyboard. What the command writes there goes
    /// to `output` and to `tap`.
    ///
    /// # Errors
    /// Fails if a descriptor cannot be duplicated, or the thread cannot be created.
    pub fn relay_terminal(
        &mut self,
        terminal: Terminal,
        has_keyboard: bool,
        output: BorrowedFd<'_>,
        tap: Option<Tap>,
    ) -> Result<Arc<TerminalRelay>, StreamError> {
        let tapped = tap.map(|tap| Tapped {
            tap,
            output: Output::Standard,
        });
        let open = || {
            let for_writing = if has_keyboard {
                None
            } else {
                Some(terminal.output()?)
            };
            let (master, slave) = terminal.into_parts();
            let relay = Arc::new(TerminalRelay::new(
                master,
                output.try_clone_to_owned()?,
                tapped,
            )?);
            let used = Some(Arc::clone(&relay));
            self.terminal = Some(CommandTerminal {
                slave,
                output: for_writing,
                relay: used,
            });
            Ok(relay)
        };
        open().map_err(|source| StreamError::Relay {
            stream: "the terminal",
            source,
        })
    }

    /// Gives the command `terminal`, with or without a keyboard, for the streams `which`. Returns
    /// the terminal's master, for another process.
    ///
    /// # Errors
    /// Fails if descriptors are exhausted.
    pub fn set_terminal(
        &mut self,
        terminal: Terminal,
        has_keyboard: bool,
        which: [bool; 3],
    ) -> io::Result<OwnedFd> {
        for (stream, is_terminal) in self.streams.iter_mut().zip(which) {
            if is_terminal {
                *stream = Stream::Terminal;
            }
        }
        let output = if has_keyboard {
            None
        } else {
            Some(terminal.output()?)
        };
        let (master, slave) = terminal.into_parts();
        self.terminal = Some(CommandTerminal {
            slave,
            output,
            relay: None,
        });
        Ok(master)
    }

    /// Returns the command's terminal, if it has one by now.
    #[must_use]
    pub fn terminal(&self) -> Option<BorrowedFd<'_>> {
        self.terminal
            .as_ref()
            .map(|terminal| terminal.slave.as_fd())
    }

    /// Returns the descriptors for a command: standard input, output, error.
    ///
    /// # Errors
    /// Fails if they need a terminal that has not been opened.
    pub fn as_fds(&self) -> Result<[BorrowedFd<'_>; 3], StreamError> {
        let [input, output, errors] = &self.streams;
        Ok([self.as_fd(input)?, self.as_fd(output)?, self.as_fd(errors)?])
    }

    fn as_fd<'s>(&'s self, stream: &'s Stream) -> Result<BorrowedFd<'s>, StreamError> {
        match stream {
            Stream::Passed(fd) => Ok(fd.as_fd()),
            Stream::Relayed(relay) => Ok(self.relays[*relay].command_end()),
            Stream::Terminal => match &self.terminal {
                Some(terminal) => Ok(terminal.output.as_ref().unwrap_or(&terminal.slave).as_fd()),
                None => Err(StreamError::Relay {
                    stream: "the terminal",
                    source: io::ErrorKind::NotFound.into(),
                }),
            },
        }
    }

    /// Returns the regular files that the command gets unchanged as its outputs.
    ///
    /// # Errors
    /// Fails if a descriptor cannot be looked at.
    pub fn output_files(&self) -> io::Result<Vec<BorrowedFd<'_>>> {
        let [_, outputs @ ..] = &self.streams;
        let mut files = Vec::new();
        for stream in outputs {
            let Stream::Passed(fd) = stream else { continue };
            let is_written = rustix::fs::fcntl_getfl(fd)?.intersects(OFlags::WRONLY | OFlags::RDWR);
            if is_written && kind::of(fd.as_fd())? == Kind::RegularFile {
                files.push(fd.as_fd());
            }
        }
        Ok(files)
    }

    /// Returns true if [`Self::finish`] may have to wait.
    #[must_use]
    pub fn has_relays(&self) -> bool {
        !self.relays.is_empty()
            || self
                .terminal
                .as_ref()
                .is_some_and(|terminal| terminal.relay.is_some())
    }

    /// Waits up to `timeout` until everything that the sandbox wrote has been copied. Returns false
    /// if something is left. Call this after the last process of the sandbox has ended.
    #[must_use]
    pub fn finish(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let flushing: Vec<_> = self.relays.into_iter().map(Relay::end).collect();
        let shown = self
            .terminal
            .and_then(|terminal| terminal.relay)
            .is_none_or(|relay| relay.finish(left()));
        // Nothing is ever sent. The channel disconnects when the relay is done.
        let flushed = flushing
            .iter()
            .all(|flushed| flushed.recv_timeout(left()) == Err(RecvTimeoutError::Disconnected));
        shown && flushed
    }
}

#[cfg(test)]
mod tests;
