//! Reads the messages in a request.

use std::sync::Arc;

use hyper::Method;
use openshell_policy::network::endpoint::Protocol;
use openshell_policy::network::rpc::{CALL, Revision};

use crate::decide::message::Ahead;
use crate::decide::message::http::HttpRequest;
use crate::decide::message::rpc::head::{FieldFault, RpcHead};
use crate::decide::message::rpc::headers::{Repeated, Standard};
use crate::decide::message::rpc::{RpcKind, RpcMessage, RpcSettings};
use crate::denial::answer::{HEADER_MISMATCH, RpcAnswer};
use crate::denial::refusal::Refusal;
use crate::wire::json::{Json, KeyInAnotherCase};

/// The number of bytes of parameters that rules may read beside arguments.
const PARAMS_BYTES: usize = 64 * 1024;

/// The number of messages that a batch may have.
const BATCH: usize = 100;

/// The key of the revision in the `_meta` of a request.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// The message of a body before its parameters are read.
struct Envelope<'t> {
    kind: RpcKind,
    method: Option<String>,
    id: Option<Json<'t>>,
    params: Option<Json<'t>>,
}

/// The fault of a body or head, and the messages that are answered.
struct Fault {
    reason: String,
    /// The id of the request whose head is at fault.
    id: Option<String>,
    /// The code of the error that answers it.
    code: i32,
}

/// Returns the messages in the request `http` with this `head` and body, at least one.
///
/// # Errors
/// Fails if the body holds no messages, or the head says something else than they do.
pub(in crate::decide) fn read(
    http: &Arc<HttpRequest>,
    head: &RpcHead,
    body: &Ahead,
    settings: &RpcSettings<'_>,
) -> Result<Vec<RpcMessage>, Refusal> {
    let refused = |fault: Fault| {
        let refusal = Refusal::message_invalid(fault.reason);
        match fault.id {
            Some(id) => refusal.answered(RpcAnswer::invalid(
                id,
                fault.code,
                head.accepts_only_events(),
            )),
            None => refusal,
        }
    };
    if http.method == Method::POST {
        return of_body(http, head, body, settings).map_err(refused);
    }
    let standard = Standard::of(head).map_err(|fault| refused(fault.into()))?;
    standard
        .check_absent()
        .map_err(|fault| refused(fault.into()))?;
    let is_mcp = settings.protocol == Protocol::Mcp;
    let has_sessions = settings
        .versions
        .iter()
        .any(|version| !version.is_stateless());
    let is_empty = body.is_whole && body.bytes.is_empty();
    let kind = match http.method {
        _ if !is_empty => RpcKind::Other,
        Method::OPTIONS => RpcKind::Preflight,
        Method::GET if is_mcp && has_sessions && head.accepts_events() => RpcKind::Stream,
        Method::DELETE if is_mcp && has_sessions && standard.session.is_some() => RpcKind::End,
        _ => RpcKind::Other,
    };
    let mut message = RpcMessage::new(Arc::clone(http), settings.protocol, kind);
    if is_mcp && kind != RpcKind::Preflight {
        message.revision = Some(standard.revision().to_owned());
    }
    Ok(vec![message])
}

fn of_body(
    http: &Arc<HttpRequest>,
    head: &RpcHead,
    body: &Ahead,
    settings: &RpcSettings<'_>,
) -> Result<Vec<RpcMessage>, Fault> {
    if !head.is_json() {
        return Err(Fault::new(
            "the request must have one Content-Type, application/json in UTF-8",
        ));
    }
    let json = Json::read(&body.bytes);
    let json =
        json.map_err(|error| Fault::new(&format!("the body is not strict JSON: {error}")))?;
    let is_batch = json.is_array();
    if json.items().nth(BATCH).is_some() {
        return Err(Fault::new("a batch has at most 100 messages"));
    }
    let items: Vec<_> = if is_batch {
        json.items().collect()
    } else {
        vec![json]
    };
    let mut envelopes = Vec::new();
    for item in items {
        envelopes.push(envelope(item, settings.protocol)?);
    }
    if settings.protocol == Protocol::JsonRpc {
        if envelopes.is_empty() {
            return Err(Fault::new("the batch is empty"));
        }
        let messages = envelopes.into_iter().map(|envelope| {
            let mut message = message(http, envelope, settings)?;
            message.is_in_batch = is_batch;
            Ok(message)
        });
        return messages.collect();
    }
    let only_id = match envelopes.as_slice() {
        [only] if !is_batch && only.kind == RpcKind::Request => {
            only.id.map(|id| id.as_str().to_owned())
        }
        _ => None,
    };
    let of_head = |fault: FieldFault| Fault {
        reason: fault.reason,
        id: only_id.clone(),
        code: fault.code,
    };
    let standard = Standard::of(head).map_err(of_head)?;
    if is_batch {
        check_batch(&envelopes, &standard)?;
    }
    let mut messages = Vec::new();
    for envelope in envelopes {
        let is_request = envelope.kind == RpcKind::Request;
        let params = envelope.params;
        let mut message = message(http, envelope, settings)?;
        let read = mcp_params(&mut message, params, settings)?;
        message.is_in_batch = is_batch;
        if message.method.is_none() {
            standard.check_absent().map_err(of_head)?;
        }
        if let Some(method) = &message.method {
            let repeated = Repeated {
                method,
                is_request,
                revision: read.revision.as_deref(),
                name: read.name.as_deref(),
                uri: read.uri.as_deref(),
                task: read.task.as_deref(),
                arguments: read.arguments,
            };
            standard.check(&repeated).map_err(of_head)?;
        }
        if is_batch || message.method.as_deref() != Some("initialize") {
            message.revision = Some(standard.revision().to_owned());
        }
        messages.push(message);
    }
    Ok(messages)
}

/// Checks a batch of MCP.
fn check_batch(envelopes: &[Envelope<'_>], standard: &Standard<'_>) -> Result<(), Fault> {
    if standard.revision() != Revision::R20250326.as_str() {
        return Err(Fault::new("this revision of MCP has no batches"));
    }
    let is_initialize = |envelope: &Envelope<'_>| envelope.method.as_deref() == Some("initialize");
    if envelopes.is_empty() || envelopes.iter().any(is_initialize) {
        return Err(Fault::new("the batch is empty or holds `initialize`"));
    }
    Ok(())
}

/// Reads what is the same in every message.
fn envelope(json: Json<'_>, protocol: Protocol) -> Result<Envelope<'_>, Fault> {
    if !json.is_object() {
        return Err(Fault::new("the body is no JSON-RPC message"));
    }
    let known = ["jsonrpc", "method", "id", "params", "result", "error"];
    let [version, method, id, params, result, error] = json.fields(known)?;
    if version.and_then(Json::text).as_deref() != Some("2.0") {
        return Err(Fault::new("a message needs `jsonrpc`, which is \"2.0\""));
    }
    let is_mcp = protocol == Protocol::Mcp;
    let is_id = |id: &Json<'_>| {
        let is_number = |number| !is_mcp || is_integer(number);
        id.text().is_some() || id.number().is_some_and(is_number) || id.is_null() && !is_mcp
    };
    if !id.as_ref().is_none_or(is_id) {
        return Err(Fault::new("the id of a message is a text or an integer"));
    }
    let kind = match (method, id, result.xor(error)) {
        (Some(_), Some(_), None) => RpcKind::Request,
        (Some(_), None, None) => RpcKind::Notification,
        (None, Some(_), Some(_)) => RpcKind::Response,
        _ => {
            return Err(Fault::new(
                "a message is a request, a notification or a response",
            ));
        }
    };
    if method.is_some() && (result.is_some() || error.is_some()) {
        return Err(Fault::new(
            "a message is a request, a notification or a response",
        ));
    }
    let method = match method.map(Json::text) {
        Some(None) => return Err(Fault::new("the method of a message is a text")),
        Some(Some(method)) => Some(method.into_owned()),
        None => None,
    };
    // Some clients write null for no parameters.
    let params = params.filter(|params| !params.is_null());
    let is_structure = |params: &Json<'_>| {
        params.is_object() || protocol == Protocol::JsonRpc && params.is_array()
    };
    if !params.as_ref().is_none_or(is_structure) {
        return Err(Fault::new("the parameters of a message are an object"));
    }
    Ok(Envelope {
        kind,
        method,
        id,
        params,
    })
}

fn is_integer(number: &str) -> bool {
    !number.contains(['.', 'e', 'E'])
}

/// Makes the message of an envelope.
fn message(
    http: &Arc<HttpRequest>,
    envelope: Envelope<'_>,
    settings: &RpcSettings<'_>,
) -> Result<RpcMessage, Fault> {
    let mut message = RpcMessage::new(Arc::clone(http), settings.protocol, envelope.kind);
    message.id = envelope.id.map(|id| id.as_str().to_owned());
    message.method = checked(envelope.method)?;
    let params = envelope.params.map(Json::as_str);
    let params = params.filter(|params| params.len() <= PARAMS_BYTES);
    message.params = params.map(str::to_owned);
    Ok(message)
}

/// The parameters that are compared with the head.
struct Params<'t> {
    revision: Option<String>,
    name: Option<String>,
    uri: Option<String>,
    task: Option<String>,
    arguments: Option<Json<'t>>,
}

/// Reads the parameters of a message of MCP into `message`.
fn mcp_params<'t>(
    message: &mut RpcMessage,
    params: Option<Json<'t>>,
    settings: &RpcSettings<'_>,
) -> Result<Params<'t>, Fault> {
    let method = message.method.clone().unwrap_or_default();
    let params = params.unwrap_or(Json::EMPTY_OBJECT);
    let known = [
        "name",
        "uri",
        "taskId",
        "arguments",
        "_meta",
        "notifications",
    ];
    let [name, uri, task, arguments, meta, notifications] = params.fields(known)?;
    let text = |value: Option<Json<'_>>| value.and_then(Json::text).map(String::from);
    let arguments = arguments.filter(|arguments| !arguments.is_null());
    let read = Params {
        revision: match meta {
            Some(meta) => text(meta.field(VERSION_KEY)?),
            None => None,
        },
        name: checked(text(name))?,
        uri: checked(text(uri))?,
        task: text(task),
        arguments,
    };
    match method.as_str() {
        CALL => {
            let tool = read.name.clone();
            let tool =
                tool.ok_or_else(|| Fault::new("a call needs the name of its tool, a text"))?;
            if !arguments
                .as_ref()
                .is_none_or(|arguments| arguments.is_object())
            {
                return Err(Fault::new("the arguments of a call are an object"));
            }
            message.is_limited = settings.conditions.limit(&tool);
            message.held = settings.conditions.that_hold(&tool, arguments)?;
            message.arguments = arguments.map(|arguments| arguments.as_str().to_owned());
            message.tool = Some(tool);
        }
        "prompts/get" => {
            let name = read.name.clone();
            message.name = Some(name.ok_or_else(|| Fault::new("the name of a prompt is a text"))?);
        }
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
            if uri.is_some() && read.uri.is_none() {
                return Err(Fault::new("the URI of a resource is a text"));
            }
            // The empty one is of no form that rules know.
            message.uris = vec![read.uri.clone().unwrap_or_default()];
        }
        "subscriptions/listen" => {
            let Some(notifications) = notifications else {
                return Ok(read);
            };
            let Some(listed) = notifications.field("resourceSubscriptions")? else {
                return Ok(read);
            };
            for uri in listed.items() {
                let uri = checked(text(Some(uri)))?;
                let uri = uri.ok_or_else(|| Fault::new("the URI of a resource is a text"))?;
                message.uris.push(uri);
            }
            if !listed.is_array() {
                return Err(Fault::new("the URIs of resources are a list"));
            }
        }
        _ => {}
    }
    Ok(read)
}

/// Returns `text`, unless the engine of the rules cannot compare it.
fn checked(text: Option<String>) -> Result<Option<String>, Fault> {
    if text.as_ref().is_some_and(|text| text.contains('\0')) {
        return Err(Fault::new("a word of the message holds NUL"));
    }
    Ok(text)
}

impl Fault {
    fn new(reason: &str) -> Self {
        Self {
            reason: reason.to_owned(),
            id: None,
            code: HEADER_MISMATCH,
        }
    }
}

impl From<KeyInAnotherCase> for Fault {
    fn from(_: KeyInAnotherCase) -> Self {
        Self::new("a key differs only in the case of its letters from one that the rules read")
    }
}

impl From<FieldFault> for Fault {
    fn from(fault: FieldFault) -> Self {
        Self::new(&fault.reason)
    }
}
