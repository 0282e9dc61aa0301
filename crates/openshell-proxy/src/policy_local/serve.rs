//! Answers requests for `http://policy.local`.

use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use openshell_policy::document::outline::outline;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::approvals::proposal::{Fate, Proposal};
use crate::approvals::question::QuestionId;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::denial::guidance::{Guidance, SKILL_PATH};
use crate::denial::refusal::Refusal;
use crate::ground::peer::Caller;
use crate::ground::target::Origin;
use crate::policy_local::denials::{REMEMBERED, RecentDenials};
use crate::policy_local::draft::{self, Fault};
use crate::policy_local::explain::explain;
use crate::policy_local::proposals::{Proposals, Tracked};
use crate::policy_local::review::{NotSubmitted, Review, Submitted};
use crate::policy_local::{SKILL, WRONG_SCHEME};
use crate::reach::authorize::asker::Asker;
use crate::relay::asking::gone;
use crate::relay::http1::{Driver, Session, protocol};
use crate::relay::services::Services;
use crate::report::record::{Outcome, Record};
use crate::secrets::needles::has_secret;
use crate::wire::http::body::{ResponseBody, full};
use crate::wire::http::head;
use crate::wire::http::target::RequestTarget;

/// The most bytes of a body.
const BODY_BYTES: usize = 64 * 1024;

/// The time for a body.
const BODY_TIME: Duration = Duration::from_secs(15);

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
    waits: Semaphore,
    others: Semaphore,
}

/// An answer: its status and its body.
type Answer = (StatusCode, Value);

/// A client of the host.
#[derive(Clone, Debug)]
pub struct PolicyClient {
    /// The program.
    pub asker: Asker,
    /// The host and port.
    pub origin: Origin,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Call<'p> {
    Policy,
    Denials,
    Propose,
    Proposal(&'p str),
    Wait(&'p str),
    Explain,
}

impl<'p> Call<'p> {
    fn of(path: &'p str) -> Option<Self> {
        let call = match path.strip_prefix("/v1/")? {
            "policy/current" => Self::Policy,
            "denials" => Self::Denials,
            "proposals" => Self::Propose,
            "explain" => Self::Explain,
            other => {
                let id = other.strip_prefix("proposals/")?;
                match id.split_once('/') {
                    None => Self::Proposal(id),
                    Some((id, "wait")) => Self::Wait(id),
                    Some(_) => return None,
                }
            }
        };
        Some(call)
    }

    fn method(&self) -> Method {
        match self {
            Self::Propose => Method::POST,
            Self::Policy | Self::Denials | Self::Proposal(_) | Self::Wait(_) | Self::Explain => {
                Method::GET
            }
        }
    }
}

fn error(status: StatusCode, code: &str, detail: impl Into<String>) -> Answer {
    (status, json!({"error": code, "detail": detail.into()}))
}

fn bad(detail: impl Into<String>) -> Answer {
    error(StatusCode::BAD_REQUEST, "bad_request", detail)
}

/// Returns the answer to a request that does not come by HTTP at port 80.
#[must_use]
pub fn wrong_scheme() -> Response<Bytes> {
    let code = "invalid_policy_local_scheme";
    response(error(StatusCode::BAD_REQUEST, code, WRONG_SCHEME))
}

fn response((status, value): Answer) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("{value}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED
        && let Some(Ok(method)) = value["allow"].as_str().map(HeaderValue::from_str)
    {
        headers.insert(ALLOW, method);
    }
    response
}

fn asks_for_skill(parts: &Parts, target: &RequestTarget) -> bool {
    parts.method == Method::GET && target.path() == SKILL_PATH
}

/// Returns the text that tells agents how to ask.
fn skill() -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(SKILL.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/markdown"));
    response
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

/// Returns the value of the parameter `name` of `target`.
fn parameter(target: &RequestTarget, name: &str) -> Result<Option<String>, Answer> {
    let parameters = target.parameters();
    let parameters = parameters.map_err(|error| bad(error.to_string()))?;
    let mut values = parameters.into_iter().filter(|(key, _)| key == name);
    let value = values.next().map(|(_, value)| value);
    if values.next().is_some() {
        return Err(bad(format!("{name} is there twice")));
    }
    Ok(value)
}

/// Returns the number of the parameter `name` of `target`, from 1 to `most`; `default` without one.
fn number(target: &RequestTarget, name: &str, default: u64, most: u64) -> Result<u64, Answer> {
    let Some(text) = parameter(target, name)? else {
        return Ok(default);
    };
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_plain);
    let number = number.filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| bad(format!("{name} is a number from 1 to {most}")))
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
            waits: Semaphore::new(WAITS),
            others: Semaphore::new(OTHERS),
        }
    }

    /// Returns what refusals tell programs that may ask.
    #[must_use]
    pub fn guidance(&self) -> &Arc<Guidance> {
        &self.guidance
    }

    /// Serves the requests of `client` on a connection of its own.
    pub async fn serve<C>(
        &self,
        services: &Services,
        stream: C,
        client: &PolicyClient,
        (session, driver): (Session, Driver),
    ) where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let answer = |request: Request<Incoming>| {
            let method = request.method().as_str();
            let path = request.uri().path();
            let Origin { scheme, target } = client.origin.clone();
            let record = Record::http(&services.audit, method, path, scheme, target);
            let mut record = record.inside(session.count());
            record.called_by(client.asker.caller().clone());
            let (parts, body) = request.into_parts();
            let checked = head::check_authority(&parts, &client.origin);
            let session = &session;
            async move {
                let response = match checked {
                    Ok(()) => {
                        let request = Request::from_parts(parts, body);
                        let asker = client.asker.clone();
                        let socket = session.socket();
                        self.answer(services, request, asker, socket, record).await
                    }
                    Err(refusal) => {
                        let detail = refusal.reason().to_owned();
                        record.finish(Outcome::Refused(&refusal));
                        response(bad(detail)).map(full)
                    }
                };
                Some(response)
            }
        };
        let protocol = protocol();
        let served = pin!(driver.serve(services, stream, &protocol, answer));
        if let Err(refusal) = served.await {
            let request = format!("CONNECT {}", client.origin.target);
            let target = Some(client.origin.target.clone());
            let mut record = Record::new(&services.audit, request, target);
            record.called_by(client.asker.caller().clone());
            record.finish(Outcome::Refused(&refusal));
        }
    }

    /// Answers `request` of `asker`, whose connection is `socket`, and finishes its `record`.
    pub async fn answer<B>(
        &self,
        services: &Services,
        request: Request<B>,
        asker: Asker,
        socket: Option<BorrowedFd<'_>>,
        mut record: Record,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Send,
    {
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
    async fn called<B>(
        &self,
        parts: &Parts,
        target: &RequestTarget,
        body: B,
        asker: Asker,
        is_secret: impl Fn(&[u8]) -> bool,
    ) -> Result<Answer, Answer>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Send,
    {
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
        let Ok(_slot) = slots.try_acquire() else {
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
            Call::Explain => self.explained(target, asker).await,
            Call::Propose => {
                let body = read(body).await?;
                if is_secret(&body) {
                    return Err(error(
                        StatusCode::BAD_REQUEST,
                        "invalid_proposal",
                        "it holds a secret, which nobody is shown",
                    ));
                }
                self.propose(&body, asker).await
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

    async fn explained(&self, target: &RequestTarget, asker: Asker) -> Result<Answer, Answer> {
        let url = parameter(target, "url")?.ok_or_else(|| bad("url=URL is missing"))?;
        let method = parameter(target, "method")?.unwrap_or_else(|| "GET".to_owned());
        let snapshot = self.policy.load();
        let explaining = tokio::task::spawn_blocking(move || {
            let caller = asker.examined();
            explain(&snapshot, &caller, &url, &method)
        });
        let explained = explaining.await.map_err(|error| bad(error.to_string()))?;
        Ok((StatusCode::OK, explained.map_err(bad)?))
    }

    async fn propose(&self, body: &[u8], asker: Asker) -> Result<Answer, Answer> {
        let Some(review) = &self.review else {
            return Err(error(
                StatusCode::SERVICE_UNAVAILABLE,
                "gateway_unavailable",
                "there is nobody to decide about it",
            ));
        };
        let caller = tokio::task::spawn_blocking(move || asker.examined()).await;
        let caller: Caller = caller.map_err(|error| bad(error.to_string()))?;
        let proposals = draft::read(body, &caller, &self.denials);
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
        let hash = match details.current_effective_policy_hash {
            Some(hash) => hash,
            None => current(&self.policy.load())?.1,
        };
        Ok((
            StatusCode::OK,
            json!({
                "chunk_id": tracked.id,
                "status": status,
                "rule_name": tracked.name,
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
    let paths: Vec<_> = proposal
        .programs
        .iter()
        .map(|program| program.path.as_str())
        .collect();
    paths.join(", ")
}

/// Checks the head of a request; returns its target.
fn checked(parts: &Parts) -> Result<RequestTarget, Refusal> {
    head::check_method(&parts.method)?;
    head::check_size(parts)?;
    head::check_framing(&parts.headers)?;
    RequestTarget::canonical(&parts.method, &parts.uri, false).map_err(Refusal::target)
}

/// Reads a body.
///
/// # Errors
/// It is too long, too slow, or cut off.
async fn read<B>(body: B) -> Result<Bytes, Answer>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Send,
{
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_long());
    }
    let body = pin!(Limited::new(body, BODY_BYTES));
    match timeout(BODY_TIME, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_long()),
        Ok(Err(_)) => Err(bad("the body is malformed, or ended before its end")),
        Err(_) => Err(bad("the body did not arrive in time")),
    }
}

fn too_long() -> Answer {
    error(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("a body has at most {BODY_BYTES} bytes"),
    )
}
