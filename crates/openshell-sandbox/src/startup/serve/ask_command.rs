//! The program of --ask-command: it gets each question, and may answer it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openshell_access::control::wire::Question;
use openshell_events::text::{printable, visible};
use openshell_events::words::{ConfigState, Severity};
use openshell_proxy::approvals::answer::{Answerer, Decision, Unanswered};
use openshell_proxy::approvals::desk::Desk;
use openshell_proxy::credentials::leaks::detector::LeakDetector;
use openshell_proxy::credentials::watched::CurrentVault;
use openshell_supervisor::helpers::wire::{Ended, Report};
use openshell_telemetry::logging;
use serde::Deserialize;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::startup::serve::approvals::listing;
use crate::startup::serve::helpers::Helpers;

/// The most programs at once.
const AT_ONCE: usize = 4;

/// The most bytes of an answer.
const ANSWER_BYTES: usize = 64 * 1024;

/// The state of a question that nobody has answered in time.
const EXPIRED: &str = "expired";

/// What is said of a program that does not answer.
const SILENT: &str = "the program gave no answer in time";

/// The index of the program in the list of the runner.
pub(super) const PROGRAM: usize = 0;

/// What the program asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    decision: Wanted,
    id: Option<String>,
    #[serde(default)]
    reason: String,
}

/// What it can decide. It cannot save, because what outlasts the run is not its to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    Once,
    Run,
    Deny,
    DenyRun,
    Pass,
}

impl Wanted {
    fn decision(self) -> Option<Decision> {
        match self {
            Self::Once => Some(Decision::Once),
            Self::Run => Some(Decision::Run),
            Self::Deny => Some(Decision::Deny),
            Self::DenyRun => Some(Decision::DenyRun),
            Self::Pass => None,
        }
    }
}

/// The program of --ask-command.
#[derive(Clone)]
pub(super) struct AskCommand {
    pub(super) helpers: Arc<Helpers>,
    pub(super) desk: Arc<Desk>,
    /// The name of the sandbox.
    pub(super) sandbox: String,
    /// Finds secrets in what the program says.
    pub(super) leaks: Arc<LeakDetector>,
    pub(super) vault: Arc<CurrentVault>,
}

impl AskCommand {
    /// Starts the program for each question that something waits under.
    pub(super) async fn run(self) {
        let mut changes = self.desk.changes();
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        // What something waits under; the program ends with the wait.
        let mut asked = BTreeMap::new();
        let mut running = JoinSet::new();
        loop {
            let held = listing(&self.desk).questions.into_iter();
            let held: Vec<_> = held.filter(|question| question.held > 0).collect();
            asked.retain(|id, _| held.iter().any(|question| question.id == *id));
            for question in held {
                if !asked.contains_key(&question.id) {
                    let (wanted, gone) = watch::channel(());
                    asked.insert(question.id.clone(), wanted);
                    let turns = Arc::clone(&turns);
                    running.spawn(self.clone().ask(question.id, turns, gone));
                }
            }
            tokio::select! {
                // The desk, and with it the sender, lives as long as this.
                _ = changes.changed() => {}
                Some(_) = running.join_next() => {}
            }
        }
    }

    /// Has the program answer the question `id`, unless that is `gone` before.
    async fn ask(self, id: String, turns: Arc<Semaphore>, mut gone: watch::Receiver<()>) {
        let looking = self.desk.watch();
        let answered = tokio::select! {
            // The sender is dropped, and never sends.
            _ = gone.changed() => match self.question(&id) {
                Some(question) if question.state == EXPIRED => Err(SILENT.to_owned()),
                Some(_) | None => Ok(()),
            },
            answered = self.answer(&id, &turns) => answered,
        };
        if let Err(why) = answered {
            let message = format!("--ask-command: {why} [id:{id}]");
            logging::config_event(ConfigState::Failed, Severity::Medium, &message);
        }
        drop(looking);
    }

    /// Returns the question `id` as it is now.
    fn question(&self, id: &str) -> Option<Question> {
        let mut questions = listing(&self.desk).questions.into_iter();
        questions.find(|question| question.id == id)
    }

    /// Has the program answer the question `id`.
    ///
    /// # Errors
    /// It gave no answer that has an effect.
    async fn answer(&self, id: &str, turns: &Semaphore) -> Result<(), String> {
        let _turn = turns.acquire().await.map_err(|error| error.to_string())?;
        let Some(question) = self.question(id) else {
            return Ok(());
        };
        let limit = Duration::from_secs(question.seconds_left + 1);
        let input = format!("{}\n", question.to_json(&self.sandbox));
        let report = self.helpers.run(PROGRAM, input, limit, ANSWER_BYTES).await;
        let report = report.map_err(|error| error.to_string())?;
        self.log_errors(&report.errors);
        let Answer {
            decision, reason, ..
        } = wanted(&report, id)?;
        let Some(decision) = decision.decision() else {
            return Ok(());
        };
        let desk = Arc::clone(&self.desk);
        let id = question.id;
        let decided = tokio::task::spawn_blocking(move || {
            let by = Answerer {
                way: "command",
                uid: None,
                reason: &reason,
            };
            desk.decide(&id, decision, 0, by)
        });
        match decided.await.map_err(|error| error.to_string())? {
            // Somebody else was faster, or it is asked anew.
            Ok(_) | Err(Unanswered::Gone | Unanswered::Stale) => Ok(()),
            Err(Unanswered::Unfit(why)) => Err(why.into_owned()),
        }
    }

    /// Logs what the program wrote to standard error.
    fn log_errors(&self, errors: &[u8]) {
        if errors.is_empty() {
            return;
        }
        let text: String = errors.utf8_chunks().map(|chunk| chunk.valid()).collect();
        if self.leaks.holds_secret(&self.vault.load(), errors) {
            tracing::debug!("--ask-command wrote a secret to standard error, which is not shown");
        } else {
            tracing::debug!("--ask-command: {}", printable(&text));
        }
    }
}

/// Returns what the program wants for the question `id`.
///
/// # Errors
/// It failed, or its answer is none.
fn wanted(report: &Report, id: &str) -> Result<Answer, String> {
    match &report.ended {
        Ended::Exited(0) => {}
        Ended::Exited(status) => return Err(format!("the program ended with status {status}")),
        Ended::Signalled(signal) => return Err(format!("signal {signal} ended the program")),
        Ended::TimedOut => return Err(SILENT.to_owned()),
        Ended::WroteTooMuch => {
            return Err(format!(
                "the program wrote more than {ANSWER_BYTES} bytes, which is no answer"
            ));
        }
        Ended::Cancelled => return Err("the program was ended".to_owned()),
        Ended::NotStarted(why) => {
            return Err(format!("the program was not started: {}", visible(why)));
        }
    }
    let answer: Answer = serde_json::from_slice(&report.output)
        .map_err(|_| "the program did not print one answer".to_owned())?;
    match &answer.id {
        Some(other) if other != id => Err("the program answered another question".to_owned()),
        Some(_) | None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use openshell_supervisor::helpers::wire::{Ended, Report};

    use super::{Wanted, wanted};

    fn report(ended: Ended, output: &str) -> Report {
        Report {
            number: 1,
            ended,
            output: output.into(),
            errors: Vec::new(),
        }
    }

    #[test]
    fn one_object_with_a_decision_is_an_answer_and_nothing_else() {
        for (output, decision) in [
            (r#"{"decision": "once"}"#, Wanted::Once),
            ("{\"decision\": \"run\", \"id\": \"q-1\"}\n", Wanted::Run),
            (r#"{"decision": "deny", "reason": "no"}"#, Wanted::Deny),
            (r#"{"decision": "deny_run"}"#, Wanted::DenyRun),
            (r#"{"decision": "pass"}"#, Wanted::Pass),
        ] {
            assert_eq!(
                wanted(&report(Ended::Exited(0), output), "q-1").map(|answer| answer.decision),
                Ok(decision)
            );
        }
        for output in [
            "",
            "yes",
            "{}",
            r#"{"decision": "save"}"#,
            r#"{"decision": "Once"}"#,
            r#"{"decision": "once", "line": 2}"#,
            r#"{"decision": "once", "decision": "deny"}"#,
            r#"{"decision": "once"} {"decision": "once"}"#,
            r#"{"decision": "once", "id": "q-2"}"#,
            "[\"once\"]",
        ] {
            let answer = wanted(&report(Ended::Exited(0), output), "q-1");
            assert!(answer.is_err(), "{output}");
        }
    }

    #[test]
    fn a_program_that_failed_has_not_answered() {
        let once = r#"{"decision": "once"}"#;
        for ended in [
            Ended::Exited(3),
            Ended::Signalled(9),
            Ended::TimedOut,
            Ended::WroteTooMuch,
            Ended::Cancelled,
            Ended::NotStarted("none".to_owned()),
        ] {
            assert!(wanted(&report(ended, once), "q-1").is_err());
        }
    }
}
