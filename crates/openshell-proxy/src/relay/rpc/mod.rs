//! The sessions of MCP behind exchanges: which requests of servers are open, so that clients may answer
//! them, and which lists are on their way, so that clients see only what they may use.

mod events;
mod lists;
pub mod sessions;

use std::error::Error;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, StreamExt as _};
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use memchr::memmem;
use openshell_policy::network::endpoint::Protocol;

use crate::credentials::searchable::searchable;
use crate::decide::message::rpc::head::RpcHead;
use crate::decide::message::rpc::headers::REPEATED;
use crate::decide::message::rpc::list::ListKind;
use crate::decide::message::rpc::{RpcKind, RpcMessage};
use crate::decide::permit::Permit;
use crate::denial::answer::{HEADER_MISMATCH, RpcAnswer};
use crate::denial::refusal::Refusal;
use crate::ground::peer::Caller;
use crate::ground::shares::Share;
use crate::reach::authorize::connection::Connection;
use crate::relay::rpc::events::{EVENT_BYTES, Part, Splitter, data, with_data};
use crate::relay::rpc::lists::{filtered, tools};
use crate::relay::rpc::sessions::{SessionName, Sessions};
use crate::wire::http::body::{ResponseBody, boxed, full};
use crate::wire::http::head::remove_digests;
use crate::wire::http::target::RequestTarget;
use crate::wire::json::Json;
use crate::wire::memory::Memory;

/// The field of the id of a session.
const SESSION: &str = "mcp-session-id";

/// The number of bytes below which reading a message, and judging a list in it, holds up nobody.
const SHORT: usize = 4 * 1024;

/// The number of bytes of an answer from which its memory is counted.
const LONG: usize = 64 * 1024;

/// The messages of MCP in a request, as far as answers depend on them.
#[derive(Clone, Debug)]
pub struct RpcRequest {
    target: RequestTarget,
    session: SessionName,
    /// The server with all of its sessions.
    server: SessionName,
    /// The requests for lists in it, by their ids.
    lists: Vec<(String, ListKind)>,
    /// The ids of requests of the server that it answers.
    answered: Vec<String>,
}

impl RpcRequest {
    /// Returns what is kept of the `request` of `caller` for `target` under `permit`, which holds
    /// `messages`; `None` if none of them is of MCP.
    #[must_use]
    pub fn of<'m>(
        permit: &Permit,
        caller: &Caller,
        request: &Parts,
        target: &RequestTarget,
        messages: impl Iterator<Item = &'m RpcMessage>,
    ) -> Option<Self> {
        let mut messages = messages
            .filter(|message| message.protocol == Protocol::Mcp)
            .peekable();
        messages.peek()?;
        let id = request.headers.get(SESSION).map(HeaderValue::as_bytes);
        let mut kept = Self {
            target: target.clone(),
            session: SessionName::new(permit.target(), target.path(), id, caller.pid),
            server: SessionName::of_server(permit.target(), target.path()),
            lists: Vec::new(),
            answered: Vec::new(),
        };
        for message in messages {
            let kind = message.method.as_deref().and_then(ListKind::of_method);
            kept.lists.extend(message.id.clone().zip(kind));
            if message.kind == RpcKind::Response {
                kept.answered.extend(message.id.clone());
            }
        }
        Some(kept)
    }

    /// Returns true if `message` answers a request that the server has not sent, or that has its
    /// answer.
    #[must_use]
    pub fn is_unasked(&self, sessions: &Sessions, message: &RpcMessage) -> bool {
        let id = message.id.as_deref().unwrap_or_default();
        message.kind == RpcKind::Response && !sessions.is_open(&self.session, id)
    }

    /// Checks that the `head` of the request repeats the arguments of `message` as the server's last
    /// list of tools says.
    ///
    /// # Errors
    /// Fails if a field differs, whatever the policy permits: gateways route by it.
    pub fn check_repeated(
        &self,
        sessions: &Sessions,
        message: &RpcMessage,
        head: &RpcHead,
    ) -> Result<(), Refusal> {
        let Some(tool) = &message.tool else {
            return Ok(());
        };
        let repeated = sessions.repeated(&self.server, tool);
        if repeated.is_empty() || !message.differs(head, &repeated) {
            return Ok(());
        }
        let reason = "an mcp-param field differs from the argument that it repeats";
        let refusal = Refusal::message_invalid(reason.to_owned());
        let id = message.id.clone().filter(|_| !message.is_in_batch);
        Err(match id {
            Some(id) => refusal.answered(RpcAnswer::invalid(
                id,
                HEADER_MISMATCH,
                head.accepts_only_events(),
            )),
            None => refusal,
        })
    }

    /// Notes that the request is about to be sent.
    pub fn is_sent(&self, sessions: &Sessions) {
        for (id, kind) in &self.lists {
            sessions.asks_for_list(&self.session, id, *kind);
        }
    }

    /// Notes that the server has the request.
    pub fn has_arrived(&self, sessions: &Sessions) {
        for id in &self.answered {
            sessions.answered(&self.session, id);
        }
    }
}

/// Reads the answers of a server in one response.
struct Reader {
    sessions: Arc<Sessions>,
    session: SessionName,
    server: SessionName,
    connection: Arc<Connection>,
    memory: Arc<Memory>,
    target: RequestTarget,
}

/// Returns `response` to `request` with what the client may not use removed from its lists, and notes
/// the requests of the server in it. What cannot be read passes unchanged, because calls are judged
/// anyway.
///
/// # Errors
/// Fails if too many other responses are being decoded.
pub async fn read_answers(
    response: Response<ResponseBody>,
    request: RpcRequest,
    sessions: &Arc<Sessions>,
    connection: &Arc<Connection>,
    memory: &Arc<Memory>,
) -> Result<Response<ResponseBody>, Refusal> {
    let RpcRequest {
        target,
        mut session,
        server,
        lists,
        ..
    } = request;
    let caller = connection.caller();
    if let Some(given) = response.headers().get(SESSION) {
        let id = Some(given.as_bytes());
        session = SessionName::new(connection.target(), target.path(), id, caller.pid);
        for (id, kind) in &lists {
            sessions.asks_for_list(&session, id, *kind);
        }
    }
    let reader = Arc::new(Reader {
        sessions: Arc::clone(sessions),
        session,
        server,
        connection: Arc::clone(connection),
        memory: Arc::clone(memory),
        target,
    });
    let media_type = response.headers().get(CONTENT_TYPE);
    let media_type = media_type.and_then(|media_type| media_type.to_str().ok());
    let essence = media_type
        .and_then(|text| text.split(';').next())
        .unwrap_or_default();
    let is_events = essence.trim().eq_ignore_ascii_case("text/event-stream");
    let is_list = essence.trim().eq_ignore_ascii_case("application/json") && !lists.is_empty();
    if !is_events && !is_list || response.status() == StatusCode::PARTIAL_CONTENT {
        return Ok(response);
    }
    let program = &caller.program.executable;
    let response = searchable(response, memory, program, false)?.map(boxed);
    if response.headers().contains_key(CONTENT_ENCODING) {
        return Ok(response);
    }
    if is_events {
        let mut response = response.map(|body| events(reader, body));
        response.headers_mut().remove(CONTENT_LENGTH);
        remove_digests(response.headers_mut());
        return Ok(response);
    }
    Ok(json(&reader, response).await)
}

/// Returns `response`, whose body is a message.
async fn json(reader: &Arc<Reader>, response: Response<ResponseBody>) -> Response<ResponseBody> {
    let (mut head, mut body) = response.into_parts();
    let mut read = BytesMut::new();
    let mut room = None;
    loop {
        let bytes = read.len();
        if bytes >= LONG
            && room
                .as_ref()
                .is_none_or(|room: &Share| room.bytes() < bytes)
        {
            drop(room.take());
            room = reader.room(2 * bytes);
            if room.is_none() || bytes > EVENT_BYTES {
                break;
            }
        }
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    read.extend_from_slice(&data);
                }
            }
            // What has arrived is passed on, and then the error.
            Some(Err(error)) => {
                let parts = [Ok(Frame::data(read.freeze())), Err(error)];
                return Response::from_parts(head, boxed(StreamBody::new(stream::iter(parts))));
            }
            None => {
                let read = read.freeze();
                let new = message(reader, &read).await;
                if let Some(new) = new {
                    head.headers.remove(CONTENT_LENGTH);
                    remove_digests(&mut head.headers);
                    return Response::from_parts(head, full(new.into()));
                }
                return Response::from_parts(head, full(read));
            }
        }
    }
    let read = stream::iter([Ok(Frame::data(read.freeze()))]);
    let body = StreamBody::new(read.chain(BodyStream::new(body)));
    Response::from_parts(head, boxed(body))
}

/// An event stream that is read.
struct Events {
    reader: Arc<Reader>,
    body: ResponseBody,
    splitter: Splitter,
    /// The memory of what has arrived of an event, once that is long.
    room: Option<Share>,
    /// What comes behind the events.
    end: Option<Result<Frame<Bytes>, BodyError>>,
    is_over: bool,
}

type BodyError = Box<dyn Error + Send + Sync>;

/// Returns the event stream `body`, of which each event is read when it has arrived.
fn events(reader: Arc<Reader>, body: ResponseBody) -> ResponseBody {
    let events = Events {
        reader,
        body,
        splitter: Splitter::default(),
        room: None,
        end: None,
        is_over: false,
    };
    let frames = stream::unfold(events, async |mut events| {
        Some((events.next().await?, events))
    });
    boxed(StreamBody::new(Box::pin(frames)))
}

impl Events {
    /// Reserves memory for what has arrived of an event. Without, the event passes unread.
    fn reserve(&mut self) {
        let bytes = self.splitter.len();
        if bytes < LONG {
            self.room = None;
        } else if self.room.as_ref().is_none_or(|room| room.bytes() < bytes) {
            // Dropped first, because it is a part of the new one.
            self.room = None;
            self.room = self.reader.room(2 * bytes);
            if self.room.is_none() {
                self.splitter.pass();
            }
        }
    }

    async fn next(&mut self) -> Option<Result<Frame<Bytes>, BodyError>> {
        loop {
            match self.splitter.next() {
                Some(Part::Unread(bytes)) => return Some(Ok(Frame::data(bytes))),
                Some(Part::Event(event)) => {
                    let new = message(&self.reader, &Bytes::from(data(&event))).await;
                    let event = new.map_or(event.clone(), |new| with_data(&event, &new));
                    return Some(Ok(Frame::data(event)));
                }
                None if self.is_over => return None,
                None => self.reserve(),
            }
            let frame = if self.end.is_some() {
                None
            } else {
                self.body.frame().await
            };
            let Some(frame) = frame else {
                let rest = self.splitter.rest();
                if !rest.is_empty() {
                    return Some(Ok(Frame::data(rest)));
                }
                self.is_over = true;
                return self.end.take();
            };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.splitter.push(&data),
                Ok(Err(trailers)) => self.end = Some(Ok(trailers)),
                Err(error) => self.end = Some(Err(error)),
            }
        }
    }
}

/// Reads a message; returns the one that takes its place, if one does.
async fn message(reader: &Arc<Reader>, text: &Bytes) -> Option<String> {
    if text.len() < SHORT {
        return reader.message(text);
    }
    let reader = Arc::clone(reader);
    let text = text.clone();
    let read = tokio::task::spawn_blocking(move || reader.message(&text)).await;
    read.ok().flatten()
}

impl Reader {
    /// Reserves memory for `bytes` of an answer; `None` if there is none.
    fn room(&self, bytes: usize) -> Option<Share> {
        let program = &self.connection.caller().program.executable;
        self.memory.answer(program, bytes)
    }

    fn message(&self, text: &[u8]) -> Option<String> {
        let json = Json::read(text).ok()?;
        if !json.is_array() {
            return self.one(json);
        }
        let items: Vec<_> = json.items().collect();
        let new: Vec<_> = items.iter().map(|item| self.one(*item)).collect();
        if new.iter().all(Option::is_none) {
            return None;
        }
        let all = items.iter().zip(new);
        let all = all.map(|(item, new)| new.unwrap_or_else(|| item.as_str().to_owned()));
        Some(format!("[{}]", all.collect::<Vec<_>>().join(",")))
    }

    /// Notes which arguments of the tools in the list of `json` fields of heads repeat.
    fn note_tools(&self, json: Json<'_>) {
        let has_repeated = memmem::find(json.as_str().as_bytes(), REPEATED.as_bytes()).is_some();
        if has_repeated || self.sessions.has_repeated(&self.server) {
            for (tool, repeated) in tools(json) {
                self.sessions.has_listed(&self.server, &tool, repeated);
            }
        }
    }

    /// Reads one message; returns the one that takes its place, if one does.
    fn one(&self, json: Json<'_>) -> Option<String> {
        let mut id = None;
        let mut is_request = false;
        for (key, value) in json.entries() {
            match key.as_ref() {
                "id" => id = Some(value.as_str()),
                "method" => is_request = true,
                _ => {}
            }
        }
        let id = id?;
        if is_request {
            self.sessions.asked(&self.session, id);
            return None;
        }
        let kind = self.sessions.list(&self.session, id)?;
        if kind == ListKind::Tools {
            self.note_tools(json);
        }
        let permit = self.connection.permit();
        let rules = permit.rules()?;
        let mut entries = rules.entries(&self.target, kind);
        filtered(json, kind, |name| entries.permit(name))
    }
}
