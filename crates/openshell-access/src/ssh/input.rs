//! Queues for data from a client on its way to a command or a connection.
//!
//! The SSH library grants a channel more window as soon as it has read the channel's data, and it
//! serves nothing else of the connection while those data are being taken. So a queue takes them at
//! once. While any queue of a connection is long, the windows of all its channels are small. Once
//! everything is in that was under way by then, each packet waits for the reader: longer and
//! longer, but never forever. The reader may itself be waiting for window for its own output, and
//! that may arrive in the next packet.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::ssh::limits::Limits;

/// First and longest wait of a packet if the queue is too long.
const WAITS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// How many packets need not wait after the client has taken output.
const EXEMPT: u32 = 2;

/// Queue length in bytes from which packets wait. By then, everything is in that was under way when
/// the window became small.
const SLOW: usize = Limits::INPUT + 2 * Limits::WINDOW as usize;

/// The data of one channel.
#[derive(Debug, Default)]
pub(crate) struct InputQueue {
    state: Mutex<State>,
    arrived: Notify,
    taken: Notify,
    closed: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Bytes>,
    /// Bytes in `waiting`.
    bytes: usize,
    /// Bytes that were ever added.
    total: u64,
    /// True once no more data will come.
    is_ended: bool,
    /// True once nothing more will be read.
    is_closed: bool,
    /// Wait of the last packet that was not exempt; zero if the queue was short enough.
    wait: Duration,
    /// How many further packets need not wait.
    exempt: u32,
}

/// Result of adding data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The data will be read, or the reader has gone.
    Taken,
    /// The queue would hold too much.
    Full,
}

impl InputQueue {
    /// Adds data; waits a while if the queue is already long.
    pub(crate) async fn push(&self, data: Bytes) -> Pushed {
        if data.is_empty() {
            return Pushed::Taken;
        }
        let wait = {
            let mut state = self.lock();
            if state.is_closed {
                return Pushed::Taken;
            }
            if state.bytes + data.len() > Limits::MOST_INPUT {
                return Pushed::Full;
            }
            state.bytes += data.len();
            state.total += data.len() as u64;
            state.waiting.push_back(data);
            let is_slow = state.bytes > SLOW;
            match state.exempt.checked_sub(1) {
                Some(left) => {
                    state.exempt = left;
                    Duration::ZERO
                }
                None => {
                    state.wait = if is_slow {
                        (state.wait * 2).clamp(WAITS.0, WAITS.1)
                    } else {
                        Duration::ZERO
                    };
                    state.wait
                }
            }
        };
        self.arrived.notify_one();
        if !wait.is_zero() && timeout(wait, self.taken.notified()).await.is_ok() {
            self.lock().wait = Duration::ZERO;
        }
        Pushed::Taken
    }

    /// Ends the waits for now: the client takes output, so a grant of window for more may be only a
    /// few packets behind.
    pub(crate) fn relax(&self) {
        let mut state = self.lock();
        (state.wait, state.exempt) = (Duration::ZERO, EXEMPT);
    }

    /// Marks the end of the data.
    pub(crate) fn end(&self) {
        self.lock().is_ended = true;
        self.arrived.notify_one();
    }

    /// Drops the data, and all data that will come.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.waiting.clear();
        state.bytes = 0;
        drop(state);
        self.taken.notify_one();
        self.arrived.notify_one();
        self.closed.notify_waiters();
    }

    /// Waits until nothing more is read. Then the channel is closed, which is more than the end of
    /// its data.
    pub(crate) async fn closed(&self) {
        loop {
            let mut closed = std::pin::pin!(self.closed.notified());
            closed.as_mut().enable();
            if self.lock().is_closed {
                return;
            }
            closed.await;
        }
    }

    /// Waits for the next data; `None` at the end of the data.
    pub(crate) async fn next(&self) -> Option<Bytes> {
        loop {
            {
                let mut state = self.lock();
                if let Some(data) = state.waiting.pop_front() {
                    state.bytes -= data.len();
                    drop(state);
                    self.taken.notify_one();
                    return Some(data);
                }
                if state.is_ended || state.is_closed {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Returns true if the queue is so long that no more data should come.
    pub(crate) fn is_long(&self) -> bool {
        self.lock().bytes > Limits::INPUT
    }

    /// Returns how many bytes were ever added.
    pub(crate) fn total(&self) -> u64 {
        self.lock().total
    }

    /// Locks the state, which a panic elsewhere cannot leave half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::{InputQueue, Limits, Pushed};
    use bytes::Bytes;

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_nobody_reads_is_slow_then_full_and_never_stuck() {
        let queue = InputQueue::default();
        let packet = Bytes::from(vec![0; 32 * 1024]);
        let mut pushed = 0;
        while queue.push(packet.clone()).await == Pushed::Taken {
            pushed += packet.len();
        }
        assert_eq!(pushed, Limits::MOST_INPUT);
        queue.close();
        queue.closed().await;
        assert_eq!(
            (queue.push(packet).await, queue.next().await),
            (Pushed::Taken, None)
        );
    }

    #[tokio::test]
    async fn data_come_out_in_order_and_their_end_after_them() {
        let queue = InputQueue::default();
        for part in ["one", "", "two"] {
            queue.push(Bytes::from(part)).await;
        }
        queue.end();
        assert_eq!(queue.next().await.as_deref(), Some(&b"one"[..]));
        assert_eq!(queue.next().await.as_deref(), Some(&b"two"[..]));
        assert_eq!((queue.next().await, queue.total()), (None, 6));
    }
}
