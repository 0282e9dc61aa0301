//! The policy generation in force.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::decide::snapshot::Snapshot;

/// Holder of the generation in force, which a connection loads once, and of the notification of the next.
#[derive(Debug)]
pub struct PolicyStore {
    snapshot: ArcSwap<Snapshot>,
    generations: watch::Sender<u64>,
}

impl PolicyStore {
    /// Puts the first generation in force.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        let (generations, _) = watch::channel(snapshot.generation());
        Self { snapshot: ArcSwap::from_pointee(snapshot), generations }
    }

    /// The generation in force.
    #[must_use]
    pub fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Puts `snapshot` in force at once, and notifies every open connection.
    pub fn replace(&self, snapshot: Snapshot) {
        let generation = snapshot.generation();
        self.snapshot.store(Arc::new(snapshot));
        self.generations.send_replace(generation);
    }

    /// Subscribes to the numbers of generations that come into force from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generations.subscribe()
    }
}
