//! The decision on a message: a permit to send it, or a refusal.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, Uri};
use openshell_events::reason::ReasonCode;
use tokio::sync::Semaphore;

use crate::decide::message::rpc::head::RpcHead;
use crate::decide::message::{Action, Ahead, Message, Need};
use crate::decide::permit::Permit;
use crate::decide::rules::MessageVerdict;
use crate::denial::judged::RequestFault;
use crate::denial::refusal::Refusal;

/// A permit to send one message. Only the functions of this module make one.
#[derive(Debug)]
pub struct MessagePermit {
    policy: Option<String>,
    judged: Judged,
}

/// The judgement of a message that may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The connection has no rules for messages.
    Unjudged,
    /// A rule allows it.
    Allowed,
    /// No rule allows it, but the rules are only audited.
    Audited {
        /// The reason code.
        code: ReasonCode,
        /// The reason in a sentence.
        reason: String,
    },
}

impl MessagePermit {
    /// Returns the key of the policy that permits it (the smallest, if several do), if the rules
    /// name one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns the judgement.
    #[must_use]
    pub fn judged(&self) -> &Judged {
        &self.judged
    }
}

/// Judges `action` in a connection that has `permit`. A costly evaluation waits for one of `slots`
/// and runs on a blocking thread.
///
/// # Errors
/// The policy refuses the message, or the engine fails.
pub async fn judge(
    slots: &Arc<Semaphore>,
    permit: &Permit,
    action: &Action,
) -> Result<MessagePermit, Refusal> {
    if let Some(rules) = permit.rules().filter(|rules| rules.is_slow_for(action)) {
        let rules = Arc::clone(rules);
        let action = action.clone();
        // An evaluation that has started keeps its slot even if its client gives up.
        let slot = Arc::clone(slots)
            .acquire_owned()
            .await
            .map_err(|error| Refusal::engine(error.to_string()))?;
        let evaluated = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            rules.verdict(&action).map(drop)
        });
        evaluated
            .await
            .map_err(|error| Refusal::engine(error.to_string()))??;
    }
    judge_now(permit, action)
}

/// Judges like [`judge`], but on the calling thread, a request that is given as text.
///
/// # Errors
/// As for [`judge`], or the text is not a request.
pub fn ask(permit: &Permit, method: &str, target: &str) -> Result<MessagePermit, Refusal> {
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| Refusal::bad_request("the method is not valid"))?;
    let uri: Uri = target
        .parse()
        .map_err(|_| Refusal::bad_request("the path is not valid"))?;
    let message = Message {
        head: Some(Arc::new(RpcHead::of_client(&[]))),
        ..Message::of_head(method, uri)
    };
    let mut actions = permit.read(&message)?.actions;
    for action in &mut actions {
        action.forget_revision();
    }
    judge_all(permit, &actions)
}

/// Judges like [`judge`], but on the calling thread, the messages in the `body` of a POST to `target`,
/// whose head says what a client would say that follows its protocol.
///
/// # Errors
/// As for [`judge`], or `target` or `body` has no form that rules can read.
pub fn ask_messages(permit: &Permit, target: &str, body: &[u8]) -> Result<MessagePermit, Refusal> {
    let uri: Uri = target
        .parse()
        .map_err(|_| Refusal::bad_request("the path is not valid"))?;
    let head = RpcHead::of_client(body);
    let is_of_any_revision = !head.names_revision();
    let message = Message {
        ahead: Ahead {
            bytes: Bytes::copy_from_slice(body),
            is_whole: true,
            room: None,
        },
        head: Some(Arc::new(head)),
        ..Message::of_head(Method::POST, uri)
    };
    let need = permit.need(&message.method, &message.uri);
    if let Need::Body(most) = need
        && body.len() > most
    {
        return Err(Refusal::body_too_large(most));
    }
    let mut actions = permit.read(&message)?.actions;
    for action in actions.iter_mut().filter(|_| is_of_any_revision) {
        action.forget_revision();
    }
    judge_all(permit, &actions)
}

/// Judges all messages in `message` like [`judge`], but on the calling thread; returns the permit
/// of the first.
///
/// # Errors
/// As for [`judge`], or `message` has no form that rules can read.
pub fn judge_read(permit: &Permit, message: &Message) -> Result<MessagePermit, Refusal> {
    judge_all(permit, &permit.read(message)?.actions)
}

fn judge_all(permit: &Permit, actions: &[Action]) -> Result<MessagePermit, Refusal> {
    let mut first = None;
    for action in actions {
        let permitted = judge_now(permit, action)?;
        first.get_or_insert(permitted);
    }
    first.ok_or(Refusal::bad_request("the request holds no message"))
}

/// Refuses `action`, which answers a request that the server has not sent, unless rules are only
/// audited.
///
/// # Errors
/// The rules are enforced.
pub fn unasked(permit: &Permit, action: &Action) -> Result<(), Refusal> {
    let rules = permit
        .rules()
        .filter(|rules| rules.are_enforced(action.target()));
    let Some(rules) = rules.filter(|_| !permit.is_observed()) else {
        return Ok(());
    };
    let policy = permit.policy().map(str::to_owned);
    let fault = RequestFault::NoRule(rules.at(action.target()));
    let request = action.refused(policy, fault);
    let reason = "no request of the server with this id is open".to_owned();
    Err(Refusal::request(reason, request))
}

/// Judges like [`judge`], but on the calling thread.
///
/// # Errors
/// As for [`judge`].
pub fn judge_now(permit: &Permit, action: &Action) -> Result<MessagePermit, Refusal> {
    let Some(rules) = permit.rules() else {
        return Ok(MessagePermit {
            policy: permit.policy().map(str::to_owned),
            judged: Judged::Unjudged,
        });
    };
    match &*rules.verdict(action)? {
        MessageVerdict::Allow { policy } => Ok(MessagePermit {
            policy: policy.clone(),
            judged: Judged::Allowed,
        }),
        MessageVerdict::Deny {
            fault,
            policy,
            reason,
            is_enforced: true,
        } if !permit.is_observed() => {
            let request = action.refused(policy.clone(), fault.clone());
            Err(Refusal::request(reason.clone(), request).under(permit.form()))
        }
        MessageVerdict::Deny {
            fault,
            policy,
            reason,
            ..
        } => {
            let judged = Judged::Audited {
                code: fault.code(),
                reason: reason.clone(),
            };
            Ok(MessagePermit {
                policy: policy.clone(),
                judged,
            })
        }
    }
}
