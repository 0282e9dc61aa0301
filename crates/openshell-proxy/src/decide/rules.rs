//! The rules for the messages of one connection, evaluated over the slice of the policy that they
//! need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openshell_policy::network::endpoint::{Endpoint, L7, UpgradeProtocol};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use regorus::Value;

use crate::decide::engine::{Engine, EngineError, Query};
use crate::decide::message::http::Reads;
use crate::decide::message::{Action, JudgedProtocol};
use crate::decide::paths::{Ambiguous, Counting, Paths};
use crate::denial::judged::{At, RequestFault};
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::wire::http::target::RequestTarget;

/// The rules of one connection.
pub struct Rules {
    /// Separates its cached decisions from those of other connections.
    id: u64,
    protocol: JudgedProtocol,
    slice: Slice,
    /// The endpoints that judge messages.
    paths: Paths,
    takes_encoded_slash: bool,
    /// The parts of messages that the rules read.
    reads: Reads,
    /// True if an evaluation is too slow for a connection thread.
    is_costly: bool,
    cache: Arc<MessageCache>,
}

/// The slice of a policy that judges the messages of one connection.
pub(super) struct Slice {
    pub(super) engine: Engine,
    /// False for custom rules, which may read any data.
    pub(super) is_built_in: bool,
    /// The caller and the target, as input of the engine.
    pub(super) input: BTreeMap<Value, Value>,
    /// The key of the policy that is named if no rule names one.
    pub(super) policy: Option<String>,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules")
            .field("policy", &self.slice.policy)
            .finish_non_exhaustive()
    }
}

/// The cached decisions on messages of one generation.
pub(super) type MessageCache = Cache<MessageKey, Arc<MessageVerdict>, MessageWeighter>;

/// The input of a decision on a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MessageKey {
    rules: u64,
    action: Action,
}

/// Weighs a cached decision by the bytes in it that the workload chose.
#[derive(Clone, Debug)]
pub(super) struct MessageWeighter;

impl Weighter<MessageKey, Arc<MessageVerdict>> for MessageWeighter {
    fn weight(&self, key: &MessageKey, verdict: &Arc<MessageVerdict>) -> u64 {
        let reason = match &**verdict {
            MessageVerdict::Allow { .. } => 0,
            MessageVerdict::Deny { reason, .. } => reason.len(),
        };
        (key.action.bytes() + reason).max(Limits::DECISION_BYTES) as u64
    }
}

/// The verdict of the rules on one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessageVerdict {
    Allow {
        policy: Option<String>,
    },
    Deny {
        fault: RequestFault,
        policy: Option<String>,
        reason: String,
        /// False if the message passes, and is only recorded.
        is_enforced: bool,
    },
}

/// Maximum number of rules that are evaluated on a connection thread; more may take milliseconds.
const CHEAP_RULES: usize = 200;

impl Rules {
    /// Returns the rules for the connection of `slice`, which `endpoints` permit; `None` if no
    /// endpoint judges messages.
    pub(super) fn new(
        slice: Slice,
        endpoints: &[Endpoint],
        cache: Arc<MessageCache>,
    ) -> Option<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let mut protocol = None;
        let mut judging: Vec<(&Endpoint, &L7)> = Vec::new();
        for endpoint in endpoints {
            if let Some((of_endpoint, l7)) = JudgedProtocol::of(endpoint) {
                protocol.get_or_insert(of_endpoint);
                judging.push((endpoint, l7));
            }
        }
        let protocol = protocol?;
        let count: usize = judging
            .iter()
            .map(|(_, l7)| l7.rules.len() + l7.deny_rules.len())
            .sum();
        let paths = Paths::new(
            judging
                .iter()
                .map(|(endpoint, _)| (*endpoint).clone())
                .collect(),
        );
        Some(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            protocol,
            takes_encoded_slash: judging
                .iter()
                .all(|(endpoint, _)| endpoint.takes_encoded_slash()),
            reads: Reads {
                queries: !slice.is_built_in || judging.iter().any(|(_, l7)| has_query(l7)),
                readings: !slice.is_built_in
                    || judging.iter().any(|(_, l7)| !l7.deny_rules.is_empty()),
            },
            paths,
            is_costly: !slice.is_built_in || count > CHEAP_RULES,
            slice,
            cache,
        })
    }

    /// Returns the protocol of the judged messages.
    #[must_use]
    pub(super) fn protocol(&self) -> JudgedProtocol {
        self.protocol
    }

    /// Returns true if a path may contain `%2F`.
    #[must_use]
    pub fn takes_encoded_slash(&self) -> bool {
        self.takes_encoded_slash
    }

    /// Returns true if a request for `target` may switch to `upgrade`.
    #[must_use]
    pub fn permit_upgrade(&self, target: &RequestTarget, upgrade: &UpgradeProtocol) -> bool {
        let counting = self.paths.counting(target);
        counting.is_ok_and(|counting| counting.permits(upgrade))
    }

    /// Returns true if a request for `target` that no rule allows is refused.
    #[must_use]
    pub fn are_enforced(&self, target: &RequestTarget) -> bool {
        let counting = self.paths.counting(target);
        counting.is_ok_and(|counting| counting.is_enforced())
    }

    /// Returns true if judging `action` is too slow for a connection thread.
    pub(super) fn is_slow_for(&self, action: &Action) -> bool {
        self.is_costly && self.cache.peek(&self.key(action)).is_none()
    }

    /// Evaluates the rules on `action`; results are cached.
    ///
    /// # Errors
    /// A part of the message that the rules read cannot be decoded, or the evaluation fails.
    pub(super) fn verdict(&self, action: &Action) -> Result<Arc<MessageVerdict>, Refusal> {
        action.check(self.reads)?;
        let key = self.key(action);
        let verdict = self
            .cache
            .get_or_insert_with(&key, || self.evaluate(&key.action).map(Arc::new));
        verdict.map_err(|error| Refusal::engine(error.to_string()))
    }

    fn key(&self, action: &Action) -> MessageKey {
        MessageKey {
            rules: self.id,
            action: action.key(self.reads),
        }
    }

    /// Evaluates the rules on every way in which an upstream may read `action`; all must be
    /// permitted.
    fn evaluate(&self, action: &Action) -> Result<MessageVerdict, EngineError> {
        let counting = match self.paths.counting(action.target()) {
            Ok(counting) => counting,
            Err(Ambiguous(path)) => return Ok(self.ambiguous(path)),
        };
        if counting.is_empty() {
            return Ok(self.nowhere(action));
        }
        let (form, other) = action.inputs(self.reads).map_err(EngineError::Evaluate)?;
        let verdict = self.evaluate_form(form, &counting)?;
        match (verdict, other) {
            (MessageVerdict::Allow { policy }, Some(other)) => {
                match self.evaluate_form(other, &counting)? {
                    MessageVerdict::Allow { .. } => Ok(MessageVerdict::Allow { policy }),
                    deny @ MessageVerdict::Deny { .. } => Ok(deny),
                }
            }
            (verdict, _) => Ok(verdict),
        }
    }

    /// Returns the verdict on a request that a server may read as one for another endpoint, by whose
    /// rules it was not judged. That endpoint may have a `path`.
    fn ambiguous(&self, path: Option<String>) -> MessageVerdict {
        let which = match &path {
            Some(path) => format!("the endpoint with `path: {path}`"),
            None => "an endpoint without `path`".to_owned(),
        };
        MessageVerdict::Deny {
            fault: RequestFault::Ambiguous(path),
            policy: self.slice.policy.clone(),
            reason: format!("a server may read its path as one for {which}"),
            is_enforced: true,
        }
    }

    /// Returns the verdict on a message for which no endpoint counts.
    fn nowhere(&self, action: &Action) -> MessageVerdict {
        let (method, path) = action.rule();
        MessageVerdict::Deny {
            fault: RequestFault::NoRule(At::Nowhere),
            policy: self.slice.policy.clone(),
            reason: format!("{method} {path} not permitted by policy"),
            is_enforced: true,
        }
    }

    /// Evaluates the rules on one reading of a message, which is `request` in their input.
    fn evaluate_form(
        &self,
        request: Value,
        counting: &Counting<'_>,
    ) -> Result<MessageVerdict, EngineError> {
        let mut input = self.slice.input.clone();
        input.insert(Value::from("request"), request);
        let mut session = self.slice.engine.about(Value::from(input))?;
        let named = |policy: Option<String>| policy.or_else(|| self.slice.policy.clone());
        if session.ask(Query::AllowRequest)? == Some(Value::from(true)) {
            return Ok(MessageVerdict::Allow {
                policy: named(session.ask_text(Query::AllowingPolicy)?),
            });
        }
        let denying = session.ask_text(Query::DenyingPolicy)?;
        let reason = session.ask_text(Query::RequestDenyReason)?;
        let mut reason = reason.unwrap_or_else(|| "request denied by policy".to_owned());
        reason.truncate(reason.floor_char_boundary(Limits::REASON_BYTES));
        let fault = if denying.is_some() {
            RequestFault::DenyRule
        } else {
            RequestFault::NoRule(counting.at())
        };
        Ok(MessageVerdict::Deny {
            fault,
            policy: named(denying),
            reason,
            is_enforced: counting.is_enforced(),
        })
    }
}

/// Returns true if a rule looks at the query.
fn has_query(l7: &L7) -> bool {
    let denied = l7.deny_rules.iter().map(|deny| &deny.rule);
    l7.rules
        .iter()
        .chain(denied)
        .any(|rule| !rule.query.is_empty())
}
