//! The fields of MCP that repeat parts of a message. Gateways route by them and servers act on the
//! body, so a difference is a fault.

use std::borrow::Cow;

use openshell_policy::network::rpc::decimal::Decimal;
use openshell_policy::network::rpc::{CALL, Revision};

use crate::decide::message::rpc::head::{FieldFault, RpcHead};
use crate::wire::json::Json;

/// The fields of a head.
pub(super) struct Standard<'h> {
    /// `MCP-Protocol-Version`.
    pub(super) version: Option<Cow<'h, str>>,
    /// `Mcp-Session-Id`.
    pub(super) session: Option<Cow<'h, str>>,
    method: Option<Cow<'h, str>>,
    name: Option<Cow<'h, str>>,
    params: Vec<(&'h str, Cow<'h, str>)>,
}

/// The parts of a message that fields repeat.
pub(super) struct Repeated<'m> {
    pub(super) method: &'m str,
    pub(super) is_request: bool,
    /// The revision in `_meta`.
    pub(super) revision: Option<&'m str>,
    /// `params.name`, `params.uri` and `params.taskId`.
    pub(super) name: Option<&'m str>,
    pub(super) uri: Option<&'m str>,
    pub(super) task: Option<&'m str>,
    pub(super) arguments: Option<Json<'m>>,
}

/// The number of bytes that the name of a revision may have.
const REVISION_BYTES: usize = 64;

impl<'h> Standard<'h> {
    pub(super) fn of(head: &'h RpcHead) -> Result<Self, FieldFault> {
        let version = head.field("mcp-protocol-version")?;
        if version
            .as_ref()
            .is_some_and(|version| version.len() > REVISION_BYTES)
        {
            return Err(FieldFault(
                "the value of mcp-protocol-version is malformed".to_owned(),
            ));
        }
        Ok(Self {
            version,
            session: head.field("mcp-session-id")?,
            method: head.field("mcp-method")?,
            name: head.field("mcp-name")?,
            params: head.params()?,
        })
    }

    /// Returns the revision that the head names, or that of clients that name none.
    pub(super) fn revision(&self) -> &str {
        self.version
            .as_deref()
            .unwrap_or(Revision::R20250326.as_str())
    }

    /// Returns true if each request says what it is in its head too.
    pub(super) fn is_stateless(&self) -> bool {
        Revision::parse(self.revision()).is_ok_and(Revision::is_stateless)
    }

    /// Checks that the fields repeat `message`.
    pub(super) fn check(&self, message: &Repeated<'_>) -> Result<(), FieldFault> {
        let fault = |text: &str| Err(FieldFault(text.to_owned()));
        let must_repeat = self.is_stateless() && message.is_request;
        match (&self.version, message.revision) {
            (Some(version), Some(revision)) if version != revision => {
                return fault("mcp-protocol-version names another revision than the body");
            }
            (None, Some(_)) => return fault("mcp-protocol-version is missing"),
            (_, None) if must_repeat => {
                return fault("the body names no protocol version in `_meta`");
            }
            _ => {}
        }
        match &self.method {
            Some(method) if method != message.method => {
                return fault("mcp-method names another method than the body");
            }
            None if must_repeat => return fault("mcp-method is missing"),
            _ => {}
        }
        let named = message.named();
        match &self.name {
            Some(name) if !named.iter().flatten().any(|known| known == name) => {
                return fault("mcp-name names something else than the body");
            }
            None if must_repeat && message.has_name() => return fault("mcp-name is missing"),
            _ => {}
        }
        for (param, value) in &self.params {
            if !message
                .arguments
                .is_some_and(|arguments| has_argument(arguments, value))
            {
                return Err(FieldFault(format!(
                    "mcp-param-{param} differs from every argument"
                )));
            }
        }
        Ok(())
    }
}

impl<'m> Repeated<'m> {
    /// Returns true if the head must say what the method is about.
    fn has_name(&self) -> bool {
        [CALL, "prompts/get", "resources/read"].contains(&self.method)
    }

    /// Returns the parts of which `Mcp-Name` may be the one.
    fn named(&self) -> [Option<&'m str>; 3] {
        match self.method {
            CALL | "prompts/get" => [self.name, None, None],
            "resources/read" => [self.uri, None, None],
            "tasks/get" | "tasks/update" | "tasks/cancel" => [self.task, None, None],
            _ => [self.name, self.uri, self.task],
        }
    }
}

/// Returns true if a string, an integer or a boolean somewhere in `value` is written as `text`.
fn has_argument(value: Json<'_>, text: &str) -> bool {
    if value.is_object() {
        return value.entries().any(|(_, value)| has_argument(value, text));
    }
    if value.is_array() {
        return value.items().any(|value| has_argument(value, text));
    }
    if let Some(known) = value.text() {
        return known == text;
    }
    if let Some(number) = value.number() {
        let decimal = Decimal::parse(text);
        return decimal.is_some_and(|decimal| Decimal::parse(number) == Some(decimal));
    }
    value
        .boolean()
        .is_some_and(|known| known.to_string() == text)
}
