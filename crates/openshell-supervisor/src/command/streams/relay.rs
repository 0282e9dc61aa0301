//! Relays between a descriptor of the caller and a socket pair or pipe whose other end the command
//! has.
//!
//! Each relay is a thread that polls before it reads or writes. It never blocks on a socket or on
//! its end of the command's pipe. It buffers at most [`BUFFER_BYTES`] per direction: a side that
//! does not read blocks the other side, as it would without a relay.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::retained::{Output, Tap};

/// The size of the buffer of each direction in bytes, in addition to the kernel's.
const BUFFER_BYTES: usize = 64 * 1024;

/// The direction of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Both directions, through a socket pair.
    Both,
    /// From the caller's descriptor to the command.
    Inward,
    /// From the command to the caller's descriptor.
    Outward,
}

/// Where a copy of what the command writes goes.
#[derive(Clone)]
pub(super) struct Tapped {
    pub(super) tap: Tap,
    pub(super) output: Output,
}

/// One side of a relay.
#[derive(Clone, Debug)]
struct End {
    fd: Arc<OwnedFd>,
    is_socket: bool,
}

impl End {
    fn read(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        if self.is_socket {
            rustix::net::recv(&*self.fd, buffer, RecvFlags::DONTWAIT).map(|(filled, _)| filled)
        } else {
            rustix::io::read(&*self.fd, buffer)
        }
    }

    fn write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        if self.is_socket {
            rustix::net::send(&*self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        } else {
            rustix::io::write(&*self.fd, bytes)
        }
    }

    /// Shuts down a socket. The end of a pipe is passed on by closing it.
    fn shut_down(&self, how: Shutdown) {
        if self.is_socket {
            // The socket may be closed already.
            let _ = rustix::net::shutdown(&*self.fd, how);
        }
    }
}

/// The state of one direction.
struct Flow {
    from: End,
    to: End,
    buffer: Vec<u8>,
    /// The part of the buffer that is still to be written.
    left: std::ops::Range<usize>,
    /// The tap that gets a copy of everything.
    tapped: Option<Tapped>,
    /// True if the destination has refused bytes while a tap still gets everything.
    is_refused: bool,
}

/// The progress of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Goes,
    /// The source has ended, and all of its bytes have been written.
    Ended,
    /// The destination accepts no more.
    Refused,
}

impl Flow {
    fn new(from: &End, to: &End, tapped: Option<Tapped>) -> Self {
        let buffer = vec![0; BUFFER_BYTES];
        Self {
            from: from.clone(),
            to: to.clone(),
            buffer,
            left: 0..0,
            tapped,
            is_refused: false,
        }
    }

    /// Returns the descriptor and the event that this direction waits for.
    fn waits_for(&self) -> PollFd<'_> {
        if self.left.is_empty() {
            PollFd::new(&*self.from.fd, PollFlags::IN)
        } else {
            PollFd::new(&*self.to.fd, PollFlags::OUT)
        }
    }

    /// Performs one read or one write.
    fn step(&mut self) -> Progress {
        if self.left.is_empty() {
            return match self.from.read(&mut self.buffer) {
                Ok(filled @ 1..) => {
                    if let Some(Tapped { tap, output }) = &self.tapped {
                        tap(*output, self.buffer.get(..filled).unwrap_or_default());
                    }
                    self.left = if self.is_refused { 0..0 } else { 0..filled };
                    Progress::Goes
                }
                Err(Errno::AGAIN | Errno::INTR) => Progress::Goes,
                // A reset connection has ended too.
                Ok(_) | Err(_) => Progress::Ended,
            };
        }
        match self
            .to
            .write(self.buffer.get(self.left.clone()).unwrap_or_default())
        {
            Ok(written) => {
                self.left.start += written;
                Progress::Goes
            }
            Err(Errno::AGAIN | Errno::INTR) => Progress::Goes,
            Err(_) if self.tapped.is_some() => {
                (self.is_refused, self.left) = (true, 0..0);
                Progress::Goes
            }
            Err(_) => Progress::Refused,
        }
    }
}

/// A running relay.
#[derive(Debug)]
pub(super) struct Relay {
    /// The command's end. It is held open until the command has ended, so that until then an end of
    /// file can only come from a shutdown.
    command_end: OwnedFd,
    has_ended: Arc<AtomicBool>,
    /// A channel that disconnects when everything has been written to the caller's descriptor.
    flushed: mpsc::Receiver<()>,
}

impl Relay {
    /// Starts copying between `outer`, the caller's descriptor, and `inner`, the other end of
    /// `command_end`.
    ///
    /// # Errors
    /// Fails if the thread cannot be created.
    pub(super) fn start(
        outer: OwnedFd,
        inner: OwnedFd,
        command_end: OwnedFd,
        direction: Direction,
        tapped: Option<Tapped>,
    ) -> io::Result<Self> {
        let is_socket = direction == Direction::Both;
        let [outer, inner] = [outer, inner].map(|fd| End {
            fd: Arc::new(fd),
            is_socket,
        });
        let inward = (direction != Direction::Outward).then(|| Flow::new(&outer, &inner, None));
        let outward = (direction != Direction::Inward).then(|| Flow::new(&inner, &outer, tapped));
        let has_ended = Arc::new(AtomicBool::new(false));
        let (flushing, flushed) = mpsc::channel();
        let copying = Copying {
            inward,
            outward,
            has_ended: Arc::clone(&has_ended),
            flushing: Some(flushing),
        };
        drop((outer, inner));
        std::thread::Builder::new()
            .name("stream relay".to_owned())
            .spawn(move || copying.run())?;
        Ok(Self {
            command_end,
            has_ended,
            flushed,
        })
    }

    /// Returns the descriptor for the command.
    pub(super) fn command_end(&self) -> BorrowedFd<'_> {
        self.command_end.as_fd()
    }

    /// Closes the command's end. No other process may have it any more. Bytes already written to it
    /// are still copied; the returned receiver disconnects when that is done.
    pub(super) fn end(self) -> mpsc::Receiver<()> {
        self.has_ended.store(true, Ordering::Release);
        self.flushed
    }
}

/// The state of a relay's thread.
struct Copying {
    inward: Option<Flow>,
    outward: Option<Flow>,
    has_ended: Arc<AtomicBool>,
    flushing: Option<mpsc::Sender<()>>,
}

impl Copying {
    fn run(mut self) {
        loop {
            if self.outward.is_none() {
                self.flushing = None;
            }
            let mut waits: Vec<_> = [&self.inward, &self.outward]
                .into_iter()
                .flatten()
                .map(Flow::waits_for)
                .collect();
            if waits.is_empty() {
                return;
            }
            match rustix::event::poll(&mut waits, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let mut ready = waits
                .iter()
                .map(|wait| !wait.revents().is_empty())
                .collect::<Vec<_>>()
                .into_iter();
            let mut is_ready = |flow: &Option<Flow>| flow.is_some() && ready.next() == Some(true);
            let is_inward = is_ready(&self.inward);
            let is_outward = is_ready(&self.outward);
            if is_inward {
                self.inward = self.inward.take().and_then(step_inward);
            }
            if is_outward {
                let has_ended = &self.has_ended;
                self.outward = self
                    .outward
                    .take()
                    .and_then(|flow| step_outward(flow, has_ended));
            }
        }
    }
}

fn step_inward(mut flow: Flow) -> Option<Flow> {
    match flow.step() {
        Progress::Goes => return Some(flow),
        Progress::Ended => flow.to.shut_down(Shutdown::Write),
        // The command has ended or reads no more. Incoming bytes stay where they are.
        Progress::Refused => {}
    }
    None
}

fn step_outward(mut flow: Flow, has_ended: &AtomicBool) -> Option<Flow> {
    match flow.step() {
        Progress::Goes => return Some(flow),
        // After the command's end the caller's descriptor stays unchanged, because other processes
        // may use it.
        Progress::Ended if has_ended.load(Ordering::Acquire) => {}
        Progress::Ended => flow.to.shut_down(command_shutdown(&flow.from)),
        // The command's next write fails, as it would on the descriptor itself.
        Progress::Refused => flow.from.shut_down(Shutdown::Read),
    }
    None
}

/// Returns the directions that the command has shut down. If the peer of a socket is closed for
/// both, poll(2) reports a hang-up.
fn command_shutdown(inner: &End) -> Shutdown {
    let mut state = [PollFd::new(&*inner.fd, PollFlags::empty())];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let polled = rustix::event::poll(&mut state, Some(&now));
    let is_both = polled.is_ok()
        && state
            .iter()
            .any(|end| end.revents().contains(PollFlags::HUP));
    if is_both {
        Shutdown::Both
    } else {
        Shutdown::Write
    }
}
