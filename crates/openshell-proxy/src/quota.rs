//! A program's share of what all have, connections or memory, so that none takes it all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::Limits;

/// How much each program has.
#[derive(Debug)]
pub struct Quota {
    /// What one may have…
    each: usize,
    /// …and all together.
    all: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    programs: HashMap<String, usize>,
}

/// A part of a program's share; given back when it is dropped.
#[derive(Debug)]
pub struct QuotaGuard {
    shares: Arc<Quota>,
    program: String,
    amount: usize,
}

impl Default for Quota {
    /// Of connections, whose number as a whole the listener bounds.
    fn default() -> Self {
        Self::new(Limits::CONNECTIONS_PER_PROGRAM, usize::MAX)
    }
}

impl Quota {
    /// Where one program may have `each`, and all together `all`.
    #[must_use]
    pub fn new(each: usize, all: usize) -> Self {
        Self { each, all, counts: Mutex::default() }
    }

    /// Takes one for `program`; `None` if it has its share already.
    pub fn take(self: &Arc<Self>, program: &str) -> Option<QuotaGuard> {
        self.take_many(program, 1)
    }

    /// Takes `amount` for `program`; `None` if that is more than its share, or than there is.
    pub fn take_many(self: &Arc<Self>, program: &str, amount: usize) -> Option<QuotaGuard> {
        let mut counts = self.counts();
        let Counts { all, programs } = &mut *counts;
        let count =
            programs.get(program).copied().unwrap_or(0).checked_add(amount).filter(|count| *count <= self.each)?;
        *all = all.checked_add(amount).filter(|all| *all <= self.all)?;
        programs.insert(program.to_owned(), count);
        drop(counts);
        Some(QuotaGuard { shares: Arc::clone(self), program: program.to_owned(), amount })
    }

    /// What is behind the lock is whole at every moment.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        let mut counts = self.shares.counts();
        counts.all -= self.amount;
        if let Some(count) = counts.programs.get_mut(&self.program) {
            *count -= self.amount;
            // Programs come and go, and a workload may name as many as it likes.
            if *count == 0 {
                counts.programs.remove(&self.program);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Limits, Quota};

    #[test]
    fn a_program_that_has_all_of_its_share_gets_no_more_and_others_theirs() {
        let shares = Arc::new(Quota::default());
        let mut taken: Vec<_> = (0..Limits::CONNECTIONS_PER_PROGRAM).map(|_| shares.take("/a").unwrap()).collect();
        assert!(shares.take("/a").is_none() && shares.take("/b").is_some());
        taken.pop();
        assert!(shares.take("/a").is_some());
        drop(taken);
        let counts = shares.counts();
        assert!(counts.programs.is_empty() && counts.all == 0, "nothing is kept of a program without connections");
    }

    #[test]
    fn all_programs_together_have_a_bound_too() {
        let shares = Arc::new(Quota::new(6, 10));
        let first = shares.take_many("/a", 6).unwrap();
        assert!(shares.take_many("/a", 1).is_none() && shares.take_many("/b", 5).is_none());
        let second = shares.take_many("/b", 4).unwrap();
        assert!(shares.take_many("/c", 1).is_none());
        drop((first, second));
        assert!(shares.take_many("/c", 6).is_some());
    }
}
