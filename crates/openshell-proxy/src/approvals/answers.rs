//! What the answers to questions do.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::approvals::about::About;
use crate::approvals::answer::{Answerer, Decision, Done, Unanswered};
use crate::approvals::desk::Desk;
use crate::approvals::grants::Grant;
use crate::approvals::keep::Difference;
use crate::approvals::line::Proposed;
use crate::approvals::listing::HeldQuestion;
use crate::approvals::question::{QuestionId, Shown};
use crate::approvals::reporter::Permission;
use crate::approvals::state::{Stage, Turn};
use crate::decide::snapshot::Snapshot;
use crate::decide::store::{Dropped, PolicyStore};

/// How often an answer is examined again because the policy changes meanwhile.
const ROUNDS: usize = 8;

/// Why no answer counts.
const SUSPENDED: &str = "a policy for all sandboxes is in force, beside which no answer counts";

/// What became of a question whose request the policy permits by now.
const PERMITTED: &str = "permitted";

/// Compares the line `proposed` with what was shown, under the policy `in_force`.
fn examine(shown: &Shown, proposed: &Proposed, in_force: &Arc<Snapshot>) -> Examined {
    let snapshot = shown.about.over(Arc::clone(in_force));
    if shown.about.is_permitted(&snapshot) {
        return Examined::Permitted;
    }
    match shown.about.join(&snapshot, &proposed.line) {
        Some(joined) if joined.permits == proposed.permits => {
            let is_in_force = Arc::ptr_eq(&snapshot, in_force);
            Examined::Same(is_in_force.then(|| Box::new(joined.together)))
        }
        Some(_) | None => Examined::Stale,
    }
}

/// Returns the `line` of a question, counted from the narrowest.
fn chosen(shown: &Shown, line: usize) -> Result<&Proposed, Unanswered> {
    let chosen = shown.lines.get(line);
    chosen.ok_or(Unanswered::Unfit(
        "the question has no such line; they are counted from 1".into(),
    ))
}

/// How an answer stands to the policy of its moment.
enum Examined {
    /// The policy permits what was asked.
    Permitted,
    /// The line permits what was shown. Also the policy in force together with it, if nothing else
    /// held for what was asked.
    Same(Option<Box<Snapshot>>),
    /// The line would permit something else.
    Stale,
}

impl Desk {
    /// Notes that a policy permits what `question` asks for, because of an answer `by` somebody who
    /// makes the policy.
    pub fn granted_by_policy(&self, question: &HeldQuestion, by: Answerer<'_>) {
        let HeldQuestion { id, shown } = question;
        let program = self.counted_as(shown.about.program());
        self.state.lock().bounds.permit(&program);
        let permission = Permission {
            scope: Decision::Run,
            grant: None,
            line: None,
        };
        self.reporter.granted(id, shown, permission, by);
    }

    /// Holds nothing from now on, if `is_suspended`, because no line could count: what waits is
    /// refused, and what was granted ends. Blocks.
    pub fn suspend(&self, is_suspended: bool) {
        let was_suspended = self.is_suspended.swap(is_suspended, Ordering::Relaxed);
        if !is_suspended || was_suspended {
            return;
        }
        let mut state = self.state.lock();
        let held: Vec<_> = state
            .questions()
            .into_iter()
            .map(|(id, _)| id.clone())
            .collect();
        for id in held {
            state.finish(&id, "suspended", || Turn::Judge);
        }
        let grants = state.grants.for_run().to_vec();
        for grant in &grants {
            state.grants.remove(&grant.id);
        }
        drop(state);
        for grant in grants {
            self.policy.remove(&grant.line);
            self.reporter.revoked(&grant, None, SUSPENDED);
        }
        self.note_change();
    }

    /// Asks for `program` again, which was not asked for any more; returns false if it was.
    pub fn unmute(&self, program: &str) -> bool {
        let mut state = self.state.lock();
        let is_muted = state.bounds.muted().contains(&program);
        state.bounds.permit(program);
        drop(state);
        self.note_change();
        is_muted
    }

    /// Answers the question `id` with `decision`; a permission is by its `line`, counted from the
    /// narrowest. Blocks.
    ///
    /// # Errors
    /// The question is not open, the policy of this moment makes the line permit something else, or
    /// the question does not take this answer.
    pub fn decide(
        &self,
        id: &str,
        decision: Decision,
        line: usize,
        by: Answerer<'_>,
    ) -> Result<Done, Unanswered> {
        if self.is_suspended() {
            return Err(Unanswered::Unfit(SUSPENDED.into()));
        }
        let taken = self.state.lock().take(id);
        let (id, shown, stage) = taken.ok_or(Unanswered::Gone)?;
        let decided = self.decide_taken(&id, &shown, stage, decision, line, by);
        let mut state = self.state.lock();
        match &decided {
            Err(Unanswered::Unfit(_)) => state.give_back(&id),
            // Asked anew, as soon as each is judged again.
            Err(Unanswered::Stale) => state.finish(&id, "stale", || Turn::Judge),
            Err(Unanswered::Gone) | Ok(_) => {}
        }
        drop(state);
        if let (Err(Unanswered::Stale), About::Proposed(proposal)) = (&decided, &shown.about) {
            self.ask_again(proposal);
        }
        self.note_change();
        decided
    }

    fn decide_taken(
        &self,
        id: &QuestionId,
        shown: &Arc<Shown>,
        stage: Stage,
        decision: Decision,
        line: usize,
        by: Answerer<'_>,
    ) -> Result<Done, Unanswered> {
        if stage != Stage::Held && matches!(decision, Decision::Once | Decision::Deny) {
            return Err(Unanswered::Unfit(
                "nothing waits under this question any more; it takes run, save or deny_run".into(),
            ));
        }
        if decision == Decision::Once && matches!(shown.about, About::Proposed(_)) {
            return Err(Unanswered::Unfit(
                "nothing waits under a proposal; it takes run, save, deny or deny_run".into(),
            ));
        }
        let proposed = chosen(shown, line)?;
        match decision {
            Decision::Once => self.once(id, shown, proposed, by),
            Decision::Run | Decision::Save => self.for_run(id, shown, proposed, decision, by),
            Decision::Deny | Decision::DenyRun => {
                let mut state = self.state.lock();
                state.finish(id, decision.as_str(), || Turn::Denied);
                let program = self.counted_as(shown.about.program());
                let is_muted = state.bounds.deny(&program);
                if decision == Decision::DenyRun {
                    let wish = shown.about.denied_for_run(&program);
                    if state.bounds.deny_for_run(wish) {
                        self.reporter.asks_no_more();
                    }
                }
                drop(state);
                shown.about.reject(by.reason);
                self.reporter.denied(id, shown, decision, by);
                if is_muted {
                    self.reporter.mutes(&program);
                }
                Ok(Done::default())
            }
        }
    }

    /// Lets the oldest request under the question go on, with the line `proposed`.
    fn once(
        &self,
        id: &QuestionId,
        shown: &Arc<Shown>,
        proposed: &Proposed,
        by: Answerer<'_>,
    ) -> Result<Done, Unanswered> {
        let examined = examine(shown, proposed, &self.policy.load());
        let next = QuestionId::new().map_err(|_| Unanswered::Unfit("there is no new id".into()))?;
        let mut state = self.state.lock();
        match examined {
            Examined::Stale => return Err(Unanswered::Stale),
            Examined::Permitted => state.finish(id, PERMITTED, || Turn::Judge),
            Examined::Same(_) => {
                let turn = Turn::Once(Box::new(proposed.line.clone()));
                if !state.finish_one(id, Decision::Once.as_str(), turn, &next) {
                    return Err(Unanswered::Gone);
                }
                state.grants.note(Decision::Once.as_str(), &proposed.yaml);
            }
        }
        let program = self.counted_as(shown.about.program());
        state.bounds.permit(&program);
        let are_others = state.has(&next);
        drop(state);
        let permission = Permission {
            scope: Decision::Once,
            grant: None,
            line: Some(&proposed.line.name),
        };
        self.reporter.granted(id, shown, permission, by);
        if are_others {
            self.reporter.asked(&next, shown);
        }
        Ok(Done::default())
    }

    /// Returns what writing the chosen `line` of the question `id` would change. Blocks.
    ///
    /// # Errors
    /// The question is not open, or its line cannot be written.
    pub fn difference(&self, id: &str, line: usize) -> Result<Difference, Unanswered> {
        let shown = self.state.lock().shown(id).ok_or(Unanswered::Gone)?;
        self.may_keep(&shown, chosen(&shown, line)?)
    }

    /// Checks that `proposed` can be written, and that it then permits exactly what was shown.
    fn may_keep(&self, shown: &Shown, proposed: &Proposed) -> Result<Difference, Unanswered> {
        let programs = shown.about.permitted().into_iter();
        let mut writable = programs.filter(|program| (self.is_writable)(Path::new(program)));
        if let Some(program) = writable.next() {
            let why = format!(
                "{program} can be changed by what runs inside, so it is never saved; answer run"
            );
            return Err(Unanswered::Unfit(why.into()));
        }
        let alone = shown.about.alone();
        let permits = alone.permits(&self.policy.base(), &proposed.line);
        if permits.as_ref() != Some(&proposed.permits) {
            return Err(Unanswered::Unfit(
                "without what was permitted for the run the line would permit something else than \
                 was shown"
                    .into(),
            ));
        }
        let difference = self.keep.difference(&proposed.yaml);
        difference.map_err(|why| Unanswered::Unfit(why.into()))
    }

    /// Adds the line `proposed` for the run, and writes it if it is to be saved.
    fn for_run(
        &self,
        id: &QuestionId,
        shown: &Shown,
        proposed: &Proposed,
        decision: Decision,
        by: Answerer<'_>,
    ) -> Result<Done, Unanswered> {
        if decision == Decision::Save {
            self.may_keep(shown, proposed)?;
        }
        let mut grant = None;
        for _ in 0..ROUNDS {
            let current = self.policy.load();
            let together = match examine(shown, proposed, &current) {
                Examined::Permitted => {
                    grant = Some(String::new());
                    break;
                }
                Examined::Stale => return Err(Unanswered::Stale),
                Examined::Same(Some(together)) => *together,
                Examined::Same(None) => {
                    let lines = std::slice::from_ref(&proposed.line);
                    let together = current.with_lines(current.generation() + 1, lines);
                    together.map_err(|_| Unanswered::Stale)?
                }
            };
            together.prepare();
            // Listed first, so that a reload that drops the line finds the grant.
            let mut state = self.state.lock();
            if state.grants.for_run().len() >= PolicyStore::LINES {
                return Err(Unanswered::Unfit(
                    "as many lines as there may be were added in this run; take one back first"
                        .into(),
                ));
            }
            let line = proposed.line.clone();
            let added = state.grants.add(line, &proposed.yaml, &proposed.permits);
            drop(state);
            if self.policy.add(proposed.line.clone(), together) {
                grant = Some(added);
                break;
            }
            self.state.lock().grants.remove(&added);
        }
        let grant = grant.ok_or(Unanswered::Stale)?;
        let grant = Some(grant).filter(|grant| !grant.is_empty());
        // What only another line permits for the run is written too.
        let is_to_be_kept =
            decision == Decision::Save && !shown.about.alone().is_permitted(&self.policy.base());
        let kept = is_to_be_kept.then(|| self.write(grant.as_deref(), &proposed.yaml));
        let scope = match &kept {
            Some(Ok(_)) => Decision::Save,
            Some(Err(_)) | None => Decision::Run,
        };
        let has_effect = grant.is_some() || matches!(kept, Some(Ok(_)));
        let mut state = self.state.lock();
        if has_effect {
            state.grants.note(scope.as_str(), &proposed.yaml);
            state.finish(id, scope.as_str(), || Turn::Judge);
        } else {
            state.finish(id, PERMITTED, || Turn::Judge);
        }
        let program = self.counted_as(shown.about.program());
        state.bounds.permit(&program);
        drop(state);
        shown.about.approve(self.policy.load().generation());
        let permission = Permission {
            scope,
            grant: grant.as_deref(),
            line: has_effect.then_some(&proposed.line.name),
        };
        self.reporter.granted(id, shown, permission, by);
        self.settle_proposals();
        Ok(Done { grant, kept })
    }

    /// Writes the line `yaml`, which is that of `grant` if it has one, so that the next run has it too.
    fn write(&self, grant: Option<&str>, yaml: &str) -> Result<Difference, String> {
        let grants = self.grants();
        let for_run = grants
            .into_iter()
            .filter(|other| Some(other.id.as_str()) != grant && other.kept_in.is_none())
            .map(|other| other.yaml);
        let written = self.keep.keep(yaml, &for_run.collect::<Vec<_>>())?;
        if let Some(grant) = grant {
            self.state.lock().grants.is_kept(grant, &written.file);
        }
        Ok(written)
    }

    /// Takes back the grant with this `id`, and returns it. What only that grant permitted closes, and
    /// a line that was written stays in its file. Blocks.
    ///
    /// # Errors
    /// There is no such grant.
    pub fn revoke(&self, id: &str, by: Answerer<'_>) -> Result<Grant, Unanswered> {
        let grant = self.state.lock().grants.remove(id);
        let grant = grant.ok_or(Unanswered::Gone)?;
        self.policy.remove(&grant.line);
        self.reporter.revoked(&grant, Some(by), "");
        self.settle_proposals();
        self.note_change();
        Ok(grant)
    }

    /// Notes the lines that a new policy has `dropped`.
    pub fn dropped(&self, dropped: &[Dropped]) {
        for Dropped { line, unfit } in dropped {
            let grant = self.state.lock().grants.remove_line(line);
            if let Some(grant) = grant {
                let why = match unfit {
                    Some(unfit) => format!("the new policy does not fit: {unfit}"),
                    None => "the new policy permits the same".to_owned(),
                };
                self.reporter.revoked(&grant, None, &why);
            }
        }
        self.settle_proposals();
        self.note_change();
    }

    /// Refuses all that waits, and asks nothing any more, because the sandbox ends.
    pub fn close(&self) {
        self.state.lock().close();
        self.note_change();
    }
}
