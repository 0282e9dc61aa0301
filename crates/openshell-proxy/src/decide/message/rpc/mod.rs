//! Messages of JSON-RPC 2.0 and of the Model Context Protocol (MCP) over HTTP, in the form in which
//! they are judged.

pub(in crate::decide) mod conditions;
pub mod head;
pub mod headers;
pub mod list;
pub mod observed;
mod read;
mod uri;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use openshell_policy::network::endpoint::Protocol;
use openshell_policy::network::rpc::Revision;
use serde_json::{Value as Json, json};

use crate::decide::message::http::{HttpRequest, Reads};
use crate::decide::message::rpc::conditions::Conditions;
use crate::decide::message::rpc::head::RpcHead;
use crate::decide::message::rpc::headers::RepeatedArgument;
pub(in crate::decide) use crate::decide::message::rpc::read::read;
use crate::denial::answer::Answerable;
use crate::denial::judged::{About, JudgedMessage, WORD_BYTES};

/// How the messages for some endpoints are read.
#[derive(Debug)]
pub(in crate::decide) struct RpcSettings<'r> {
    /// JSON-RPC or MCP.
    pub(in crate::decide) protocol: Protocol,
    /// The revisions of MCP that may be spoken.
    pub(in crate::decide) versions: BTreeSet<Revision>,
    /// The conditions of the rules.
    pub(in crate::decide) conditions: &'r Conditions,
}

/// A message, or a request without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RpcMessage {
    /// The request that carries it.
    pub http: Arc<HttpRequest>,
    /// JSON-RPC or MCP.
    pub protocol: Protocol,
    /// What it is.
    pub kind: RpcKind,
    /// The revision of MCP in which it is written; `None` where that is not known yet.
    pub revision: Option<String>,
    /// True if it stands in a batch.
    pub is_in_batch: bool,
    /// Its method.
    pub method: Option<String>,
    /// Its id, as JSON.
    pub id: Option<String>,
    /// The tool that it calls.
    pub tool: Option<String>,
    /// The resources that it asks for.
    pub uris: Vec<String>,
    /// The prompt that it asks for.
    pub name: Option<String>,
    /// True if rules for its tool have conditions on arguments.
    is_limited: bool,
    /// The names of the conditions on its arguments that hold.
    held: BTreeSet<String>,
    /// Its arguments, as JSON.
    arguments: Option<String>,
    /// Its parameters, as JSON, if they are short beside the arguments.
    params: Option<String>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RpcKind {
    /// It wants an answer.
    Request,
    /// It wants none.
    Notification,
    /// It is an answer.
    Response,
    /// No message: the client asks for the stream of the server's messages.
    Stream,
    /// No message: the client ends its session.
    End,
    /// No message: a browser asks whether it may send one.
    Preflight,
    /// No message, and nothing that the protocol knows.
    Other,
}

impl RpcKind {
    /// Returns the word that rules read.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Notification => "notification",
            Self::Response => "response",
            Self::Stream => "stream",
            Self::End => "end",
            Self::Preflight => "preflight",
            Self::Other => "other",
        }
    }

    /// Returns true for a message, which stands in a body.
    #[must_use]
    pub fn is_message(self) -> bool {
        matches!(self, Self::Request | Self::Notification | Self::Response)
    }
}

impl RpcMessage {
    /// Returns a message of this kind in the request `http`, of which nothing else is known.
    pub(crate) fn new(http: Arc<HttpRequest>, protocol: Protocol, kind: RpcKind) -> Self {
        Self {
            http,
            protocol,
            kind,
            revision: None,
            is_in_batch: false,
            method: None,
            id: None,
            tool: None,
            uris: Vec::new(),
            name: None,
            is_limited: false,
            held: BTreeSet::new(),
            arguments: None,
            params: None,
        }
    }

    /// Returns the number of bytes that the workload chose.
    pub(in crate::decide) fn bytes(&self) -> usize {
        let texts = [
            &self.revision,
            &self.method,
            &self.id,
            &self.tool,
            &self.name,
            &self.arguments,
            &self.params,
        ];
        let texts = texts
            .into_iter()
            .flatten()
            .chain(&self.uris)
            .chain(&self.held);
        self.http.bytes() + texts.map(String::len).sum::<usize>()
    }

    /// Returns the parts on which a decision depends; they are its key in the cache.
    pub(in crate::decide) fn key(&self, reads: Reads) -> Self {
        let mut key = self.clone();
        key.http = Arc::new(self.http.key(reads));
        key.is_in_batch = false;
        if !reads.whole_messages {
            key.id = None;
            key.arguments = None;
            key.params = None;
        }
        key
    }

    /// Returns the message as rules read it.
    ///
    /// # Errors
    /// Fails if a part that rules may read has no form there, such as a number beyond all doubles.
    pub(in crate::decide) fn document(&self, reads: Reads) -> Result<Json, String> {
        let mut document = json!({
            "protocol": self.protocol.as_str(),
            "type": self.kind.as_str(),
            "http_method": self.http.method.as_str(),
            "uris_are_canonical": self.uris.iter().all(|uri| uri::is_canonical(uri)),
            "conditions": self.held,
            "uris": self.uris,
        });
        let texts = [
            ("revision", &self.revision),
            ("method", &self.method),
            ("tool", &self.tool),
            ("name", &self.name),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                document[key] = text.as_str().into();
            }
        }
        if let [uri] = self.uris.as_slice() {
            document["uri"] = uri.as_str().into();
        }
        let values = [
            ("id", &self.id),
            ("arguments", &self.arguments),
            ("params", &self.params),
        ];
        for (key, value) in values {
            if let Some(value) = value.as_ref().filter(|_| reads.whole_messages) {
                let value = serde_json::from_str(value);
                document[key] =
                    value.map_err(|error| format!("the {key} of the message: {error}"))?;
            }
        }
        Ok(document)
    }

    /// Returns what the answer to its request depends on.
    #[must_use]
    pub fn answerable(&self) -> Answerable {
        Answerable {
            is_message: self.kind.is_message(),
            method: self.method.clone(),
            id: self.id.clone().filter(|_| self.kind == RpcKind::Request),
            is_in_batch: self.is_in_batch,
        }
    }

    /// Returns true if the `head` of its request differs from an argument that it repeats.
    #[must_use]
    pub fn differs(&self, head: &RpcHead, repeated: &[RepeatedArgument]) -> bool {
        headers::differs(head, self.arguments.as_deref(), repeated)
    }

    /// Returns what a refusal says about the message.
    pub(crate) fn judged(&self) -> JudgedMessage {
        let about = match (&self.tool, self.uris.as_slice(), &self.name) {
            (Some(tool), ..) => Some((About::Tool, tool)),
            (_, [uri, ..], _) if uri::is_canonical(uri) => Some((About::Uri, uri)),
            (_, [uri, ..], _) => Some((About::OtherForm, uri)),
            (_, [], Some(name)) => Some((About::Name, name)),
            (None, [], None) => None,
        };
        JudgedMessage {
            protocol: self.protocol,
            is_response: self.kind == RpcKind::Response,
            method: self.method.as_deref().map(cut),
            about: about.map(|(about, value)| (about, cut(value))),
            is_about_one: self.uris.len() == 1
                || self.method.as_deref() != Some("subscriptions/listen"),
            is_limited: self.is_limited,
        }
    }
}

fn cut(word: &str) -> String {
    let length = word.floor_char_boundary(WORD_BYTES);
    word.get(..length).unwrap_or_default().to_owned()
}
