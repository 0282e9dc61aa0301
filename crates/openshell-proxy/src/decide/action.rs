//! Messages inside a connection: as clients sent them, and in the form in which they are judged.

use hyper::http::request::Parts;
use hyper::{Method, Uri};
use openshell_policy::network::endpoint::{Endpoint, L7, Protocol};
use regorus::Value;

use crate::decide::http_request::{HttpRequest, Reads};
use crate::denial::refusal::Refusal;
use crate::wire::http::target::TargetError;

/// A message as its client sent it. A connection keeps the ones in flight, because a later
/// generation may demand another canonical form.
#[derive(Clone, Debug)]
pub enum Message {
    /// The head of an HTTP request.
    Http {
        /// Method.
        method: Method,
        /// Target as it was sent.
        uri: Uri,
    },
}

/// A message in the form in which it is judged, cached, reported and sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An HTTP request.
    Http(HttpRequest),
}

/// The rules of `endpoint` for messages, if it has any.
pub(super) fn message_rules(endpoint: &Endpoint) -> Option<&L7> {
    let l7 = endpoint.l7()?;
    match l7.protocol {
        Protocol::Rest => Some(l7),
        // Relayed uninspected, and audited as connections.
        Protocol::Sql | Protocol::Tcp => None,
    }
}

impl Message {
    /// Reads the message in the head of an HTTP request.
    #[must_use]
    pub fn of(request: &Parts) -> Self {
        Self::Http {
            method: request.method.clone(),
            uri: request.uri.clone(),
        }
    }

    /// The message as it was sent, for connections without rules.
    pub(super) fn as_written(&self) -> Action {
        match self {
            Self::Http { method, uri } => Action::Http(HttpRequest::as_written(method, uri)),
        }
    }

    /// Normalizes the message into the form that rules for `protocol` read.
    pub(super) fn canonical(
        &self,
        protocol: Protocol,
        takes_encoded_slash: bool,
    ) -> Result<Action, TargetError> {
        match (self, protocol) {
            // The last two have no rules over messages.
            (Self::Http { method, uri }, Protocol::Rest | Protocol::Sql | Protocol::Tcp) => {
                HttpRequest::canonical(method, uri, takes_encoded_slash).map(Action::Http)
            }
        }
    }
}

impl Action {
    /// The method and path that denials, proposals and observations name.
    #[must_use]
    pub fn rule(&self) -> (String, String) {
        match self {
            Self::Http(request) => request.rule(),
        }
    }

    /// Bytes that the workload chose.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Http(request) => request.bytes(),
        }
    }

    /// The parts that a decision depends on, as its key in the cache.
    pub(super) fn key(&self, reads: Reads) -> Self {
        match self {
            Self::Http(request) => Self::Http(request.key(reads)),
        }
    }

    /// Checks that the parts that the rules read can be decoded.
    pub(super) fn check(&self, reads: Reads) -> Result<(), Refusal> {
        match self {
            Self::Http(request) => request.check(reads),
        }
    }

    /// Inputs of the rules, one for each reading of the message; all must be permitted.
    pub(super) fn inputs(&self, reads: Reads) -> Result<(Value, Option<Value>), String> {
        match self {
            Self::Http(request) => request.inputs(reads),
        }
    }
}
