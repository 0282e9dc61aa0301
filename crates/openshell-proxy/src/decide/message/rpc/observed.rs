//! Messages of MCP in requests that no rule judges.

use std::sync::Arc;

use hyper::Method;
use hyper::http::request::Parts;
use openshell_events::denial::UnmatchedRequest;
use openshell_policy::network::endpoint::Protocol;
use openshell_policy::network::rpc::{KNOWN_METHODS, Revision};
use openshell_policy::network::rule::Glob;

use crate::decide::message::Message;
use crate::decide::message::http::HttpRequest;
use crate::decide::message::rpc::conditions::Conditions;
use crate::decide::message::rpc::head::RpcHead;
use crate::decide::message::rpc::{RpcKind, RpcSettings, read};
use crate::denial::judged::{At, JudgedRequest, RequestFault};

/// Returns true if the body of `request` may hold messages.
#[must_use]
pub fn may_hold_messages(request: &Parts) -> bool {
    request.method == Method::POST && RpcHead::of(&request.headers).is_json()
}

/// Messages of MCP in a request that no rule judges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedMessages {
    /// What rules would have to allow.
    pub requests: Vec<UnmatchedRequest>,
    /// True if there are others, which no rule could name.
    pub is_cut: bool,
}

/// The number of bytes of a path from which nothing is noted of its messages.
const PATH_BYTES: usize = 1024;

/// Returns what rules for `path` would have to allow of `message`; `None` if it seems to hold no
/// messages of MCP.
#[must_use]
pub fn observed(message: &Message, path: &str) -> Option<ObservedMessages> {
    let head = message
        .head
        .as_ref()
        .filter(|_| message.method == Method::POST)?;
    let settings = RpcSettings {
        protocol: Protocol::Mcp,
        versions: Revision::ALL.into(),
        conditions: &Conditions::default(),
    };
    let http = Arc::new(HttpRequest::as_written(&message.method, &message.uri));
    let messages = read(&http, head, &message.ahead, &settings).ok()?;
    let is_known = |method: &String| KNOWN_METHODS.contains(&method.as_str());
    let mut methods = messages
        .iter()
        .filter_map(|message| message.method.as_ref());
    if !head.is_of_mcp() && !methods.any(is_known) {
        return None;
    }
    let mut observed = ObservedMessages::default();
    if path.len() > PATH_BYTES {
        observed.is_cut = true;
        return Some(observed);
    }
    let path = Glob::literal(path);
    let unmatched = |message| {
        let request = JudgedRequest {
            policy: None,
            method: Method::POST.to_string(),
            path: path.clone(),
            fault: RequestFault::NoRule(At::Path(path.clone())),
            message: Some(message),
        };
        request.unmatched()
    };
    for message in messages {
        let is_response = message.kind == RpcKind::Response;
        match unmatched(message.judged()) {
            Some(request) => observed.requests.push(request),
            None => observed.is_cut |= !is_response,
        }
    }
    Some(observed)
}
