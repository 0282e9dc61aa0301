//! What is reported of a message in the body of a request.

use openshell_events::event;
use openshell_policy::network::endpoint::Protocol;
use openshell_policy::network::rpc::KNOWN_METHODS;

use crate::decide::message::rpc::{RpcKind, RpcMessage};
use crate::decide::verdict::Judged;
use crate::secrets::needles::{CONCEALED, has_secret};
use crate::secrets::placeholder::redacted;

/// A message in the body of a request.
#[derive(Clone, Debug)]
pub(super) struct Message {
    is_mcp: bool,
    label: String,
    method: String,
    about: String,
    id: String,
    /// The decision on it, once it is permitted.
    pub(super) permitted: Option<(Option<String>, Judged)>,
}

impl Message {
    /// Returns what is reported of `message`.
    pub(super) fn of(message: &RpcMessage) -> Self {
        let is_mcp = message.protocol == Protocol::Mcp;
        let method = message.method.clone().unwrap_or_default();
        let label = match message.kind {
            RpcKind::Request | RpcKind::Notification if !is_mcp => "CALL".to_owned(),
            RpcKind::Request | RpcKind::Notification => {
                let known = KNOWN_METHODS.iter().find(|known| **known == method);
                known.map_or_else(|| "OTHER".to_owned(), |known| known.to_ascii_uppercase())
            }
            kind => kind.as_str().to_ascii_uppercase(),
        };
        let about = [
            message.tool.as_ref(),
            message.uris.first(),
            message.name.as_ref(),
        ];
        let about = about.into_iter().flatten().next();
        Self {
            is_mcp,
            label,
            about: about
                .map(|about| loggable(without_query(about)))
                .unwrap_or_default(),
            method: loggable(&method),
            id: message.id.as_deref().map(loggable).unwrap_or_default(),
            permitted: None,
        }
    }

    /// Returns the facts of its event.
    pub(super) fn facts(&self) -> event::RpcMessage<'_> {
        event::RpcMessage {
            is_mcp: self.is_mcp,
            label: &self.label,
            method: &self.method,
            about: &self.about,
            id: &self.id,
        }
    }
}

/// Returns `word` up to the query of a URI, which logs never show.
fn without_query(word: &str) -> &str {
    word.split('?').next().unwrap_or_default()
}

/// Returns `path` for logs: placeholders are redacted, and a path that holds a secret is concealed.
pub(super) fn loggable(path: &str) -> String {
    if has_secret(path) {
        CONCEALED.to_owned()
    } else {
        redacted(path).unwrap_or_else(|| path.to_owned())
    }
}
