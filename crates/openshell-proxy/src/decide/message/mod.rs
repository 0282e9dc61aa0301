//! Messages inside a connection: as clients sent them, and in the form in which they are judged.
//! Each judged protocol has its own file.

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

/// The part of a request that rules need to judge it. Nothing is sent before that part was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The head.
    Head,
    /// The head and this many bytes of the body, or all of a shorter body.
    Prefix(usize),
    /// The head and the whole body, which may have at most this many bytes.
    Body(usize),
}

/// The parts of a request that rules read, as its client sent them. A connection keeps them for the
/// requests in flight, because a later generation may require another canonical form.
#[derive(Clone, Debug)]
pub struct Message {
    /// Method.
    pub method: Method,
    /// Target as it was sent.
    pub uri: Uri,
    /// The part of the body that was read ahead.
    pub ahead: Ahead,
}

/// The part of a body that was read before anything was sent.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// The bytes.
    pub bytes: Bytes,
    /// True if they are the whole body.
    pub is_whole: bool,
    /// The memory reserved for the bytes, for as long as anybody holds them.
    pub room: Option<Arc<Share>>,
}

/// A protocol whose messages are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decide) enum JudgedProtocol {
    /// HTTP: a request by its method and target.
    Rest,
}

/// A request in the form in which it is sent and its messages are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The target that is sent.
    pub target: RequestTarget,
    /// The messages in the request, each of which must be permitted.
    pub actions: Vec<Action>,
}

/// A message in the form in which it is judged, cached and reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An HTTP request.
    Http(HttpRequest),
}

impl JudgedProtocol {
    /// Returns the protocol and rules of `endpoint`; `None` if its messages are not judged.
    pub(in crate::decide) fn of(endpoint: &Endpoint) -> Option<(Self, &L7)> {
        let l7 = endpoint.l7()?;
        match l7.protocol {
            Protocol::Rest => Some((Self::Rest, l7)),
            // Their bytes are relayed uninspected, and only the connections are audited.
            Protocol::Sql | Protocol::Tcp => None,
        }
    }

    /// Returns the word in policies.
    pub(in crate::decide) fn as_str(self) -> &'static str {
        match self {
            Self::Rest => Protocol::Rest.as_str(),
        }
    }

    /// Returns the part of a request that rules need.
    pub(in crate::decide) fn need(self) -> Need {
        match self {
            Self::Rest => Need::Head,
        }
    }

    /// Reads the messages in a request whose head has the canonical form `http`.
    pub(in crate::decide) fn read(self, http: HttpRequest) -> Reading {
        match self {
            Self::Rest => Reading::of_head(http),
        }
    }
}

impl Message {
    /// Returns the message of a request without a body.
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

    /// Returns the message of `request`, of whose body `ahead` was read.
    #[must_use]
    pub fn of(request: &Parts, ahead: Ahead) -> Self {
        Self {
            ahead,
            ..Self::of_head(request.method.clone(), request.uri.clone())
        }
    }
}

impl Ahead {
    /// Returns true if it is enough for rules that `need` this part.
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
    /// Returns the reading of a request whose only message is its head.
    pub(in crate::decide) fn of_head(http: HttpRequest) -> Self {
        Self {
            target: http.target.clone(),
            actions: vec![Action::Http(http)],
        }
    }
}

impl Action {
    /// Returns the method and path that denials, proposals and observations name.
    #[must_use]
    pub fn rule(&self) -> (String, String) {
        match self {
            Self::Http(request) => request.rule(),
        }
    }

    /// Returns the target of the request.
    pub(in crate::decide) fn target(&self) -> &RequestTarget {
        match self {
            Self::Http(request) => &request.target,
        }
    }

    /// Returns the number of bytes that the workload chose.
    pub(in crate::decide) fn bytes(&self) -> usize {
        match self {
            Self::Http(request) => request.bytes(),
        }
    }

    /// Returns the parts on which a decision depends; they are its key in the cache.
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

    /// Returns an input of the rules for each reading of the message; all of them must be
    /// permitted.
    pub(in crate::decide) fn inputs(&self, reads: Reads) -> Result<(Value, Option<Value>), String> {
        match self {
            Self::Http(request) => request.inputs(reads),
        }
    }
}
