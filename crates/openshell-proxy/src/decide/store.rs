//! The policy generation in force.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::decide::snapshot::Snapshot;

/// A generation of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// Its number.
    pub number: u64,
    /// The time at which it came into force.
    pub since: Instant,
}

/// Holder of the generation in force, which a connection loads once, and of the notification of the
/// next.
#[derive(Debug)]
pub struct PolicyStore {
    snapshot: ArcSwap<Snapshot>,
    generations: watch::Sender<Generation>,
}

impl PolicyStore {
    /// Puts the first generation in force.
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

    /// The generation in force.
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
