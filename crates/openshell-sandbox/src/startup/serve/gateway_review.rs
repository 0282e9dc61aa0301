//! The gateway decides: it gets the line of each question and each proposal, and its answers are
//! asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_events::text::visible;
use openshell_events::words::{ConfigState, Severity};
use openshell_gateway::convert::drafts::{
    self, Draft, DraftStatus, ProposedLine, Submitted as Submission,
};
use openshell_gateway::error::CallError;
use openshell_policy::network::PolicyName;
use openshell_proxy::approvals::answer::{Answerer, Decision};
use openshell_proxy::approvals::desk::Desk;
use openshell_proxy::approvals::listing::{HeldQuestion, Watcher};
use openshell_proxy::approvals::proposal::{Details, Fate, Proposal, TO_COME};
use openshell_proxy::approvals::proposing::line_of;
use openshell_proxy::approvals::text::quoted;
use openshell_proxy::decide::line::Line;
use openshell_proxy::decide::store::PolicyStore;
use openshell_proxy::denial::guidance::Guidance;
use openshell_proxy::policy_local::review::{self, Look, NotSubmitted, Review, Submitted};
use openshell_sources::gateway::{Proposing, Receiver};
use openshell_telemetry::logging;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::reports::gateway_reports::denials::DenialReports;
use crate::reports::refusals::now_ms;

/// How often the gateway is asked for its answers while something waits for one.
const EVERY: Duration = Duration::from_secs(5);

/// The most questions whose answers are looked for.
const QUESTIONS: usize = 128;

/// The gateway as the one who decides. Clones share what is open.
#[derive(Clone)]
pub(super) struct GatewayReview(Arc<Shared>);

struct Shared {
    receiver: Receiver,
    denials: Arc<DenialReports>,
    policy: Arc<PolicyStore>,
    guidance: Arc<Guidance>,
    /// The proposals of agents that are not decided, or not in force.
    open: Mutex<Vec<Sent<Arc<Proposal>>>>,
    /// Told when there is another one.
    is_new: Notify,
    /// When the gateway was last asked for its answers.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

/// Something whose line the gateway has.
#[derive(Clone)]
struct Sent<T> {
    /// The id of the line; gateways of the first generation give none.
    id: Option<String>,
    name: PolicyName,
    what: T,
}

impl<T> Sent<T> {
    /// Returns the draft that is about it.
    fn of<'d>(&self, drafts: &'d [Draft]) -> Option<&'d Draft> {
        let is_of = |draft: &&Draft| match &self.id {
            Some(id) => draft.id == *id,
            None => draft.name == self.name.as_str(),
        };
        drafts.iter().rev().find(is_of)
    }
}

/// A question that the gateway is asked.
struct Asked {
    question: HeldQuestion,
    state: AskedState,
}

/// How far a question is.
enum AskedState {
    /// The gateway has its line. It goes on once the policy permits it.
    Open(Sent<()>),
    /// The gateway cannot be asked about it, or has denied it.
    Closed,
}

impl fmt::Debug for GatewayReview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayReview").finish_non_exhaustive()
    }
}

impl GatewayReview {
    /// Creates it for what `policy` refuses, whose programs `guidance` tells that they may ask.
    pub(super) fn new(
        receiver: Receiver,
        denials: Arc<DenialReports>,
        policy: Arc<PolicyStore>,
        guidance: Arc<Guidance>,
    ) -> Self {
        Self(Arc::new(Shared {
            receiver,
            denials,
            policy,
            guidance,
            open: Mutex::default(),
            is_new: Notify::new(),
            looked: tokio::sync::Mutex::default(),
        }))
    }

    /// Sends the lines of what waits at `desk`, and asks for the answers to everything that is open.
    pub(super) async fn run(self, desk: Option<Arc<Desk>>) {
        let mut questions = desk.map(|desk| Questions {
            review: self.clone(),
            // A gateway always looks.
            _looking: desk.watch(),
            desk,
            asked: BTreeMap::new(),
            is_lost: false,
        });
        let mut changes = questions.as_ref().map(|questions| questions.desk.changes());
        let mut proposing = self.0.receiver.proposing.clone();
        let mut said = Proposing::default();
        let mut next = Instant::now() + EVERY;
        loop {
            let before = std::mem::replace(&mut said, *proposing.borrow_and_update());
            self.0.guidance.switch(said.takes_of_agents);
            let mut is_waiting = !self.0.open.lock().is_empty();
            if let Some(questions) = &mut questions {
                questions.suspend(before, said).await;
                questions.ask().await;
                is_waiting |= !questions.asked.is_empty() || questions.is_lost;
            }
            if !is_waiting {
                next = Instant::now() + EVERY;
            }
            let changed = async {
                match &mut changes {
                    Some(changes) => drop(changes.changed().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep_until(next), if is_waiting => {
                    next = Instant::now() + EVERY;
                    let drafts = self.drafts().await;
                    if let Some(questions) = &mut questions {
                        questions.take(drafts).await;
                    }
                    // The policy that permits it may be there.
                    self.0.receiver.wanted.notify_one();
                }
                () = changed => {}
                () = self.0.is_new.notified() => {}
                // The sender lives as long as the source of the policy.
                Ok(()) = proposing.changed() => {}
            }
        }
    }

    async fn propose(
        &self,
        line: &Line,
        rationale: &str,
        stage: DenialStage,
        is_by_agent: bool,
    ) -> Result<Submission, CallError> {
        let Receiver {
            gateway, workspace, ..
        } = &self.0.receiver;
        let workspace = workspace.borrow().clone();
        let line = ProposedLine {
            name: &line.name,
            policy: &line.policy,
            rationale,
            stage,
            at_ms: now_ms(),
        };
        gateway.propose(line, is_by_agent, &workspace).await
    }

    /// Returns the drafts, after the proposals of agents have learned theirs.
    async fn drafts(&self) -> Result<Vec<Draft>, CallError> {
        let Receiver {
            gateway, workspace, ..
        } = &self.0.receiver;
        let workspace = workspace.borrow().clone();
        let drafts = gateway.drafts(&workspace).await?;
        *self.0.looked.lock().await = Some(Instant::now());
        let open = self.0.open.lock().clone();
        let shared = Arc::clone(&self.0);
        let of_open = drafts.clone();
        let settling = tokio::task::spawn_blocking(move || {
            let is_settled = |sent: &&Sent<Arc<Proposal>>| settle(&shared.policy, sent, &of_open);
            let settled: Vec<_> = open.iter().filter(is_settled).collect();
            let is_open = |known: &Sent<Arc<Proposal>>| {
                let mut settled = settled.iter();
                !settled.any(|sent| Arc::ptr_eq(&sent.what, &known.what))
            };
            shared.open.lock().retain(is_open);
        });
        if let Err(error) = settling.await {
            tracing::error!("the answers of the gateway were not taken: {error}");
        }
        Ok(drafts)
    }
}

/// The questions that the gateway is asked.
struct Questions {
    review: GatewayReview,
    desk: Arc<Desk>,
    _looking: Watcher,
    asked: BTreeMap<String, Asked>,
    /// True while the gateway is not reached.
    is_lost: bool,
}

impl Questions {
    /// Holds nothing while the gateway's policy is one for all sandboxes, as is `said` now and not
    /// `before`.
    async fn suspend(&self, before: Proposing, said: Proposing) {
        let desk = Arc::clone(&self.desk);
        let suspending = tokio::task::spawn_blocking(move || desk.suspend(said.is_global));
        if let Err(error) = suspending.await {
            tracing::error!("the questions were not ended: {error}");
        }
        if said.is_global && !before.is_global {
            let message = "the gateway has a policy for all sandboxes in force, beside which no \
                           line counts, so nothing is asked, --ask-local or not";
            logging::config_event(ConfigState::Disabled, Severity::Low, message);
        }
    }

    /// Sends the lines of new questions, and forgets those that are over.
    async fn ask(&mut self) {
        let desk = Arc::clone(&self.desk);
        self.asked.retain(|_, asked| {
            let is_listed = desk.lists(&asked.question);
            if !is_listed && matches!(asked.state, AskedState::Open(_)) {
                went_on(&desk, &asked.question);
            }
            is_listed
        });
        for question in self.desk.held_questions() {
            let is_new = !self.asked.contains_key(question.id.as_str());
            if is_new && !self.is_lost && self.asked.len() < QUESTIONS {
                self.send(question).await;
            }
        }
    }

    /// Sends the line of `question`.
    async fn send(&mut self, question: HeldQuestion) {
        let Some((line, permits)) = self.as_sent(&question).await else {
            tracing::debug!("the gateway has no words for the line of {}", question.id);
            let state = AskedState::Closed;
            self.asked
                .insert(question.id.to_string(), Asked { question, state });
            return;
        };
        let stage = question.code().map_or(DenialStage::L4, ReasonCode::stage);
        let rationale = format!("asked while the request waits: {permits}");
        let submitted = self.review.propose(&line, &rationale, stage, false).await;
        let state = match submitted {
            Ok(submitted) => {
                let (host, port, binary) = question.ends();
                self.review.0.denials.note_proposed(host, port, binary);
                match submitted.rejection {
                    Some(why) => {
                        deny(&self.desk, &question, &why).await;
                        AskedState::Closed
                    }
                    None => AskedState::Open(Sent {
                        id: submitted.id,
                        name: line.name,
                        what: (),
                    }),
                }
            }
            Err(error) => {
                tracing::warn!("cannot ask the gateway about {}: {error}", question.id);
                if error.is_unreached() {
                    self.is_lost = true;
                    return;
                }
                AskedState::Closed
            }
        };
        self.asked
            .insert(question.id.to_string(), Asked { question, state });
    }

    /// Returns the line of `question` as the gateway reads it, and what that permits; `None` if it
    /// would not permit what is asked.
    async fn as_sent(&self, question: &HeldQuestion) -> Option<(Line, String)> {
        let question = question.clone();
        let policy = Arc::clone(&self.review.0.policy);
        let reading = tokio::task::spawn_blocking(move || {
            let line = as_sent(question.line()?)?;
            let permits = question.permits(&line, &policy.load())?;
            Some((line, permits))
        });
        reading.await.ok().flatten()
    }

    /// Takes over what the gateway has decided.
    async fn take(&mut self, drafts: Result<Vec<Draft>, CallError>) {
        self.is_lost = drafts.is_err();
        let Ok(drafts) = drafts else { return };
        for asked in self.asked.values_mut() {
            let AskedState::Open(sent) = &asked.state else {
                continue;
            };
            if let Some(draft) = sent.of(&drafts)
                && draft.status == DraftStatus::Rejected
            {
                deny(&self.desk, &asked.question, &draft.rejection_reason).await;
                asked.state = AskedState::Closed;
            }
        }
    }
}

/// Notes that what waited under `question`, which is listed no more, went on with the gateway's policy,
/// unless it was answered.
fn went_on(desk: &Desk, question: &HeldQuestion) {
    let finished = desk.finished();
    let mut ids = finished.iter().map(|(id, _)| id.as_str());
    if !ids.any(|id| id == question.id.as_str()) {
        desk.granted_by_policy(question, by(""));
    }
}

/// Returns `line` as a gateway reads it; `None` if it has no words for it.
fn as_sent(line: &Line) -> Option<Line> {
    let policy = drafts::as_sent(&line.name, &line.policy)?;
    let name = line.name.clone();
    Some(Line { name, policy })
}

/// Who answers.
fn by(reason: &str) -> Answerer<'_> {
    Answerer {
        way: "gateway",
        uid: None,
        reason,
    }
}

/// Refuses what waits under `question`, for this `reason` of the gateway.
async fn deny(desk: &Arc<Desk>, question: &HeldQuestion, reason: &str) {
    let desk = Arc::clone(desk);
    let id = question.id.clone();
    let reason = reason.to_owned();
    let denied = tokio::task::spawn_blocking(move || {
        // Its client may have given up.
        let _ = desk.decide(id.as_str(), Decision::Deny, 0, by(&reason));
    });
    if let Err(error) = denied.await {
        tracing::error!("an answer of the gateway was not taken: {error}");
    }
}

/// Tells the proposal of `sent` what became of it; returns true if that does not change any more.
/// Blocks.
fn settle(policy: &PolicyStore, sent: &Sent<Arc<Proposal>>, drafts: &[Draft]) -> bool {
    let proposal = &sent.what;
    if let Some(draft) = sent.of(drafts) {
        let of = draft.details.clone();
        *proposal.details.lock() = Details {
            rule_name: Some(draft.name.clone()),
            validation_result: of.validation_result,
            application_error: of.application_error,
            review_token: of.review_token,
            current_effective_policy_hash: Some(of.current_effective_policy_hash)
                .filter(|hash| !hash.is_empty()),
            candidate_effective_policy_hash: of.candidate_effective_policy_hash,
        };
        match draft.status {
            DraftStatus::Pending => {}
            DraftStatus::Approved => {
                if *proposal.fate.borrow() == Fate::Pending {
                    said(ConfigState::Approved, Severity::Medium, sent);
                    proposal.approve(TO_COME);
                }
            }
            DraftStatus::Rejected => {
                said(ConfigState::Rejected, Severity::Info, sent);
                proposal.reject(&draft.rejection_reason);
                return true;
            }
        }
    }
    let is_approved = matches!(*proposal.fate.borrow(), Fate::Approved(_));
    let snapshot = policy.load();
    if is_approved && proposal.is_permitted(&snapshot) {
        proposal.approve(snapshot.generation());
        return true;
    }
    false
}

/// Logs a step of the proposal of `sent`.
fn said(state: ConfigState, severity: Severity, sent: &Sent<Arc<Proposal>>) {
    let program = quoted(&sent.what.caller.program.executable);
    let (host, port) = sent.what.place();
    let id = quoted(sent.id.as_deref().unwrap_or("-"));
    let message = format!("{program} -> {host}:{port} [id:{id}] [by:gateway]");
    logging::config_event(state, severity, &message);
}

impl Review for GatewayReview {
    fn submit(&self, proposal: Proposal) -> review::Submission<'_> {
        Box::pin(async move {
            let Receiver {
                gateway, workspace, ..
            } = &self.0.receiver;
            if gateway.is_later() && workspace.borrow().is_empty() {
                return Err(NotSubmitted::Failed(
                    503,
                    "workspace_unavailable",
                    "the gateway has not said which workspace the sandbox belongs to".to_owned(),
                ));
            }
            let proposal = Arc::new(proposal);
            let examined = Arc::clone(&proposal);
            let shared = Arc::clone(&self.0);
            let line = tokio::task::spawn_blocking(move || {
                let snapshot = shared.policy.load();
                let is_taken = |name: &PolicyName| {
                    let open = shared.open.lock();
                    open.iter().any(|sent| sent.name == *name)
                };
                let Some(line) = line_of(&examined, &snapshot, is_taken)? else {
                    examined.approve(snapshot.generation());
                    return Ok(None);
                };
                let sent = as_sent(&line);
                sent.map(Some)
                    .ok_or("the gateway has no words for such a line".to_owned())
            });
            let line = line.await;
            let line = line.map_err(|error| NotSubmitted::Rejected(error.to_string()))?;
            let Some(line) = line.map_err(NotSubmitted::Rejected)? else {
                let name = proposal.name.as_str().to_owned();
                return Ok(Submitted {
                    id: None,
                    name,
                    proposal,
                });
            };
            let rationale = visible(&proposal.intent).into_owned();
            let answered = self.propose(&line, &rationale, DenialStage::L4, true).await;
            let answered = answered.map_err(|error| failed(&error, "proposal_submit_failed"))?;
            if let Some(why) = answered.rejection {
                return Err(NotSubmitted::Rejected(why));
            }
            let sent = Sent {
                id: answered.id.clone(),
                name: line.name.clone(),
                what: Arc::clone(&proposal),
            };
            said(ConfigState::Proposed, Severity::Low, &sent);
            self.0.open.lock().push(sent);
            self.0.is_new.notify_one();
            Ok(Submitted {
                id: answered.id,
                name: line.name.as_str().to_owned(),
                proposal,
            })
        })
    }

    fn look(&self) -> Look<'_> {
        Box::pin(async move {
            let looked = *self.0.looked.lock().await;
            if looked.is_some_and(|at| at.elapsed() < EVERY) {
                return Ok(());
            }
            let drafts = self.drafts().await;
            drafts
                .map(drop)
                .map_err(|error| failed(&error, "gateway_lookup_failed"))
        })
    }
}

/// Logs `error`, of which programs are told nothing but a word: `word`, or another one if there is no
/// connection.
fn failed(error: &CallError, word: &'static str) -> NotSubmitted {
    tracing::warn!("a proposal of the workload: {error}");
    let (word, why) = if error.is_unreached() {
        (
            "gateway_connect_failed",
            "the gateway is not reached; try again later",
        )
    } else {
        (word, "the gateway refuses the call; tell your user")
    };
    NotSubmitted::Failed(502, word, why.to_owned())
}
