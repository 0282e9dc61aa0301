//! Answers requests for `http://policy.local`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use openshell_policy::document::outline::outline;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::approvals::proposal::{Fate, Proposal};
use crate::approvals::question::QuestionId;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::denial::guidance::Guidance;
use crate::ground::target::Origin;
use crate::policy_local::answer::{Answer, bad, broken, error, response, skill};
use crate::policy_local::denials::{REMEMBERED, RecentDenials};
use crate::policy_local::draft::{self, Fault};
use crate::policy_local::explain::explain;
use crate::policy_local::proposals::{Proposals, Tracked};
use crate::policy_local::request::{Call, asks_for_skill, checked, number, parameter, read};
use crate::policy_local::review::{NotSubmitted, Review, Submitted};
use crate::reach::authorize::asker::Asker;
use crate::relay::asking::gone;
use crate::relay::http1::Session;
use crate::relay::services::Services;
use crate::report::record::{Outcome, Record};
use crate::secrets::needles::has_secret;
use crate::wire::http::body::{ResponseBody, full};
use crate::wire::http::head;
use crate::wire::http::target::RequestTarget;

/// The most requests at once that wait for an answer to a proposal.
const WAITS: usize = 64;

/// The most other requests at once.
const OTHERS: usize = 16;

/// The most seconds of one wait.
const LONGEST: u64 = 300;

/// The host by which programs ask about the policy.
#[derive(Debug)]
pub struct PolicyLocal {
    policy: Arc<PolicyStore>,
    denials: Arc<RecentDenials>,
    /// Decides about proposals; `None` if nobody ever does.
    review: Option<Box<dyn Review>>,
    guidance: Arc<Guidance>,
    proposals: Proposals,
    waits: Arc<Semaphore>,
    others: Arc<Semaphore>,
    /// The turns to read proposals, which takes a processor for a moment.
    submissions: Semaphore,
}

/// A client of the host.
#[derive(Clone, Debug)]
pub struct PolicyClient {
    /// The program.
    pub asker: Asker,
    /// The host and port.
    pub origin: Origin,
}

/// Returns what a program may read of the policy of `snapshot`, and its hash.
fn current(snapshot: &Snapshot) -> Result<(String, String), Answer> {
    let text = outline(snapshot.policy());
    let text =
        text.map_err(|why| error(StatusCode::INTERNAL_SERVER_ERROR, "policy_not_shown", why))?;
    let hash = digest(&SHA256, text.as_bytes());
    let hash = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    let hash = hash.collect();
    Ok((text, hash))
}

impl PolicyLocal {
    /// Creates the host, which answers while `guidance` is on.
    #[must_use]
    pub fn new(
        policy: Arc<PolicyStore>,
        denials: Arc<RecentDenials>,
        review: Option<Box<dyn Review>>,
        guidance: Arc<Guidance>,
    ) -> Self {
        Self {
            policy,
            denials,
            review,
            guidance,
            proposals: Proposals::default(),
            waits: Arc::new(Semaphore::new(WAITS)),
            others: Arc::new(Semaphore::new(OTHERS)),
            submissions: Semaphore::new(1),
        }
    }

    /// Returns what refusals tell programs that may ask.
    #[must_use]
    pub fn guidance(&self) -> &Arc<Guidance> {
        &self.guidance
    }

    /// Answers `request` of `client` on the connection of `session`, which leads here.
    pub async fn answer_inside(
        self: &Arc<Self>,
        services: &Services,
        request: Request<Incoming>,
        client: &PolicyClient,
        session: &Session,
    ) -> Response<ResponseBody> {
        let method = request.method().as_str();
        let path = request.uri().path();
        let Origin { scheme, target } = client.origin.clone();
        let record = Record::http(&services.audit, method, path, scheme, target);
        let mut record = record.inside(session.count());
        record.called_by(client.asker.caller().clone());
        let (parts, body) = request.into_parts();
        if let Err(refusal) = head::check_authority(&parts, &client.origin) {
            let detail = refusal.reason().to_owned();
            record.finish(Outcome::Refused(&refusal));
            return response(bad(detail)).map(full);
        }
        let request = Request::from_parts(parts, body);
        let asker = client.asker.clone();
        self.answer(services, request, asker, session.socket(), record)
            .await
    }

    /// Answers `request` of `asker`, whose connection is `socket`, and finishes its `record`.
    pub async fn answer(
        self: &Arc<Self>,
        services: &Services,
        request: Request<Incoming>,
        asker: Asker,
        socket: Option<BorrowedFd<'_>>,
        mut record: Record,
    ) -> Response<ResponseBody> {
        record.served_inside();
        let (parts, body) = request.into_parts();
        let finder = services.leaks.finder(&services.vault.load(), &record);
        let is_secret =
            |text: &[u8]| finder.finds(text) || std::str::from_utf8(text).is_ok_and(has_secret);
        let answered = match checked(&parts) {
            Ok(target) if self.guidance.is_on() && asks_for_skill(&parts, &target) => {
                record.finish(Outcome::Allowed);
                return skill().map(full);
            }
            Ok(target) => {
                let called = self.called(&parts, &target, body, asker, is_secret);
                let (Ok(answer) | Err(answer)) = tokio::select! {
                    answered = called => answered,
                    // Nobody reads it.
                    () = gone(socket) => Err(bad("the client has gone")),
                };
                answer
            }
            Err(refusal) => {
                let detail = refusal.reason().to_owned();
                record.finish(Outcome::Refused(&refusal));
                return response(bad(detail)).map(full);
            }
        };
        record.finish(Outcome::Allowed);
        response(answered).map(full)
    }

    /// Answers a request for `target`.
    ///
    /// # Errors
    /// The answer says what is wrong.
    async fn called(
        self: &Arc<Self>,
        parts: &Parts,
        target: &RequestTarget,
        body: Incoming,
        asker: Asker,
        is_secret: impl Fn(&[u8]) -> bool,
    ) -> Result<Answer, Answer> {
        if !self.guidance.is_on() {
            return Err((StatusCode::NOT_FOUND, json!({"error": "feature_disabled"})));
        }
        let Some(call) = Call::of(target.path()) else {
            return Err(error(
                StatusCode::NOT_FOUND,
                "not_found",
                "there are /v1/skill, /v1/policy/current, /v1/denials, /v1/explain, /v1/proposals, \
                 /v1/proposals/ID and /v1/proposals/ID/wait",
            ));
        };
        let method = call.method();
        if parts.method != method {
            return Err((
                StatusCode::METHOD_NOT_ALLOWED,
                json!({"error": "method_not_allowed", "allow": method.as_str()}),
            ));
        }
        let slots = match call {
            Call::Wait(_) => &self.waits,
            Call::Policy | Call::Denials | Call::Propose | Call::Proposal(_) | Call::Explain => {
                &self.others
            }
        };
        let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
            return Err(error(
                StatusCode::SERVICE_UNAVAILABLE,
                "limit_reached",
                "too many requests at once",
            ));
        };
        match call {
            Call::Policy => self.policy(),
            Call::Denials => {
                let last = number(target, "last", 10, REMEMBERED as u64)?;
                Ok(self.denials(usize::try_from(last).unwrap_or(REMEMBERED)))
            }
            Call::Explain => self.explained(target, asker, slot).await,
            Call::Propose => {
                let body = read(body).await?;
                if is_secret(&body) {
                    return Err(error(
                        StatusCode::BAD_REQUEST,
                        "invalid_proposal",
                        "it holds a secret, which nobody is shown",
                    ));
                }
                self.propose(body, asker, slot).await
            }
            Call::Proposal(id) => {
                let tracked = self.tracked(id)?;
                self.look(&tracked).await?;
                let fate = tracked.proposal.fate.borrow().clone();
                self.standing(&tracked, &fate, false)
            }
            Call::Wait(id) => {
                let seconds = number(target, "timeout", 60, LONGEST)?;
                let tracked = self.tracked(id)?;
                self.waited(tracked, Duration::from_secs(seconds)).await
            }
        }
    }

    fn policy(&self) -> Result<Answer, Answer> {
        let snapshot = self.policy.load();
        let (text, hash) = current(&snapshot)?;
        Ok((
            StatusCode::OK,
            json!({
                "refuses_everything": snapshot.invalid().is_some(),
                "format": "yaml",
                "policy_yaml": text,
                "generation": snapshot.generation(),
                "hash": hash,
            }),
        ))
    }

    fn denials(&self, count: usize) -> Answer {
        (
            StatusCode::OK,
            json!({
                "denials": self.denials.last(count),
                "log_available": true,
                "note": format!(
                    "what this sandbox has refused, the newest first; it remembers {REMEMBERED}"
                ),
            }),
        )
    }

    /// The work keeps its `slot`, also if the client goes meanwhile.
    async fn explained(
        &self,
        target: &RequestTarget,
        asker: Asker,
        slot: OwnedSemaphorePermit,
    ) -> Result<Answer, Answer> {
        let url = parameter(target, "url")?.ok_or_else(|| bad("url=URL is missing"))?;
        let method = parameter(target, "method")?.unwrap_or_else(|| "GET".to_owned());
        let snapshot = self.policy.load();
        let explaining = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            let caller = asker.examined();
            explain(&snapshot, &caller, &url, &method)
        });
        let explained = explaining.await.map_err(|failed| broken(&failed))?;
        Ok((StatusCode::OK, explained.map_err(bad)?))
    }

    /// Submits what `body` proposes. A client that goes meanwhile ends nothing that was begun, and
    /// the work keeps its `slot`.
    async fn propose(
        self: &Arc<Self>,
        body: Bytes,
        asker: Asker,
        slot: OwnedSemaphorePermit,
    ) -> Result<Answer, Answer> {
        let host = Arc::clone(self);
        let proposing = tokio::spawn(async move {
            let _slot = slot;
            host.submit(body, asker).await
        });
        let submitted = proposing.await;
        submitted.unwrap_or_else(|failed| Err(broken(&failed)))
    }

    async fn submit(&self, body: Bytes, asker: Asker) -> Result<Answer, Answer> {
        let Some(review) = &self.review else {
            return Err(error(
                StatusCode::SERVICE_UNAVAILABLE,
                "gateway_unavailable",
                "there is nobody to decide about it",
            ));
        };
        let Ok(_turn) = self.submissions.acquire().await else {
            return Err(bad("the sandbox ends"));
        };
        let denials = Arc::clone(&self.denials);
        let reading = tokio::task::spawn_blocking(move || {
            let caller = asker.examined();
            draft::read(&body, &caller, &denials)
        });
        let proposals = reading.await.map_err(|failed| broken(&failed))?;
        let proposals = proposals.map_err(|Fault { place, problem }| {
            (
                StatusCode::BAD_REQUEST,
                json!({"error": "invalid_proposal", "place": place, "detail": problem}),
            )
        })?;
        let Some(_room) = self.proposals.enter(proposals.len()) else {
            return Err(error(
                StatusCode::TOO_MANY_REQUESTS,
                "limit_reached",
                "5 proposals in a minute, and 20 that nobody has answered, are the most",
            ));
        };
        let mut ids = Vec::new();
        let mut reasons = Vec::new();
        for proposal in proposals {
            match review.submit(proposal).await {
                Ok(submitted) => ids.push(self.track(submitted)?),
                Err(NotSubmitted::Rejected(why)) => reasons.push(why),
                // What was taken before must be told.
                Err(NotSubmitted::Failed(_, word, why)) if !ids.is_empty() => {
                    reasons.push(format!("{word}: {why}"));
                }
                Err(failed) => return Err(not_submitted(failed)),
            }
        }
        Ok((
            StatusCode::ACCEPTED,
            json!({
                "status": "submitted",
                "accepted_chunks": ids.len(),
                "rejected_chunks": reasons.len(),
                "rejection_reasons": reasons,
                "accepted_chunk_ids": ids,
            }),
        ))
    }

    /// Remembers what was `submitted`; returns its id.
    fn track(&self, submitted: Submitted) -> Result<String, Answer> {
        let id = match submitted.id {
            Some(id) => id,
            None => {
                let id = QuestionId::new();
                let id = id.map_err(|why| {
                    let status = StatusCode::SERVICE_UNAVAILABLE;
                    error(status, "limit_reached", why.to_string())
                })?;
                id.as_str().replacen("q-", "p-", 1)
            }
        };
        self.proposals.add(Tracked {
            id: id.clone(),
            name: submitted.name,
            proposal: submitted.proposal,
        });
        Ok(id)
    }

    /// Learns what became of a proposal that nobody had decided about, if that takes a look.
    async fn look(&self, tracked: &Tracked) -> Result<(), Answer> {
        let is_pending = *tracked.proposal.fate.borrow() == Fate::Pending;
        match &self.review {
            Some(review) if is_pending => review.look().await.map_err(not_submitted),
            Some(_) | None => Ok(()),
        }
    }

    fn tracked(&self, id: &str) -> Result<Tracked, Answer> {
        let tracked = self.proposals.find(id);
        tracked.ok_or_else(|| {
            error(
                StatusCode::NOT_FOUND,
                "chunk_not_found",
                "this sandbox has no such proposal",
            )
        })
    }

    /// Returns true if what became of a proposal has its effect.
    fn is_settled(&self, fate: &Fate) -> bool {
        match fate {
            Fate::Pending => false,
            Fate::Approved(generation) => self.policy.load().generation() >= *generation,
            Fate::Rejected(_) => true,
        }
    }

    /// Waits until `tracked` was answered and the answer has its effect, but not `longer`.
    async fn waited(&self, tracked: Tracked, longer: Duration) -> Result<Answer, Answer> {
        let end = Instant::now() + longer;
        let mut fates = tracked.proposal.fate.subscribe();
        let mut generations = self.policy.subscribe();
        let mut is_late = false;
        loop {
            let fate = fates.borrow_and_update().clone();
            generations.mark_unchanged();
            if is_late || self.is_settled(&fate) {
                return self.standing(&tracked, &fate, is_late);
            }
            let changed = async {
                tokio::select! {
                    Ok(()) = fates.changed() => {}
                    Ok(()) = generations.changed() => {}
                    else => std::future::pending().await,
                }
            };
            is_late = timeout_at(end, changed).await.is_err();
        }
    }

    /// Describes a proposal.
    fn standing(&self, tracked: &Tracked, fate: &Fate, is_late: bool) -> Result<Answer, Answer> {
        let (status, reason) = match fate {
            Fate::Pending => ("pending", ""),
            Fate::Approved(_) => ("approved", ""),
            Fate::Rejected(reason) => ("rejected", reason.as_str()),
        };
        let details = tracked.proposal.details.lock().clone();
        let hash = match &details.current_effective_policy_hash {
            Some(hash) => hash.clone(),
            None => current(&self.policy.load())?.1,
        };
        Ok((
            StatusCode::OK,
            json!({
                "chunk_id": tracked.id,
                "status": status,
                "rule_name": details.rule_name.as_deref().unwrap_or(&tracked.name),
                "binary": binaries(&tracked.proposal),
                "rejection_reason": reason,
                "validation_result": details.validation_result,
                "application_error": details.application_error,
                "review_token": details.review_token,
                "current_effective_policy_hash": hash,
                "candidate_effective_policy_hash": details.candidate_effective_policy_hash,
                "timed_out": is_late,
                "policy_reloaded": matches!(fate, Fate::Approved(_)) && self.is_settled(fate),
            }),
        ))
    }
}

/// Returns the answer to a request for which the one who decides is not reached.
fn not_submitted(failed: NotSubmitted) -> Answer {
    match failed {
        NotSubmitted::Rejected(why) => {
            error(StatusCode::BAD_GATEWAY, "proposal_submit_failed", why)
        }
        NotSubmitted::Failed(status, code, why) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            error(status, code, why)
        }
    }
}

/// Returns the paths of the programs for which `proposal` is.
fn binaries(proposal: &Proposal) -> String {
    let paths: Vec<_> = proposal.paths().collect();
    paths.join(", ")
}
