//! Queues of lines for outputs that may be slow, or blocked forever. The workload shares the
//! terminal or pipe behind an output, and must not be able to hold up the supervisor with it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
/// Maximum number of ordinary lines that wait for a slow output; more are left out.
const LINES: usize = 8_192;
/// Additional places for denials and findings, so that a flood of permitted requests does not crowd
/// them out.
const SECURITY_LINES: usize = 2_048;
/// Additional places for the sandbox's own state, about which a run has only a few lines.
const STATE_LINES: usize = 1_024;
/// Longest wait for a place in a full queue, before lines are left out.
const PATIENCE: Duration = Duration::from_millis(50);

/// Number of lines of all queues that were lost.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Counts a lost line.
pub(super) fn count_left_out() {
    LEFT_OUT.fetch_add(1, Ordering::Relaxed);
}

/// Returns how many lines have been lost so far.
pub(super) fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Number of wake-ups in quick succession after which the thread pauses to collect several lines.
const QUICK: u32 = 16;
const PAUSE: Duration = Duration::from_millis(5);

/// How long a line for a file waits for others, because lines come in groups: the thread then wakes
/// up once for all of them. Denials and findings do not wait.
const GROUP: Duration = Duration::from_millis(10);

/// A destination of lines.
pub(super) trait Output: Send + 'static {
    /// Takes a line; `left_out` lines are missing before it.
    fn write(&mut self, line: Line, left_out: u64);

    /// Writes the lines that were taken but not yet written. No line follows at once.
    fn flush(&mut self) {}

    /// Returns how long a line waits for others.
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

/// Importance of a line, which decides the bounds of queues and log files that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// Permitted connections and requests, and diagnostics: the lines that a workload can cause
    /// most easily.
    Ordinary,
    /// Denials and findings.
    Security,
    /// The sandbox's own state and the life of its command: a few lines per run, for which there is
    /// always room.
    State,
}

impl Priority {
    /// Returns how many messages may be in the queue when one of this priority is added.
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
    /// Returns true if the message does not wait for others.
    fn is_urgent(&self) -> bool {
        match self {
            Self::Line(line) => line.priority == Priority::Security,
            Self::Flush(_) => true,
        }
    }
}

/// Writes everything that arrives at `receiver` to `output`, until the queue is dropped.
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
        // recv may have consumed the wake-up for an urgent message behind this one.
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
        // A wake-up for each of thousands of lines would take time from those who send them.
        if quickly > QUICK {
            std::thread::sleep(PAUSE);
        }
    }
}

/// The work of a queue's thread.
type Work = Box<dyn FnOnce() + Send>;

/// The queue of one output. A separate thread, which the first message starts, writes to the
/// output.
pub(super) struct Queue {
    name: &'static str,
    /// Bounded by [`Self::takes`], because a bounded channel would allocate memory for all messages
    /// at once.
    sender: Sender<Message>,
    thread: OnceLock<Thread>,
    /// The thread takes this. If the first message cannot start a thread, a later one may.
    work: Arc<Mutex<Option<Work>>>,
    /// Number of messages in the queue, at least as many as the channel holds.
    waiting: Arc<AtomicUsize>,
    left_out: Arc<AtomicU64>,
    /// Set after a wait for a place was in vain, until the output has caught up.
    is_stuck: Arc<AtomicBool>,
    /// Set before an urgent message is sent.
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

    /// Starts the thread that writes, unless it runs already; returns false if the system has no
    /// more threads.
    pub(super) fn start(&self) -> bool {
        self.thread().is_some()
    }

    fn thread(&self) -> Option<&Thread> {
        if let Some(thread) = self.thread.get() {
            return Some(thread);
        }
        // Held until the thread is known, so that a queue starts only one. The thread waits for
        // this lock.
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

    /// Sends a line; if there is no place for it, leaves it out and counts it.
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
            // The thread answers by dropping its end, which is an error here.
            let _ = written.recv_timeout(patience);
        }
    }

    /// Sends `message` if there is a place for `priority`; waits for one first, unless the output
    /// is stuck. Returns false if there is none.
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

    /// Takes a place for a message of `priority`; returns false if there is none.
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

    /// Writes a line when it is told to, and reports it.
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
        // The output holds one line already.
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
        // The output holds one line, so there was a place for one more.
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

    /// Takes everything, and lets lines wait for others for an hour.
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
