//! Places for judgements. Each kind has its own, so that none waits long for those of another.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::ground::limits::Limits;

/// The places. Each kind has its own bound; new connections also need one of those in `new`.
#[derive(Debug)]
pub(super) struct Places {
    /// Look-ups and evaluations of new connections and of messages.
    pub(super) new: Arc<Semaphore>,
    /// Look-ups and evaluations for programs that the policy does not list.
    unlisted: Arc<Semaphore>,
    /// Programs that are read for the first time: small ones, and then large ones.
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Judgements of open connections after a change of the policy.
    pub(super) open: Arc<Semaphore>,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place(
    #[expect(dead_code, reason = "held for its drop")] Vec<OwnedSemaphorePermit>,
);

impl Default for Places {
    fn default() -> Self {
        let of = |places| Arc::new(Semaphore::new(places));
        Self {
            new: of(Limits::JUDGING),
            unlisted: of(Limits::JUDGING_UNLISTED),
            small: of(Limits::READING_SMALL),
            large: of(Limits::READING_LARGE),
            open: of(Limits::JUDGING_OPEN),
        }
    }
}

impl Places {
    /// Waits for a place for a new connection of a program, of which `unread` bytes have to be
    /// read. While an unlisted program waits, or one waits to be read, it takes no place from
    /// others.
    pub(super) async fn for_new(
        &self,
        is_listed: bool,
        unread: u64,
    ) -> Result<Place, AcquireError> {
        let mut held = Vec::new();
        if !is_listed {
            held.push(Arc::clone(&self.unlisted).acquire_owned().await?);
        }
        if unread > 0 {
            let reading = if unread < Limits::LARGE_PROGRAM {
                &self.small
            } else {
                &self.large
            };
            held.push(Arc::clone(reading).acquire_owned().await?);
        }
        held.push(Arc::clone(&self.new).acquire_owned().await?);
        Ok(Place(held))
    }

    /// Waits for a place for an open connection.
    pub(super) async fn for_open(&self) -> Result<Place, AcquireError> {
        Ok(Place(vec![Arc::clone(&self.open).acquire_owned().await?]))
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use crate::ground::limits::Limits;

    fn is_free(
        place: impl Future<Output = Result<super::Place, tokio::sync::AcquireError>>,
    ) -> bool {
        use futures_util::FutureExt as _;
        place.now_or_never().is_some()
    }

    #[test]
    fn programs_that_are_not_listed_or_have_to_be_read_leave_places_to_the_others() {
        use futures_util::FutureExt as _;
        let places = Places::default();
        let unlisted: Vec<_> = (0..1500)
            .map_while(|_| places.for_new(false, 0).now_or_never())
            .map(Result::unwrap)
            .collect();
        let large: Vec<_> = (0..48)
            .map_while(|_| places.for_new(true, 2 << 30).now_or_never())
            .map(Result::unwrap)
            .collect();
        let small: Vec<_> = (0..48)
            .map_while(|_| places.for_new(true, 1).now_or_never())
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            [unlisted.len(), large.len(), small.len()],
            [
                Limits::JUDGING_UNLISTED,
                Limits::READING_LARGE,
                Limits::READING_SMALL
            ]
        );
        assert!(is_free(places.for_new(true, 0)) && is_free(places.for_open()));
        drop((large, unlisted));
        assert!(is_free(places.for_new(false, 2 << 30)) && !is_free(places.for_new(true, 1)));
        drop(small);
        assert!(is_free(places.for_new(true, 1)));
    }
}
