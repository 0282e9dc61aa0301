//! Messages inside a connection: as their clients sent them, and in the one form in which they are judged.

use hyper::{Method, Uri};

use crate::http::target::RequestTarget;

/// A message as its client sent it. A connection keeps those in flight, because a later generation of the policy may demand
/// another canonical form of them.
#[derive(Clone, Debug)]
pub enum Message {
    /// The head of an HTTP request.
    Http {
        /// Its method.
        method: Method,
        /// Its target as it was written.
        uri: Uri,
    },
}

/// A message in the form in which it is judged, remembered, reported and sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An HTTP request.
    Http {
        /// Its method.
        method: Method,
        /// Its canonical target, or the one that was written where nothing judges it.
        target: RequestTarget,
    },
}

impl Action {
    /// The method and the path that denials, proposals and observations name.
    #[must_use]
    pub fn rule(&self) -> (String, String) {
        match self {
            Self::Http { method, target } => (method.to_string(), target.path().to_owned()),
        }
    }

    /// Bytes that the workload chose.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Http { method, target } => {
                let texts = [Some(target.path()), target.without_parameters(), target.query(), Some(method.as_str())];
                texts.iter().flatten().map(|text| text.len()).sum()
            }
        }
    }
}
