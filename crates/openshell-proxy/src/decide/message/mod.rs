//! Messages inside a connection: as clients sent them, and in the form in which they are judged.
//! One file is one judged protocol.

pub mod http;

use std::sync::Arc;

use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, Uri};
use openshell_policy::network::endpoint::{Endpoint, L7, Protocol};
use regorus::Value;

use crate::decide::message::http::{HttpRequest, Reads};
use crate::denial::refusal::Refusal;
use crate::ground::shares::Share;
use crate::wire::http::target::RequestTarget;

/// Part of a request without which rules cannot judge it. Nothing is sent before it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The head.
    Head,
    /// The head and so many bytes of the body, or all of a shorter one.
    Prefix(usize),
    /// The head and the body, which has at most so many bytes.
    Body(usize),
}

/// A request as its client sent it, as far as rules read it. A connection keeps the ones in flight,
/// because a later generation may demand another canonical form.
#[derive(Clone, Debug)]
pub struct Message {
    /// Method.
    pub method: Method,
    /// Target as it was sent.
    pub uri: Uri,
    /// What was read ahead.
    pub ahead: Ahead,
}

/// The part of a body that was read before anything was sent.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// The bytes.
    pub bytes: Bytes,
    /// True if they are the whole body.
    pub is_whole: bool,
    /// Their memory, for as long as anybody has them.
    pub room: Option<Arc<Share>>,
}

/// A protocol whose messages are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decide) enum JudgedProtocol {
    /// HTTP: a request by its method and target.
    Rest,
}

/// A request in the form in which its messages are judged, and it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Target to be sent.
    pub target: RequestTarget,
    /// Messages in the request, each of which must be permitted.
    pub actions: Vec<Action>,
}

/// A message in the form in which it is judged, cached and reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An HTTP request.
    Http(HttpRequest),
}

impl JudgedProtocol {
    /// The protocol of `endpoint`, with its rules; `None` if its messages are not judged.
    pub(in crate::decide) fn of(endpoint: &Endpoint) -> Option<(Self, &L7)> {
        let l7 = endpoint.l7()?;
        match l7.protocol {
            Protocol::Rest => Some((Self::Rest, l7)),
            // Relayed uninspected, and audited as connections.
            Protocol::Sql | Protocol::Tcp => None,
        }
    }

    /// The word in policies.
    pub(in crate::decide) fn as_str(self) -> &'static str {
        match self {
            Self::Rest => Protocol::Rest.as_str(),
        }
    }

    /// What rules need of a request.
    pub(in crate::decide) fn need(self) -> Need {
        match self {
            Self::Rest => Need::Head,
        }
    }

    /// Reads the messages in a request, whose head has the canonical form `http`.
    pub(in crate::decide) fn read(self, http: HttpRequest) -> Reading {
        match self {
            Self::Rest => Reading::of_head(http),
        }
    }
}

impl Message {
    /// A request without a body.
    #[must_use]
    pub fn of_head(method: Method, uri: Uri) -> Self {
        Self {
            method,
            uri,
            ahead: Ahead {
                is_whole: true,
                ..Ahead::default()
            },
        }
    }

    /// The message of `request`, of whose body `ahead` was read.
    #[must_use]
    pub fn of(request: &Parts, ahead: Ahead) -> Self {
        Self {
            ahead,
            ..Self::of_head(request.method.clone(), request.uri.clone())
        }
    }
}

impl Ahead {
    /// True if it is what rules `need`.
    #[must_use]
    pub fn meets(&self, need: Need) -> bool {
        match need {
            Need::Head => true,
            Need::Prefix(bytes) => self.is_whole || self.bytes.len() >= bytes,
            Need::Body(most) => self.is_whole && self.bytes.len() <= most,
        }
    }
}

impl Reading {
    /// A request whose only message is its head.
    pub(in crate::decide) fn of_head(http: HttpRequest) -> Self {
        Self {
            target: http.target.clone(),
            actions: vec![Action::Http(http)],
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
    pub(in crate::decide) fn bytes(&self) -> usize {
        match self {
            Self::Http(request) => request.bytes(),
        }
    }

    /// The parts that a decision depends on, as its key in the cache.
    pub(in crate::decide) fn key(&self, reads: Reads) -> Self {
        match self {
            Self::Http(request) => Self::Http(request.key(reads)),
        }
    }

    /// Checks that the parts that the rules read can be decoded.
    pub(in crate::decide) fn check(&self, reads: Reads) -> Result<(), Refusal> {
        match self {
            Self::Http(request) => request.check(reads),
        }
    }

    /// Inputs of the rules, one for each reading of the message; all must be permitted.
    pub(in crate::decide) fn inputs(&self, reads: Reads) -> Result<(Value, Option<Value>), String> {
        match self {
            Self::Http(request) => request.inputs(reads),
        }
    }
}
