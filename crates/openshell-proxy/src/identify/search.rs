//! Bounds of one search through processes, which a workload can make arbitrarily long: time, descriptors, and
//! cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Budget of one search through processes. Clones share it.
#[derive(Clone, Debug)]
pub struct Search {
    deadline: Instant,
    descriptors: usize,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    read: AtomicUsize,
    is_cancelled: AtomicBool,
}

/// Reason for which a search ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum Exceeded {
    #[error("processes hold too many descriptors")]
    Descriptors,
    #[error("the look at processes took too long")]
    Time,
}

/// Cancels the search when it is dropped.
#[derive(Debug)]
pub struct CancelOnDrop(Arc<State>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// Descriptors between two checks of the clock; a check costs a tenth of reading one.
const CLOCK_INTERVAL: usize = 64;

impl Search {
    /// Creates a search through at most `descriptors` for at most `time`.
    #[must_use]
    pub fn new(descriptors: usize, time: Duration) -> Self {
        Self { deadline: Instant::now() + time, descriptors, state: Arc::default() }
    }

    /// Returns the guard that cancels the search when it is dropped.
    #[must_use]
    pub fn guard(&self) -> CancelOnDrop {
        CancelOnDrop(Arc::clone(&self.state))
    }

    /// Counts one descriptor.
    ///
    /// # Errors
    /// The search has used up its descriptors or its time, or was cancelled.
    pub fn step(&self) -> Result<(), Exceeded> {
        let count = self.state.read.fetch_add(1, Ordering::Relaxed);
        if count >= self.descriptors {
            return Err(Exceeded::Descriptors);
        }
        let is_over = || self.state.is_cancelled.load(Ordering::Relaxed) || Instant::now() >= self.deadline;
        if count.is_multiple_of(CLOCK_INTERVAL) && is_over() { Err(Exceeded::Time) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CLOCK_INTERVAL, Exceeded, Search};

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_look_ends_with_its_descriptors_its_time_or_the_interest_in_it() {
        let search = Search::new(1000, LONG);
        assert!((0..1000).all(|_| search.clone().step().is_ok()));
        assert_eq!(search.step(), Err(Exceeded::Descriptors));
        assert_eq!(Search::new(1000, Duration::ZERO).step(), Err(Exceeded::Time));
        let search = Search::new(1_000_000, LONG);
        let guard = search.guard();
        assert!((0..=CLOCK_INTERVAL).all(|_| search.step().is_ok()));
        drop(guard);
        assert!((0..=CLOCK_INTERVAL).any(|_| search.step() == Err(Exceeded::Time)));
    }
}
