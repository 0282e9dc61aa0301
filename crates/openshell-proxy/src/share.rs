//! A program's share of the connections, so that none takes them all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::context::Limits;

/// How many connections each program has open.
#[derive(Debug, Default)]
pub struct Shares(Mutex<HashMap<String, usize>>);

/// One connection of a program; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    program: String,
}

impl Shares {
    /// Takes one for `program`; `None` if it has [`Limits::CONNECTIONS_A_PROGRAM`] already.
    pub fn take(self: &Arc<Self>, program: &str) -> Option<Share> {
        let mut counts = self.counts();
        let count = counts.entry(program.to_owned()).or_default();
        if *count == Limits::CONNECTIONS_A_PROGRAM {
            return None;
        }
        *count += 1;
        Some(Share { shares: Arc::clone(self), program: program.to_owned() })
    }

    /// What is behind the lock is whole at every moment.
    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.shares.counts();
        if let Some(count) = counts.get_mut(&self.program) {
            *count -= 1;
            // Programs come and go, and a workload may name as many as it likes.
            if *count == 0 {
                counts.remove(&self.program);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Limits, Shares};

    #[test]
    fn a_program_that_has_all_of_its_share_gets_no_more_and_others_theirs() {
        let shares = Arc::new(Shares::default());
        let mut taken: Vec<_> = (0..Limits::CONNECTIONS_A_PROGRAM).map(|_| shares.take("/a").unwrap()).collect();
        assert!(shares.take("/a").is_none() && shares.take("/b").is_some());
        taken.pop();
        assert!(shares.take("/a").is_some());
        drop(taken);
        assert!(shares.counts().is_empty(), "nothing is kept of a program without connections");
    }
}
