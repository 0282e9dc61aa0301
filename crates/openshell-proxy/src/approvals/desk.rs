//! The desk: the requests that wait, the questions about them, and the answers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use openshell_events::event::Audit;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::approvals::answer::Asked;
use crate::approvals::question::{QuestionId, Shown};
use crate::approvals::reporter::Reporter;
use crate::approvals::state::{Stage, State, Turn};
use crate::approvals::wish::Wish;
use crate::decide::own_lines::OwnLines;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
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
}

/// The requests that wait, the questions about them, and the answers.
pub struct Desk {
    pub(super) settings: Settings,
    pub(super) policy: Arc<PolicyStore>,
    is_writable: IsWritable,
    pub(super) reporter: Reporter,
    pub(super) state: Mutex<State>,
    /// Counts the changes that lists show.
    pub(super) changes: watch::Sender<u64>,
    pub(super) looks: watch::Sender<Looks>,
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
    Judge,
    /// It is judged again, with these lines.
    Once(OwnLines),
    /// It is refused; the refusal says what was answered, if it was asked.
    Refused(Option<Asked>),
}

/// The place of one refused request among the questions. It keeps its place while the request is
/// judged again, and leaves when it is dropped.
#[derive(Debug)]
pub struct Ticket {
    desk: Arc<Desk>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.desk.leave(self.number);
    }
}

impl Desk {
    /// Creates a desk for what `policy` refuses.
    #[must_use]
    pub fn new(
        settings: Settings,
        policy: Arc<PolicyStore>,
        is_writable: IsWritable,
        audit: Arc<dyn Audit>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            policy,
            is_writable,
            reporter: Reporter::new(audit),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            looks: watch::Sender::default(),
        })
    }

    /// Asks about `wish` of `asker`, and waits for what becomes of it. `ticket` is its place among the
    /// questions, if it was asked about before; `gone` ends when its client gives up.
    pub async fn ask(
        self: &Arc<Self>,
        ticket: &mut Option<Ticket>,
        asker: Asker,
        wish: Wish,
        gone: impl Future<Output = ()>,
    ) -> (Outcome, Option<QuestionId>) {
        let mut generations = self.policy.subscribe();
        let snapshot = self.policy.load();
        let generation = snapshot.generation();
        let own = wish.own.clone();
        let program = self.counted_as(&asker.caller().program.executable);
        if ticket.is_none() {
            let Some(number) = self.enter(&program, &wish) else {
                return (Outcome::Refused(None), None);
            };
            let desk = Arc::clone(self);
            *ticket = Some(Ticket { desk, number });
        }
        let Some(number) = ticket.as_ref().map(|ticket| ticket.number) else {
            return (Outcome::Refused(None), None);
        };
        let desk = Arc::clone(self);
        let building = tokio::task::spawn_blocking(move || {
            let caller = asker.examined();
            let wish = Wish { caller, ..wish };
            desk.build(wish, &snapshot)
        });
        let shown = match building.await {
            Ok(Built::Permitted) => return (Outcome::Judge, None),
            Ok(Built::Question(shown)) => shown,
            Ok(Built::None) | Err(_) => {
                drop(ticket.take());
                return (Outcome::Refused(None), None);
            }
        };
        let Some((id, turns)) = self.place(number, *shown) else {
            drop(ticket.take());
            return (Outcome::Refused(None), None);
        };
        let changed = async {
            let _ = generations
                .wait_for(|current| current.number != generation)
                .await;
        };
        let outcome = tokio::select! {
            biased;
            turn = turns => match turn {
                Ok(Turn::Judge) => Outcome::Judge,
                Ok(Turn::Once(line)) => Outcome::Once(own.and(*line, Instant::now() + ONCE)),
                Ok(Turn::Denied) => Outcome::Refused(Some(Asked::Denied)),
                // The sandbox ends.
                Err(_) => Outcome::Refused(Some(Asked::Expired)),
            },
            () = changed => Outcome::Judge,
            () = gone => {
                drop(ticket.take());
                Outcome::Refused(None)
            }
            () = self.patience(number) => {
                self.expire(number);
                Outcome::Refused(Some(Asked::Expired))
            }
        };
        self.state.lock().resume(number);
        (outcome, Some(id))
    }

    /// Returns the name under which bounds count the program at `path`.
    pub(super) fn counted_as(&self, path: &str) -> String {
        if (self.is_writable)(Path::new(path)) {
            WRITABLE.to_owned()
        } else {
            path.to_owned()
        }
    }

    /// Takes a place for a request of `program`; `None` if it is not asked about.
    fn enter(&self, program: &str, wish: &Wish) -> Option<u64> {
        let mut state = self.state.lock();
        let is_forbidden = state.bounds.forbid(program, &wish.denied_for_run(program));
        if state.is_closed || is_forbidden {
            return None;
        }
        let target = wish.target.to_string();
        if state.is_full(program) || !state.bounds.count(program, &target, self.settings.rate) {
            state.bounds.refused += 1;
            return None;
        }
        Some(state.enter(program))
    }

    /// Builds the question about `wish` under the policy of `snapshot`. Blocks.
    fn build(&self, wish: Wish, snapshot: &Arc<Snapshot>) -> Built {
        let snapshot = wish.own.over(Arc::clone(snapshot));
        if wish.judge(&snapshot).is_ok() {
            return Built::Permitted;
        }
        let program = Path::new(&wish.caller.program.executable);
        let is_writable = (self.is_writable)(program);
        match Shown::of(wish, &snapshot, is_writable) {
            Some(shown) => Built::Question(Box::new(shown)),
            None => Built::None,
        }
    }

    /// Puts the request with this `number` under the question that shows the same, or under a new
    /// one; `None` if there can be none.
    fn place(&self, number: u64, shown: Shown) -> Option<(QuestionId, oneshot::Receiver<Turn>)> {
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        state.forget_old();
        let id = match state.find(&shown) {
            Some(id) => id,
            None => {
                let id = QuestionId::new().ok()?;
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
    async fn patience(&self, number: u64) {
        let mut looks = self.looks.subscribe();
        loop {
            let Some(until) = self.until(number) else {
                return;
            };
            tokio::select! {
                () = sleep_until(until) => return,
                _ = looks.changed() => {
                    self.state.lock().is_looked_at(number);
                }
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
        if let Some((id, shown)) = state.end(number, Stage::Expired) {
            self.reporter.expired(&id, &shown, false);
        }
        drop(state);
        self.note_change();
    }

    /// Ends the wait of a request that is permitted now.
    pub fn settle(&self, ticket: Ticket) {
        // It is not waiting, so no question is left behind.
        drop(ticket);
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
