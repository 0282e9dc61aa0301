//! The gateway decides: it gets the line of each question and each proposal, and its answers are
//! asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_events::text::visible;
use openshell_events::words::{ConfigState, Severity};
use openshell_gateway::convert::drafts::{Draft, DraftStatus, ProposedLine, Submitted as Answered};
use openshell_gateway::error::CallError;
use openshell_proxy::approvals::answer::{Answerer, Decision};
use openshell_proxy::approvals::answers::HeldQuestion;
use openshell_proxy::approvals::desk::Desk;
use openshell_proxy::approvals::proposal::{Details, Fate, Proposal};
use openshell_proxy::approvals::proposing::line_of;
use openshell_proxy::decide::line::Line;
use openshell_proxy::decide::store::PolicyStore;
use openshell_proxy::denial::guidance::Guidance;
use openshell_proxy::policy_local::review::{Look, NotSubmitted, Review, Submission, Submitted};
use openshell_sources::gateway::{Proposing, Receiver};
use openshell_telemetry::logging;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::reports::gateway_reports::denials::DenialReports;
use crate::reports::refusals::now_ms;

/// How often the gateway is asked for its answers while something waits for one.
const EVERY: Duration = Duration::from_secs(5);

/// The most questions whose answers are still looked for.
const QUESTIONS: usize = 128;

/// The generation of a line that is permitted but not yet in force.
const TO_COME: u64 = u64::MAX;

/// The gateway as the one who decides. Clones share what is open.
#[derive(Clone)]
pub(super) struct GatewayReview(Arc<Shared>);

struct Shared {
    receiver: Receiver,
    denials: Arc<DenialReports>,
    policy: Arc<PolicyStore>,
    guidance: Arc<Guidance>,
    /// The proposals of agents that are not decided, or not in force.
    open: Mutex<Vec<Open<Arc<Proposal>>>>,
    /// Told when there is another one.
    is_new: Notify,
}

/// Something whose line the gateway has.
#[derive(Clone)]
struct Open<T> {
    /// The id of the line; gateways of the first generation give none.
    id: Option<String>,
    name: String,
    what: T,
}

impl<T> Open<T> {
    /// Returns the draft that is about it.
    fn of<'d>(&self, drafts: &'d [Draft]) -> Option<&'d Draft> {
        let is_of = |draft: &&Draft| match &self.id {
            Some(id) => draft.id == *id,
            None => draft.name == self.name,
        };
        drafts.iter().rev().find(is_of)
    }
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
        }))
    }

    /// Sends the lines of what waits at `desk`, and asks for the answers to everything that is open.
    pub(super) async fn run(self, desk: Option<Arc<Desk>>) {
        let mut proposing = self.0.receiver.proposing.clone();
        let mut said = Proposing::default();
        let mut changes = desk.as_ref().map(|desk| desk.changes());
        // A gateway always looks.
        let _looking = desk.as_ref().map(|desk| desk.watch());
        let mut asked: BTreeMap<String, Open<HeldQuestion>> = BTreeMap::new();
        let mut next = Instant::now() + EVERY;
        let mut is_lost = false;
        loop {
            let before = std::mem::replace(&mut said, *proposing.borrow_and_update());
            self.follow(desk.as_ref(), before, said);
            let held = desk.as_ref().map(|desk| desk.held_questions());
            let held = held.unwrap_or_default();
            for question in &held {
                if !is_lost && !asked.contains_key(question.id.as_str()) {
                    is_lost = self.ask(question, desk.as_ref(), &mut asked).await;
                }
            }
            let is_open = !asked.is_empty() || !self.0.open.lock().is_empty();
            let is_waiting = is_open || !held.is_empty();
            let changed = async {
                match &mut changes {
                    Some(changes) => drop(changes.changed().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep_until(next), if is_waiting => {
                    next = Instant::now() + EVERY;
                    is_lost = self.decide(desk.as_ref(), &mut asked).await.is_err();
                    asked.retain(|id, _| {
                        held.iter().any(|question| question.id.as_str() == id)
                    });
                    // The policy that permits it may be there.
                    self.0.receiver.wanted.notify_one();
                }
                () = changed => {}
                () = self.0.is_new.notified() => {}
                // The sender lives as long as the source of the policy.
                Ok(()) = proposing.changed() => {}
            }
            if !is_waiting {
                next = Instant::now() + EVERY;
            }
        }
    }

    /// Does what the gateway says about proposals now, and not `before`.
    fn follow(&self, desk: Option<&Arc<Desk>>, before: Proposing, said: Proposing) {
        self.0.guidance.switch(said.takes_of_agents);
        let Some(desk) = desk else { return };
        desk.suspend(said.is_global);
        if said.is_global && !before.is_global {
            let message = "the gateway has a policy for all sandboxes in force, beside which no \
                           line counts, so nothing is asked";
            logging::config_event(ConfigState::Disabled, Severity::Low, message);
        }
    }

    /// Sends the line of `question`; returns true if the gateway is not reached.
    async fn ask(
        &self,
        question: &HeldQuestion,
        desk: Option<&Arc<Desk>>,
        asked: &mut BTreeMap<String, Open<HeldQuestion>>,
    ) -> bool {
        let Some(line) = question.line() else {
            return false;
        };
        let stage = question.code().map_or(DenialStage::L4, ReasonCode::stage);
        let rationale = format!("asked while the request waits: {}", question.permits());
        let submitted = match self.propose(line, &rationale, stage, false).await {
            Ok(submitted) => submitted,
            Err(error) => {
                tracing::warn!("cannot ask the gateway about {}: {error}", question.id);
                return true;
            }
        };
        let (host, port, binary) = question.ends();
        self.0.denials.note_proposed(host, port, binary);
        if let (Some(why), Some(desk)) = (&submitted.rejection, desk) {
            deny(desk, question, why).await;
        }
        if asked.len() < QUESTIONS {
            let open = Open {
                id: submitted.id,
                name: line.name.as_str().to_owned(),
                what: question.clone(),
            };
            asked.insert(question.id.to_string(), open);
        }
        false
    }

    async fn propose(
        &self,
        line: &Line,
        rationale: &str,
        stage: DenialStage,
        is_by_agent: bool,
    ) -> Result<Answered, CallError> {
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

    /// Asks the gateway what it has decided.
    ///
    /// # Errors
    /// The gateway is not reached.
    async fn decide(
        &self,
        desk: Option<&Arc<Desk>>,
        asked: &mut BTreeMap<String, Open<HeldQuestion>>,
    ) -> Result<(), CallError> {
        let drafts = self.drafts().await?;
        let mut decided = Vec::new();
        for (id, open) in &*asked {
            let (Some(draft), Some(desk)) = (open.of(&drafts), desk) else {
                continue;
            };
            match draft.status {
                DraftStatus::Pending => continue,
                // It goes on once the policy permits it.
                DraftStatus::Approved => desk.granted_by_policy(&open.what, by("")),
                DraftStatus::Rejected => deny(desk, &open.what, &draft.rejection_reason).await,
            }
            decided.push(id.clone());
        }
        asked.retain(|id, _| !decided.contains(id));
        Ok(())
    }

    /// Returns the drafts, after the proposals of agents have learned theirs.
    async fn drafts(&self) -> Result<Vec<Draft>, CallError> {
        let Receiver {
            gateway, workspace, ..
        } = &self.0.receiver;
        let workspace = workspace.borrow().clone();
        let drafts = gateway.drafts(&workspace).await?;
        let open = self.0.open.lock().clone();
        let shared = Arc::clone(&self.0);
        let of_open = drafts.clone();
        let settled = tokio::task::spawn_blocking(move || {
            let is_open = |open: &Open<Arc<Proposal>>| !settle(&shared.policy, open, &of_open);
            let left: Vec<_> = open
                .into_iter()
                .filter(is_open)
                .map(|open| open.name)
                .collect();
            shared.open.lock().retain(|open| left.contains(&open.name));
        });
        if let Err(error) = settled.await {
            tracing::error!("the answers of the gateway were not taken: {error}");
        }
        Ok(drafts)
    }
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

/// Tells the proposal `open` what became of it; returns true if that does not change any more. Blocks.
fn settle(policy: &PolicyStore, open: &Open<Arc<Proposal>>, drafts: &[Draft]) -> bool {
    let proposal = &open.what;
    if let Some(draft) = open.of(drafts) {
        let of = draft.details.clone();
        *proposal.details.lock() = Details {
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
                    said(ConfigState::Approved, Severity::Medium, open);
                    proposal.approve(TO_COME);
                }
            }
            DraftStatus::Rejected => {
                said(ConfigState::Rejected, Severity::Info, open);
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

/// Logs a step of the proposal `open`.
fn said(state: ConfigState, severity: Severity, open: &Open<Arc<Proposal>>) {
    let program = &open.what.caller.program.executable;
    let id = open.id.as_deref().unwrap_or("-");
    let message = format!(
        "{} proposes {} [id:{id}] [by:gateway]",
        visible(program),
        open.name
    );
    logging::config_event(state, severity, &visible(&message));
}

impl Review for GatewayReview {
    fn submit(&self, proposal: Proposal) -> Submission<'_> {
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
            let policy = Arc::clone(&self.0.policy);
            let line = tokio::task::spawn_blocking(move || {
                let snapshot = policy.load();
                let line = line_of(&examined, &snapshot)?;
                if line.is_none() {
                    examined.approve(snapshot.generation());
                }
                Ok(line)
            });
            let line = line.await;
            let line = line.map_err(|error| NotSubmitted::Rejected(error.to_string()))?;
            let Some(line) = line.map_err(NotSubmitted::Rejected)? else {
                return Ok(Submitted {
                    id: None,
                    name: proposal.name.as_str().to_owned(),
                    proposal,
                });
            };
            let rationale = visible(&proposal.intent).into_owned();
            let answered = self.propose(&line, &rationale, DenialStage::L4, true).await;
            let answered = answered.map_err(|error| failed(&error, "proposal_submit_failed"))?;
            if let Some(why) = answered.rejection {
                return Err(NotSubmitted::Rejected(why));
            }
            let open = Open {
                id: answered.id.clone(),
                name: line.name.as_str().to_owned(),
                what: Arc::clone(&proposal),
            };
            said(ConfigState::Proposed, Severity::Low, &open);
            self.0.open.lock().push(open);
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
            let looked = self.drafts().await;
            looked
                .map(drop)
                .map_err(|error| failed(&error, "gateway_lookup_failed"))
        })
    }
}

/// Returns the answer for the call that failed with `error`: `word`, or another one if there is no
/// connection.
fn failed(error: &CallError, word: &'static str) -> NotSubmitted {
    let word = if error.is_unreached() {
        "gateway_connect_failed"
    } else {
        word
    };
    NotSubmitted::Failed(502, word, error.to_string())
}
