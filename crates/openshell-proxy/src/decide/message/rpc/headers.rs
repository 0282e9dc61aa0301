//! The fields of MCP that repeat parts of a message. Gateways route by them and servers act on the
//! body, so a difference is a fault.

use std::borrow::Cow;

use openshell_policy::network::rpc::decimal::Decimal;
use openshell_policy::network::rpc::{CALL, Revision};

use crate::decide::message::rpc::head::{FieldFault, RpcHead, VERSION};
use crate::denial::answer::INVALID_PARAMS;
use crate::wire::json::Json;

/// The fields of a head.
pub(super) struct Standard<'h> {
    /// `MCP-Protocol-Version`.
    pub(super) version: Option<&'h str>,
    /// `Mcp-Session-Id`.
    pub(super) session: Option<&'h str>,
    method: Option<&'h str>,
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

/// An argument of a tool that a field of the head repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedArgument {
    /// The name of the field behind `Mcp-Param-`, in lower case.
    field: String,
    /// The keys on the way to the argument, with NUL between them.
    keys: String,
}

/// The key of a schema that says which field repeats a property (MCP 2026-07-28).
pub const REPEATED: &str = "x-mcp-header";

/// The number of arguments of a tool that fields may repeat, and how deep they may lie.
const REPEATED_ARGUMENTS: usize = 16;
const DEPTH: usize = 8;

/// The number of bytes of the name of a field, and of all keys on the way to its argument.
const KEY_BYTES: usize = 128;

impl RepeatedArgument {
    /// Returns the arguments that fields repeat by the schema of a tool.
    #[must_use]
    pub fn of_schema(schema: Json<'_>) -> Vec<Self> {
        let mut all = Vec::new();
        add_repeated(schema, &[], &mut all);
        all
    }

    /// Returns true if a field with `text` repeats the argument. Texts are compared byte for byte, and
    /// integers as numbers.
    fn is_repeated(&self, arguments: Json<'_>, text: &str) -> bool {
        let mut value = Some(arguments);
        for key in self.keys.split('\0') {
            value = value.and_then(|value| value.get(key));
        }
        let Some(value) = value else {
            return false;
        };
        match value.text() {
            Some(argument) => argument == text,
            None => scalar(value).is_some_and(|argument| argument == comparable(text)),
        }
    }
}

/// Adds the arguments of `schema` that fields repeat, which lies at `keys`, to `all`.
fn add_repeated(schema: Json<'_>, keys: &[&str], all: &mut Vec<RepeatedArgument>) {
    let field = schema.get(REPEATED).and_then(Json::text);
    if let Some(field) = field.filter(|field| field.len() <= KEY_BYTES && !keys.is_empty()) {
        all.push(RepeatedArgument {
            field: field.to_ascii_lowercase(),
            keys: keys.join("\0"),
        });
    }
    let Some(properties) = schema.get("properties").filter(|_| keys.len() < DEPTH) else {
        return;
    };
    for (key, property) in properties.entries() {
        if all.len() == REPEATED_ARGUMENTS {
            return;
        }
        let keys = [keys, &[key.as_ref()]].concat();
        let bytes: usize = keys.iter().map(|key| key.len()).sum();
        if bytes <= KEY_BYTES {
            add_repeated(property, &keys, all);
        }
    }
}

/// Returns true if a field of `head` differs from the one of `arguments`, as JSON, that it repeats.
pub(super) fn differs(
    head: &RpcHead,
    arguments: Option<&str>,
    repeated: &[RepeatedArgument],
) -> bool {
    let Ok(params) = head.params() else {
        return true;
    };
    let arguments = arguments.and_then(|text| Json::read(text.as_bytes()).ok());
    let arguments = arguments.unwrap_or(Json::EMPTY_OBJECT);
    repeated.iter().any(|repeated| {
        let mut fields = params.iter().filter(|(field, _)| *field == repeated.field);
        fields.any(|(_, text)| !repeated.is_repeated(arguments, text))
    })
}

/// The number of bytes that the name of a revision may have.
const REVISION_BYTES: usize = 64;

impl<'h> Standard<'h> {
    pub(super) fn of(head: &'h RpcHead) -> Result<Self, FieldFault> {
        let version = head.field(VERSION)?;
        if version
            .as_ref()
            .is_some_and(|version| version.len() > REVISION_BYTES)
        {
            return Err(FieldFault::differs(
                "the value of mcp-protocol-version is malformed",
            ));
        }
        Ok(Self {
            version,
            session: head.field("mcp-session-id")?,
            method: head.field("mcp-method")?,
            name: head.decoded("mcp-name")?,
            params: head.params()?,
        })
    }

    /// Returns the revision that the head names, or that of clients that name none.
    pub(super) fn revision(&self) -> &str {
        self.version.unwrap_or(Revision::R20250326.as_str())
    }

    /// Returns true if each request says what it is in its head too.
    pub(super) fn is_stateless(&self) -> bool {
        Revision::parse(self.revision()).is_ok_and(Revision::is_stateless)
    }

    /// Checks that the fields repeat `message`.
    pub(super) fn check(&self, message: &Repeated<'_>) -> Result<(), FieldFault> {
        let fault = |text: &str| Err(FieldFault::differs(text));
        let must_repeat = self.is_stateless() && message.is_request;
        match (&self.version, message.revision) {
            (Some(version), Some(revision)) if *version != revision => {
                return fault("mcp-protocol-version names another revision than the body");
            }
            (None, Some(_)) => return fault("mcp-protocol-version is missing"),
            (_, None) if must_repeat => {
                return Err(FieldFault {
                    reason: "the body names no protocol version in `_meta`".to_owned(),
                    code: INVALID_PARAMS,
                });
            }
            _ => {}
        }
        match &self.method {
            Some(method) if *method != message.method => {
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
        if self.params.is_empty() {
            return Ok(());
        }
        let mut missing: Vec<_> = self
            .params
            .iter()
            .map(|(_, value)| comparable(value))
            .collect();
        remove_scalars(
            message.arguments.unwrap_or(Json::EMPTY_OBJECT),
            &mut missing,
        );
        if !missing.is_empty() {
            return fault("an mcp-param field differs from every argument of the body");
        }
        Ok(())
    }

    /// Checks that no field repeats parts of a message that has none.
    pub(super) fn check_absent(&self) -> Result<(), FieldFault> {
        if self.method.is_none() && self.name.is_none() && self.params.is_empty() {
            return Ok(());
        }
        Err(FieldFault::differs(
            "the header names a method, and the request has none",
        ))
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

/// Removes the strings, integers and booleans in `value`, as they stand in fields, from `missing`.
fn remove_scalars(value: Json<'_>, missing: &mut Vec<String>) {
    for (_, value) in value.entries() {
        remove_scalars(value, missing);
    }
    for value in value.items() {
        remove_scalars(value, missing);
    }
    let scalar = scalar(value);
    missing.retain(|text| Some(text) != scalar.as_ref());
}

/// Returns a string, an integer or a boolean as it stands in a field.
fn scalar(value: Json<'_>) -> Option<String> {
    let number = value
        .number()
        .filter(|number| !number.contains(['.', 'e', 'E']));
    let text = value.text().map(String::from);
    let boolean = value.boolean().map(|value| value.to_string());
    text.map(|text| comparable(&text))
        .or(number.map(comparable))
        .or(boolean)
}

/// Returns `text`, or the one form of an integer.
fn comparable(text: &str) -> String {
    let number = Decimal::parse(text).filter(|_| !text.contains(['e', 'E']));
    let integer = number.and_then(|number| number.to_integer());
    integer.map_or_else(|| text.to_owned(), |integer| integer.to_string())
}
