//! Turns for searches of large texts: one at a time for each program, and few of all programs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::limits::Limits;

/// The turns of all programs.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    programs: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A turn, over when it is dropped.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "held for its drop")] [OwnedSemaphorePermit; 2]);

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(Limits::LARGE_SEARCHES)), programs: Mutex::default() }
    }
}

impl Turns {
    /// Waits for a turn of `program`.
    pub(super) async fn next(&self, program: &str) -> Result<Turn, AcquireError> {
        let own = self.of(program).acquire_owned().await?;
        let all = Arc::clone(&self.all).acquire_owned().await?;
        Ok(Turn([own, all]))
    }

    fn of(&self, program: &str) -> Arc<Semaphore> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = programs.get(program).and_then(Weak::upgrade) {
            return turns;
        }
        // A workload may run any number of programs.
        programs.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(1));
        programs.insert(program.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::Turns;

    #[test]
    fn a_program_with_many_searches_leaves_turns_to_the_others() {
        let turns = Turns::default();
        let next = |program| turns.next(program).now_or_never().map(Result::unwrap);
        let first = next("/a").unwrap();
        assert!(next("/a").is_none());
        let other = next("/b").unwrap();
        assert!(next("/c").is_none(), "all turns are taken");
        drop(first);
        assert!(next("/c").is_some() && next("/a").is_some());
        drop(other);
        drop(next("/d"));
        assert_eq!(turns.programs.lock().unwrap().len(), 1, "nothing is kept of programs without searches");
    }
}
