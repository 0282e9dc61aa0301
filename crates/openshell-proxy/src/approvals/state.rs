//! The state of a desk: the requests that wait, and the questions that are listed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use openshell_policy::network::PolicyName;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::approvals::about::About;
use crate::approvals::bounds::{Bounds, HELD, HELD_OF_PROGRAM};
use crate::approvals::grants::Grants;
use crate::approvals::line::names;
use crate::approvals::question::{QuestionId, Shown};
use crate::decide::line::Line;
use crate::ground::target::Target;

/// How long a request waits while nobody looks.
const UNSEEN: Duration = Duration::from_secs(10);

/// How long a question stays listed that nothing waits under.
const LISTED: Duration = Duration::from_secs(600);

/// The most questions that nothing waits under.
const IDLE: usize = 50;

/// The most bytes of a body that a question keeps that nothing waits under.
const IDLE_BODY: usize = 64 * 1024;

/// The most keys of lines without a number.
const NAMES: usize = 4_096;

/// The most answered questions that are remembered.
const FINISHED: usize = 128;

/// The requests that wait, and the questions that are listed.
#[derive(Debug, Default)]
pub(super) struct State {
    questions: BTreeMap<QuestionId, Entry>,
    slots: BTreeMap<u64, Slot>,
    last: u64,
    /// The keys of lines without a number so far.
    names: BTreeSet<PolicyName>,
    /// The last number of a key.
    last_name: u64,
    /// The last questions that were answered, each with what became of it.
    finished: VecDeque<(QuestionId, &'static str)>,
    pub(super) bounds: Bounds,
    pub(super) grants: Grants,
    /// True once the sandbox ends.
    pub(super) is_closed: bool,
}

/// A question that is listed.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) shown: Arc<Shown>,
    /// What waits under it, the oldest first.
    pub(super) slots: VecDeque<u64>,
    pub(super) stage: Stage,
    /// When it was asked, or when the last request left it.
    pub(super) since: Instant,
    /// True while an answer is examined.
    is_taken: bool,
}

impl Entry {
    /// Returns true if it is about a proposal.
    pub(super) fn is_proposal(&self) -> bool {
        matches!(self.shown.about, About::Proposed(_))
    }

    /// Returns the number of requests that wait under it; a proposal counts as one.
    pub(super) fn held(&self) -> usize {
        if self.is_proposal() {
            1
        } else {
            self.slots.len()
        }
    }
}

/// What became of the requests under a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Some wait.
    Held,
    /// Their clients gave up.
    Left,
    /// They waited too long.
    Expired,
}

impl Stage {
    /// Returns the word, which is the same in all outputs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Left => "left",
            Self::Expired => "expired",
        }
    }
}

/// A request that waits, or is judged again.
#[derive(Debug)]
pub(super) struct Slot {
    program: String,
    question: Option<QuestionId>,
    /// Receives what becomes of it while it waits.
    sender: Option<oneshot::Sender<Turn>>,
    /// What became of it while it was judged again.
    turn: Option<Turn>,
    is_waiting: bool,
    began: Instant,
    pub(super) looked: Option<Instant>,
}

impl Slot {
    /// Returns when it has waited too long, if it waits `hold` once somebody looks.
    pub(super) fn until(&self, hold: Duration) -> Instant {
        match self.looked {
            Some(looked) => looked + hold,
            None => self.began + UNSEEN.min(hold),
        }
    }
}

/// What becomes of a request that waits.
#[derive(Debug)]
pub(super) enum Turn {
    /// The policy may permit it now.
    Judge,
    /// This line holds for it alone.
    Once(Box<Line>),
    /// It is refused.
    Denied,
}

impl State {
    /// Returns true if no further request of `program` may wait.
    pub(super) fn is_full(&self, program: &str) -> bool {
        let of_program = self.slots.values().filter(|slot| slot.program == program);
        self.slots.len() >= HELD || of_program.count() >= HELD_OF_PROGRAM
    }

    /// Adds a request of `program`; returns its number.
    pub(super) fn enter(&mut self, program: &str) -> u64 {
        self.last += 1;
        let slot = Slot {
            program: program.to_owned(),
            question: None,
            sender: None,
            turn: None,
            is_waiting: false,
            began: Instant::now(),
            looked: None,
        };
        self.slots.insert(self.last, slot);
        self.last
    }

    /// Returns the request with this `number`.
    pub(super) fn slot(&self, number: u64) -> Option<&Slot> {
        self.slots.get(&number)
    }

    /// Returns the number of requests that wait.
    pub(super) fn held(&self) -> usize {
        self.slots.values().filter(|slot| slot.is_waiting).count()
    }

    /// Returns the number of proposals that nobody has answered.
    pub(super) fn proposals(&self) -> usize {
        let entries = self.questions.values();
        entries.filter(|entry| entry.is_proposal()).count()
    }

    /// Notes that somebody looks at all that waits.
    pub(super) fn is_looked_at(&mut self) {
        self.bounds.is_seen();
        for slot in self.slots.values_mut() {
            slot.looked.get_or_insert_with(Instant::now);
        }
    }

    /// Notes that the request with this `number` is judged again; returns the question that it waits
    /// under.
    pub(super) fn resume(&mut self, number: u64) -> Option<QuestionId> {
        let slot = self.slots.get_mut(&number)?;
        slot.is_waiting = false;
        slot.sender = None;
        slot.question.clone()
    }

    /// Notes that the request with this `number` was waiting to the end.
    pub(super) fn still_waits(&mut self, number: u64) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.is_waiting = true;
        }
    }

    /// Returns what became of the request with this `number` while it was judged again.
    pub(super) fn turn(&mut self, number: u64) -> Option<Turn> {
        self.slots.get_mut(&number)?.turn.take()
    }

    /// Returns a key for lines about `target` that no other question has, and no policy for which
    /// `is_taken` returns true.
    pub(super) fn name(
        &mut self,
        target: &Target,
        is_taken: impl Fn(&PolicyName) -> bool,
    ) -> Option<PolicyName> {
        let plain = names(target).next()?;
        let is_new = self.names.len() < NAMES && !self.names.contains(&plain);
        if is_new && !is_taken(&plain) {
            self.names.insert(plain.clone());
            return Some(plain);
        }
        // A key without a number ends with an underscore and a port.
        loop {
            self.last_name += 1;
            let numbered = format!("{}-{}", plain.as_str(), self.last_name);
            let name = PolicyName::parse(&numbered).ok()?;
            if !is_taken(&name) {
                return Some(name);
            }
        }
    }

    /// Returns the last questions that were answered, each with what became of it.
    pub(super) fn finished(&self) -> impl Iterator<Item = &(QuestionId, &'static str)> {
        self.finished.iter()
    }

    fn note_finished(&mut self, id: &QuestionId, what: &'static str) {
        if self.finished.len() >= FINISHED {
            self.finished.pop_front();
        }
        self.finished.push_back((id.clone(), what));
    }

    /// Removes the questions that nothing has waited under for long, and the oldest beyond a bound.
    pub(super) fn forget_old(&mut self) {
        let mut idle: Vec<_> = self
            .questions
            .iter()
            .filter(|(_, entry)| entry.stage != Stage::Held)
            .map(|(id, entry)| (entry.since, id.clone(), entry.stage.as_str()))
            .collect();
        idle.sort_unstable();
        let excess = idle.len().saturating_sub(IDLE);
        for (index, (since, id, stage)) in idle.iter().enumerate() {
            if index < excess || since.elapsed() >= LISTED {
                self.questions.remove(id);
                self.note_finished(id, stage);
            }
        }
    }

    /// Returns what the question `id` shows.
    pub(super) fn shown(&self, id: &str) -> Option<Arc<Shown>> {
        let mut questions = self.questions.iter();
        let (_, entry) = questions.find(|(known, _)| known.as_str() == id)?;
        Some(Arc::clone(&entry.shown))
    }

    /// Returns the question that shows the same as `shown`.
    pub(super) fn find(&self, shown: &Shown) -> Option<QuestionId> {
        let mut questions = self.questions.iter();
        let same = questions.find(|(_, entry)| !entry.is_taken && entry.shown.is_same(shown));
        same.map(|(id, _)| id.clone())
    }

    /// Lists a question.
    pub(super) fn list(&mut self, id: QuestionId, shown: Arc<Shown>) {
        let entry = Entry {
            shown,
            slots: VecDeque::new(),
            stage: Stage::Held,
            since: Instant::now(),
            is_taken: false,
        };
        self.questions.insert(id, entry);
    }

    /// Puts the request with this `number` under the question `id`, which somebody looks at if it
    /// `is_watched`; returns what tells its turn.
    pub(super) fn wait(
        &mut self,
        number: u64,
        id: &QuestionId,
        is_watched: bool,
    ) -> Option<oneshot::Receiver<Turn>> {
        if self.slots.get(&number)?.question.as_ref() != Some(id) {
            self.take_out(number);
            // The time of another question begins with it.
            let slot = self.slots.get_mut(&number)?;
            slot.began = Instant::now();
            slot.looked = None;
        }
        let entry = self.questions.get_mut(id)?;
        entry.stage = Stage::Held;
        if !entry.slots.contains(&number) {
            entry.slots.push_back(number);
        }
        let (sender, receiver) = oneshot::channel();
        let slot = self.slots.get_mut(&number)?;
        slot.question = Some(id.clone());
        slot.sender = Some(sender);
        slot.is_waiting = true;
        if is_watched {
            slot.looked.get_or_insert_with(Instant::now);
        }
        Some(receiver)
    }

    /// Takes the request with this `number` out of its question, which goes with the last one.
    fn take_out(&mut self, number: u64) {
        let slot = self.slots.get_mut(&number);
        let Some(id) = slot.and_then(|slot| slot.question.take()) else {
            return;
        };
        if let Some(entry) = self.questions.get_mut(&id) {
            entry.slots.retain(|waiting| *waiting != number);
            if entry.slots.is_empty() && entry.stage == Stage::Held && !entry.is_taken {
                self.questions.remove(&id);
            }
        }
    }

    /// Removes the request with this `number`. If it was the last that waited under its question,
    /// that is at `stage` from now on, and is returned.
    pub(super) fn end(&mut self, number: u64, stage: Stage) -> Option<(QuestionId, Arc<Shown>)> {
        let was_waiting = self.slots.get(&number)?.is_waiting;
        if !was_waiting {
            self.take_out(number);
        }
        let id = self.slots.remove(&number)?.question?;
        let entry = self.questions.get_mut(&id)?;
        entry.slots.retain(|waiting| *waiting != number);
        if !entry.slots.is_empty() {
            return None;
        }
        entry.stage = stage;
        entry.since = Instant::now();
        let shown = Arc::clone(&entry.shown);
        if shown.body_bytes() > IDLE_BODY {
            self.questions.remove(&id);
        }
        Some((id, shown))
    }

    /// Returns the questions about proposals that nobody is answering.
    pub(super) fn proposed(&self) -> Vec<(QuestionId, Arc<Shown>)> {
        let open = self.questions.iter().filter(|(_, entry)| !entry.is_taken);
        open.filter(|(_, entry)| entry.is_proposal())
            .map(|(id, entry)| (id.clone(), Arc::clone(&entry.shown)))
            .collect()
    }

    /// Returns true if a line with the key `name` is proposed.
    pub(super) fn is_proposed(&self, name: &PolicyName) -> bool {
        let lines = self.questions.values().flat_map(|entry| &entry.shown.lines);
        lines.into_iter().any(|line| line.line.name == *name)
    }

    /// Returns the questions, those that something waits under first, each group by its age.
    pub(super) fn questions(&self) -> Vec<(&QuestionId, &Entry)> {
        let mut questions: Vec<_> = self.questions.iter().collect();
        questions.sort_by_key(|(_, entry)| (entry.stage != Stage::Held, entry.since));
        questions
    }

    /// Takes the question `id` for an answer, so that no other answer counts; `None` if there is none.
    pub(super) fn take(&mut self, id: &str) -> Option<(QuestionId, Arc<Shown>, Stage)> {
        let mut questions = self.questions.iter_mut();
        let (id, entry) = questions.find(|(known, _)| known.as_str() == id)?;
        if std::mem::replace(&mut entry.is_taken, true) {
            return None;
        }
        Some((id.clone(), Arc::clone(&entry.shown), entry.stage))
    }

    /// Gives back the question `id`, which was taken and stays open.
    pub(super) fn give_back(&mut self, id: &QuestionId) {
        if let Some(entry) = self.questions.get_mut(id) {
            entry.is_taken = false;
            if entry.held() == 0 && entry.stage == Stage::Held {
                entry.stage = Stage::Left;
                entry.since = Instant::now();
            }
        }
    }

    /// Removes the question `id` because of `what`, and sends all that wait under it what `turn`
    /// returns.
    pub(super) fn finish(&mut self, id: &QuestionId, what: &'static str, turn: impl Fn() -> Turn) {
        let Some(entry) = self.questions.remove(id) else {
            return;
        };
        self.note_finished(id, what);
        for number in entry.slots {
            self.send(number, turn());
        }
    }

    /// Removes the question `id` because of `what`, and sends the oldest that waits under it `turn`;
    /// returns false if nothing waits under it any more. The others wait under the question `next`,
    /// if there are any.
    pub(super) fn finish_one(
        &mut self,
        id: &QuestionId,
        what: &'static str,
        turn: Turn,
        next: &QuestionId,
    ) -> bool {
        let Some(mut entry) = self.questions.remove(id) else {
            return false;
        };
        let Some(number) = entry.slots.pop_front() else {
            return false;
        };
        self.note_finished(id, what);
        self.send(number, turn);
        for number in &entry.slots {
            if let Some(slot) = self.slots.get_mut(number) {
                slot.question = Some(next.clone());
            }
        }
        if !entry.slots.is_empty() {
            entry.is_taken = false;
            self.questions.insert(next.clone(), entry);
        }
        true
    }

    /// Returns true if there is a question `id`.
    pub(super) fn has(&self, id: &QuestionId) -> bool {
        self.questions.contains_key(id)
    }

    /// Tells the request with this `number` what becomes of it: now, or when it is asked about again.
    fn send(&mut self, number: u64, turn: Turn) {
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        slot.question = None;
        slot.turn = match slot.sender.take() {
            Some(sender) => sender.send(turn).err(),
            None => Some(turn),
        };
    }

    /// Ends all waits, because the sandbox ends.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        for slot in self.slots.values_mut() {
            slot.sender = None;
        }
    }
}
