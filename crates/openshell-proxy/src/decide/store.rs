//! The policy generation in force.

use std::sync::Arc;

use arc_swap::ArcSwap;
use openshell_policy::comparison::addition;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::decide::line::Line;
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
/// one. It is made of a base, which its source replaces, and of lines that persons have added.
#[derive(Debug)]
pub struct PolicyStore {
    snapshot: ArcSwap<Snapshot>,
    generations: watch::Sender<Generation>,
    layers: Mutex<Layers>,
}

/// What the generation in force is made of.
#[derive(Debug)]
struct Layers {
    base: Arc<Snapshot>,
    added: Vec<Line>,
}

/// A line that no longer counts after a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The line.
    pub line: Line,
    /// Why it does not fit; `None` if the base permits the same now.
    pub unfit: Option<String>,
}

impl PolicyStore {
    /// The most lines that persons can add.
    pub const LINES: usize = 256;

    /// Creates a store with `snapshot` in force.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        let (generations, _) = watch::channel(Generation {
            number: snapshot.generation(),
            since: Instant::now(),
        });
        let base = Arc::new(snapshot);
        Self {
            snapshot: ArcSwap::new(Arc::clone(&base)),
            generations,
            layers: Mutex::new(Layers {
                base,
                added: Vec::new(),
            }),
        }
    }

    /// Returns the generation in force.
    #[must_use]
    pub fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Returns what its source gave, without the lines that persons have added.
    #[must_use]
    pub fn base(&self) -> Arc<Snapshot> {
        Arc::clone(&self.layers.lock().base)
    }

    /// Puts `snapshot` in force at once as the new base, with the added lines that still fit and
    /// permit more than it, and notifies every open connection. Returns the lines that are dropped.
    pub fn replace(&self, snapshot: Snapshot) -> Vec<Dropped> {
        let mut layers = self.layers.lock();
        let number = snapshot.generation().max(self.load().generation() + 1);
        layers.base = Arc::new(snapshot.numbered(number));
        let dropped = layers.settle();
        let in_force = layers.in_force(number);
        self.put(in_force);
        dropped
    }

    /// Adds `line`, whose generation is `together`. Returns false, and changes nothing, if it was not
    /// made of the generation in force, or if there are too many lines.
    #[must_use]
    pub fn add(&self, line: Line, together: Snapshot) -> bool {
        let mut layers = self.layers.lock();
        let is_next = together.generation() == self.load().generation() + 1;
        if !is_next || layers.added.len() >= Self::LINES {
            return false;
        }
        layers.added.push(line);
        self.put(Arc::new(together));
        true
    }

    /// Takes back `line`. Returns false if it was not added, or is dropped.
    pub fn remove(&self, line: &Line) -> bool {
        let mut layers = self.layers.lock();
        let Some(index) = layers.added.iter().position(|added| added == line) else {
            return false;
        };
        layers.added.remove(index);
        let in_force = layers.in_force(self.load().generation() + 1);
        self.put(in_force);
        true
    }

    fn put(&self, snapshot: Arc<Snapshot>) {
        let number = snapshot.generation();
        self.snapshot.store(snapshot);
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

impl Layers {
    /// Drops the lines that do not fit beside the base, or that it makes needless. None is dropped
    /// while the base is invalid.
    fn settle(&mut self) -> Vec<Dropped> {
        if self.base.invalid().is_some() {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        let mut together = self.base.policy().clone();
        let network = self.base.policy().network();
        for line in std::mem::take(&mut self.added) {
            if network.get(&line.name) == Some(&line.policy) {
                dropped.push(Dropped { line, unfit: None });
                continue;
            }
            let part = [(&line.name, &line.policy)];
            let alone = self.base.policy().with_network_policies(part);
            let unfit = match (alone, together.with_network_policies(part)) {
                (Ok(alone), Ok(next)) => {
                    let change = addition(self.base.policy(), &alone, &line.name);
                    if !change.permits.is_empty() {
                        self.added.push(line);
                        together = next;
                        continue;
                    }
                    None
                }
                (Err(unfit), _) | (_, Err(unfit)) => Some(unfit.to_string()),
            };
            dropped.push(Dropped { line, unfit });
        }
        dropped
    }

    /// Returns the base together with the lines, as the generation with this `number`.
    fn in_force(&self, number: u64) -> Arc<Snapshot> {
        let has_lines = !self.added.is_empty() && self.base.invalid().is_none();
        if !has_lines && self.base.generation() == number {
            return Arc::clone(&self.base);
        }
        let lines = if has_lines {
            self.added.as_slice()
        } else {
            &[]
        };
        match self.base.with_lines(number, lines) {
            Ok(snapshot) => {
                snapshot.prepare();
                Arc::new(snapshot)
            }
            // The lines fit, so this does not happen; without them less is permitted.
            Err(error) => {
                tracing::error!("the lines that were added do not fit: {error}");
                Arc::clone(&self.base)
            }
        }
    }
}
