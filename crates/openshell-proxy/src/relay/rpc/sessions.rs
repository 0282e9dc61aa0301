//! What is open in the sessions of MCP: requests of servers, which clients may answer, and requests for
//! lists, whose answers may come by any stream of their session.

use std::collections::{HashMap, VecDeque};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;

use crate::decide::message::rpc::headers::RepeatedArgument;
use crate::decide::message::rpc::list::ListKind;
use crate::ground::target::Target;
use crate::wire::json::Json;

/// The number of sessions that are known.
const SESSIONS: usize = 1024;
/// The number of requests of each kind that are open in a session.
const OPEN: usize = 256;
/// The number of bytes that an id, or the name of a tool, may have.
const ID_BYTES: usize = 256;
/// The number of servers with tools whose arguments fields repeat, and of such tools of each.
const SERVERS: usize = 32;
const TOOLS: usize = 1024;
/// The number of arguments of all tools of a server, of at most 384 bytes with their names.
const ARGUMENTS: usize = 2048;

/// The name of a session: a server, and the id that it gave or, without one, the calling process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionName([u8; 32]);

/// The open requests of all sessions, and the tools of servers. Of what is too much, the oldest sessions,
/// requests and servers are dropped, and further tools of a server are not kept.
#[derive(Debug, Default)]
pub struct Sessions {
    known: Mutex<Known>,
    tools: Mutex<KnownTools>,
}

#[derive(Debug, Default)]
struct Known {
    sessions: HashMap<SessionName, Open>,
    /// The number of uses of sessions so far.
    uses: u64,
}

/// The tools whose arguments fields repeat, by their servers, the oldest first.
#[derive(Debug, Default)]
struct KnownTools(VecDeque<(SessionName, HashMap<String, Vec<RepeatedArgument>>)>);

#[derive(Debug, Default)]
struct Open {
    last_use: u64,
    /// The ids of the server's requests, as JSON.
    requests: VecDeque<String>,
    /// The ids of requests for lists, as JSON, and what they ask for.
    lists: VecDeque<(String, ListKind)>,
}

impl SessionName {
    /// Returns the name of the session `id` at `path` of `target`, or of that of the process `pid`
    /// there, if it has no id.
    #[must_use]
    pub fn new(target: &Target, path: &str, id: Option<&[u8]>, pid: i32) -> Self {
        let pid = pid.to_string();
        match id {
            Some(id) => Self::of(target, path, b"id", id),
            None => Self::of(target, path, b"process", pid.as_bytes()),
        }
    }

    /// Returns the name of all sessions at `path` of `target`.
    #[must_use]
    pub fn of_server(target: &Target, path: &str) -> Self {
        Self::of(target, path, b"server", b"")
    }

    fn of(target: &Target, path: &str, kind: &[u8], name: &[u8]) -> Self {
        let target = target.to_string();
        // Neither a target nor a path holds NUL.
        let text = [
            target.as_bytes(),
            b"\0",
            path.as_bytes(),
            b"\0",
            kind,
            b"\0",
            name,
        ]
        .concat();
        let mut bytes = [0; 32];
        for (byte, of_digest) in bytes.iter_mut().zip(digest(&SHA256, &text).as_ref()) {
            *byte = *of_digest;
        }
        Self(bytes)
    }
}

impl Sessions {
    /// Notes that the server has sent a request with this `id`.
    pub fn asked(&self, session: &SessionName, id: &str) {
        let Some(id) = comparable(id) else {
            return;
        };
        self.known.lock().with(session, |open| {
            drop_oldest(&mut open.requests);
            open.requests.push_back(id);
        });
    }

    /// Returns true if the request of the server with this `id` is open.
    #[must_use]
    pub fn is_open(&self, session: &SessionName, id: &str) -> bool {
        let known = self.known.lock();
        let open = known.sessions.get(session);
        let id = comparable(id);
        open.is_some_and(|open| open.requests.iter().any(|known| Some(known) == id.as_ref()))
    }

    /// Notes that the request of the server with this `id` has its answer.
    pub fn answered(&self, session: &SessionName, id: &str) {
        if let Some(open) = self.known.lock().sessions.get_mut(session) {
            let id = comparable(id);
            open.requests.retain(|known| Some(known) != id.as_ref());
        }
    }

    /// Notes that the client asks for a list by a request with this `id`.
    pub fn asks_for_list(&self, session: &SessionName, id: &str, kind: ListKind) {
        let Some(id) = comparable(id) else {
            return;
        };
        self.known.lock().with(session, |open| {
            open.lists.retain(|(known, _)| *known != id);
            drop_oldest(&mut open.lists);
            open.lists.push_back((id, kind));
        });
    }

    /// Returns the kind of list for which the request with this `id` has asked, and forgets it.
    pub fn list(&self, session: &SessionName, id: &str) -> Option<ListKind> {
        let mut known = self.known.lock();
        let open = known.sessions.get_mut(session)?;
        let id = comparable(id)?;
        let place = open.lists.iter().position(|(known, _)| *known == id)?;
        open.lists.remove(place).map(|(_, kind)| kind)
    }
}

impl Sessions {
    /// Notes that `server` has listed a `tool`, of whose arguments fields repeat these.
    pub fn has_listed(&self, server: &SessionName, tool: &str, repeated: Vec<RepeatedArgument>) {
        let KnownTools(servers) = &mut *self.tools.lock();
        let place = servers.iter().position(|(known, _)| known == server);
        if repeated.is_empty() {
            if let Some((_, tools)) = place.and_then(|place| servers.get_mut(place)) {
                tools.remove(tool);
            }
            return;
        }
        if place.is_none() {
            if servers.len() == SERVERS {
                servers.pop_front();
            }
            servers.push_back((server.clone(), HashMap::new()));
        }
        let place = place.unwrap_or(servers.len() - 1);
        if let Some((_, tools)) = servers.get_mut(place) {
            tools.remove(tool);
            let arguments: usize = tools.values().map(Vec::len).sum();
            let has_room = tools.len() < TOOLS && arguments + repeated.len() <= ARGUMENTS;
            if has_room && tool.len() <= ID_BYTES {
                tools.insert(tool.to_owned(), repeated);
            }
        }
    }

    /// Returns true if fields repeat arguments of a tool of `server`.
    #[must_use]
    pub fn has_repeated(&self, server: &SessionName) -> bool {
        let tools = self.tools.lock();
        tools.0.iter().any(|(known, _)| known == server)
    }

    /// Returns the arguments of a `tool` of `server` that fields repeat.
    #[must_use]
    pub fn repeated(&self, server: &SessionName, tool: &str) -> Vec<RepeatedArgument> {
        let tools = self.tools.lock();
        let mut servers = tools.0.iter();
        let of_server = servers.find(|(known, _)| known == server);
        let of_tool = of_server.and_then(|(_, tools)| tools.get(tool));
        of_tool.cloned().unwrap_or_default()
    }
}

impl Known {
    fn with(&mut self, session: &SessionName, change: impl FnOnce(&mut Open)) {
        if !self.sessions.contains_key(session) && self.sessions.len() >= SESSIONS {
            let oldest = self.sessions.iter().min_by_key(|(_, open)| open.last_use);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.sessions.remove(&oldest);
            }
        }
        self.uses += 1;
        let open = self.sessions.entry(session.clone()).or_default();
        open.last_use = self.uses;
        change(open);
    }
}

/// Returns the one form of the JSON text `id`; `None` if it is too long to be kept.
fn comparable(id: &str) -> Option<String> {
    if id.len() > ID_BYTES {
        return None;
    }
    let text = Json::read(id.as_bytes()).ok()?.text();
    Some(text.map_or_else(|| id.to_owned(), |text| format!("\"{text}")))
}

fn drop_oldest<T>(all: &mut VecDeque<T>) {
    if all.len() >= OPEN {
        all.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::{ListKind, OPEN, SESSIONS, SessionName, Sessions};
    use crate::testing;

    fn session(id: &str) -> SessionName {
        SessionName::new(
            &testing::target("web.test:80"),
            "/mcp",
            Some(id.as_bytes()),
            7,
        )
    }

    #[test]
    fn a_request_of_a_server_is_answered_once_and_by_its_own_session() {
        let sessions = Sessions::default();
        sessions.asked(&session("a"), "1");
        assert!(!sessions.is_open(&session("b"), "1"));
        assert!(!sessions.is_open(&session("a"), "\"1\""), "its type counts");
        assert!(sessions.is_open(&session("a"), "1"));
        sessions.asked(&session("a"), "\"a\\/\\u00e9\"");
        assert!(sessions.is_open(&session("a"), "\"a/é\""), "escapes do not");
        sessions.answered(&session("a"), "1");
        assert!(!sessions.is_open(&session("a"), "1"));
        let target = testing::target("web.test:80");
        let names = [
            SessionName::new(&target, "/mcp", None, 7),
            SessionName::new(&target, "/mcp", None, 8),
            SessionName::new(&target, "/mcp", Some(b"7"), 7),
            SessionName::new(&target, "/other", Some(b"7"), 7),
            SessionName::new(&testing::target("web.test:81"), "/mcp", Some(b"7"), 7),
        ];
        for (index, one) in names.iter().enumerate() {
            assert!(names.iter().skip(index + 1).all(|other| one != other));
        }
    }

    #[test]
    fn what_is_open_has_a_bound_and_the_oldest_is_dropped() {
        let sessions = Sessions::default();
        for id in 0..=OPEN {
            sessions.asked(&session("a"), &id.to_string());
            sessions.asks_for_list(&session("a"), &id.to_string(), ListKind::Tools);
        }
        assert!(!sessions.is_open(&session("a"), "0"));
        assert!(sessions.is_open(&session("a"), "1"));
        assert_eq!(sessions.list(&session("a"), "0"), None);
        assert_eq!(sessions.list(&session("a"), "1"), Some(ListKind::Tools));
        assert_eq!(sessions.list(&session("a"), "1"), None);
        sessions.asked(&session("a"), &"1".repeat(257));
        assert!(!sessions.is_open(&session("a"), &"1".repeat(257)));
        for id in 0..SESSIONS {
            sessions.asked(&session(&id.to_string()), "1");
        }
        assert!(!sessions.is_open(&session("a"), "2"), "the oldest session");
        assert!(sessions.is_open(&session("0"), "1"));
    }
}
