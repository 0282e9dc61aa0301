//! Questions to a person, between the proxy and the control socket.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use openshell_access::control::approvals::{Approvals, Follow};
use openshell_access::control::wire::{Answer, Answered, Grant, Listing, Question, QuestionLine};
use openshell_events::text;
use openshell_proxy::approvals::answer::{Answerer, Decision, Done, Unanswered};
use openshell_proxy::approvals::desk::Desk;
use openshell_proxy::approvals::listing::Watcher;
use openshell_supervisor::command::streams::TerminalRelay;
use openshell_telemetry::logging;

use crate::startup::serve::opening::answering;

/// How long nothing more is said about requests that wait.
const QUIET: Duration = Duration::from_secs(60);

/// Says on standard error that questions of the sandbox `name` wait, if the command has no terminal on
/// which the start has said it; at most once a minute.
pub(super) async fn tell(desk: Arc<Desk>, name: String, decides: bool) {
    let say = |waiting| {
        let waits = text::counted(waiting, "question waits", "questions wait");
        let command = answering(&name);
        let whose = if decides {
            "your answer"
        } else {
            "the gateway; see"
        };
        logging::print_stderr(&format!(
            "openshell-sandbox: {waits} for {whose}: {command}"
        ));
    };
    while_questions_wait(&desk, say).await;
}

/// Rings the bell of the terminal of `relay` when questions wait, at most once a minute.
pub(super) async fn ring(desk: Arc<Desk>, relay: Weak<TerminalRelay>) {
    let ring = |_| {
        if let Some(relay) = relay.upgrade() {
            relay.ring();
        }
    };
    while_questions_wait(&desk, ring).await;
}

/// Calls `announce` with the number of questions that wait, at most once a minute.
async fn while_questions_wait(desk: &Desk, announce: impl Fn(u64)) {
    let mut changes = desk.changes();
    loop {
        let waiting = desk.waiting();
        if waiting > 0 {
            announce(waiting as u64);
            tokio::time::sleep(QUIET).await;
        }
        // The desk, and with it the sender, lives as long as this.
        let _ = changes.changed().await;
    }
}

/// The questions of the proxy's desk.
pub(super) struct DeskApprovals {
    pub(super) desk: Arc<Desk>,
    /// False if a gateway decides.
    pub(super) decides: bool,
}

impl fmt::Debug for DeskApprovals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeskApprovals").finish_non_exhaustive()
    }
}

impl Approvals for DeskApprovals {
    fn look(&self) -> Listing {
        self.desk.glance();
        listing(&self.desk)
    }

    fn follow(&self) -> Box<dyn Follow> {
        Box::new(Following {
            watcher: self.desk.watch(),
            desk: Arc::clone(&self.desk),
        })
    }

    fn begin(&self) -> Box<dyn Send> {
        Box::new(self.desk.answering())
    }

    fn answer(&self, answer: Answer, uid: u32) -> Answered {
        if !self.decides && !matches!(answer, Answer::Unmute(_)) {
            return Answered::Unfit(
                "the gateway decides; --ask-local lets you answer here too".to_owned(),
            );
        }
        let by = Answerer {
            way: "terminal",
            uid: Some(uid),
            reason: "",
        };
        let answered = match answer {
            Answer::Decide {
                id,
                decision,
                line,
                reason,
            } => match Decision::parse(&decision) {
                Some(decision) => self
                    .desk
                    .decide(
                        &id,
                        decision,
                        line,
                        Answerer {
                            reason: &reason,
                            ..by
                        },
                    )
                    .and_then(|done| said(decision, done)),
                None => Err(Unanswered::Unfit(
                    "an answer is once, run, save, deny or deny_run".into(),
                )),
            },
            Answer::Preview { id, line } => {
                let difference = self.desk.difference(&id, line);
                difference.map(|difference| difference.to_string())
            }
            Answer::Revoke(grant) => {
                self.desk
                    .revoke(&grant, by)
                    .map(|grant| match grant.kept_in {
                        Some(file) => format!("the line stays in {file}: {}", grant.yaml),
                        None => grant.yaml,
                    })
            }
            Answer::Unmute(program) => {
                if self.desk.unmute(&program) {
                    Ok(format!("{program} is asked for again"))
                } else {
                    Err(Unanswered::Gone)
                }
            }
        };
        match answered {
            Ok(done) => Answered::Done(done),
            Err(Unanswered::Gone) => Answered::Gone,
            Err(Unanswered::Stale) => Answered::Stale,
            Err(Unanswered::Unfit(why)) => Answered::Unfit(why.into_owned()),
        }
    }
}

/// Returns what the answer `decision` has done.
///
/// # Errors
/// What was to be written was not.
fn said(decision: Decision, done: Done) -> Result<String, Unanswered> {
    let grant = done.grant.map(|grant| format!("grant {grant}"));
    let grant = grant.as_deref();
    match done.kept {
        None => Ok(match grant {
            Some(grant) => format!("{decision}: {grant}"),
            None => decision.to_string(),
        }),
        Some(Ok(written)) => {
            let grant = grant.unwrap_or("permitted for the run already");
            Ok(format!("{decision}: {grant}, written to {written}"))
        }
        Some(Err(why)) => {
            let grant = grant.unwrap_or("which it was already");
            let said = format!("permitted for this run only ({grant}), not saved: {why}");
            Err(Unanswered::Unfit(said.into()))
        }
    }
}

/// A client that follows the questions.
struct Following {
    watcher: Watcher,
    desk: Arc<Desk>,
}

impl Follow for Following {
    fn changed(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.watcher.changed())
    }

    fn list(&self) -> Listing {
        listing(&self.desk)
    }
}

pub(super) fn listing(desk: &Desk) -> Listing {
    let questions = desk.list().into_iter().map(|listed| {
        let lines = listed.lines.into_iter();
        Question {
            id: listed.id.to_string(),
            state: listed.state.to_owned(),
            held: listed.held,
            seconds_left: listed.seconds_left,
            facts: listed.facts.to_string(),
            text: listed.text,
            lines: lines
                .map(|line| QuestionLine {
                    yaml: line.yaml,
                    permits: line.permits,
                    is_dangerous: line.is_dangerous,
                })
                .collect(),
        }
    });
    let finished = desk.finished().into_iter();
    let finished = finished.map(|(id, what)| (id, what.to_owned()));
    let grants = desk.grants().into_iter().map(|grant| Grant {
        id: grant.id,
        yaml: grant.yaml,
        permits: grant.permits,
        kept_in: grant.kept_in,
    });
    Listing {
        questions: questions.collect(),
        grants: grants.collect(),
        muted: desk.muted(),
        finished: finished.collect(),
    }
}
