//! Questions about lines that programs propose.

use std::path::Path;
use std::sync::Arc;

use openshell_policy::network::PolicyName;

use crate::approvals::about::About;
use crate::approvals::desk::Desk;
use crate::approvals::line::Proposed;
use crate::approvals::proposal::{Proposal, numbered};
use crate::approvals::question::{QuestionId, Shown};
use crate::approvals::state::Turn;
use crate::decide::line::Line;
use crate::decide::snapshot::Snapshot;

/// The most proposals that nobody has answered.
pub(crate) const PENDING: usize = 20;

/// Returns the line of `proposal` beside the policy of `snapshot`; `None` if that permits all of it.
/// The key is one of which `is_taken` returns false. Blocks.
///
/// # Errors
/// The line does not fit, or cannot be shown, and says why.
fn examined(
    proposal: &Proposal,
    snapshot: &Snapshot,
    is_taken: impl Fn(&PolicyName) -> bool,
) -> Result<Option<Proposed>, String> {
    if let Some(why) = snapshot.invalid() {
        return Err(format!("the policy is invalid: {why}"));
    }
    if proposal.is_permitted(snapshot) {
        return Ok(None);
    }
    let network = snapshot.policy().network();
    let is_free = |name: &PolicyName| !network.contains_key(name) && !is_taken(name);
    let name = numbered(&proposal.name).find(is_free);
    let name = name.ok_or("the name is taken, and so is each with a number")?;
    let line = proposal.line(&name);
    let mut line = line.ok_or("its line of policy is too long to be shown")?;
    line.permits = proposal.join(snapshot, &line.line)?.permits;
    Ok(Some(line))
}

/// Returns the line of `proposal` beside the policy of `snapshot`; `None` if that permits all of it.
/// The key is one of which `is_taken` returns false. Blocks.
///
/// # Errors
/// The line does not fit, and says why.
pub fn line_of(
    proposal: &Proposal,
    snapshot: &Snapshot,
    is_taken: impl Fn(&PolicyName) -> bool,
) -> Result<Option<Line>, String> {
    let proposed = examined(proposal, snapshot, is_taken)?;
    Ok(proposed.map(|proposed| proposed.line))
}

impl Desk {
    /// Asks about `proposal`. What the policy permits already is approved at once. Blocks.
    ///
    /// # Errors
    /// Nobody can be asked, and says why.
    pub fn propose(&self, proposal: &Arc<Proposal>) -> Result<PolicyName, String> {
        let path = &proposal.caller.program.executable;
        let program = self.counted_as(path);
        let snapshot = self.policy.load();
        let is_taken = |name: &PolicyName| self.state.lock().is_proposed(name);
        let Some(line) = examined(proposal, &snapshot, is_taken)? else {
            proposal.approve(snapshot.generation());
            return Ok(proposal.name.clone());
        };
        let denied = proposal.denied_for_run(&program);
        let state = self.state.lock();
        let is_forbidden = state.is_closed || state.bounds.forbid(&program, &denied);
        let is_full = state.proposals() >= PENDING;
        drop(state);
        if is_full {
            return Err("as many proposals as there may be wait for an answer".to_owned());
        }
        if is_forbidden || self.is_suspended() {
            return Err(format!(
                "nobody is asked: for {path} too much was denied, or this was denied for the run"
            ));
        }
        let name = line.line.name.clone();
        proposal.details.lock().rule_name = Some(name.as_str().to_owned());
        let is_writable = |path: &str| (self.is_writable)(Path::new(path));
        let marks = proposal.marks(snapshot.policy(), is_writable);
        let shown = Shown::of_proposal(Arc::clone(proposal), line, marks);
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
        if let Err(why) = self.propose(proposal) {
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
                let joined = proposal.join(&snapshot, &line.line);
                joined.is_ok_and(|joined| joined.permits == line.permits)
            });
            if is_same || snapshot.invalid().is_some() {
                continue;
            }
            let mut state = self.state.lock();
            // Somebody may be answering, or have answered.
            if state.take(id.as_str()).is_some() {
                state.finish(&id, "stale", || Turn::Judge);
                drop(state);
                self.ask_again(proposal);
            }
        }
    }
}
