//! Permit and request to leave to send it, or to a refusal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::{Method, Uri};
use openshell_policy::denial::ReasonCode;
use openshell_policy::network::endpoint::{Endpoint, Enforcement, L7, Protocol};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use regorus::Value;
use serde_json::json;

use tokio::sync::Semaphore;

use crate::decide::connection::Permit;
use crate::decide::engine::{Engine, EngineError, Query};
use crate::http::target::{RequestTarget, decoded, folded};
use crate::limits::Limits;
use crate::refusal::Refusal;

/// What the rules of one connection say about its requests.
pub struct RequestRules {
    /// Tells this connection's questions from others' in what is remembered.
    id: u64,
    engine: Engine,
    /// Who asks, and where.
    connection: BTreeMap<Value, Value>,
    enforcement: Enforcement,
    takes_encoded_slash: bool,
    /// The policy that is named where no rule is.
    policy: Option<String>,
    /// Whether queries make a difference…
    reads_queries: bool,
    /// …and other readings of the path.
    reads_readings: bool,
    /// Whether an evaluation may take longer than a thread that serves others can spare.
    is_costly: bool,
    remembered: Arc<Remembered>,
}

impl std::fmt::Debug for RequestRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestRules").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Decisions on requests that one generation remembers.
pub(super) type Remembered = Cache<Question, Arc<RequestVerdict>, QuestionBytes>;

/// What a decision on a request depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Question {
    rules: u64,
    method: Method,
    target: RequestTarget,
}

/// Weighs decisions by what the workload chooses of them.
#[derive(Clone, Debug)]
pub(super) struct QuestionBytes;

impl Weighter<Question, Arc<RequestVerdict>> for QuestionBytes {
    fn weight(&self, question: &Question, verdict: &Arc<RequestVerdict>) -> u64 {
        let target = &question.target;
        let texts = [Some(target.path()), target.without_parameters(), target.query(), Some(question.method.as_str())];
        let bytes: usize = texts.iter().flatten().map(|text| text.len()).sum();
        let reason = match &**verdict {
            RequestVerdict::Allow { .. } => 0,
            RequestVerdict::Deny { reason, .. } => reason.len(),
        };
        (bytes + reason).max(Limits::DECISION_BYTES) as u64
    }
}

/// What the rules say about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestVerdict {
    Allow { policy: Option<String> },
    Deny { code: ReasonCode, policy: Option<String>, reason: String },
}

/// Rules that are evaluated on the thread that serves the connection; more may take milliseconds.
const CHEAP_RULES: usize = 200;

impl RequestRules {
    /// The rules of a connection of `exec` to `network`, as the engine reads those, that `endpoints` permit; `None` where none of
    /// them judges requests. `engine` holds what these rules need of the policy, and no more.
    pub(super) fn new(
        (engine, is_built_in): (Engine, bool),
        (exec, network): (serde_json::Value, serde_json::Value),
        endpoints: &[Endpoint],
        policy: Option<String>,
        remembered: Arc<Remembered>,
    ) -> Option<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let judging: Vec<&L7> = endpoints.iter().filter_map(judges).collect();
        if judging.is_empty() {
            return None;
        }
        let is_enforced = judging.iter().any(|l7| l7.enforcement == Enforcement::Enforce);
        let rules: usize = judging.iter().map(|l7| l7.rules.len() + l7.deny_rules.len()).sum();
        let key = |name: &str| Value::from(name);
        Some(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            engine,
            connection: [(key("exec"), Value::from(exec)), (key("network"), Value::from(network))].into(),
            enforcement: if is_enforced { Enforcement::Enforce } else { Enforcement::Audit },
            takes_encoded_slash: endpoints
                .iter()
                .filter(|endpoint| judges(endpoint).is_some())
                .all(Endpoint::takes_encoded_slash),
            policy,
            reads_queries: !is_built_in
                || judging.iter().any(|l7| {
                    l7.rules
                        .iter()
                        .chain(l7.deny_rules.iter().map(|deny| &deny.rule))
                        .any(|rule| !rule.query.is_empty())
                }),
            reads_readings: !is_built_in || judging.iter().any(|l7| !l7.deny_rules.is_empty()),
            is_costly: !is_built_in || rules > CHEAP_RULES,
            remembered,
        })
    }

    /// Whether `%2F` may stand in a path.
    #[must_use]
    pub fn takes_encoded_slash(&self) -> bool {
        self.takes_encoded_slash
    }

    /// Whether requests that no rule allows are refused.
    #[must_use]
    pub fn are_enforced(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    fn question(&self, method: &Method, target: &RequestTarget) -> Question {
        let target = if self.reads_queries { target.clone() } else { target.without_query() };
        Question { rules: self.id, method: method.clone(), target }
    }

    fn evaluate(&self, method: &Method, target: &RequestTarget) -> Result<RequestVerdict, EngineError> {
        let verdict = self.evaluate_path(method, target, target.path())?;
        match target.without_parameters() {
            // Whichever way the upstream reads it, it must be permitted.
            Some(other) if matches!(verdict, RequestVerdict::Allow { .. }) => {
                let other = self.evaluate_path(method, target, other)?;
                Ok(if matches!(other, RequestVerdict::Allow { .. }) { verdict } else { other })
            }
            _ => Ok(verdict),
        }
    }

    fn evaluate_path(
        &self,
        method: &Method,
        target: &RequestTarget,
        path: &str,
    ) -> Result<RequestVerdict, EngineError> {
        let mut parameters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in target.parameters().map_err(|error| EngineError::Evaluate(error.to_string()))? {
            parameters.entry(name).or_default().push(value);
        }
        let readings = if self.reads_readings { readings(path) } else { Vec::new() };
        let request =
            json!({ "method": method.as_str(), "path": path, "readings": readings, "query_params": parameters });
        let mut input = self.connection.clone();
        input.insert(Value::from("request"), Value::from(request));
        let mut session = self.engine.about(Value::from(input))?;
        let named = |policy: Option<String>| policy.or_else(|| self.policy.clone());
        if session.ask(Query::AllowRequest)? == Some(json!(true)) {
            return Ok(RequestVerdict::Allow { policy: named(session.ask_text(Query::AllowingPolicy)?) });
        }
        let denying = session.ask_text(Query::DenyingPolicy)?;
        let reason = session.ask_text(Query::RequestDenyReason)?;
        let mut reason = reason.unwrap_or_else(|| "request denied by policy".to_owned());
        reason.truncate(reason.floor_char_boundary(Limits::REASON_BYTES));
        let code = if denying.is_some() { ReasonCode::RequestInDenyRules } else { ReasonCode::RequestNotInRules };
        Ok(RequestVerdict::Deny { code, policy: named(denying), reason })
    }
}

/// What servers may take the canonical `path` for: as it is; percent-decoded; and that without parameters, and without dots and blanks at
/// the end of segments. Repeated slashes are folded, and each is with and without a slash at its end.
fn readings(path: &str) -> Vec<String> {
    let mut all = Vec::with_capacity(4);
    let whole = decoded(path);
    let bare = |segment: &str| {
        let name = segment.split(';').next().unwrap_or_default();
        name.trim_end_matches([' ', '.']).to_owned()
    };
    let bare: Vec<_> = whole.split('/').map(bare).collect();
    for reading in [path.to_owned(), folded(&whole), folded(&bare.join("/"))] {
        let bare = reading.trim_end_matches('/');
        for reading in [bare.to_owned(), format!("{bare}/")] {
            if !reading.is_empty() && !all.contains(&reading) {
                all.push(reading);
            }
        }
    }
    all
}

/// What `endpoint` says about requests; other protocols are relayed as bytes.
fn judges(endpoint: &Endpoint) -> Option<&L7> {
    endpoint.l7().filter(|l7| l7.protocol == Protocol::Rest)
}

/// Leave to send one request. Only [`judge`] makes one.
#[derive(Debug)]
pub struct RequestPermit {
    policy: Option<String>,
    judged: Judged,
}

/// How a request came to its leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// No rules judge the requests of its connection.
    Unseen,
    /// A rule allows it.
    Allowed,
    /// No rule does, for this reason, and the rules only record that.
    Audited {
        /// In one word.
        code: ReasonCode,
        /// In a sentence.
        reason: String,
    },
}

impl RequestPermit {
    /// The smallest key of a policy that permits it, if the rules name one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// How it came to it.
    #[must_use]
    pub fn judged(&self) -> &Judged {
        &self.judged
    }
}

/// Judges a `method` request for `target` inside a connection that `permit` is for, if it takes long when its turn comes.
///
/// # Errors
/// The refusal, and for an engine that failed, a refusal too.
pub async fn judge(
    turns: &Arc<Semaphore>,
    permit: &Permit,
    method: &Method,
    target: &RequestTarget,
) -> Result<RequestPermit, Refusal> {
    let Some(rules) = permit.rules().filter(|rules| rules.is_costly) else {
        return judge_now(permit, method, target);
    };
    if rules.reads_queries {
        target.parameters().map_err(Refusal::Target)?;
    }
    let question = rules.question(method, target);
    if rules.remembered.peek(&question).is_none() {
        let rules = Arc::clone(rules);
        // Whoever gives up has begun, and waits for nobody.
        let turn = Arc::clone(turns).acquire_owned().await.map_err(|error| Refusal::Engine(error.to_string()))?;
        let evaluated = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let verdict = rules.evaluate(&question.method, &question.target)?;
            rules.remembered.insert(question, Arc::new(verdict));
            Ok::<_, EngineError>(())
        });
        let evaluated = evaluated.await.map_err(|error| Refusal::Engine(error.to_string()))?;
        evaluated.map_err(|error| Refusal::Engine(error.to_string()))?;
    }
    judge_now(permit, method, target)
}

/// As [`judge`], for a request that somebody wrote down.
///
/// # Errors
/// As [`judge`], and that it is no request.
pub fn ask(permit: &Permit, method: &str, target: &str) -> Result<RequestPermit, Refusal> {
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| Refusal::BadRequest("the method is no method"))?;
    let uri: Uri = target.parse().map_err(|_| Refusal::BadRequest("the path is no path"))?;
    let target = permit.request_target(&method, &uri)?;
    judge_now(permit, &method, &target)
}

/// As [`judge`], on the thread of the caller.
///
/// # Errors
/// As [`judge`].
pub fn judge_now(permit: &Permit, method: &Method, target: &RequestTarget) -> Result<RequestPermit, Refusal> {
    let Some(rules) = permit.rules() else {
        return Ok(RequestPermit { policy: permit.policy().map(str::to_owned), judged: Judged::Unseen });
    };
    if rules.reads_queries {
        target.parameters().map_err(Refusal::Target)?;
    }
    let question = rules.question(method, target);
    let evaluate = || rules.evaluate(method, &question.target).map(Arc::new);
    let verdict = rules.remembered.get_or_insert_with(&question, evaluate);
    match &*verdict.map_err(|error| Refusal::Engine(error.to_string()))? {
        RequestVerdict::Allow { policy } => Ok(RequestPermit { policy: policy.clone(), judged: Judged::Allowed }),
        RequestVerdict::Deny { code, policy, reason } if rules.are_enforced() && !permit.is_observed() => {
            Err(Refusal::Request {
                code: *code,
                reason: reason.clone(),
                policy: policy.clone(),
                rule: (method.to_string(), target.path().to_owned()),
            })
        }
        RequestVerdict::Deny { code, policy, reason } => {
            let judged = Judged::Audited { code: *code, reason: reason.clone() };
            Ok(RequestPermit { policy: policy.clone(), judged })
        }
    }
}
