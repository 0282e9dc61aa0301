//! Lists of what a server offers, whose entries are judged as if they were used.

use std::collections::BTreeSet;
use std::sync::Arc;

use openshell_policy::network::endpoint::Protocol;
use openshell_policy::network::rpc::{CALL, RpcRules};

use crate::decide::message::http::HttpRequest;
use crate::decide::message::rpc::conditions::Conditions;
use crate::decide::message::rpc::{RpcKind, RpcMessage};

/// What a list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Tools.
    Tools,
    /// Resources.
    Resources,
    /// Templates of resources.
    Templates,
    /// Prompts.
    Prompts,
}

impl ListKind {
    /// Returns the kind of list that the answer to `method` holds.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        match method {
            "tools/list" => Some(Self::Tools),
            "resources/list" => Some(Self::Resources),
            "resources/templates/list" => Some(Self::Templates),
            "prompts/list" => Some(Self::Prompts),
            _ => None,
        }
    }
}

/// Returns the message by which a client would use the entry `name` of a list, with arguments of which
/// all `conditions` hold that allow.
pub(in crate::decide) fn use_of(
    http: Arc<HttpRequest>,
    kind: ListKind,
    name: &str,
    conditions: &Conditions,
) -> RpcMessage {
    let mut message = RpcMessage::new(http, Protocol::Mcp, RpcKind::Request);
    let name = name.to_owned();
    let method = match kind {
        ListKind::Tools => {
            message.tool = Some(name);
            message.held = conditions.that_allow();
            CALL
        }
        ListKind::Resources | ListKind::Templates => {
            message.uris = vec![name];
            "resources/read"
        }
        ListKind::Prompts => {
            message.name = Some(name);
            "prompts/get"
        }
    };
    message.method = Some(method.to_owned());
    message
}

/// Returns true if `rules` allow resources that a `template` (RFC 6570) may name: if its text before
/// the first variable and the text of a rule before the first wildcard begin alike.
pub(in crate::decide) fn allow_template(rules: &RpcRules, template: &str) -> bool {
    let begins = template.split('{').next().unwrap_or_default();
    let Some(rules) = &rules.rules else {
        return true;
    };
    let mut reading = rules.iter().filter(|rule| {
        let method = rule.method.as_ref();
        method.is_none_or(|method| method.matches("resources/read"))
    });
    reading.any(|rule| {
        let Some(uri) = &rule.uri else {
            return true;
        };
        let literal = uri.literal_prefix();
        literal.starts_with(begins) || begins.starts_with(literal)
    })
}

impl Conditions {
    /// Returns the names of all conditions of allow rules.
    fn that_allow(&self) -> BTreeSet<String> {
        self.names_of_allowing().map(str::to_owned).collect()
    }
}
