//! The policy generation in force.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::decide::snapshot::Snapshot;

/// The number and start of a generation of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// The generation's number.
    pub number: u64,
    /// The time at which it came into force.
    pub since: Instant,
}

/// The generation in force, which a connection loads once, and the channel that announces the next
/// one.
#[derive(Debug)]
pub struct PolicyStore {
    snapshot: ArcSwap<Snapshot>,
    generations: watch::Sender<Generation>,
}

impl PolicyStore {
    /// Creates a store with `snapshot` in force.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        let (generations, _) = watch::channel(Generation {
            number: snapshot.generation(),
            since: Instant::now(),
        });
        Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            generations,
        }
    }

    /// Returns the generation in force.
    #[must_use]
    pub fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Puts `snapshot` in force at once, and notifies every open connection.
    pub fn replace(&self, snapshot: Snapshot) {
        let number = snapshot.generation();
        self.snapshot.store(Arc::new(snapshot));
        self.generations.send_replace(Generation {
            number,
            since: Instant::now(),
        });
    }

    /// Subscribes to the generations that come into force from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Generation> {
        self.generations.subscribe()
    }
}
