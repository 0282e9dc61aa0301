//! Messages inside a connection: as clients sent them, and in the form in which they are judged.
//! Each judged protocol has its own file.

pub mod http;
pub mod rpc;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, Uri};
use openshell_policy::network::endpoint::{Endpoint, L7, Protocol};
use regorus::Value;

use crate::decide::engine::Decision;
use crate::decide::message::http::{HttpRequest, Reads};
use crate::decide::message::rpc::RpcMessage;
use crate::decide::message::rpc::head::RpcHead;
use crate::denial::judged::{JudgedRequest, RequestFault};
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
    /// The fields of the head that rules for messages in bodies read; `None` if no such rules were
    /// known when it was read.
    pub head: Option<Arc<RpcHead>>,
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
    /// A message of JSON-RPC or MCP.
    Rpc(Box<RpcMessage>),
}

/// The parts of an input of the rules that are about one message.
pub(in crate::decide) type Input = BTreeMap<Value, Value>;

/// Returns the rules of `endpoint`, if it judges requests or the messages in them.
pub(crate) fn judging(endpoint: &Endpoint) -> Option<&L7> {
    endpoint.l7().filter(|l7| match l7.protocol {
        Protocol::Rest | Protocol::JsonRpc | Protocol::Mcp => true,
        // Their bytes are relayed uninspected, and only the connections are audited.
        Protocol::Sql | Protocol::Tcp => false,
    })
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
            head: None,
        }
    }

    /// Returns the message of `request`, of whose body `ahead` was read, because rules `need` that.
    #[must_use]
    pub fn of(request: &Parts, ahead: Ahead, need: Need) -> Self {
        let head = (need != Need::Head).then(|| Arc::new(RpcHead::of(&request.headers)));
        Self {
            ahead,
            head,
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
            Self::Rpc(message) => message.http.rule(),
        }
    }

    /// Returns the message in a body.
    #[must_use]
    pub fn rpc(&self) -> Option<&RpcMessage> {
        match self {
            Self::Http(_) => None,
            Self::Rpc(message) => Some(message),
        }
    }

    /// Forgets the revision of MCP in which the message is written.
    pub(in crate::decide) fn forget_revision(&mut self) {
        if let Self::Rpc(message) = self {
            message.revision = None;
        }
    }

    /// Returns what is refused for `fault` under the rules of `policy`.
    pub(in crate::decide) fn refused(
        &self,
        policy: Option<String>,
        fault: RequestFault,
    ) -> JudgedRequest {
        let (method, path) = self.rule();
        JudgedRequest {
            policy,
            method,
            path,
            fault,
            message: self.rpc().map(RpcMessage::judged),
        }
    }

    /// Returns the target of the request.
    pub(in crate::decide) fn target(&self) -> &RequestTarget {
        match self {
            Self::Http(request) => &request.target,
            Self::Rpc(message) => &message.http.target,
        }
    }

    /// Returns the number of bytes that the workload chose.
    pub(in crate::decide) fn bytes(&self) -> usize {
        match self {
            Self::Http(request) => request.bytes(),
            Self::Rpc(message) => message.bytes(),
        }
    }

    /// Returns the parts on which a decision depends; they are its key in the cache.
    pub(in crate::decide) fn key(&self, reads: Reads) -> Self {
        match self {
            Self::Http(request) => Self::Http(request.key(reads)),
            Self::Rpc(message) => Self::Rpc(Box::new(message.key(reads))),
        }
    }

    /// Checks that the parts that the rules read can be decoded.
    pub(in crate::decide) fn check(&self, reads: Reads) -> Result<(), Refusal> {
        match self {
            Self::Http(request) => request.check(reads),
            Self::Rpc(message) => message.http.check(reads),
        }
    }

    /// Returns what the rules decide about it.
    pub(in crate::decide) fn decision(&self) -> Decision {
        match self {
            Self::Http(_) => Decision::Request,
            Self::Rpc(_) => Decision::Message,
        }
    }

    /// Returns an input of the rules for each reading of the message; all of them must be
    /// permitted.
    pub(in crate::decide) fn inputs(&self, reads: Reads) -> Result<(Input, Option<Input>), String> {
        let (request, other, message) = match self {
            Self::Http(request) => {
                let (request, other) = request.inputs(reads)?;
                (request, other, None)
            }
            Self::Rpc(message) => {
                let (request, other) = message.http.inputs(reads)?;
                (request, other, Some(Value::from(message.document(reads)?)))
            }
        };
        let input = |request: Value| {
            let message = message.clone().map(|message| ("message", message));
            let parts = std::iter::once(("request", request)).chain(message);
            parts.map(|(key, part)| (Value::from(key), part)).collect()
        };
        Ok((input(request), other.map(input)))
    }
}
