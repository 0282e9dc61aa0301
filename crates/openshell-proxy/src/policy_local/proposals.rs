//! The proposals of a sandbox, and what became of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::approvals::proposal::{Fate, Proposal};
use crate::approvals::proposing::PENDING;

/// The most proposals in a minute.
const RATE: usize = 5;

/// The most proposals that are remembered.
const REMEMBERED: usize = 200;

const MINUTE: Duration = Duration::from_secs(60);

/// A proposal that was submitted.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub(super) id: String,
    /// The key of its line.
    pub(super) name: String,
    pub(super) proposal: Arc<Proposal>,
}

impl Tracked {
    fn is_pending(&self) -> bool {
        *self.proposal.fate.borrow() == Fate::Pending
    }
}

/// The proposals of a sandbox.
#[derive(Debug, Default)]
pub(super) struct Proposals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    tracked: VecDeque<Tracked>,
    /// When the last ones were proposed.
    recent: VecDeque<Instant>,
    /// Those that are being submitted.
    coming: usize,
}

/// Room for proposals that are being submitted.
#[derive(Debug)]
pub(super) struct Room<'p> {
    proposals: &'p Proposals,
    count: usize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.proposals.0.lock().coming -= self.count;
    }
}

impl Proposals {
    /// Takes room for `count` further proposals; `None` if there are too many.
    pub(super) fn enter(&self, count: usize) -> Option<Room<'_>> {
        let mut state = self.0.lock();
        let now = Instant::now();
        let is_old = |at: &Instant| now.duration_since(*at) >= MINUTE;
        while state.recent.front().is_some_and(is_old) {
            state.recent.pop_front();
        }
        let pending = state.tracked.iter().filter(|tracked| tracked.is_pending());
        let pending = pending.count() + state.coming;
        if state.recent.len() + count > RATE || pending + count > PENDING {
            return None;
        }
        state.recent.extend((0..count).map(|_| now));
        state.coming += count;
        drop(state);
        Some(Room {
            proposals: self,
            count,
        })
    }

    /// Remembers a proposal that was submitted.
    pub(super) fn add(&self, tracked: Tracked) {
        let mut state = self.0.lock();
        if state.tracked.len() >= REMEMBERED {
            // There are fewer pending ones than are remembered.
            let oldest = state
                .tracked
                .iter()
                .position(|tracked| !tracked.is_pending());
            if let Some(oldest) = oldest {
                state.tracked.remove(oldest);
            }
        }
        state.tracked.push_back(tracked);
    }

    /// Returns the proposal with this `id`.
    pub(super) fn find(&self, id: &str) -> Option<Tracked> {
        let state = self.0.lock();
        let mut tracked = state.tracked.iter();
        tracked.find(|tracked| tracked.id == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openshell_policy::network::PolicyName;
    use parking_lot::Mutex;
    use tokio::sync::watch;
    use tokio::time::advance;

    use super::{Fate, MINUTE, PENDING, Proposal, Proposals, RATE, Tracked};
    use crate::testing;

    #[tokio::test(start_paused = true)]
    async fn proposals_are_counted_by_the_minute_and_by_those_that_nobody_has_answered() {
        let proposals = Proposals::default();
        let proposal = Arc::new(Proposal {
            caller: testing::caller(),
            name: PolicyName::parse("proposed").unwrap(),
            endpoints: Vec::new(),
            programs: Vec::new(),
            intent: String::new(),
            fate: watch::Sender::new(Fate::Pending),
            details: Mutex::default(),
        });
        for number in 0..PENDING {
            if number % RATE == 0 {
                advance(MINUTE).await;
            }
            let room = proposals.enter(1).unwrap();
            proposals.add(Tracked {
                id: number.to_string(),
                name: String::new(),
                proposal: Arc::clone(&proposal),
            });
            drop(room);
        }
        assert!(proposals.enter(1).is_none(), "five in a minute");
        advance(MINUTE).await;
        assert!(proposals.enter(1).is_none(), "twenty that wait");
        proposal.approve(1);
        assert!(proposals.enter(RATE).is_some());
        assert!(proposals.enter(1).is_none());
        assert!(proposals.find("3").is_some() && proposals.find("x").is_none());
    }
}
