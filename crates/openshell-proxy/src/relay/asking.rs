//! The stage at which what the policy refuses waits for a person.

use std::future::pending;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Uri;
use hyper::body::Body as _;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Parts;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::approvals::answer::Asked;
use crate::approvals::askable::{Held, held};
use crate::approvals::desk::{Desk, Outcome, Ticket};
use crate::approvals::wish::{Wish, WishedBody, WishedMessage, WishedRequest};
use crate::credentials::inject::basic;
use crate::credentials::leaks::detector::LeakWatch;
use crate::decide::message::http::HttpRequest;
use crate::decide::message::{Ahead, Message, Need};
use crate::decide::own_lines::OwnLines;
use crate::denial::refusal::Refusal;
use crate::ground::target::{Origin, Scheme, Target};
use crate::reach::authorize::asker::Asker;
use crate::relay::body::Unsent;
use crate::relay::services::Services;
use crate::report::record::Record;
use crate::secrets::decode::Escapes;
use crate::secrets::needles::has_secret;
use crate::secrets::placeholder::{Coding, find};
use crate::wire::http::head;
use crate::wire::json::Json;

/// What is shown in place of a text with a secret.
const MASKED: &str = "[SECRET]";

/// The stage of one connection or request. It keeps its place among the questions while it is judged
/// again.
#[derive(Debug)]
pub struct Asking {
    /// `None` if nobody is asked.
    desk: Option<Arc<Desk>>,
    ticket: Option<Ticket>,
}

/// A refused request that is asked about.
#[derive(Debug)]
pub struct Refused<'r> {
    parts: &'r Parts,
    ahead: Ahead,
    body: Option<WishedBody>,
    origin: Origin,
    asker: Asker,
    leaks: Option<LeakWatch>,
    finder: LeakWatch,
}

impl<'r> Refused<'r> {
    /// Describes the request of `asker` to `origin` with the head `parts` and this `body`. It is
    /// searched by `leaks`, and what `finder` finds is not shown.
    #[must_use]
    pub fn new(
        parts: &'r Parts,
        body: &Unsent,
        origin: &Origin,
        asker: Asker,
        leaks: Option<LeakWatch>,
        finder: LeakWatch,
    ) -> Self {
        Self {
            ahead: body.ahead(),
            body: wished_body(parts, body),
            parts,
            origin: origin.clone(),
            asker,
            leaks,
            finder,
        }
    }
}

impl Asking {
    /// Creates the stage of a connection or request that `services` serve.
    #[must_use]
    pub fn new(services: &Services) -> Self {
        Self {
            desk: services.approvals.clone(),
            ticket: None,
        }
    }

    /// Returns true if a person may be asked about `refusal`.
    #[must_use]
    pub fn may_ask(&self, refusal: &Refusal) -> bool {
        self.desk.is_some() && held(refusal.code()).is_some()
    }

    /// Asks about the connection of `asker` to `target`, which `refusal` refuses. If it returns, the
    /// connection is judged again, with the lines `own`. Its client gives up by closing `socket`.
    ///
    /// # Errors
    /// Nobody permits it.
    pub async fn about_connection(
        &mut self,
        refusal: Refusal,
        asker: Asker,
        target: &Target,
        own: &mut OwnLines,
        socket: Option<BorrowedFd<'_>>,
        record: &mut Record,
    ) -> Result<(), Refusal> {
        let wish = Wish {
            caller: asker.caller().clone(),
            target: target.clone(),
            code: refusal.code(),
            addresses: refusal.unlisted_addresses().to_vec(),
            request: None,
            own: own.clone(),
        };
        self.ask(refusal, asker, wish, own, socket, record).await
    }

    /// Asks about the request `refused`, which `refusal` refuses, like
    /// [`Self::about_connection`].
    ///
    /// # Errors
    /// Nobody permits it, or it holds a secret that must not be sent.
    pub async fn about_request(
        &mut self,
        refusal: Refusal,
        refused: Refused<'_>,
        own: &mut OwnLines,
        socket: Option<BorrowedFd<'_>>,
        record: &mut Record,
    ) -> Result<(), Refusal> {
        let target = refused.origin.target.clone();
        let asker = refused.asker.clone();
        let has_ticket = self.ticket.is_some();
        let desk = self.desk.as_ref();
        let is_askable = desk.is_some_and(|desk| has_ticket || desk.may_enter(&asker));
        let written = written(&refused.parts.uri).len();
        if !is_askable || written > Desk::TEXT_BYTES {
            return Err(refusal);
        }
        let wished = Box::pin(wished(&refusal, refused));
        let Some(request) = wished.await? else {
            return Err(refusal);
        };
        let wish = Wish {
            caller: asker.caller().clone(),
            target,
            code: refusal.code(),
            addresses: refusal.unlisted_addresses().to_vec(),
            request: Some(request),
            own: own.clone(),
        };
        self.ask(refusal, asker, wish, own, socket, record).await
    }

    async fn ask(
        &mut self,
        refusal: Refusal,
        asker: Asker,
        wish: Wish,
        own: &mut OwnLines,
        socket: Option<BorrowedFd<'_>>,
        record: &mut Record,
    ) -> Result<(), Refusal> {
        let Some(desk) = &self.desk else {
            return Err(refusal);
        };
        let ticket = self.ticket.take();
        let (outcome, id) = desk.ask(ticket, asker, wish, gone(socket)).await;
        if let Some(id) = id {
            record.asked_by(id.to_string());
        }
        match outcome {
            Outcome::Judge(ticket) => self.ticket = Some(ticket),
            Outcome::Once(lines, ticket) => {
                *own = lines;
                self.ticket = Some(ticket);
            }
            Outcome::Refused(Some(asked)) => return Err(refusal.asked(asked == Asked::Denied)),
            Outcome::Refused(None) => return Err(refusal),
        }
        Ok(())
    }

    /// Ends the wait of what is permitted now.
    pub fn settle(&mut self) {
        // It is not waiting, so no question is left behind.
        self.ticket = None;
    }
}

/// Ends when the client at `socket` closes its side, in whole or in half, or cannot be watched; never
/// without a socket.
pub async fn gone(socket: Option<BorrowedFd<'_>>) {
    let Some(socket) = socket else {
        return pending().await;
    };
    // A second descriptor, because the first may be registered already.
    let copy = socket.try_clone_to_owned().map(std::net::TcpStream::from);
    let Ok(watched) = copy.and_then(TcpStream::from_std) else {
        return;
    };
    loop {
        match watched.ready(Interest::READABLE).await {
            Ok(ready) if ready.is_read_closed() => return,
            // What has arrived is not read here; the next event is awaited.
            Ok(_) => {
                let unread = || Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
                let _ = watched.try_io(Interest::READABLE, unread);
            }
            Err(_) => return,
        }
    }
}

/// Returns what is shown of `refused`; `None` if it is not asked about.
///
/// # Errors
/// The request holds a secret that must not be sent.
async fn wished(refusal: &Refusal, refused: Refused<'_>) -> Result<Option<WishedRequest>, Refusal> {
    let Refused {
        parts,
        ahead,
        body,
        origin,
        leaks,
        finder,
        ..
    } = refused;
    let has_foreign = match leaks {
        Some(leaks) => searched(parts, &ahead.bytes, leaks).await?,
        None => false,
    };
    let canonical =
        |takes_slash| HttpRequest::canonical(&parts.method, &parts.uri, takes_slash).ok();
    let Some(http) = canonical(false).or_else(|| canonical(true)) else {
        return Ok(None);
    };
    let is_secret = |text: &str| finder.finds(text.as_bytes()) || has_secret(text);
    let is_of_rules = held(refusal.code()) == Some(Held::Request);
    let mut rpc = None;
    if is_of_rules {
        // What no rule can be written for exactly is not asked.
        let Some(unmatched) = refusal.allowable_request() else {
            return Ok(None);
        };
        let is_of_message = refusal
            .judged_request()
            .is_some_and(|request| request.message.is_some());
        if is_of_message {
            let Some(arguments) = arguments(&ahead.bytes) else {
                return Ok(None);
            };
            if arguments.is_some_and(|text| text.len() > Desk::TEXT_BYTES) {
                return Ok(None);
            }
            rpc = Some(WishedMessage {
                method: unmatched.method,
                about: unmatched.asked,
                arguments: arguments.map(|text| masked_values(text, is_secret)),
            });
        }
    }
    let path = http.target.path().to_owned();
    let about = rpc.as_ref().and_then(|rpc| rpc.about.as_ref());
    let named = [
        Some(parts.method.as_str()),
        Some(path.as_str()),
        rpc.as_ref().map(|rpc| rpc.method.as_str()),
        about.map(|(_, value)| value.as_str()),
    ];
    // The line would have to name what must not be shown.
    if named.into_iter().flatten().any(is_secret) {
        return Ok(None);
    }
    let message = Message::of(
        parts,
        ahead,
        if rpc.is_some() {
            Need::Body(0)
        } else {
            Need::Head
        },
    );
    Ok(Some(WishedRequest {
        is_clear: origin.scheme == Scheme::Http,
        path,
        query: http
            .target
            .query()
            .map(|query| masked_query(query, is_secret)),
        body: body.map(|body| WishedBody {
            media_type: body.media_type.map(|text| masked(&text, is_secret)),
            ..body
        }),
        rpc,
        credentials: credentials(parts),
        is_upgrade: head::requested_upgrade(parts).is_some(),
        has_secret: has_foreign,
        message,
    }))
}

/// Returns `text`, or a mark in its place if it holds a secret.
fn masked(text: &str, is_secret: impl Fn(&str) -> bool) -> String {
    let text = if is_secret(text) { MASKED } else { text };
    text.to_owned()
}

/// Returns `query` with a mark in place of each part that holds a secret.
fn masked_query(query: &str, is_secret: impl Fn(&str) -> bool + Copy) -> String {
    let parts: Vec<_> = query
        .split('&')
        .map(|part| masked(part, is_secret))
        .collect();
    // A secret may hold the character that separates.
    masked(&parts.join("&"), is_secret)
}

/// Returns the JSON `text` with a mark in place of each string that holds a secret.
fn masked_values(text: &str, is_secret: impl Fn(&str) -> bool + Copy) -> String {
    if !is_secret(text) {
        return text.to_owned();
    }
    // Strings end at the first quote that is not escaped.
    let mut shown = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find('"') {
        let (before, string) = rest.split_at(begin + 1);
        shown.push_str(before);
        let mut is_escaped = false;
        let end = string.find(|c: char| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let Some(end) = end else {
            return MASKED.to_owned();
        };
        let (content, behind) = string.split_at(end);
        shown.push_str(&masked(content, is_secret));
        shown.push('"');
        rest = behind.strip_prefix('"').unwrap_or_default();
    }
    shown.push_str(rest);
    masked(&shown, is_secret)
}

/// Returns what the message `text` asks for as it is written, if it has any parameters: the arguments,
/// if there is nothing else but a name, otherwise all. `None` if it is no single request.
fn arguments(text: &[u8]) -> Option<Option<&str>> {
    let message = Json::read(text).ok()?;
    if !message.is_object() || message.get("id").is_none() {
        return None;
    }
    let Some(parameters) = message.get("params") else {
        return Some(None);
    };
    let only_named = parameters
        .entries()
        .all(|(key, _)| matches!(key.as_ref(), "name" | "arguments"));
    let arguments = parameters.get("arguments").filter(|_| only_named);
    Some(Some(arguments.unwrap_or(parameters).as_str()))
}

/// Returns the body of a request, as far as its head describes it.
fn wished_body(parts: &Parts, body: &Unsent) -> Option<WishedBody> {
    let (is_empty, bytes) = match body {
        Unsent::Unread(body) => (body.is_end_stream(), body.size_hint().exact()),
        Unsent::Ready(body, _) => (body.is_end_stream(), body.size_hint().exact()),
    };
    if is_empty || bytes == Some(0) {
        return None;
    }
    let media_type = parts.headers.get(CONTENT_TYPE);
    // Each byte is shown; one beyond ASCII as an escape.
    let text = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect();
    Some(WishedBody {
        media_type: media_type.map(|value| text(value.as_bytes())),
        bytes,
    })
}

/// Returns the names of the credentials whose placeholders a head holds, each once.
fn credentials(parts: &Parts) -> Vec<String> {
    let target = written(&parts.uri);
    let mut found = find(target.as_bytes(), Coding::Percent);
    for value in parts.headers.values() {
        found.extend(find(value.as_bytes(), Coding::Plain));
    }
    if let Some(value) = parts.headers.get(AUTHORIZATION)
        && let Some(user) = basic(value.as_bytes())
    {
        found.extend(find(&user, Coding::Plain));
    }
    let mut names: Vec<_> = found.into_iter().map(|found| found.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn written(uri: &Uri) -> &str {
    uri.path_and_query().map_or("", |target| target.as_str())
}

/// Searches a head and the beginning of its body; returns true if they hold a secret of another host.
///
/// # Errors
/// They hold one, and secrets are refused.
async fn searched(parts: &Parts, ahead: &Bytes, leaks: LeakWatch) -> Result<bool, Refusal> {
    let target = written(&parts.uri);
    let mut head = target.as_bytes().to_vec();
    head.push(b'\n');
    head.extend(Escapes::Percent.decoded(target.as_bytes()));
    for value in parts.headers.values() {
        head.push(b'\n');
        head.extend_from_slice(value.as_bytes());
    }
    let ahead = ahead.clone();
    // A long body would hold up others.
    let search = tokio::task::spawn_blocking(move || {
        let of_head = leaks.foreign(&head)?;
        let of_body = leaks.foreign(&ahead)?;
        Ok(of_head || of_body)
    });
    let searched = search.await;
    searched.unwrap_or_else(|error| Err(Refusal::engine(error.to_string())))
}
