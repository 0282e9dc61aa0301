//! Lines on their way to an output that may be slow, or stuck for good: the workload shares the
//! terminal or pipe behind it, and must not hold up the supervisor with it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
/// Ordinary lines that wait for a slow output; more are left out.
const LINES: usize = 8_192;
/// Places beyond those for denials and findings, so that a flood of permitted requests hides none
/// of them.
const SECURITY_LINES: usize = 2_048;
/// Places beyond all others for the sandbox's own state, of which a run makes a few lines.
const STATE_LINES: usize = 1_024;
/// Longest wait for a place in a full queue, before lines are left out.
const PATIENCE: Duration = Duration::from_millis(50);

/// Lines that no output took, of all queues.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Counts a line that is lost.
pub(super) fn count_left_out() {
    LEFT_OUT.fetch_add(1, Ordering::Relaxed);
}

/// Returns how many lines were lost so far.
pub(super) fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Denials and findings that come one by one, each soon after the one before, until the thread
/// waits for several.
const QUICK: u32 = 16;
const PAUSE: Duration = Duration::from_millis(5);

/// Time for which a line of a file waits for others, as they come in groups: the thread wakes once
/// for all of them. Denials and findings do not wait.
const GROUP: Duration = Duration::from_millis(10);

/// A destination of lines.
pub(super) trait Output: Send + 'static {
    /// Takes a line; `left_out` lines are missing before it.
    fn write(&mut self, line: Line, left_out: u64);

    /// Writes the lines that were taken and are not written yet. No line follows at once.
    fn flush(&mut self) {}

    /// Time for which a line waits for others.
    fn group(&self) -> Duration {
        GROUP
    }
}

/// A line, and the time of its event.
pub(super) struct Line {
    pub(super) made: time::OffsetDateTime,
    pub(super) priority: Priority,
    pub(super) text: String,
}

/// The bounds of a log file that apply to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// Permitted connections and requests, diagnostics: the lines of which a workload can cause
    /// most.
    Ordinary,
    /// Denials and findings.
    Security,
    /// The sandbox's own state and its command's life: a few lines a run, for which there is always
    /// room.
    State,
}

impl Priority {
    /// Returns how many messages may wait for an output when one of this priority is added.
    const fn places(self) -> usize {
        match self {
            Self::Ordinary => LINES,
            Self::Security => LINES + SECURITY_LINES,
            Self::State => LINES + SECURITY_LINES + STATE_LINES,
        }
    }
}

enum Message {
    Line(Line),
    Flush(SyncSender<()>),
}

impl Message {
    /// True if it does not wait for others.
    fn is_urgent(&self) -> bool {
        match self {
            Self::Line(line) => line.priority == Priority::Security,
            Self::Flush(_) => true,
        }
    }
}

/// Writes what arrives at `receiver` to `output`, until the queue is gone.
fn write_all(
    receiver: &Receiver<Message>,
    mut output: impl Output,
    taken: &AtomicUsize,
    missing: &AtomicU64,
    caught_up: &AtomicBool,
    is_urgent: &AtomicBool,
) {
    let write = |output: &mut dyn Output, message| {
        taken.fetch_sub(1, Ordering::Relaxed);
        match message {
            Message::Line(line) => output.write(line, missing.swap(0, Ordering::Relaxed)),
            Message::Flush(done) => {
                output.flush();
                drop(done);
            }
        }
    };
    let mut woken = Instant::now();
    let mut quickly = 0;
    while let Ok(message) = receiver.recv() {
        write(&mut output, message);
        // To receive may have taken the wake-up of an urgent message behind this one.
        if !is_urgent.swap(false, Ordering::Acquire) {
            std::thread::park_timeout(output.group());
        }
        while let Ok(message) = receiver.try_recv() {
            write(&mut output, message);
        }
        output.flush();
        caught_up.store(false, Ordering::Relaxed);
        quickly = if woken.elapsed() < 2 * PAUSE {
            quickly + 1
        } else {
            0
        };
        woken = Instant::now();
        // Waking for every line of thousands takes their writers' time.
        if quickly > QUICK {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Work of the thread of a queue.
type Work = Box<dyn FnOnce() + Send>;

/// The queue of one output, which a thread of its own writes to. The thread starts with the first
/// message.
pub(super) struct Queue {
    name: &'static str,
    /// Bounded by the places that [`Self::takes`] gives: a bounded channel would have memory for
    /// all of them at once.
    sender: Sender<Message>,
    thread: OnceLock<Thread>,
    /// Taken by the thread, which may be started by a later message if it cannot be by the first.
    work: Arc<Mutex<Option<Work>>>,
    /// Messages on their way, at least as many as are in the channel.
    waiting: Arc<AtomicUsize>,
    left_out: Arc<AtomicU64>,
    /// Set after a wait in vain, until the output has caught up.
    is_stuck: Arc<AtomicBool>,
    /// Set before a message that does not wait for others.
    is_urgent: Arc<AtomicBool>,
}

impl Queue {
    pub(super) fn new(name: &'static str, output: impl Output) -> Self {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left_out = Arc::new(AtomicU64::new(0));
        let is_stuck = Arc::new(AtomicBool::new(false));
        let is_urgent = Arc::new(AtomicBool::new(false));
        let missing = Arc::clone(&left_out);
        let caught_up = Arc::clone(&is_stuck);
        let taken = Arc::clone(&waiting);
        let urgent = Arc::clone(&is_urgent);
        let work = move || write_all(&receiver, output, &taken, &missing, &caught_up, &urgent);
        let work = Arc::new(Mutex::new(Some(Box::new(work) as _)));
        Self {
            name,
            sender,
            thread: OnceLock::new(),
            work,
            waiting,
            left_out,
            is_stuck,
            is_urgent,
        }
    }

    /// Starts the thread that writes, if it is not there yet; returns false if the system has no
    /// more threads.
    pub(super) fn start(&self) -> bool {
        self.thread().is_some()
    }

    fn thread(&self) -> Option<&Thread> {
        if let Some(thread) = self.thread.get() {
            return Some(thread);
        }
        // Held until the thread is known, so that a queue has one; the thread waits for it.
        let _unstarted = self.work.lock();
        let work = Arc::clone(&self.work);
        let run = move || {
            let taken = work.lock().take();
            if let Some(work) = taken {
                work();
            }
        };
        if self.thread.get().is_none() {
            let started = std::thread::Builder::new()
                .name(self.name.to_owned())
                .spawn(run)
                .ok()?;
            let _ = self.thread.set(started.thread().clone());
        }
        self.thread.get()
    }

    /// Hands over a line; leaves it out and counts it if the output takes none.
    pub(super) fn push(&self, line: Line) {
        let priority = line.priority;
        if !self.send(Message::Line(line), priority) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            count_left_out();
        }
    }

    /// Waits until all earlier lines are written, for `patience` at most.
    pub(super) fn flush(&self, patience: Duration) {
        // Without a message there is no thread yet, and none is needed.
        if self.thread.get().is_none() && self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (done, written) = mpsc::sync_channel(0);
        if self.send(Message::Flush(done), Priority::State) {
            // An error is the thread's dropping its end.
            let _ = written.recv_timeout(patience);
        }
    }

    /// Hands over `message` if there is a place for `priority`, after a wait for one unless the
    /// output is stuck.
    fn send(&self, message: Message, priority: Priority) -> bool {
        let thread = self.thread();
        let deadline = Instant::now() + PATIENCE;
        while !self.takes(priority) {
            if self.is_stuck.load(Ordering::Relaxed) || Instant::now() >= deadline {
                self.is_stuck.store(true, Ordering::Relaxed);
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_urgent = message.is_urgent();
        if is_urgent {
            self.is_urgent.store(true, Ordering::Release);
        }
        let is_sent = self.sender.send(message).is_ok();
        if let Some(thread) = thread
            && is_urgent
        {
            thread.unpark();
        }
        is_sent
    }

    /// Takes a place for a message of `priority`, if there is one.
    fn takes(&self, priority: Priority) -> bool {
        let one_more = |waiting| (waiting < priority.places()).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use super::{LINES, Line, Output, Priority, Queue, SECURITY_LINES};

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
        of_priority(Priority::Ordinary, text)
    }

    fn of_priority(priority: Priority, text: impl ToString) -> Line {
        Line {
            made: time::OffsetDateTime::UNIX_EPOCH,
            priority,
            text: text.to_string(),
        }
    }

    #[test]
    fn an_output_that_is_stuck_holds_nobody_up_and_what_is_left_out_is_counted() {
        let (open, gate) = channel();
        let (written, lines) = channel();
        let queue = Queue::new(
            "test",
            Gate {
                open: gate,
                written,
            },
        );
        let start = Instant::now();
        for n in 0..LINES + 1000 {
            queue.push(line(n));
        }
        queue.flush(Duration::from_millis(10));
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "one wait, not a thousand"
        );
        for _ in 0..LINES + 2 {
            open.send(()).unwrap();
        }
        // One was with the output already.
        let first: Vec<_> = lines.iter().take(LINES).collect();
        assert_eq!(first[LINES - 1].0, (LINES - 1).to_string());
        let left_out: u64 = first.iter().map(|(_, left_out)| left_out).sum();
        queue.push(line("after"));
        let rest: u64 = lines.iter().take(2).map(|(_, left_out)| left_out).sum();
        assert_eq!(left_out + rest, 999);
    }

    #[test]
    fn a_flood_leaves_room_for_denials_and_one_of_denials_for_the_sandboxs_state() {
        let (open, gate) = channel();
        let (written, lines) = channel();
        let queue = Queue::new(
            "test",
            Gate {
                open: gate,
                written,
            },
        );
        for n in 0..LINES + 10 {
            queue.push(line(n));
        }
        for n in 0..SECURITY_LINES + 10 {
            queue.push(of_priority(Priority::Security, format!("denied {n}")));
        }
        for n in 0..10 {
            queue.push(of_priority(Priority::State, format!("state {n}")));
        }
        // The output holds one, in whose place another one went.
        let all = LINES + SECURITY_LINES + 1 + 10;
        for _ in 0..all {
            open.send(()).unwrap();
        }
        let next = || lines.recv_timeout(Duration::from_secs(10)).ok();
        let written: Vec<_> = std::iter::from_fn(next)
            .take(all)
            .map(|(text, _)| text)
            .collect();
        assert_eq!(
            written[written.len() - 10..],
            (0..10).map(|n| format!("state {n}")).collect::<Vec<_>>()
        );
        let denied = written
            .iter()
            .filter(|text| text.starts_with("denied"))
            .count();
        assert!(denied >= SECURITY_LINES, "{denied}");
    }

    /// Takes everything, and waits for more lines for good.
    struct Patient;

    impl Output for Patient {
        fn write(&mut self, _: Line, _: u64) {}

        fn group(&self) -> Duration {
            Duration::from_secs(3600)
        }
    }

    #[test]
    fn a_flush_behind_a_line_does_not_wait_for_others() {
        let queue = Queue::new("test", Patient);
        let start = Instant::now();
        for n in 0..100 {
            queue.push(line(n));
            queue.flush(Duration::from_secs(60));
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_flush_waits_for_what_was_written_before() {
        let (open, gate) = channel();
        let (written, lines) = channel();
        let queue = Queue::new(
            "test",
            Gate {
                open: gate,
                written,
            },
        );
        queue.push(line("one"));
        open.send(()).unwrap();
        queue.flush(Duration::from_secs(60));
        assert_eq!(lines.try_recv().unwrap(), ("one".to_owned(), 0));
    }
}
