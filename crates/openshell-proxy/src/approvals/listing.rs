//! What persons see of the questions and of what was granted.

use std::sync::Arc;
use std::time::Duration;

use openshell_events::reason::ReasonCode;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::approvals::about::About;
use crate::approvals::desk::Desk;
use crate::approvals::grants::{Grant, Granted};
use crate::approvals::question::{QuestionId, Shown};
use crate::approvals::state::Stage;
use crate::decide::line::Line;
use crate::decide::snapshot::Snapshot;

/// A question as lists show it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The id.
    pub id: QuestionId,
    /// All that is shown, for programs.
    pub facts: Value,
    /// All that is shown, as one text.
    pub text: String,
    /// The lines that can be chosen.
    pub lines: Vec<ListedLine>,
    /// `held`, `left` or `expired`.
    pub state: &'static str,
    /// The number of requests that wait.
    pub held: usize,
    /// The seconds until the oldest has waited too long; 0 if none waits.
    pub seconds_left: u64,
}

/// A question that requests wait under.
#[derive(Clone, Debug)]
pub struct HeldQuestion {
    /// The id.
    pub id: QuestionId,
    pub(super) shown: Arc<Shown>,
}

impl HeldQuestion {
    /// Returns its narrowest line.
    #[must_use]
    pub fn line(&self) -> Option<&Line> {
        self.shown.lines.first().map(|proposed| &proposed.line)
    }

    /// Returns the reason of the refusal; `None` if a program has proposed it.
    #[must_use]
    pub fn code(&self) -> Option<ReasonCode> {
        match &self.shown.about {
            About::Refused(wish) => Some(wish.code),
            About::Proposed(_) => None,
        }
    }

    /// Returns what `line` permits beside the policy of `snapshot`, in words; `None` if it would not
    /// permit what is asked. Blocks.
    #[must_use]
    pub fn permits(&self, line: &Line, snapshot: &Snapshot) -> Option<String> {
        let permits = self.shown.about.permits(snapshot, line)?;
        Some(permits.join("; "))
    }

    /// Returns the host, the port and the program.
    #[must_use]
    pub fn ends(&self) -> (String, u16, String) {
        let about = &self.shown.about;
        let (host, port) = about.place();
        (host, port, about.program().to_owned())
    }
}

/// A line that can be chosen.
#[derive(Clone, Debug)]
pub struct ListedLine {
    /// The line as text.
    pub yaml: String,
    /// What it permits, and what it leaves open.
    pub permits: Vec<String>,
    /// True if it takes a second key to permit it.
    pub is_dangerous: bool,
}

/// Somebody who follows the questions.
#[derive(Debug)]
pub struct Watcher {
    desk: Arc<Desk>,
    changes: watch::Receiver<u64>,
}

impl Watcher {
    /// Waits until the questions or grants differ from those that were listed before the last call.
    pub async fn changed(&mut self) {
        // The desk, and with it the sender, lives as long as this.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.desk.looks.send_modify(|looks| looks.watching -= 1);
    }
}

impl Desk {
    /// Follows the questions. While somebody does, requests wait longer.
    #[must_use]
    pub fn watch(self: &Arc<Self>) -> Watcher {
        self.state.lock().is_looked_at();
        self.looks.send_modify(|looks| looks.watching += 1);
        Watcher {
            desk: Arc::clone(self),
            changes: self.changes.subscribe(),
        }
    }

    /// Looks at the questions once.
    pub fn glance(&self) {
        self.state.lock().is_looked_at();
        self.looks.send_modify(|looks| looks.glances += 1);
    }

    /// Returns how long a request waits once somebody looks.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.settings.hold
    }

    /// Returns the number of requests that wait.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state.lock().held()
    }

    /// Returns the number of requests that wait, and of proposals that nobody has answered.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let state = self.state.lock();
        state.held() + state.proposals()
    }

    /// Returns true if what is refused is asked about, and not only what programs propose.
    #[must_use]
    pub fn asks_of_refusals(&self) -> bool {
        self.settings.asks_of_refusals
    }

    /// Returns the number of requests that nobody was asked about because of a bound.
    #[must_use]
    pub fn limited(&self) -> u64 {
        self.state.lock().bounds.refused
    }

    /// Follows how many requests wait, without looking at the questions.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the questions, those that something waits under first.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let mut state = self.state.lock();
        state.forget_old();
        let hold = self.settings.hold;
        let now = Instant::now();
        let questions = state.questions();
        let listed = questions.into_iter().map(|(id, entry)| {
            let oldest = entry.slots.front().and_then(|number| state.slot(*number));
            let left = oldest.map(|slot| slot.until(hold).saturating_duration_since(now));
            // A proposal waits as long as the sandbox runs.
            let left = left.or_else(|| entry.is_proposal().then_some(hold));
            let lines = entry.shown.lines.iter().enumerate();
            Listed {
                id: id.clone(),
                facts: entry.shown.facts.clone(),
                text: entry.shown.text.clone(),
                lines: lines
                    .map(|(index, line)| ListedLine {
                        yaml: line.yaml.clone(),
                        permits: line.permits.clone(),
                        is_dangerous: entry.shown.is_dangerous(index),
                    })
                    .collect(),
                state: entry.stage.as_str(),
                held: entry.held(),
                seconds_left: left.unwrap_or_default().as_secs(),
            }
        });
        listed.collect()
    }

    /// Returns the questions that requests wait under.
    #[must_use]
    pub fn held_questions(&self) -> Vec<HeldQuestion> {
        let state = self.state.lock();
        let questions = state.questions().into_iter();
        let held =
            questions.filter(|(_, entry)| entry.stage == Stage::Held && !entry.is_proposal());
        held.map(|(id, entry)| HeldQuestion {
            id: id.clone(),
            shown: Arc::clone(&entry.shown),
        })
        .collect()
    }

    /// Returns true if `question` is listed, whether anything waits under it or not.
    #[must_use]
    pub fn lists(&self, question: &HeldQuestion) -> bool {
        self.state.lock().has(&question.id)
    }

    /// Returns the last questions that were answered, each with what became of it.
    #[must_use]
    pub fn finished(&self) -> Vec<(String, &'static str)> {
        let state = self.state.lock();
        let finished = state.finished();
        finished.map(|(id, what)| (id.to_string(), *what)).collect()
    }

    /// Returns the grants for the run.
    #[must_use]
    pub fn grants(&self) -> Vec<Grant> {
        self.state.lock().grants.for_run().to_vec()
    }

    /// Returns everything that was permitted.
    #[must_use]
    pub fn granted(&self) -> Vec<Granted> {
        self.state.lock().grants.granted().to_vec()
    }

    /// Returns the programs that are not asked for any more.
    #[must_use]
    pub fn muted(&self) -> Vec<String> {
        let state = self.state.lock();
        let muted = state.bounds.muted().into_iter();
        muted.map(str::to_owned).collect()
    }
}
