//! Lines of policy that programs propose.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use openshell_events::text::visible;
use openshell_policy::comparison::addition;
use openshell_policy::network::PolicyName;
use openshell_policy::network::host::Host;
use openshell_policy::policy::Policy;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::approvals::bounds::DeniedForRun;
use crate::approvals::line::{ANY_BODY, Joined, Proposed, besides, children, in_words, written};
use crate::approvals::marks::{Mark, Marks};
use crate::approvals::site::site;
use crate::approvals::text::{all_visible, facts_of, quoted, words, write_line};
use crate::decide::line::Line;
use crate::decide::snapshot::Snapshot;
use crate::ground::peer::Caller;

/// The port at which requests are in clear text.
const CLEAR: u16 = 80;

/// The most characters of a reason that a program is told.
const REASON_CHARACTERS: usize = 500;

/// The generation of what is permitted but not yet in force.
pub const TO_COME: u64 = u64::MAX;

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nobody has answered.
    Pending,
    /// It is permitted, from the generation with this number on.
    Approved(u64),
    /// Nobody permits it, for this reason, which may be empty.
    Rejected(String),
}

/// An endpoint that is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposedEndpoint {
    /// The host, or what its first label's wildcard stands before.
    pub host: Host,
    /// The host as it is written in the line.
    pub pattern: String,
    /// The port.
    pub port: u16,
    /// True if it permits what changes something.
    pub writes: bool,
    /// True if it permits GET.
    pub gets: bool,
    /// True if it is for messages.
    pub is_rpc: bool,
    /// The endpoint, as values of a policy.
    pub values: Value,
}

/// A program for which something is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposedProgram {
    /// The path of its file.
    pub path: String,
    /// True if the line is for the program alone, and not for what it starts.
    pub is_exact: bool,
}

/// A line of policy that a program proposes.
#[derive(Debug)]
pub struct Proposal {
    /// The program that proposes it.
    pub caller: Caller,
    /// The key that it asks for.
    pub name: PolicyName,
    /// The endpoints; at least one.
    pub endpoints: Vec<ProposedEndpoint>,
    /// The programs; at least one.
    pub programs: Vec<ProposedProgram>,
    /// What the program says about it.
    pub intent: String,
    /// What became of it.
    pub fate: watch::Sender<Fate>,
    /// What else is said about it by the one who decides.
    pub details: Mutex<Details>,
}

/// What a gateway says about a proposal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the answers")]
pub struct Details {
    pub rule_name: Option<String>,
    pub validation_result: String,
    pub application_error: String,
    pub review_token: String,
    pub current_effective_policy_hash: Option<String>,
    pub candidate_effective_policy_hash: String,
}

impl Proposal {
    /// Returns the line with the key `name`, without what it permits; `None` if it cannot be shown
    /// whole.
    pub(super) fn line(&self, name: &PolicyName) -> Option<Proposed> {
        written(name, &self.values())
    }

    fn values(&self) -> Value {
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|endpoint| &endpoint.values)
            .collect();
        let programs = self.programs.iter().map(|program| {
            if program.is_exact {
                json!({"path": program.path, "exact": true})
            } else {
                json!({"path": program.path})
            }
        });
        json!({"endpoints": endpoints, "binaries": programs.collect::<Vec<_>>()})
    }

    /// Returns the paths of the programs for which it is.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|program| program.path.as_str())
    }

    /// Returns the first host and port.
    #[must_use]
    pub fn place(&self) -> (String, u16) {
        match self.endpoints.first() {
            Some(endpoint) => (endpoint.pattern.clone(), endpoint.port),
            None => (String::new(), 0),
        }
    }

    /// Returns true if the policy of `snapshot` permits all of it. Blocks.
    pub fn is_permitted(&self, snapshot: &Snapshot) -> bool {
        let network = snapshot.policy().network();
        let mut names = numbered(&self.name);
        let free = names.find(|name| !network.contains_key(name));
        let Some(proposed) = free.and_then(|name| self.line(&name)) else {
            return false;
        };
        let lines = std::slice::from_ref(&proposed.line);
        let Ok(together) = snapshot.with_lines(snapshot.generation(), lines) else {
            return false;
        };
        let change = addition(snapshot.policy(), together.policy(), &proposed.line.name);
        change.permits.is_empty() && change.takes_away.is_empty()
    }

    /// Adds `line`, which is this one's, to the policy of `snapshot`.
    ///
    /// # Errors
    /// It does not fit, or takes something away, and says so.
    pub(super) fn join(&self, snapshot: &Snapshot, line: &Line) -> Result<Joined, String> {
        let lines = std::slice::from_ref(line);
        let together = snapshot.with_lines(snapshot.generation() + 1, lines);
        let together = together.map_err(|error| error.to_string())?;
        let change = addition(snapshot.policy(), together.policy(), &line.name);
        if !change.takes_away.is_empty() {
            let less = change.takes_away.join("; ");
            return Err(format!("it would take away what is permitted: {less}"));
        }
        let permits = in_words(change.permits, self.left_open(line));
        Ok(Joined { together, permits })
    }

    /// Returns what `line` leaves open.
    fn left_open(&self, line: &Line) -> Vec<String> {
        let mut endpoints = self.endpoints.iter();
        let is_rpc = endpoints.any(|endpoint| endpoint.is_rpc);
        let mut rest = self.endpoints.iter().filter(|endpoint| !endpoint.is_rpc);
        let is_rest = rest.clone().next().is_some();
        let gets = rest.any(|endpoint| endpoint.gets);
        let mut open = vec![format!("{ANY_BODY} that its rules do not name")];
        if is_rpc {
            open.push("with any arguments that its rules do not name".to_owned());
            open.extend(besides(true, true, false));
        }
        if is_rest {
            open.extend(besides(false, true, gets));
        }
        open.extend(children(line));
        open
    }

    /// Returns the marks under `policy`; `is_writable` says which files the workload can write.
    pub(super) fn marks(&self, policy: &Policy, is_writable: impl Fn(&str) -> bool) -> Marks {
        let mut marks = Marks::default();
        for program in &self.programs {
            marks.program(&program.path, is_writable(&program.path));
            marks.add(!program.is_exact, Mark::Children);
        }
        for endpoint in &self.endpoints {
            marks.host(&endpoint.host, policy);
            marks.add(endpoint.writes, Mark::Writes);
            marks.add(endpoint.port == CLEAR, Mark::NoTls);
        }
        marks
    }

    /// Returns what is not asked again if it is denied for the run and counts as of `program`.
    pub(super) fn denied_for_run(&self, program: &str) -> DeniedForRun {
        DeniedForRun {
            program: program.to_owned(),
            target: format!("proposal {}", self.values()),
            request: None,
            message: None,
        }
    }

    /// Notes that it is permitted from the generation with this number on.
    pub fn approve(&self, generation: u64) {
        self.fate.send_if_modified(|fate| {
            let is_open = matches!(fate, Fate::Pending | Fate::Approved(TO_COME));
            if is_open {
                *fate = Fate::Approved(generation);
            }
            is_open
        });
    }

    /// Notes that nobody permits it, for this `reason`.
    pub fn reject(&self, reason: &str) {
        self.fate.send_if_modified(|fate| {
            let is_open = *fate == Fate::Pending;
            if is_open {
                let reason = reason.chars().take(REASON_CHARACTERS).collect();
                *fate = Fate::Rejected(reason);
            }
            is_open
        });
    }

    /// Returns what programs are told.
    pub(super) fn facts(&self, marks: &BTreeSet<Mark>, lines: &[Proposed]) -> Value {
        let (host, port) = self.place();
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|endpoint| {
                json!({
                    "site": site(&endpoint.host),
                    "host": endpoint.pattern,
                    "port": endpoint.port,
                })
            })
            .collect();
        let programs: Vec<_> = self
            .paths()
            .map(|path| visible(path).into_owned())
            .collect();
        json!({
            "kind": "proposal",
            "program": visible(&self.caller.program.executable),
            "ancestors": all_visible(&self.caller.program.ancestors),
            "site": self.endpoints.first().map(|endpoint| site(&endpoint.host)),
            "host": host,
            "port": port,
            "addresses": null,
            "method": null,
            "path": null,
            "query": null,
            "body": null,
            "message": null,
            "tool": null,
            "arguments": null,
            "credentials": [],
            "reason_code": null,
            "marks": words(marks),
            "lines": facts_of(lines),
            "intent": visible(&self.intent),
            "endpoints": endpoints,
            "binaries": programs,
        })
    }

    /// Returns all that is shown, in a fixed order. Writing to a String cannot fail.
    pub(super) fn text(&self, marks: &BTreeSet<Mark>, lines: &[Proposed]) -> String {
        let mut text = String::new();
        for endpoint in &self.endpoints {
            let _ = writeln!(text, "site       {}", site(&endpoint.host));
            let _ = writeln!(text, "host       {}:{}", endpoint.pattern, endpoint.port);
        }
        for path in self.paths() {
            let _ = writeln!(text, "program    {}", quoted(path));
        }
        let program = &self.caller.program;
        let _ = writeln!(text, "proposed by {}", quoted(&program.executable));
        if !program.ancestors.is_empty() {
            let ancestors: Vec<_> = program.ancestors.iter().map(|path| quoted(path)).collect();
            let _ = writeln!(text, "started by {}", ancestors.join(", "));
        }
        write_line(&mut text, marks, lines);
        if !self.intent.is_empty() {
            let said = visible(&self.intent).replace('"', "\\\"");
            let _ = writeln!(text, "the workload says \"{said}\"");
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// Returns the keys that a line with the wanted key `name` may get.
pub(super) fn numbered(name: &PolicyName) -> impl Iterator<Item = PolicyName> {
    let wanted = name.clone();
    let numbered = (2..1_000).map_while(move |number| {
        let text = format!("{}-{number}", wanted.as_str());
        PolicyName::parse(&text).ok()
    });
    std::iter::once(name.clone()).chain(numbered)
}
