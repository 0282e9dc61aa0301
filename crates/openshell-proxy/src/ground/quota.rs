//! Quotas for programs on shared resources (connections or memory), so that none exhausts them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ground::limits::Limits;
use parking_lot::{Mutex, MutexGuard};

/// A resource with a bound for each program and one for all.
#[derive(Debug)]
pub struct Quota {
    /// The bound for one program.
    per_program: usize,
    /// The bound for all programs together.
    all: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    programs: HashMap<String, usize>,
}

/// A guard of an amount that a program has taken; dropping it returns the amount.
#[derive(Debug)]
pub struct QuotaGuard {
    quota: Arc<Quota>,
    program: String,
    amount: usize,
}

impl Default for Quota {
    /// Creates a quota of connections. The listener bounds their total.
    fn default() -> Self {
        Self::new(Limits::CONNECTIONS_PER_PROGRAM, usize::MAX)
    }
}

impl Quota {
    /// Creates a quota of `per_program` for one program and `all` together.
    #[must_use]
    pub fn new(per_program: usize, all: usize) -> Self {
        Self {
            per_program,
            all,
            counts: Mutex::default(),
        }
    }

    /// Takes one unit for `program`; `None` if its quota is exhausted.
    pub fn take(self: &Arc<Self>, program: &str) -> Option<QuotaGuard> {
        self.take_many(program, 1)
    }

    /// Takes `amount` units for `program`; `None` if that exceeds its quota or the total.
    pub fn take_many(self: &Arc<Self>, program: &str, amount: usize) -> Option<QuotaGuard> {
        let mut counts = self.counts();
        let Counts { all, programs } = &mut *counts;
        let count = programs
            .get(program)
            .copied()
            .unwrap_or(0)
            .checked_add(amount)
            .filter(|count| *count <= self.per_program)?;
        *all = all.checked_add(amount).filter(|all| *all <= self.all)?;
        programs.insert(program.to_owned(), count);
        drop(counts);
        Some(QuotaGuard {
            quota: Arc::clone(self),
            program: program.to_owned(),
            amount,
        })
    }

    /// Returns the amount that all programs have taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.counts().all
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock()
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        let mut counts = self.quota.counts();
        counts.all -= self.amount;
        if let Some(count) = counts.programs.get_mut(&self.program) {
            *count -= self.amount;
            // A workload may run any number of programs, so entries without connections are
            // removed.
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
        let quota = Arc::new(Quota::default());
        let mut taken: Vec<_> = (0..Limits::CONNECTIONS_PER_PROGRAM)
            .map(|_| quota.take("/a").unwrap())
            .collect();
        assert!(quota.take("/a").is_none() && quota.take("/b").is_some());
        taken.pop();
        assert!(quota.take("/a").is_some());
        drop(taken);
        let counts = quota.counts();
        assert!(
            counts.programs.is_empty() && counts.all == 0,
            "nothing is kept of a program without connections"
        );
    }

    #[test]
    fn all_programs_together_have_a_bound_too() {
        let quota = Arc::new(Quota::new(6, 10));
        let first = quota.take_many("/a", 6).unwrap();
        assert!(quota.take_many("/a", 1).is_none() && quota.take_many("/b", 5).is_none());
        let second = quota.take_many("/b", 4).unwrap();
        assert!(quota.take_many("/c", 1).is_none());
        drop((first, second));
        assert!(quota.take_many("/c", 6).is_some());
    }
}
