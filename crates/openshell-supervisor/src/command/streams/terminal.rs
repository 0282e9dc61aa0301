//! Relays between the caller's terminal and a command's terminal, which is one of the sandbox's
//! own.
//!
//! One thread copies what the command writes. While the relay is attached, a second thread copies
//! what is typed. Meanwhile the caller's terminal passes everything on unread, and the command's
//! terminal does the rest (line editing, echo, signals) with the modes that the caller's terminal
//! had.

use std::io::{self, PipeReader, PipeWriter, Read as _};
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

use super::bell::Place;
use super::relay::Tapped;
use crate::command::job;

/// The number of bytes that are copied at once.
const CHUNK: usize = 32 * 1024;

/// What rings the bell of a terminal.
const BELL: u8 = 0x07;

/// How long a terminal must be silent after the end of its command, while other processes hold it,
/// before the copying ends.
const SILENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The longest wait for output to be shown before the caller's shell takes over.
const SETTLING: Duration = Duration::from_millis(200);

/// A running relay. Dropping it leaves the caller's terminal as it is; see [`Self::detach`].
#[derive(Debug)]
pub struct TerminalRelay {
    shared: Arc<Shared>,
    keyboard: Mutex<Option<Keyboard>>,
    /// A channel that disconnects when everything has been written to the caller's descriptor.
    shown: Mutex<mpsc::Receiver<()>>,
}

/// The state that the threads share.
#[derive(Debug)]
struct Shared {
    /// The master of the command's terminal, which does not block. `None` once it is hung up.
    master: Mutex<Option<Arc<OwnedFd>>>,
    /// The end of a pipe that is closed at the end of the command. Each byte before is a bell.
    end: Mutex<Option<PipeWriter>>,
    /// The caller's terminal, or another output. It stays blocking or non-blocking as it is,
    /// because other processes have it too.
    output: OwnedFd,
    /// True while the caller's terminal passes everything on unread.
    is_raw: AtomicBool,
    /// True while output is on its way.
    is_busy: Mutex<bool>,
    is_idle: Condvar,
}

/// A thread that copies what is typed.
#[derive(Debug)]
struct Keyboard {
    /// The modes that the caller's terminal had before; `None` if the input is not a terminal.
    modes: Option<Termios>,
    /// The end of a pipe that is closed to end the thread.
    stop: PipeWriter,
    thread: JoinHandle<()>,
}

impl TerminalRelay {
    /// Starts to copy from `master`, which does not block, to `output`, as long as `output` accepts
    /// it, and to `tapped`.
    ///
    /// # Errors
    /// Fails if threads or descriptors are exhausted.
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
                copying.copy_output(tapped.as_ref(), ended);
                drop(showing);
            })?;
        Ok(Self {
            shared,
            keyboard: Mutex::default(),
            shown: Mutex::new(shown),
        })
    }

    /// Starts to copy from `master` in a client, if the terminal's command runs elsewhere.
    ///
    /// # Errors
    /// Fails if threads or descriptors are exhausted.
    pub fn start(master: OwnedFd, output: BorrowedFd<'_>) -> io::Result<Self> {
        Self::new(master, output.try_clone_to_owned()?, None)
    }

    /// Gives the command's terminal the modes of `terminal` and the size of the output.
    pub fn imitate(&self, terminal: BorrowedFd<'_>) {
        // If `terminal` is not a terminal, it has no modes to give.
        if let (Ok(modes), Some(master)) = (tcgetattr(terminal), self.shared.master()) {
            let _ = tcsetattr(master, OptionalActions::Now, &modes);
        }
        self.resize();
    }

    /// Gives the command's terminal the size of the caller's. If the size changes, its foreground
    /// process group gets SIGWINCH.
    pub fn resize(&self) {
        if let (Ok(size), Some(master)) = (tcgetwinsize(&self.shared.output), self.shared.master())
            && is_known(&size)
        {
            let _ = tcsetwinsize(master, size);
        }
    }

    /// Rings the bell of the caller's terminal, between two control sequences of the command.
    pub fn ring(&self) {
        if isatty(&self.shared.output)
            && let Some(end) = &*self.shared.end.lock()
        {
            // A full pipe holds bells that are still to be rung.
            let _ = rustix::io::write(end, &[BELL]);
        }
    }

    /// Hangs up the command's terminal, like the caller's. From then on it reads the end of input.
    pub fn hang_up(&self) {
        drop(self.shared.master.lock().take());
        drop(self.shared.end.lock().take());
    }

    /// Copies what is typed at `input` from now on. If `input` is a terminal, it passes everything
    /// on unread meanwhile. It must then be the controlling terminal of this process, this process
    /// must be in its foreground, and SIGTTIN and SIGTTOU must be ignored.
    ///
    /// # Errors
    /// Fails if threads or descriptors are exhausted, or the terminal is gone.
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

    /// Stops copying what is typed at `input`. If this process is in the foreground of that
    /// terminal, first shows what the command wrote, then restores the terminal's earlier modes.
    /// What was typed but not read is dropped, because it was meant for the command.
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

    /// Copies what the command wrote before its end, for at most `timeout`. Returns false if
    /// something is left. Output of other processes that still hold the terminal is shown until
    /// they are silent.
    #[must_use]
    pub fn finish(&self, timeout: Duration) -> bool {
        drop(self.shared.end.lock().take());
        // Nothing is ever sent, so the channel can only disconnect.
        self.shown.lock().recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Keyboard {
    /// Ends the thread and returns the earlier modes.
    fn end(self) -> Option<Termios> {
        drop(self.stop);
        // If the thread panicked, that has been printed.
        let _ = self.thread.join();
        self.modes
    }
}

/// Returns true for a size that a terminal has reported.
fn is_known(size: &Winsize) -> bool {
    size.ws_col > 0 && size.ws_row > 0
}

/// Puts a terminal into raw mode. Returns its earlier modes, which are `known` if it is in raw mode
/// already.
fn enter_raw_mode(terminal: BorrowedFd<'_>, known: Option<Termios>) -> io::Result<Termios> {
    let before = tcgetattr(terminal)?;
    let mut raw = before.clone();
    raw.make_raw();
    // A read returns at once, even if another process has read the input first.
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

    /// Copies from the command's terminal until its last process has ended, and rings a bell for what
    /// comes by `ended`. After the other end of that is closed, copies only until the terminal is
    /// silent.
    fn copy_output(&self, tapped: Option<&Tapped>, mut ended: PipeReader) {
        let mut buffer = vec![0; CHUNK];
        let mut has_ended = false;
        let mut is_to_ring = false;
        let mut place = Place::default();
        let mut is_taken = true;
        while let Some(master) = self.master() {
            let mut ready = vec![PollFd::new(&*master, PollFlags::IN)];
            if !has_ended {
                ready.push(PollFd::new(&ended, PollFlags::IN));
            }
            match rustix::event::poll(&mut ready, has_ended.then_some(&SILENCE)) {
                Ok(0) => return,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            let is_told = ready.get(1).is_some_and(|end| !end.revents().is_empty());
            if is_told {
                match ended.read(&mut [0; 64]) {
                    Ok(1..) => is_to_ring = true,
                    Ok(0) | Err(_) => has_ended = true,
                }
            }
            *self.is_busy.lock() = true;
            let read = rustix::io::read(&*master, &mut buffer);
            if let Ok(count) = read {
                let bytes = buffer.get(..count).unwrap_or_default();
                if let Some(Tapped { tap, output }) = tapped {
                    tap(*output, bytes);
                }
                // After the caller's terminal has hung up, the copying goes on without it.
                is_taken = is_taken && self.show(bytes, master.as_fd()).is_ok();
                place = place.behind(bytes);
            }
            if is_to_ring && is_taken && place == Place::Between {
                is_to_ring = false;
                is_taken = write_all(self.output.as_fd(), &[BELL], None).is_ok();
            }
            *self.is_busy.lock() = false;
            self.is_idle.notify_all();
            match read {
                Ok(0) => return,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                // EIO: no process holds the slave any more.
                Err(_) => return,
            }
        }
    }

    /// Writes the command's output to the caller's descriptor.
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

    /// Waits until the command's output is shown, but at most [`SETTLING`].
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

    /// Reads the lines and the ends of input that were typed before. In raw mode an end of input
    /// would be a NUL byte.
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

    /// Copies what was `typed` before. Then copies what is typed until the other end of `stopped`
    /// is closed, the input ends, or another job has the terminal.
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
                // Another process has read the input first.
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
                // EIO: this process is in the background and ignores SIGTTIN.
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

    /// Returns the character that ends input at the command's terminal, if that terminal reads
    /// lines.
    fn end_of_input(&self) -> Option<u8> {
        let modes = tcgetattr(self.master()?).ok()?;
        let end = modes.special_codes[SpecialCodeIndex::VEOF];
        (modes.local_modes.contains(LocalModes::ICANON) && end != 0).then_some(end)
    }
}

/// Writes to a descriptor, whether or not it blocks, unless the other end of `stopped` is closed
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

/// Reverses what a terminal does to line feeds (termios(3), ONLCR): it writes a carriage return
/// before each.
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
