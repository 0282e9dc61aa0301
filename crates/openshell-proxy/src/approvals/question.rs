//! Questions: fixed values, which look the same wherever they are shown.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use openshell_events::text::{counted, visible};
use openshell_policy::network::PolicyName;
use serde_json::{Value, json};

use crate::approvals::about::About;
use crate::approvals::askable::{Held, held};
use crate::approvals::line::{Proposed, names, propose};
use crate::approvals::marks::{Mark, Marks};
use crate::approvals::proposal::Proposal;
use crate::approvals::site::site;
use crate::approvals::text::{all_visible, facts_of, quoted, words, write_line};
use crate::approvals::wish::Wish;
use crate::decide::snapshot::Snapshot;

/// The most bytes of a question's text. A longer one is not asked.
pub(super) const TEXT_BYTES: usize = 4 * 1024;

/// The characters of an id: base 32 without letters that look like digits.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The id of a question: 128 random bits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuestionId(String);

impl QuestionId {
    /// Creates an id that was never used.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new() -> rustix::io::Result<Self> {
        let mut random = [0; 16];
        // So few bytes come in one piece (getrandom(2)).
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let mut bits = u128::from_le_bytes(random);
        let mut text = "q-".to_owned();
        for _ in 0..26 {
            let digit = DIGITS[(bits & 31) as usize];
            text.push(char::from(digit));
            bits >>= 5;
        }
        Ok(Self(text))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QuestionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connection,
    Request,
    Message,
    Addresses,
}

impl Kind {
    fn of(wish: &Wish) -> Self {
        match (held(wish.code), &wish.request) {
            (Some(Held::Addresses), _) => Self::Addresses,
            (_, Some(request)) if request.rpc.is_some() => Self::Message,
            (_, Some(_)) => Self::Request,
            (_, None) => Self::Connection,
        }
    }

    /// Returns the word, which is the same in all outputs.
    fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Request => "request",
            Self::Message => "message",
            Self::Addresses => "addresses",
        }
    }
}

/// What is shown of a question, without its id. It never changes.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) about: About,
    pub(super) lines: Vec<Proposed>,
    marks: BTreeSet<Mark>,
    /// The facts for programs.
    pub(super) facts: Value,
    /// All of it as one text for people.
    pub(super) text: String,
    /// All that makes a question another one; the key of its lines does not.
    same: String,
}

impl Shown {
    /// Returns the question about `wish`, whose program `is_writable`, under the policy of
    /// `snapshot`; `None` if no line would permit it, or if it is too long. Blocks.
    pub(super) fn of(wish: Wish, snapshot: &Snapshot, is_writable: bool) -> Option<Self> {
        let lines = propose(&wish, snapshot);
        let first = lines.first()?;
        let mut marks = Marks::of(&wish, snapshot.policy(), is_writable);
        marks.add(first.is_opaque, Mark::Opaque);
        let marks = marks.0;
        // Whatever they are called in the end, equal lines have the same name here.
        let name = names(&wish.target).next()?;
        let lines: Vec<_> = lines.iter().map(|line| line.named(&name)).collect();
        let facts = facts(&wish, &marks, &lines);
        let text = text(&wish, &marks, &lines);
        if text.len() > TEXT_BYTES {
            return None;
        }
        let mut same = format!("{facts}{text}");
        for line in wish.own.lines() {
            same.push_str(line.name.as_str());
        }
        if let Some(request) = &wish.request {
            // What is masked looks the same.
            same.push_str(&request.message.uri.to_string());
            if request.rpc.is_some() {
                let digest = digest(&SHA256, &request.message.ahead.bytes);
                same.push_str(&format!("{digest:?}"));
            }
        }
        Some(Self {
            about: About::Refused(Box::new(wish)),
            lines,
            marks,
            facts,
            text,
            same,
        })
    }

    /// Returns the question about `proposal` with these `marks`, whose line is `proposed`; `None` if
    /// it is too long.
    pub(super) fn of_proposal(
        proposal: Arc<Proposal>,
        proposed: Proposed,
        marks: Marks,
    ) -> Option<Self> {
        let marks = marks.0;
        let lines = vec![proposed];
        let facts = proposal.facts(&marks, &lines);
        let text = proposal.text(&marks, &lines);
        (text.len() <= TEXT_BYTES).then(|| Self {
            about: About::Proposed(proposal),
            lines,
            marks,
            facts,
            text,
            // No two proposals share a question.
            same: String::new(),
        })
    }

    /// Returns the same question with `name` as the key of its lines.
    pub(super) fn named(self, name: &PolicyName) -> Self {
        let About::Refused(wish) = &self.about else {
            return self;
        };
        let lines: Vec<_> = self.lines.iter().map(|line| line.named(name)).collect();
        Self {
            facts: facts(wish, &self.marks, &lines),
            text: text(wish, &self.marks, &lines),
            lines,
            ..self
        }
    }

    /// Returns true if everything that is shown of both is equal.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        !self.same.is_empty() && self.same == other.same
    }

    /// Returns true if it takes a second key to permit the line with this index.
    pub(super) fn is_dangerous(&self, line: usize) -> bool {
        let is_opaque = self.lines.get(line).is_some_and(|line| line.is_opaque);
        is_opaque || self.marks.iter().any(Mark::is_dangerous)
    }

    /// Returns the number of bytes that the question keeps of a body.
    pub(super) fn body_bytes(&self) -> usize {
        match &self.about {
            About::Refused(wish) => {
                let request = wish.request.as_ref();
                request.map_or(0, |request| request.message.ahead.bytes.len())
            }
            About::Proposed(_) => 0,
        }
    }
}

/// Returns what programs are told.
fn facts(wish: &Wish, marks: &BTreeSet<Mark>, lines: &[Proposed]) -> Value {
    let program = &wish.caller.program;
    let request = wish.request.as_ref();
    let rpc = request.and_then(|request| request.rpc.as_ref());
    let body = request.and_then(|request| request.body.as_ref());
    let addresses: Vec<_> = wish.addresses.iter().map(ToString::to_string).collect();
    let body = body.map(|body| {
        let media_type = body.media_type.as_deref().map(visible);
        json!({"type": media_type, "bytes": body.bytes})
    });
    let about = rpc.and_then(|rpc| rpc.about.as_ref());
    json!({
        "kind": Kind::of(wish).as_str(),
        "program": visible(&program.executable),
        "ancestors": all_visible(&program.ancestors),
        "site": site(&wish.target.host),
        "host": wish.target.host.to_string(),
        "port": wish.target.port,
        "addresses": (!addresses.is_empty()).then_some(addresses),
        "method": wish.method().map(visible),
        "path": request.map(|request| visible(&request.path)),
        "query": request.and_then(|request| request.query.as_deref()).map(visible),
        "body": body,
        "message": rpc.map(|rpc| visible(&rpc.method)),
        "tool": about.map(|(_, value)| visible(value)),
        "arguments": rpc.and_then(|rpc| rpc.arguments.as_deref()).map(visible),
        "credentials": request.map(|request| all_visible(&request.credentials)).unwrap_or_default(),
        "reason_code": wish.code.as_str(),
        "marks": words(marks),
        "lines": facts_of(lines),
        "intent": null,
    })
}

/// Returns all that is shown, in a fixed order. Writing to a String cannot fail.
fn text(wish: &Wish, marks: &BTreeSet<Mark>, lines: &[Proposed]) -> String {
    let target = &wish.target;
    let program = &wish.caller.program;
    let mut text = String::new();
    let _ = writeln!(text, "site       {}", site(&target.host));
    let _ = writeln!(text, "host       {target}");
    if !wish.addresses.is_empty() {
        let addresses: Vec<_> = wish.addresses.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "addresses  {}", addresses.join(", "));
    }
    let _ = writeln!(text, "program    {}", quoted(&program.executable));
    if !program.ancestors.is_empty() {
        let ancestors: Vec<_> = program.ancestors.iter().map(|path| quoted(path)).collect();
        let _ = writeln!(text, "started by {}", ancestors.join(", "));
    }
    if let Some(request) = &wish.request {
        let query = request.query.as_deref();
        let query = query.map(|query| format!("?{}", visible(query)));
        let method = visible(request.message.method.as_str());
        let path = visible(&request.path);
        let _ = writeln!(
            text,
            "request    {method} {path}{}",
            query.unwrap_or_default()
        );
        if let Some(body) = &request.body {
            let media_type = body.media_type.as_deref().unwrap_or("unknown type");
            let bytes = match body.bytes {
                Some(bytes) => counted(bytes, "byte", "bytes"),
                None => "unknown length".to_owned(),
            };
            let _ = writeln!(
                text,
                "body       {}, {bytes}, not shown",
                visible(media_type)
            );
        }
        if let Some(rpc) = &request.rpc {
            let about = rpc.about.as_ref();
            let about = about.map(|(key, value)| format!(" {key} {}", quoted(value)));
            let about = about.unwrap_or_default();
            let _ = writeln!(text, "message    {}{about}", visible(&rpc.method));
            if let Some(arguments) = &rpc.arguments {
                let _ = writeln!(text, "arguments  {}", visible(arguments));
            }
        }
        if !request.credentials.is_empty() {
            let _ = writeln!(text, "credential {}", request.credentials.join(", "));
        }
    }
    write_line(&mut text, marks, lines);
    text.truncate(text.trim_end().len());
    text
}
