//! Inspection of requests: the checks of their heads, and the judgement that the connection's permit demands.

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use openshell_policy::network::endpoint::Protocol;

use crate::authorize::authorizer::Authorizer;
use crate::decide::action::{Action, Message};
use crate::decide::http_request::HttpRequest;
use crate::decide::permit::{Inspection, Permit};
use crate::denial::refusal::Refusal;
use crate::http::head;
use crate::http::target::RequestTarget;
use crate::peer::Callers;
use crate::record::Record;

/// A request that may be sent.
#[derive(Debug)]
pub struct AuthorizedRequest {
    /// The judged target, which is the one to be sent.
    pub target: RequestTarget,
    /// The protocol of the upgrade that it asks for.
    pub upgrade: Option<HeaderValue>,
}

/// Reader of the messages of one protocol. Protocols are matched exhaustively here, so that one without an inspector
/// does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspector {
    /// Nothing is judged: heads are read to be relayed.
    Unjudged,
    /// Every HTTP request is judged by its method and target.
    Rest,
}

impl Inspector {
    /// The inspector of a connection with `permit`.
    ///
    /// # Errors
    /// The permit demands the inspection of a protocol whose messages are not HTTP requests.
    pub fn of(permit: &Permit) -> Result<Self, Refusal> {
        match permit.inspection() {
            Inspection::Passthrough | Inspection::Unjudged => Ok(Self::Unjudged),
            Inspection::Judged(rules) => match rules.protocol() {
                Protocol::Rest => Ok(Self::Rest),
                Protocol::Sql | Protocol::Tcp => Err(Refusal::unsupported_protocol(
                    "the policy has rules for a protocol that is not HTTP",
                    permit.policy().map(str::to_owned),
                )),
            },
        }
    }

    /// The message in the head of `request`.
    ///
    /// # Errors
    /// A part of the head can be read in more than one way.
    fn message(self, request: &Parts) -> Result<Message, Refusal> {
        match self {
            Self::Unjudged => {}
            Self::Rest => head::check_text(&request.headers)?,
        }
        Ok(Message::of(request))
    }

    /// The protocol of an upgrade that `request` may ask for.
    fn upgrade(self, request: &Parts) -> Option<HeaderValue> {
        match self {
            Self::Unjudged => head::upgrade_asked(request, false),
            Self::Rest => head::upgrade_asked(request, true),
        }
    }
}

/// Checks and judges the head of `request`, sent by `callers` on a connection with `permit`.
///
/// # Errors
/// The head is malformed, or the policy refuses the request.
pub async fn authorize_request(
    authorizer: &Authorizer,
    permit: &Permit,
    callers: &Callers,
    request: &Parts,
    record: &mut Record,
) -> Result<AuthorizedRequest, Refusal> {
    head::check_method(&request.method)?;
    head::check_size(request)?;
    head::check_framing(&request.headers)?;
    let inspector = Inspector::of(permit)?;
    let action = permit.action(&inspector.message(request)?)?;
    let Action::Http(http) = &action;
    record.asks_for(http.target.path());
    let message_permit = authorizer.authorize_message(permit, callers, &action).await?;
    record.request_permitted_by(message_permit.policy(), message_permit.judged());
    let Action::Http(HttpRequest { target, .. }) = action;
    Ok(AuthorizedRequest { target, upgrade: inspector.upgrade(request) })
}
