//! Lines on their way to an output that may be slow, or stuck for good: the workload shares the terminal or pipe behind it,
//! and nobody who judges, ends or serves it may wait for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::time::{Duration, Instant};

/// Lines that wait; more than that wait for nobody's disk.
const LINES: usize = 8_192;
/// How long a full queue holds up who writes to it, before lines are left out.
const PATIENCE: Duration = Duration::from_millis(50);

/// How many lines come one by one, each within a pause of the one before, until some are waited for.
const QUICK: u32 = 16;
const PAUSE: Duration = Duration::from_millis(5);

/// Where lines go.
pub(super) trait Output: Send + 'static {
    /// Takes one; `left_out` lines are missing before it.
    fn write(&mut self, line: Line, left_out: u64);

    /// Writes what was taken and is not written yet. No line follows at once.
    fn flush(&mut self) {}
}

/// A line, and when it was made.
pub(super) struct Line {
    pub(super) made: time::OffsetDateTime,
    pub(super) priority: Priority,
    pub(super) text: String,
}

/// The bounds of a log file that apply to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// Permitted connections and requests, diagnostics: what a workload can make most of.
    Ordinary,
    /// Denials and findings.
    Security,
    /// The sandbox's own state and its command's life: a few lines a run, never left out.
    State,
}

enum Message {
    Line(Line),
    Flush(SyncSender<()>),
}

/// The way to one output, which a thread of its own writes to.
pub(super) struct Queue {
    sender: SyncSender<Message>,
    left_out: Arc<AtomicU64>,
    /// The output was waited for in vain, and has not caught up since.
    is_stuck: Arc<AtomicBool>,
}

impl Queue {
    pub(super) fn new(name: &str, mut output: impl Output) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(LINES);
        let left_out = Arc::new(AtomicU64::new(0));
        let is_stuck = Arc::new(AtomicBool::new(false));
        let (missing, caught_up) = (Arc::clone(&left_out), Arc::clone(&is_stuck));
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let write = |output: &mut dyn Output, message| match message {
                Message::Line(line) => output.write(line, missing.swap(0, Ordering::Relaxed)),
                Message::Flush(done) => {
                    output.flush();
                    drop(done);
                }
            };
            let (mut woken, mut quickly) = (Instant::now(), 0);
            while let Ok(message) = receiver.recv() {
                write(&mut output, message);
                while let Ok(message) = receiver.try_recv() {
                    write(&mut output, message);
                }
                output.flush();
                caught_up.store(false, Ordering::Relaxed);
                quickly = if woken.elapsed() < 2 * PAUSE { quickly + 1 } else { 0 };
                woken = Instant::now();
                // Waking for every line of thousands takes their writers' time.
                if quickly > QUICK {
                    std::thread::sleep(PAUSE);
                }
            }
        })?;
        Ok(Self { sender, left_out, is_stuck })
    }

    /// Hands over a line; leaves it out, counted, if the output takes none.
    pub(super) fn push(&self, line: Line) {
        if self.send(Message::Line(line)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything before is written, or for `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let (done, written) = mpsc::sync_channel(0);
        if self.send(Message::Flush(done)).is_ok() {
            // An error is the thread's dropping its end.
            let _ = written.recv_timeout(patience);
        }
    }

    fn send(&self, mut message: Message) -> Result<(), Message> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.sender.try_send(message) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) => message = back,
                Err(TrySendError::Disconnected(back)) => return Err(back),
            }
            if self.is_stuck.load(Ordering::Relaxed) || Instant::now() >= deadline {
                self.is_stuck.store(true, Ordering::Relaxed);
                return Err(message);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use super::{LINES, Line, Output, Priority, Queue};

    /// Writes when it is told to, and says what.
    struct Gate {
        open: Receiver<()>,
        written: Sender<(String, u64)>,
    }

    impl Output for Gate {
        fn write(&mut self, line: Line, left_out: u64) {
            self.open.recv().unwrap();
            self.written.send((line.text, left_out)).unwrap();
        }
    }

    fn line(text: impl ToString) -> Line {
        Line { made: time::OffsetDateTime::UNIX_EPOCH, priority: Priority::Ordinary, text: text.to_string() }
    }

    #[test]
    fn an_output_that_is_stuck_holds_nobody_up_and_what_is_left_out_is_counted() {
        let ((open, gate), (written, lines)) = (channel(), channel());
        let queue = Queue::new("test", Gate { open: gate, written }).unwrap();
        let start = Instant::now();
        for n in 0..LINES + 1000 {
            queue.push(line(n));
        }
        queue.flush(Duration::from_millis(10));
        assert!(start.elapsed() < Duration::from_secs(20), "one wait, not a thousand");
        (0..LINES + 2).for_each(|_| open.send(()).unwrap());
        // One was with the output already.
        let first: Vec<_> = lines.iter().take(LINES).collect();
        assert_eq!(first[LINES - 1].0, (LINES - 1).to_string());
        let left_out: u64 = first.iter().map(|(_, left_out)| left_out).sum();
        queue.push(line("after"));
        let rest: u64 = lines.iter().take(2).map(|(_, left_out)| left_out).sum();
        assert_eq!(left_out + rest, 999);
    }

    #[test]
    fn a_flush_waits_for_what_was_written_before() {
        let ((open, gate), (written, lines)) = (channel(), channel());
        let queue = Queue::new("test", Gate { open: gate, written }).unwrap();
        queue.push(line("one"));
        open.send(()).unwrap();
        queue.flush(Duration::from_secs(60));
        assert_eq!(lines.try_recv().unwrap(), ("one".to_owned(), 0));
    }
}
