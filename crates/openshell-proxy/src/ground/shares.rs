//! A resource that programs wait for. Each has a share of it, so that none keeps it from the
//! others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// A resource with a bound for each program and one for all.
#[derive(Debug)]
pub struct Shares {
    all: Arc<Semaphore>,
    programs: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// An amount taken by a program; dropping it returns the amount.
#[derive(Debug)]
pub struct Share {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl Shares {
    /// Creates a resource of the amount `all`.
    #[must_use]
    pub fn new(all: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            programs: Mutex::default(),
        }
    }

    /// Waits for `amount` for `program`, which may have `most` at once: first until the program's
    /// other shares leave room, then until the shares of all programs do. A wait for more than
    /// `most` never ends.
    ///
    /// # Errors
    /// Never fails, because the resource is never closed.
    pub async fn take(
        &self,
        program: &str,
        amount: u32,
        most: usize,
    ) -> Result<Share, AcquireError> {
        let own = self.of(program, most).acquire_many_owned(amount).await?;
        let all = Arc::clone(&self.all).acquire_many_owned(amount).await?;
        Ok(Share { own, all })
    }

    /// Takes a share like [`Self::take`], but does not wait; returns `None` if there is not enough
    /// left.
    #[must_use]
    pub fn take_now(&self, program: &str, amount: u32, most: usize) -> Option<Share> {
        let own = self.of(program, most).try_acquire_many_owned(amount).ok()?;
        let all = Arc::clone(&self.all).try_acquire_many_owned(amount).ok()?;
        Some(Share { own, all })
    }

    fn of(&self, program: &str, most: usize) -> Arc<Semaphore> {
        let mut programs = self.programs.lock();
        if let Some(own) = programs.get(program).and_then(Weak::upgrade) {
            return own;
        }
        // A workload may run any number of programs, so those without shares are removed.
        programs.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(most));
        programs.insert(program.to_owned(), Arc::downgrade(&own));
        own
    }
}

impl Share {
    /// Reduces the share to `amount`, if it is larger.
    #[must_use]
    pub fn of(mut self, amount: u32) -> Self {
        let amount = amount as usize;
        let beyond = self.own.num_permits().saturating_sub(amount);
        // Dropping what is split off returns it.
        drop((self.own.split(beyond), self.all.split(beyond)));
        self
    }

    /// Returns the share in bytes, of which each unit stands for 1,024.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.own.num_permits() * 1024
    }

    /// Takes `amount` more, without waiting.
    ///
    /// # Errors
    /// Fails if there is not enough left, for the program or for all.
    pub fn grow(&mut self, amount: u32) -> Result<(), TryAcquireError> {
        let own = Arc::clone(self.own.semaphore()).try_acquire_many_owned(amount)?;
        let all = Arc::clone(self.all.semaphore()).try_acquire_many_owned(amount)?;
        self.own.merge(own);
        self.all.merge(all);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::Shares;

    #[test]
    fn a_program_that_has_its_share_leaves_the_rest_to_the_others() {
        let shares = Shares::new(4);
        let take = |program, amount| {
            shares
                .take(program, amount, 2)
                .now_or_never()
                .map(Result::unwrap)
        };
        let first = take("/a", 2).unwrap();
        assert!(take("/a", 1).is_none());
        assert!(shares.take_now("/a", 1, 2).is_none() && shares.take_now("/c", 1, 2).is_some());
        let mut other = take("/b", 1).unwrap();
        assert!(other.grow(2).is_err() && other.grow(1).is_ok());
        assert!(take("/c", 1).is_none(), "all is taken");
        drop(first);
        assert!(take("/c", 1).is_some() && take("/a", 2).is_some());
        drop(other);
        let smaller = take("/e", 2).unwrap().of(1);
        assert!(take("/e", 1).is_some() && take("/f", 2).is_some());
        drop(smaller);
        drop(take("/d", 1));
        assert_eq!(
            shares.programs.lock().len(),
            1,
            "nothing is kept of programs that have nothing"
        );
    }
}
