//! Admission of connections: bounds how many each program has, so that no program takes the network
//! from the others.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::decide::identify::Identity;
use crate::decide::snapshot::Snapshot;
use crate::ground::limits::Limits;
use crate::ground::peer::Program;
use crate::ground::quota::{Quota, QuotaGuard};

/// Bounds on the connections of programs.
#[derive(Debug)]
pub struct Admission {
    all: Arc<Quota>,
    /// Connections of programs that the policy does not list.
    unlisted: Arc<Quota>,
    /// Number of connections up to which the policy is not consulted, because there is room for
    /// everybody.
    ample: usize,
    refusals: Arc<Semaphore>,
}

/// The fate of a connection.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// It is served, while this is held.
    Served(Place),
    /// It is told that there are too many connections, while this is held.
    Refused(OwnedSemaphorePermit),
    /// It is closed without an answer.
    Closed,
}

/// A place, which becomes free when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(#[expect(dead_code, reason = "held for its drop")] [Option<QuotaGuard>; 2]);

impl Default for Admission {
    /// Returns bounds for the file descriptors that this process may have; a connection takes two
    /// of them.
    fn default() -> Self {
        let descriptors = getrlimit(Resource::Nofile)
            .current
            .and_then(|most| usize::try_from(most).ok());
        Self::within(descriptors.map_or(Limits::CONNECTIONS, |most| {
            (most / 2).min(Limits::CONNECTIONS)
        }))
    }
}

impl Admission {
    /// Creates bounds for a proxy that has room for `most` connections.
    fn within(most: usize) -> Self {
        Self {
            all: Arc::new(Quota::new(most / 2, usize::MAX)),
            unlisted: Arc::new(Quota::new(most / 8, most / 4)),
            ample: most / 8,
            refusals: Arc::new(Semaphore::new(Limits::REFUSED_CONNECTIONS)),
        }
    }

    /// Admits a connection of `identity`; `policy` says which programs it lists.
    pub(crate) fn admit(&self, identity: &Identity, policy: &Snapshot) -> Admitted {
        let program = identity
            .as_ref()
            .ok()
            .map(|identified| &*identified.caller().program);
        let is_listed = || program.is_some_and(|program| policy.lists(program));
        match self.place(program, is_listed) {
            Some(place) => Admitted::Served(place),
            None => match Arc::clone(&self.refusals).try_acquire_owned() {
                Ok(permit) => Admitted::Refused(permit),
                Err(_) => Admitted::Closed,
            },
        }
    }

    fn place(&self, program: Option<&Program>, is_listed: impl FnOnce() -> bool) -> Option<Place> {
        let name = program.map_or("", |program| program.executable.as_str());
        let one = self.all.take(name)?;
        let is_counted = self.all.taken() > self.ample && !is_listed();
        let other = if is_counted {
            Some(self.unlisted.take(name)?)
        } else {
            None
        };
        Some(Place([Some(one), other]))
    }
}

#[cfg(test)]
mod tests {
    use super::Admission;
    use crate::ground::peer::Program;

    fn program(path: &str) -> Program {
        Program {
            executable: path.to_owned(),
            ancestors: Vec::new(),
            cmdline_paths: Vec::new(),
            is_modified: false,
        }
    }

    #[test]
    fn programs_that_the_policy_does_not_list_leave_most_places_to_those_that_it_lists() {
        let admission = Admission::within(800);
        // However many programs they are.
        let unlisted: Vec<_> = (0..5000)
            .filter_map(|number| admission.place(Some(&program(&format!("/x{number}"))), || false))
            .collect();
        assert_eq!(unlisted.len(), 100 + 200);
        let listed: Vec<_> = (0..800)
            .map_while(|_| admission.place(Some(&program("/a")), || true))
            .collect();
        assert_eq!(listed.len(), 400);
        assert!(
            admission.place(Some(&program("/b")), || true).is_some()
                && admission.place(None, || false).is_none()
        );
        drop(unlisted);
        assert!(admission.place(None, || false).is_some());
    }
}
