//! The bounds of one look at processes, which a workload can make as long as it likes: time, descriptors, and its caller's interest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One look at processes. Clones are the same look.
#[derive(Clone, Debug)]
pub struct Search {
    deadline: Instant,
    descriptors: usize,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    looked_at: AtomicUsize,
    is_given_up: AtomicBool,
}

/// Why a look ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum Exceeded {
    #[error("processes hold too many descriptors")]
    Descriptors,
    #[error("the look at processes took too long")]
    Time,
}

/// Gives the look up when it is dropped.
#[derive(Debug)]
pub struct GiveUp(Arc<State>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.is_given_up.store(true, Ordering::Relaxed);
    }
}

/// Descriptors between two looks at the clock, which costs a tenth of one.
const CLOCK_INTERVAL: usize = 64;

impl Search {
    /// A look at so many `descriptors` at most, for at most `time`.
    #[must_use]
    pub fn new(descriptors: usize, time: Duration) -> Self {
        Self { deadline: Instant::now() + time, descriptors, state: Arc::default() }
    }

    /// Lasts as long as the look is wanted.
    #[must_use]
    pub fn guard(&self) -> GiveUp {
        GiveUp(Arc::clone(&self.state))
    }

    /// Counts one descriptor.
    ///
    /// # Errors
    /// The look has used up its descriptors or its time, or was given up.
    pub fn step(&self) -> Result<(), Exceeded> {
        let count = self.state.looked_at.fetch_add(1, Ordering::Relaxed);
        if count >= self.descriptors {
            return Err(Exceeded::Descriptors);
        }
        let is_over = || self.state.is_given_up.load(Ordering::Relaxed) || Instant::now() >= self.deadline;
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
