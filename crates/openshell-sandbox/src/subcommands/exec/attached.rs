//! The client's terminal while a command has one of its own in a sandbox: bytes go both ways, and sizes inwards.

use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use openshell_supervisor::pty::{self, Size};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios};

/// Silence of a terminal after the end of its command, while other processes hold it.
const SILENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Bytes that are copied at once.
const CHUNK: usize = 32 * 1024;

/// The end-of-file character (termios(3), VEOF) of a new terminal.
const END_OF_FILE: u8 = 4;

/// Returns the size of the terminal at standard output, or a default.
pub(super) fn size() -> Size {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Size { columns: size.ws_col, rows: size.ws_row },
        Ok(_) | Err(_) => Size::DEFAULT,
    }
}

/// A command's terminal, connected to this process's standard input and output.
pub(super) struct AttachedTerminal {
    master: Arc<OwnedFd>,
    /// Copies what the command writes.
    output: JoinHandle<()>,
    /// Closed at the end of the command.
    end: PipeWriter,
    /// Modes of the client's terminal, if it has one, restored on drop.
    _raw: Option<RawMode>,
}

impl AttachedTerminal {
    /// Begins to copy.
    ///
    /// # Errors
    /// Threads or descriptors are exhausted.
    pub(super) fn start(master: OwnedFd) -> anyhow::Result<Self> {
        let master = Arc::new(master);
        let raw = RawMode::enter();
        let (ended, end) = io::pipe()?;
        let to = Arc::clone(&master);
        // It ends with the process: nothing interrupts a read.
        std::thread::Builder::new().name("input".to_owned()).spawn(move || copy_input(to.as_fd()))?;
        let from = Arc::clone(&master);
        let copy = move || copy_output(from.as_fd(), ended.as_fd());
        let output = std::thread::Builder::new().name("output".to_owned()).spawn(copy)?;
        let terminal = Self { master, output, end, _raw: raw };
        // It may have changed while the command started.
        terminal.resize();
        Ok(terminal)
    }

    /// Gives the command's terminal the size of the client's.
    pub(super) fn resize(&self) {
        // Without a terminal there is no size to give.
        let _ = pty::resize(self.master.as_fd(), size());
    }

    /// Copies what the command has written, after its end.
    pub(super) fn finish(self) {
        drop(self.end);
        // A panic has been printed.
        let _ = self.output.join();
    }
}

fn copy_input(master: BorrowedFd<'_>) {
    let mut buffer = vec![0; CHUNK];
    let mut input = io::stdin().lock();
    loop {
        match input.read(&mut buffer) {
            Ok(0) => {
                let _ = write_all(master, &[END_OF_FILE]);
                return;
            }
            Ok(count) => {
                if write_all(master, buffer.get(..count).unwrap_or_default()).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Writes to a master, which does not block.
fn write_all(master: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(master, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::AGAIN) => drop(rustix::event::poll(&mut [PollFd::new(&master, PollFlags::OUT)], None)?),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Copies from `master` until its last process has ended, or, once the other end of `ended` is closed, until it is silent.
fn copy_output(master: BorrowedFd<'_>, ended: BorrowedFd<'_>) {
    let mut buffer = vec![0; CHUNK];
    let mut output = io::stdout().lock();
    let mut has_ended = false;
    loop {
        let mut ready = vec![PollFd::new(&master, PollFlags::IN)];
        if !has_ended {
            ready.push(PollFd::new(&ended, PollFlags::IN));
        }
        match rustix::event::poll(&mut ready, has_ended.then_some(&SILENCE)) {
            Ok(0) => return,
            Ok(_) => has_ended |= ready.get(1).is_some_and(|ended| !ended.revents().is_empty()),
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        match rustix::io::read(master, &mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                let taken = output.write_all(buffer.get(..count).unwrap_or_default()).and_then(|()| output.flush());
                if taken.is_err() {
                    return;
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // EIO: no process has the slave any more.
            Err(_) => return,
        }
    }
}

/// Modes of the client's terminal before it passed everything on unread.
struct RawMode(Termios);

impl RawMode {
    /// Puts the terminal at standard input, if there is one, into raw mode.
    fn enter() -> Option<Self> {
        let before = rustix::termios::tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}
