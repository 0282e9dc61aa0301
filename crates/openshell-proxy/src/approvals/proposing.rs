//! Questions about lines that programs propose.

use std::path::Path;
use std::sync::Arc;

use openshell_policy::network::PolicyName;
use tokio::sync::watch;

use crate::approvals::about::About;
use crate::approvals::desk::Desk;
use crate::approvals::proposal::{Fate, Proposal, names};
use crate::approvals::question::{QuestionId, Shown};
use crate::approvals::state::Turn;

/// A proposal that a person is asked about.
#[derive(Debug)]
pub struct Asked {
    /// The key that its line has.
    pub name: PolicyName,
    /// What becomes of it.
    pub fate: watch::Receiver<Fate>,
}

impl Desk {
    /// Asks about `proposal`. What the policy permits already is approved at once. Blocks.
    ///
    /// # Errors
    /// Nobody can be asked, and says why.
    pub fn propose(&self, proposal: Proposal) -> Result<Asked, String> {
        let fate = proposal.fate.subscribe();
        let name = self.ask_about(Arc::new(proposal))?;
        Ok(Asked { name, fate })
    }

    fn ask_about(&self, proposal: Arc<Proposal>) -> Result<PolicyName, String> {
        let path = &proposal.caller.program.executable;
        let program = self.counted_as(path);
        let snapshot = self.policy.load();
        if let Some(why) = snapshot.invalid() {
            return Err(format!("the policy is invalid: {why}"));
        }
        if proposal.is_permitted(&snapshot) {
            proposal.approve(snapshot.generation());
            return Ok(proposal.name.clone());
        }
        let state = self.state.lock();
        let denied = proposal.denied_for_run(&program);
        if state.is_closed || state.bounds.forbid(&program, &denied) {
            return Err(format!(
                "nobody is asked: for {path} too much was denied, or this was denied for the run"
            ));
        }
        let network = snapshot.policy().network();
        let is_free = |name: &PolicyName| !network.contains_key(name) && !state.is_proposed(name);
        let name = names(&proposal.name).find(is_free);
        drop(state);
        let name = name.ok_or("the name is taken, and so is each with a number")?;
        let line = proposal.line(&name);
        let mut line = line.ok_or("its line of policy is too long to be shown")?;
        line.permits = proposal.permits(&snapshot, &line.line)?;
        let is_writable = |path: &str| (self.is_writable)(Path::new(path));
        let marks = proposal.marks(snapshot.policy(), is_writable);
        let shown = Shown::of_proposal(proposal, line, marks);
        let shown = shown.ok_or("it is too long to be shown")?;
        let id = QuestionId::new().map_err(|error| error.to_string())?;
        let mut state = self.state.lock();
        self.reporter.asked(&id, &shown);
        state.list(id, Arc::new(shown));
        drop(state);
        self.note_change();
        Ok(name)
    }

    /// Asks about `proposal` again, because the policy has changed.
    pub(super) fn ask_again(&self, proposal: &Arc<Proposal>) {
        if let Err(why) = self.ask_about(Arc::clone(proposal)) {
            proposal.reject(&format!("the policy has changed: {why}"));
        }
    }

    /// Compares what is proposed with the policy in force, which is new: what it permits is approved,
    /// and what a line would permit otherwise than it was shown is asked again.
    pub(super) fn settle_proposals(&self) {
        let snapshot = self.policy.load();
        let proposed = self.state.lock().proposed();
        for (id, shown) in proposed {
            let About::Proposed(proposal) = &shown.about else {
                continue;
            };
            let is_same = shown.lines.first().is_some_and(|line| {
                let permits = proposal.permits(&snapshot, &line.line);
                permits.as_ref() == Ok(&line.permits)
            });
            if is_same || snapshot.invalid().is_some() {
                continue;
            }
            let mut state = self.state.lock();
            // Somebody may have answered meanwhile.
            if state.has(&id) {
                state.finish(&id, "stale", || Turn::Judge);
                drop(state);
                self.ask_again(proposal);
            }
        }
    }
}
