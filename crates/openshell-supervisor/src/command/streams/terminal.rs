//! The relay between the caller's terminal and the terminal of a command, which is the sandbox's
//! own.
//!
//! A thread copies what the command writes. What is typed is copied while the relay is attached:
//! then the caller's terminal passes everything on unread, and the command's does the rest (line
//! editing, echo, signals), with the modes that the caller's had.

use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize,
};
use rustix::termios::{isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

use super::relay::Tapped;
use crate::command::job;

/// Bytes that are copied at once.
const CHUNK: usize = 32 * 1024;

/// Silence of a terminal after the end of its command, while other processes hold it.
const SILENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Longest wait for output to be shown before the caller's shell takes over.
const SETTLING: Duration = Duration::from_millis(200);

/// A running relay. Dropping it leaves the caller's terminal as it is; see [`Self::detach`].
#[derive(Debug)]
pub struct TerminalRelay {
    shared: Arc<Shared>,
    keyboard: Mutex<Option<Keyboard>>,
    /// Disconnects when everything has been written to the caller's descriptor.
    shown: Mutex<mpsc::Receiver<()>>,
}

/// State that the threads share.
#[derive(Debug)]
struct Shared {
    /// Of the command's terminal; does not block. `None` once that is hung up.
    master: Mutex<Option<Arc<OwnedFd>>>,
    /// Closed at the end of the command.
    end: Mutex<Option<PipeWriter>>,
    /// The caller's terminal, or another output. Its blocking is never changed: other processes
    /// have it too.
    output: OwnedFd,
    /// True while the caller's terminal passes everything on unread.
    is_raw: AtomicBool,
    /// True while output is on its way.
    is_busy: Mutex<bool>,
    is_idle: Condvar,
}

/// The attached keyboard.
#[derive(Debug)]
struct Keyboard {
    /// Modes of the caller's terminal before; `None` if the input is none.
    modes: Option<Termios>,
    /// Closed to end the thread.
    stop: PipeWriter,
    thread: JoinHandle<()>,
}

impl TerminalRelay {
    /// Starts to copy from `master`, which does not block, to `output`, for as long as that takes
    /// it, and to `tapped`.
    ///
    /// # Errors
    /// Threads or descriptors are exhausted.
    pub(super) fn new(
        master: OwnedFd,
        output: OwnedFd,
        tapped: Option<Tapped>,
    ) -> io::Result<Self> {
        let (ended, end) = io::pipe()?;
        let shared = Arc::new(Shared {
            master: Mutex::new(Some(Arc::new(master))),
            end: Mutex::new(Some(end)),
            output,
            is_raw: AtomicBool::new(false),
            is_busy: Mutex::new(false),
            is_idle: Condvar::new(),
        });
        let (showing, shown) = mpsc::channel();
        let copying = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("terminal output".to_owned())
            .spawn(move || {
                copying.copy_output(tapped.as_ref(), ended.as_fd());
                drop(showing);
            })?;
        Ok(Self {
            shared,
            keyboard: Mutex::default(),
            shown: Mutex::new(shown),
        })
    }

    /// Starts to copy from `master`, as a client has it of a command whose terminal is elsewhere.
    ///
    /// # Errors
    /// Threads or descriptors are exhausted.
    pub fn start(master: OwnedFd, output: BorrowedFd<'_>) -> io::Result<Self> {
        Self::new(master, output.try_clone_to_owned()?, None)
    }

    /// Gives the command's terminal the modes of `terminal`, and the size of the output's.
    pub fn imitate(&self, terminal: BorrowedFd<'_>) {
        // One that is none has none to give.
        if let (Ok(modes), Some(master)) = (tcgetattr(terminal), self.shared.master()) {
            let _ = tcsetattr(master, OptionalActions::Now, &modes);
        }
        self.resize();
    }

    /// Gives the command's terminal the size of the caller's; its foreground process group gets
    /// SIGWINCH if it changes.
    pub fn resize(&self) {
        if let (Ok(size), Some(master)) = (tcgetwinsize(&self.shared.output), self.shared.master())
            && is_known(&size)
        {
            let _ = tcsetwinsize(master, size);
        }
    }

    /// Hangs up the command's terminal, as the caller's is: it reads the end of input from then on.
    pub fn hang_up(&self) {
        drop(self.shared.master.lock().take());
        drop(self.shared.end.lock().take());
    }

    /// Copies what is typed at `input` from now on. A terminal passes everything on unread
    /// meanwhile; it must be this process's controlling one, with this process in its foreground,
    /// and SIGTTIN and SIGTTOU ignored.
    ///
    /// # Errors
    /// Threads or descriptors are exhausted, or the terminal is gone.
    pub fn attach(&self, input: BorrowedFd<'_>) -> io::Result<()> {
        let mut keyboard = self.keyboard.lock();
        let before = keyboard.take().and_then(Keyboard::end);
        let mut modes = None;
        let mut typed = Vec::new();
        if isatty(input) {
            typed = self.shared.typed_lines(input)?;
            modes = Some(enter_raw_mode(input, before)?);
        }
        self.shared.is_raw.store(modes.is_some(), Ordering::Release);
        let (stopped, stop) = io::pipe()?;
        let shared = Arc::clone(&self.shared);
        let from = input.try_clone_to_owned()?;
        let copy = move || shared.copy_input(&typed, from.as_fd(), stopped.as_fd());
        let thread = std::thread::Builder::new()
            .name("terminal input".to_owned())
            .spawn(copy)?;
        *keyboard = Some(Keyboard {
            modes,
            stop,
            thread,
        });
        Ok(())
    }

    /// Copies no more of what is typed at `input`. If this process is in the foreground of that
    /// terminal, what the command wrote is shown first, the modes of before are set, and what was
    /// typed and not read is dropped: it was meant for the command.
    pub fn detach(&self, input: BorrowedFd<'_>) {
        let Some(keyboard) = self.keyboard.lock().take() else {
            return;
        };
        let Some(modes) = keyboard.end() else { return };
        if job::is_in_foreground(input) {
            self.shared.settle();
            self.shared.is_raw.store(false, Ordering::Release);
            let _ = tcsetattr(input, OptionalActions::Flush, &modes);
        }
        self.shared.is_raw.store(false, Ordering::Release);
    }

    /// Copies what the command has written, after its end, for `timeout` at most; returns false if
    /// something is left. What processes write that still have the terminal then is shown until
    /// they are silent.
    #[must_use]
    pub fn finish(&self, timeout: Duration) -> bool {
        drop(self.shared.end.lock().take());
        // Nothing is ever sent.
        self.shown.lock().recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Keyboard {
    /// Ends the thread, and returns the modes of before.
    fn end(self) -> Option<Termios> {
        drop(self.stop);
        // A panic has been printed.
        let _ = self.thread.join();
        self.modes
    }
}

/// Returns true for a size that a terminal has told.
fn is_known(size: &Winsize) -> bool {
    size.ws_col > 0 && size.ws_row > 0
}

/// Puts a terminal into raw mode; returns its modes of before, which are `known` if it is there
/// already.
fn enter_raw_mode(terminal: BorrowedFd<'_>, known: Option<Termios>) -> io::Result<Termios> {
    let before = tcgetattr(terminal)?;
    let mut raw = before.clone();
    raw.make_raw();
    // A read returns at once, also if another process was faster.
    raw.special_codes[SpecialCodeIndex::VMIN] = 0;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(terminal, OptionalActions::Now, &raw)?;
    let is_raw = !before
        .local_modes
        .intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
    Ok(known.filter(|_| is_raw).unwrap_or(before))
}

impl Shared {
    fn master(&self) -> Option<Arc<OwnedFd>> {
        self.master.lock().clone()
    }

    /// Copies from the command's terminal until its last process has ended, or, once the other end
    /// of `ended` is closed, until it is silent.
    fn copy_output(&self, tapped: Option<&Tapped>, ended: BorrowedFd<'_>) {
        let mut buffer = vec![0; CHUNK];
        let mut has_ended = false;
        let mut is_taken = true;
        while let Some(master) = self.master() {
            let mut ready = vec![PollFd::new(&*master, PollFlags::IN)];
            if !has_ended {
                ready.push(PollFd::new(&ended, PollFlags::IN));
            }
            match rustix::event::poll(&mut ready, has_ended.then_some(&SILENCE)) {
                Ok(0) => return,
                Ok(_) => {
                    has_ended |= ready
                        .get(1)
                        .is_some_and(|ended| !ended.revents().is_empty())
                }
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            *self.is_busy.lock() = true;
            let read = rustix::io::read(&*master, &mut buffer);
            if let Ok(count) = read {
                let bytes = buffer.get(..count).unwrap_or_default();
                if let Some(Tapped { tap, output }) = tapped {
                    tap(*output, bytes);
                }
                // Once the caller's terminal has hung up, nobody waits for it.
                is_taken = is_taken && self.show(bytes, master.as_fd()).is_ok();
            }
            *self.is_busy.lock() = false;
            self.is_idle.notify_all();
            match read {
                Ok(0) => return,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                // EIO: no process has the slave any more.
                Err(_) => return,
            }
        }
    }

    /// Writes what the command wrote to the caller's descriptor.
    fn show(&self, bytes: &[u8], master: BorrowedFd<'_>) -> rustix::io::Result<()> {
        if self.is_processed_twice(master) {
            return write_all(self.output.as_fd(), &unprocessed(bytes), None);
        }
        write_all(self.output.as_fd(), bytes, None)
    }

    /// Returns true if both terminals put a carriage return before each line feed.
    fn is_processed_twice(&self, master: BorrowedFd<'_>) -> bool {
        let processes = |terminal: BorrowedFd<'_>| {
            let modes = OutputModes::OPOST | OutputModes::ONLCR;
            tcgetattr(terminal).is_ok_and(|terminal| terminal.output_modes.contains(modes))
        };
        !self.is_raw.load(Ordering::Acquire) && processes(self.output.as_fd()) && processes(master)
    }

    /// Waits until what the command wrote is shown, if nothing holds it up.
    fn settle(&self) {
        let deadline = Instant::now() + SETTLING;
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Some(master) = self.master() else { return };
        let has_more = || {
            let mut ready = [PollFd::new(&*master, PollFlags::IN)];
            rustix::event::poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
        };
        let mut is_busy = self.is_busy.lock();
        while *is_busy || has_more() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.is_idle.wait_for(&mut is_busy, left.min(SETTLING / 20));
        }
    }

    /// Reads the lines, and ends of input, that were typed before; in raw mode an end would be a
    /// NUL byte.
    fn typed_lines(&self, terminal: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
        let mut typed = Vec::new();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut line = vec![0; CHUNK];
        while tcgetattr(terminal)?
            .local_modes
            .contains(LocalModes::ICANON)
            && typed.len() < CHUNK
        {
            let mut ready = [PollFd::new(&terminal, PollFlags::IN)];
            rustix::event::poll(&mut ready, Some(&now))?;
            if ready
                .first()
                .is_none_or(|ready| ready.revents() != PollFlags::IN)
            {
                break;
            }
            match rustix::io::read(terminal, &mut line)? {
                0 => typed.extend(self.end_of_input()),
                count => typed.extend(line.get(..count).unwrap_or_default()),
            }
        }
        Ok(typed)
    }

    /// Copies what was `typed` before, and what is typed until the other end of `stopped` is
    /// closed, the input ends, or the terminal is another job's.
    fn copy_input(&self, typed: &[u8], input: BorrowedFd<'_>, stopped: BorrowedFd<'_>) {
        if self.enter(typed, stopped).is_err() {
            return;
        }
        let is_terminal = isatty(input);
        let mut buffer = vec![0; CHUNK];
        loop {
            let mut ready = [
                PollFd::new(&input, PollFlags::IN),
                PollFd::new(&stopped, PollFlags::IN),
            ];
            match rustix::event::poll(&mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            let [typed, stop] = ready.map(|source| source.revents());
            if !stop.is_empty() {
                return;
            }
            match rustix::io::read(input, &mut buffer) {
                // Another process was faster.
                Ok(0) if is_terminal && !typed.contains(PollFlags::HUP) => {}
                Ok(0) => {
                    if let Some(end) = self.end_of_input()
                        && !is_terminal
                    {
                        let _ = self.enter(&[end], stopped);
                    }
                    return;
                }
                Ok(count) => {
                    if self
                        .enter(buffer.get(..count).unwrap_or_default(), stopped)
                        .is_err()
                    {
                        return;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // EIO: in the background, as SIGTTIN is ignored.
                Err(_) => return,
            }
        }
    }

    /// Types `bytes` on the command's terminal, unless the other end of `stopped` is closed
    /// meanwhile.
    fn enter(&self, bytes: &[u8], stopped: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let master = self.master().ok_or(Errno::IO)?;
        write_all(master.as_fd(), bytes, Some(stopped))
    }

    /// The character that ends input at the command's terminal, if that reads lines.
    fn end_of_input(&self) -> Option<u8> {
        let modes = tcgetattr(self.master()?).ok()?;
        let end = modes.special_codes[SpecialCodeIndex::VEOF];
        (modes.local_modes.contains(LocalModes::ICANON) && end != 0).then_some(end)
    }
}

/// Writes to a descriptor that may block or not, unless the other end of `stopped` is closed
/// meanwhile.
fn write_all(
    to: BorrowedFd<'_>,
    mut bytes: &[u8],
    stopped: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::AGAIN) => {
                let mut ready = vec![PollFd::from_borrowed_fd(to, PollFlags::OUT)];
                ready.extend(
                    stopped.map(|stopped| PollFd::from_borrowed_fd(stopped, PollFlags::IN)),
                );
                rustix::event::poll(&mut ready, None)?;
                if ready
                    .get(1)
                    .is_some_and(|stopped| !stopped.revents().is_empty())
                {
                    return Err(Errno::CANCELED);
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Takes back what a terminal made of line feeds (termios(3), ONLCR): each was written with a
/// carriage return before it.
fn unprocessed(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    for (index, byte) in bytes.iter().enumerate() {
        if *byte != b'\r' || bytes.get(index + 1) != Some(&b'\n') {
            plain.push(*byte);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::unprocessed;

    #[test]
    fn what_a_terminal_made_of_line_feeds_is_taken_back_and_nothing_else() {
        for text in ["", "a\n\n", "50%\r100%\r\n", "\r\r\n\n\r", "no end", "\r"] {
            let processed = text.replace('\n', "\r\n");
            assert_eq!(unprocessed(processed.as_bytes()), text.as_bytes());
        }
    }
}
