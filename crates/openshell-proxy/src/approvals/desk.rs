//! The desk: the requests that wait, the questions about them, and the answers.

use std::fmt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openshell_events::event::Audit;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::approvals::answer::Asked;
use crate::approvals::bounds::HELD_OF_PROGRAM;
use crate::approvals::keep::Keep;
use crate::approvals::question::{QuestionId, Shown, TEXT_BYTES};
use crate::approvals::reporter::Reporter;
use crate::approvals::state::{Stage, State, Turn};
use crate::approvals::wish::Wish;
use crate::decide::own_lines::OwnLines;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::ground::sequence::Sequence;
use crate::ground::target::Target;
use crate::reach::authorize::asker::Asker;

/// How long a line for one connection holds.
const ONCE: Duration = Duration::from_secs(3600);

/// The name under which all programs count that the workload can write.
const WRITABLE: &str = "(programs that the workload can write)";

/// Returns true if the workload can write the file at a path.
pub type IsWritable = Box<dyn Fn(&Path) -> bool + Send + Sync>;

/// How a sandbox asks.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a request waits once somebody looks.
    pub hold: Duration,
    /// The most new questions in a minute.
    pub rate: usize,
    /// False if nothing that is refused is asked about, only what programs propose.
    pub asks_of_refusals: bool,
}

/// The requests that wait, the questions about them, and the answers.
pub struct Desk {
    pub(super) settings: Settings,
    pub(super) policy: Arc<PolicyStore>,
    pub(super) is_writable: IsWritable,
    pub(super) keep: Box<dyn Keep>,
    pub(super) reporter: Reporter,
    pub(super) state: Mutex<State>,
    /// Counts the changes that lists show.
    pub(super) changes: watch::Sender<u64>,
    pub(super) looks: watch::Sender<Looks>,
    /// Counts the answers whose effect is still to be told.
    answering: watch::Sender<usize>,
    /// True while no line could count, so that nothing is held.
    pub(super) is_suspended: AtomicBool,
    /// The turn to build a question.
    building: Arc<Semaphore>,
    /// Builds the questions.
    builder: Sequence,
}

/// An answer whose effect is still to be told.
#[derive(Debug)]
pub struct Answering(Arc<Desk>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.send_modify(|count| *count -= 1);
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

/// Who looks at the questions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    /// The lists that follow the questions.
    pub(super) watching: usize,
    /// How often they were looked at.
    pub(super) glances: u64,
}

/// What follows for a request that was asked about.
#[derive(Debug)]
pub enum Outcome {
    /// It is judged again.
    Judge(Ticket),
    /// It is judged again, with these lines.
    Once(OwnLines, Ticket),
    /// It is refused; the refusal says what was answered, if it was asked.
    Refused(Option<Asked>),
}

impl Outcome {
    /// Returns what `turn` means for a request with the lines `own`, whose place is `ticket`.
    fn of(turn: Turn, own: &OwnLines, ticket: Ticket) -> Self {
        match turn {
            Turn::Judge => Self::Judge(ticket),
            Turn::Once(line) => Self::Once(own.and(*line, Instant::now() + ONCE), ticket),
            Turn::Denied => Self::Refused(Some(Asked::Denied)),
        }
    }
}

/// The place of one refused request among the questions. It keeps its place while the request is
/// judged again, and leaves when it is dropped.
#[derive(Debug)]
pub struct Ticket {
    desk: Arc<Desk>,
    number: u64,
    /// The generation that was found to permit it.
    permitted: Option<u64>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.desk.leave(self.number);
    }
}

impl Desk {
    /// Creates a desk for what `policy` refuses, whose lines `keep` writes.
    #[must_use]
    pub fn new(
        settings: Settings,
        policy: Arc<PolicyStore>,
        is_writable: IsWritable,
        keep: Box<dyn Keep>,
        audit: Arc<dyn Audit>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            policy,
            is_writable,
            keep,
            reporter: Reporter::new(audit),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            looks: watch::Sender::default(),
            answering: watch::Sender::default(),
            is_suspended: AtomicBool::new(false),
            building: Arc::new(Semaphore::new(1)),
            builder: Sequence::default(),
        })
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Relaxed)
    }

    /// Notes that an answer is given, until the value is dropped.
    #[must_use]
    pub fn answering(self: &Arc<Self>) -> Answering {
        self.answering.send_modify(|count| *count += 1);
        Answering(Arc::clone(self))
    }

    /// Waits until the effect of every answer was told.
    pub async fn all_told(&self) {
        let mut answering = self.answering.subscribe();
        // The desk, and with it the sender, lives as long as this.
        let _ = answering.wait_for(|count| *count == 0).await;
    }

    /// The most requests of one program that are held at once.
    pub const HELD_OF_PROGRAM: usize = HELD_OF_PROGRAM;

    /// The most bytes of what is asked for. Nothing longer is asked.
    pub const TEXT_BYTES: usize = TEXT_BYTES;

    /// Returns true if a further request of `asker` may be asked about.
    #[must_use]
    pub fn may_enter(&self, asker: &Asker) -> bool {
        let program = self.counted_as(&asker.caller().program.executable);
        let state = self.state.lock();
        !self.is_suspended()
            && !state.is_closed
            && !state.bounds.forbid_all(&program)
            && !state.is_full(&program)
    }

    /// Asks about `wish` of `asker`, and waits for what becomes of it. `ticket` is its place among the
    /// questions, if it was asked about before; `gone` ends when its client gives up. Returns also the
    /// question that it waited for last.
    pub async fn ask(
        self: &Arc<Self>,
        ticket: Option<Ticket>,
        asker: Asker,
        wish: Wish,
        gone: impl Future<Output = ()>,
    ) -> (Outcome, Option<QuestionId>) {
        let refused = (Outcome::Refused(None), None);
        // Subscribed first, so that nothing is missed.
        let mut generations = self.policy.subscribe();
        let looks = self.looks.subscribe();
        let snapshot = self.policy.load();
        let generation = snapshot.generation();
        let own = wish.own.clone();
        let target = wish.target.clone();
        let Some(mut ticket) = ticket.or_else(|| self.enter(&asker, &wish)) else {
            return refused;
        };
        let number = ticket.number;
        let turn = self.state.lock().turn(number);
        if let Some(turn) = turn {
            return (Outcome::of(turn, &own, ticket), None);
        }
        let mut gone = pin!(gone);
        let building = tokio::select! {
            built = self.build(asker, wish, snapshot) => built,
            () = &mut gone => return refused,
        };
        let shown = match building {
            // Judged again it was refused in the same generation: it is not to be asked.
            Built::Permitted if ticket.permitted == Some(generation) => return refused,
            Built::Permitted => {
                ticket.permitted = Some(generation);
                return (Outcome::Judge(ticket), None);
            }
            Built::Question(shown) => shown,
            Built::None => return refused,
        };
        let Some((id, mut turns)) = self.place(number, *shown, target) else {
            return refused;
        };
        let changed = async {
            let _ = generations
                .wait_for(|current| current.number != generation)
                .await;
        };
        let turn = tokio::select! {
            biased;
            turn = self.turn(number, &mut turns, looks) => turn,
            () = changed => Some(Turn::Judge),
            () = gone => return (Outcome::Refused(None), Some(id)),
        };
        let last = self.state.lock().resume(number).unwrap_or(id);
        // An answer of the last moment counts.
        let outcome = match turns.try_recv().ok().or(turn) {
            Some(turn) => Outcome::of(turn, &own, ticket),
            None => {
                self.expire(number);
                Outcome::Refused(Some(Asked::Expired))
            }
        };
        (outcome, Some(last))
    }

    /// Waits for what `turns` tells the request with this `number`; `None` if it has waited too long, or
    /// if the sandbox ends.
    async fn turn(
        &self,
        number: u64,
        turns: &mut oneshot::Receiver<Turn>,
        looks: watch::Receiver<Looks>,
    ) -> Option<Turn> {
        tokio::select! {
            biased;
            turn = turns => turn.ok(),
            () = self.patience(number, looks) => None,
        }
    }

    /// Returns the name under which bounds count the program at `path`.
    pub(super) fn counted_as(&self, path: &str) -> String {
        if (self.is_writable)(Path::new(path)) {
            WRITABLE.to_owned()
        } else {
            path.to_owned()
        }
    }

    /// Takes a place for the request `wish` of `asker`; `None` if it is not asked about.
    fn enter(self: &Arc<Self>, asker: &Asker, wish: &Wish) -> Option<Ticket> {
        let program = self.counted_as(&asker.caller().program.executable);
        let mut state = self.state.lock();
        let is_forbidden = state
            .bounds
            .forbid(&program, &wish.denied_for_run(&program));
        if self.is_suspended() || state.is_closed || is_forbidden {
            return None;
        }
        let target = wish.target.to_string();
        if state.is_full(&program) || !state.bounds.count(&program, &target, self.settings.rate) {
            state.bounds.refused += 1;
            return None;
        }
        Some(Ticket {
            desk: Arc::clone(self),
            number: state.enter(&program),
            permitted: None,
        })
    }

    /// Builds the question about `wish` of `asker` under the policy of `snapshot`, one at a time.
    async fn build(self: &Arc<Self>, asker: Asker, wish: Wish, snapshot: Arc<Snapshot>) -> Built {
        let Ok(turn) = Arc::clone(&self.building).acquire_owned().await else {
            return Built::None;
        };
        let desk = Arc::clone(self);
        let build = move || {
            let _turn = turn;
            let caller = asker.examined();
            let wish = Wish { caller, ..wish };
            let snapshot = wish.own.over(snapshot);
            if wish.judge(&snapshot).is_ok() {
                return Built::Permitted;
            }
            let program = Path::new(&wish.caller.program.executable);
            let is_writable = (desk.is_writable)(program);
            match Shown::of(wish, &snapshot, is_writable) {
                Some(shown) => Built::Question(Box::new(shown)),
                None => Built::None,
            }
        };
        let built = self.builder.perform(build).await;
        built.unwrap_or_else(|error| {
            tracing::error!("a question could not be built: {error}");
            Built::None
        })
    }

    /// Puts the request with this `number`, for `target`, under the question that shows the same, or
    /// under a new one; `None` if there can be none.
    fn place(
        &self,
        number: u64,
        shown: Shown,
        target: Target,
    ) -> Option<(QuestionId, oneshot::Receiver<Turn>)> {
        let mut state = self.state.lock();
        if self.is_suspended() || state.is_closed {
            return None;
        }
        state.forget_old();
        let id = match state.find(&shown) {
            Some(id) => id,
            None => {
                let id = QuestionId::new().ok()?;
                let policy = self.policy.load();
                let network = policy.policy().network();
                let name = state.name(&target, |name| network.contains_key(name))?;
                let shown = shown.named(&name);
                self.reporter.asked(&id, &shown);
                state.list(id.clone(), Arc::new(shown));
                id
            }
        };
        let is_watched = self.looks.borrow().watching > 0;
        let receiver = state.wait(number, &id, is_watched)?;
        drop(state);
        self.note_change();
        Some((id, receiver))
    }

    /// Ends when the request with this `number` has waited too long.
    async fn patience(&self, number: u64, mut looks: watch::Receiver<Looks>) {
        loop {
            let Some(until) = self.until(number) else {
                return;
            };
            tokio::select! {
                () = sleep_until(until) => return,
                _ = looks.changed() => {}
            }
        }
    }

    fn until(&self, number: u64) -> Option<Instant> {
        let state = self.state.lock();
        Some(state.slot(number)?.until(self.settings.hold))
    }

    /// Ends the wait of the request with this `number`, which nobody has answered.
    fn expire(&self, number: u64) {
        let mut state = self.state.lock();
        if state.slot(number).is_some_and(|slot| slot.looked.is_none()) {
            state.bounds.was_unseen();
        }
        state.still_waits(number);
        if let Some((id, shown)) = state.end(number, Stage::Expired) {
            self.reporter.expired(&id, &shown, false);
        }
        drop(state);
        self.note_change();
    }

    /// Notes that the request with this `number` has gone: if it was waiting, its client gave up.
    fn leave(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some((id, shown)) = state.end(number, Stage::Left) {
            self.reporter.expired(&id, &shown, true);
        }
        drop(state);
        self.note_change();
    }

    pub(super) fn note_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// What became of the attempt to ask.
enum Built {
    /// The policy permits it by now.
    Permitted,
    /// It is a question.
    Question(Box<Shown>),
    /// No line would permit it.
    None,
}
