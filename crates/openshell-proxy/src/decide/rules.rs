//! The rules for the messages of one connection, evaluated over the slice of the policy that they
//! need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::Method;
use openshell_policy::network::endpoint::{Endpoint, L7, Protocol, UpgradeProtocol};
use openshell_policy::network::rpc::{Revision, RpcRules, is_strict_name};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use regorus::Value;

use crate::decide::engine::{Decision, Engine, EngineError};
use crate::decide::entries::{Entries, Names};
use crate::decide::message::http::{HttpRequest, Reads};
use crate::decide::message::rpc::conditions::Conditions;
use crate::decide::message::rpc::list::{self, ListKind};
use crate::decide::message::rpc::{self, RpcKind, RpcMessage, RpcSettings};
use crate::decide::message::{Action, Input, Message, Need, Reading, judging};
use crate::decide::paths::{Ambiguous, Counting, Paths};
use crate::denial::judged::{At, RequestFault};
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::wire::http::target::RequestTarget;

/// The rules of one connection.
pub struct Rules {
    /// Separates its cached decisions from those of other connections.
    id: u64,
    slice: Slice,
    /// The endpoints that judge messages.
    paths: Paths,
    /// True if an endpoint judges messages in bodies.
    judges_bodies: bool,
    /// The conditions on arguments in their rules.
    conditions: Conditions,
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
        let judging: Vec<(&Endpoint, &L7)> = endpoints
            .iter()
            .filter_map(|endpoint| Some((endpoint, judging(endpoint)?)))
            .collect();
        if judging.is_empty() {
            return None;
        }
        let rpc = || judging.iter().filter_map(|(_, l7)| l7.rpc.as_ref());
        let count: usize = judging.iter().map(|(_, l7)| l7.count()).sum();
        let paths = Paths::new(
            judging
                .iter()
                .map(|(endpoint, _)| (*endpoint).clone())
                .collect(),
        );
        Some(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            judges_bodies: rpc().next().is_some(),
            conditions: Conditions::of(rpc()),
            takes_encoded_slash: judging
                .iter()
                .all(|(endpoint, _)| endpoint.takes_encoded_slash()),
            reads: Reads {
                queries: !slice.is_built_in || judging.iter().any(|(_, l7)| has_query(l7)),
                readings: !slice.is_built_in || judging.iter().any(|(_, l7)| l7.has_deny_rules()),
                whole_messages: !slice.is_built_in,
            },
            paths,
            is_costly: !slice.is_built_in || count > CHEAP_RULES,
            slice,
            cache,
        })
    }

    /// Returns the word for the protocol of the judged messages.
    #[must_use]
    pub(super) fn protocol(&self) -> &'static str {
        let mut l7 = self.paths.endpoints().filter_map(judging);
        l7.next().map_or("", |l7| l7.protocol.as_str())
    }

    /// Returns the parts of messages that the rules read.
    #[cfg(test)]
    pub(in crate::decide) fn reads(&self) -> Reads {
        self.reads
    }

    /// Returns true if an endpoint judges messages in bodies.
    #[must_use]
    pub(super) fn judge_bodies(&self) -> bool {
        self.judges_bodies
    }

    /// Returns the part of the request `http` that the rules need.
    pub(super) fn need(&self, http: &HttpRequest) -> Need {
        let Ok(counting) = self.paths.counting(&http.target) else {
            return Need::Head;
        };
        match counting.rpc().map(|rules| rules.max_body_bytes).min() {
            None => Need::Head,
            Some(most) if http.method == Method::POST => Need::Body(most),
            // The protocols have no other requests with a body.
            Some(_) => Need::Prefix(1),
        }
    }

    /// Reads the messages in `message`, whose head has the canonical form `http`.
    ///
    /// # Errors
    /// It holds no message, or a server could find other messages in it.
    pub(super) fn read(&self, http: HttpRequest, message: &Message) -> Result<Reading, Refusal> {
        let counting = match self.paths.counting(&http.target) {
            Ok(counting) if self.judges_bodies => counting,
            // The verdict says why it is ambiguous.
            _ => return Ok(Reading::of_head(http)),
        };
        let protocol = match counting.protocol() {
            Some(protocol) if protocol.is_rpc() => protocol,
            _ => return Ok(Reading::of_head(http)),
        };
        let Some(head) = &message.head else {
            return Err(unread());
        };
        let settings = RpcSettings {
            protocol,
            versions: counting.versions(),
            conditions: &self.conditions,
        };
        let http = Arc::new(http);
        let messages = rpc::read(&http, head, &message.ahead, &settings)?;
        Ok(Reading {
            target: http.target.clone(),
            actions: messages
                .into_iter()
                .map(|message| Action::Rpc(Box::new(message)))
                .collect(),
        })
    }

    /// Returns true if an endpoint has a path.
    #[must_use]
    pub(super) fn have_paths(&self) -> bool {
        let mut endpoints = self.paths.endpoints();
        endpoints.any(|endpoint| endpoint.path().is_some())
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

    /// Returns the endpoints whose rules could allow a request for `target`.
    #[must_use]
    pub(super) fn at(&self, target: &RequestTarget) -> At {
        let counting = self.paths.counting(target);
        counting.map_or(At::Nowhere, |counting| counting.at())
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
            Err(ambiguous) => return Ok(self.ambiguous(ambiguous)),
        };
        if counting.is_empty() {
            return Ok(self.nowhere(action));
        }
        if let Some(message) = action.rpc()
            && let Some(denied) = self.denied(message, &counting)
        {
            return Ok(denied);
        }
        let decision = action.decision();
        let (form, other) = action.inputs(self.reads).map_err(EngineError::Evaluate)?;
        let verdict = self.evaluate_form(form, decision, &counting)?;
        match (verdict, other) {
            (MessageVerdict::Allow { policy }, Some(other)) => {
                match self.evaluate_form(other, decision, &counting)? {
                    MessageVerdict::Allow { .. } => Ok(MessageVerdict::Allow { policy }),
                    deny @ MessageVerdict::Deny { .. } => Ok(deny),
                }
            }
            (verdict, _) => Ok(verdict),
        }
    }

    /// Returns the verdict on a message that is refused whatever the rules say of its method.
    fn denied(&self, message: &RpcMessage, counting: &Counting<'_>) -> Option<MessageVerdict> {
        let deny = |fault: RequestFault, reason: String| MessageVerdict::Deny {
            fault,
            policy: self.slice.policy.clone(),
            reason,
            is_enforced: counting.is_enforced(),
        };
        let no_rule = || RequestFault::NoRule(counting.at());
        let protocol = message.protocol.as_str();
        match message.kind {
            RpcKind::Other => {
                let method = &message.http.method;
                return Some(deny(
                    no_rule(),
                    format!("`protocol: {protocol}` has no such {method}"),
                ));
            }
            RpcKind::Response if !has_responses(message) => {
                let reason = format!("`protocol: {protocol}` has no such answers");
                return Some(deny(no_rule(), reason));
            }
            RpcKind::Request
            | RpcKind::Notification
            | RpcKind::Response
            | RpcKind::Stream
            | RpcKind::End
            | RpcKind::Preflight => {}
        }
        let versions = counting.versions();
        if let Some(requested) = &message.revision
            && !Revision::parse(requested).is_ok_and(|revision| versions.contains(&revision))
        {
            let fault = RequestFault::Version {
                supported: versions.into_iter().collect(),
                requested: requested.clone(),
            };
            return Some(deny(
                fault,
                format!("MCP {requested} is not permitted by policy"),
            ));
        }
        let mut mcp = counting.rpc().filter_map(|rules| rules.mcp.as_ref());
        let is_strict = mcp.any(|mcp| mcp.strict_tool_names);
        let tool = message
            .tool
            .as_ref()
            .filter(|tool| is_strict && !is_strict_name(tool))?;
        let reason =
            format!("the name of the tool {tool} has characters that the policy does not permit");
        Some(deny(no_rule(), reason))
    }

    /// Returns the judge of the entries of a list that the answer to a request for `target` holds.
    pub fn entries(
        &self,
        target: &RequestTarget,
        kind: ListKind,
    ) -> Entries<impl Fn(&str) -> bool> {
        let endpoints = self.paths.endpoints().filter_map(judging);
        let endpoints = endpoints.filter_map(|l7| l7.rpc.as_ref());
        // Foreign rules may tell any names apart.
        let names = if self.slice.is_built_in {
            Names::of(kind, endpoints)
        } else {
            None
        };
        Entries::new(move |name| self.permit_entry(target, kind, name), names)
    }

    /// Returns true if a client may see the entry `name` of a list that the answer to a request for
    /// `target` holds, because it could be used.
    fn permit_entry(&self, target: &RequestTarget, kind: ListKind, name: &str) -> bool {
        let Ok(counting) = self.paths.counting(target) else {
            return false;
        };
        let mut mcp = counting.rpc().filter_map(|rules| rules.mcp.as_ref());
        if !mcp.any(|mcp| mcp.filters_lists) {
            return true;
        }
        if kind == ListKind::Templates {
            // Foreign rules judge only what is named.
            let is_allowed = |rules: &RpcRules| list::allow_template(rules, name);
            return !counting.is_enforced()
                || !self.slice.is_built_in
                || counting.rpc().any(is_allowed);
        }
        let http = HttpRequest {
            method: Method::POST,
            target: target.clone(),
        };
        let message = list::use_of(Arc::new(http), kind, name, &self.conditions);
        let verdict = self.verdict(&Action::Rpc(Box::new(message)));
        verdict.is_ok_and(|verdict| match &*verdict {
            MessageVerdict::Allow { .. } => true,
            MessageVerdict::Deny { is_enforced, .. } => !is_enforced,
        })
    }

    /// Returns the verdict on a request that a server may read as one for another endpoint, by whose
    /// rules it was not judged. That endpoint may have a `path`.
    fn ambiguous(&self, ambiguous: Ambiguous) -> MessageVerdict {
        let which = |path: &Option<String>| match path {
            Some(path) => format!("the endpoint with `path: {path}`"),
            None => "an endpoint without `path`".to_owned(),
        };
        let (path, reason) = match ambiguous {
            Ambiguous::Path(path) => {
                let reason = format!("a server may read its path as one for {}", which(&path));
                (path, reason)
            }
            Ambiguous::Protocols(path) => {
                let reason = format!("{} has another `protocol` than one beside it", which(&path));
                (path, reason)
            }
        };
        MessageVerdict::Deny {
            fault: RequestFault::Ambiguous(path),
            policy: self.slice.policy.clone(),
            reason,
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

    /// Returns the `decision` of the rules on one reading of a message, whose parts are `form`.
    fn evaluate_form(
        &self,
        form: Input,
        decision: Decision,
        counting: &Counting<'_>,
    ) -> Result<MessageVerdict, EngineError> {
        let mut input = self.slice.input.clone();
        input.extend(form);
        let mut session = self.slice.engine.about(Value::from(input))?;
        let decided = session.decide(decision)?;
        let named = |policy: Option<String>| policy.or_else(|| self.slice.policy.clone());
        if decided.is_permitted {
            return Ok(MessageVerdict::Allow {
                policy: named(decided.policy),
            });
        }
        let reason = decided.reason;
        let mut reason = reason.unwrap_or_else(|| "request denied by policy".to_owned());
        reason.truncate(reason.floor_char_boundary(Limits::REASON_BYTES));
        let fault = if decided.policy.is_some() {
            RequestFault::DenyRule
        } else {
            RequestFault::NoRule(counting.at())
        };
        Ok(MessageVerdict::Deny {
            fault,
            policy: named(decided.policy),
            reason,
            is_enforced: counting.is_enforced(),
        })
    }
}

/// Returns true if clients answer requests of servers by messages like this one.
fn has_responses(message: &RpcMessage) -> bool {
    let revision = message.revision.as_deref().map(Revision::parse);
    let is_stateless = matches!(revision, Some(Ok(revision)) if revision.is_stateless());
    message.protocol == Protocol::Mcp && !is_stateless
}

/// Returns the refusal of a request of which too little was read.
pub(super) fn unread() -> Refusal {
    let reason = "the policy now has rules for a part of the request that the proxy did not read";
    Refusal::policy_changed(reason.to_owned())
}

/// Returns true if a rule looks at the query.
fn has_query(l7: &L7) -> bool {
    let denied = l7.deny_rules.iter().map(|deny| &deny.rule);
    l7.rules
        .iter()
        .chain(denied)
        .any(|rule| !rule.query.is_empty())
}
