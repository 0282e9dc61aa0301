//! Permit and message to leave to send it, or to a refusal.

use std::sync::Arc;

use hyper::{Method, Uri};
use openshell_policy::reason::ReasonCode;
use tokio::sync::Semaphore;

use crate::decide::action::{Action, Message};
use crate::decide::permit::Permit;
use crate::decide::rules::MessageVerdict;
use crate::denial::refusal::{JudgedRequest, Refusal};

/// Leave to send one message. Only [`judge`] makes one.
#[derive(Debug)]
pub struct MessagePermit {
    policy: Option<String>,
    judged: Judged,
}

/// Outcome of judging a message that may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// No rules judge the messages of its connection.
    Unjudged,
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

impl MessagePermit {
    /// The smallest key of a policy that permits it, if the rules name one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// The outcome.
    #[must_use]
    pub fn judged(&self) -> &Judged {
        &self.judged
    }
}

/// Judges `action` inside a connection that `permit` is for. An evaluation that may take long waits for one of `slots`, and runs on
/// a thread of its own.
///
/// # Errors
/// The refusal, and for an engine that failed, a refusal too.
pub async fn judge(slots: &Arc<Semaphore>, permit: &Permit, action: &Action) -> Result<MessagePermit, Refusal> {
    if let Some(rules) = permit.rules().filter(|rules| rules.is_slow_for(action)) {
        let (rules, action) = (Arc::clone(rules), action.clone());
        // An evaluation that has begun keeps its slot, also when its client gives up.
        let slot = Arc::clone(slots).acquire_owned().await.map_err(|error| Refusal::engine(error.to_string()))?;
        let evaluated = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            rules.verdict(&action).map(drop)
        });
        evaluated.await.map_err(|error| Refusal::engine(error.to_string()))??;
    }
    judge_now(permit, action)
}

/// As [`judge`], for a request that is written out.
///
/// # Errors
/// As [`judge`], and that it is no request.
pub fn ask(permit: &Permit, method: &str, target: &str) -> Result<MessagePermit, Refusal> {
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| Refusal::bad_request("the method is no method"))?;
    let uri: Uri = target.parse().map_err(|_| Refusal::bad_request("the path is no path"))?;
    judge_now(permit, &permit.action(&Message::Http { method, uri })?)
}

/// As [`judge`], on the thread of the caller.
///
/// # Errors
/// As [`judge`].
pub fn judge_now(permit: &Permit, action: &Action) -> Result<MessagePermit, Refusal> {
    let Some(rules) = permit.rules() else {
        return Ok(MessagePermit { policy: permit.policy().map(str::to_owned), judged: Judged::Unjudged });
    };
    match &*rules.verdict(action)? {
        MessageVerdict::Allow { policy } => Ok(MessagePermit { policy: policy.clone(), judged: Judged::Allowed }),
        MessageVerdict::Deny { fault, policy, reason } if rules.are_enforced() && !permit.is_observed() => {
            let (method, path) = action.rule();
            let request = JudgedRequest { policy: policy.clone(), method, path, fault: *fault };
            Err(Refusal::request(reason.clone(), request))
        }
        MessageVerdict::Deny { fault, policy, reason } => {
            let judged = Judged::Audited { code: fault.code(), reason: reason.clone() };
            Ok(MessagePermit { policy: policy.clone(), judged })
        }
    }
}
