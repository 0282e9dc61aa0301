//! The last refusals of a sandbox, as its programs may read them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use openshell_events::denial::{Denial, Denials};
use openshell_events::event::{Audit, Event};
use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_policy::network::host::{Host, HostPattern};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The most refusals that are remembered.
pub(super) const REMEMBERED: usize = 100;

/// The most programs, each with a host and a port, of which is known that they were refused.
const REFUSED: usize = 1_024;

/// The most characters of a path that are remembered.
const PATH_CHARACTERS: usize = 1_024;

/// The last refusals by the policy. It takes them from events.
#[derive(Debug, Default)]
pub struct RecentDenials(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    last: VecDeque<Recorded>,
    refused: BTreeSet<(String, Host, u16)>,
}

/// A refusal.
#[derive(Debug)]
struct Recorded {
    at: Instant,
    binary: String,
    host: String,
    port: u16,
    request: Option<(String, String)>,
    code: ReasonCode,
    fix: Option<String>,
}

impl Audit for RecentDenials {
    fn event(&self, event: &Event<'_>) {
        let Some(denial) = event.denial() else {
            return;
        };
        if !denial.code.is_policy_denial() {
            return;
        }
        let request = match event {
            Event::Request(decided) => {
                let path = decided.path.chars().take(PATH_CHARACTERS).collect();
                Some((decided.method.to_owned(), path))
            }
            _ => None,
        };
        self.add(denial, request);
    }
}

impl RecentDenials {
    pub(super) fn add(&self, denial: &Denial, request: Option<(String, String)>) {
        let mut recent = self.0.lock();
        if let Ok(host) = Host::parse(&denial.host)
            && recent.refused.len() < REFUSED
        {
            let refused = (denial.binary.clone(), host, denial.port);
            recent.refused.insert(refused);
        }
        if recent.last.len() >= REMEMBERED {
            recent.last.pop_front();
        }
        // A fix for an address names it, and programs are told none.
        let is_address = denial.code.stage() == DenialStage::Ssrf;
        let is_short = |fix: &String| fix.len() <= Denials::FIX_BYTES;
        recent.last.push_back(Recorded {
            at: Instant::now(),
            binary: denial.binary.clone(),
            host: denial.host.clone(),
            port: denial.port,
            request,
            code: denial.code,
            fix: denial
                .fix
                .clone()
                .filter(|fix| !is_address && is_short(fix)),
        });
    }

    /// Returns the last `count` refusals, the newest first.
    pub(super) fn last(&self, count: usize) -> Vec<Value> {
        let recent = self.0.lock();
        let last = recent.last.iter().rev().take(count);
        last.map(Recorded::to_json).collect()
    }

    /// Returns true if the program at `path` was refused at a host of `pattern` and at `port`.
    pub(super) fn has_refused(&self, path: &str, pattern: &HostPattern, port: u16) -> bool {
        let recent = self.0.lock();
        let matcher = pattern.matcher();
        let mut refused = recent.refused.iter();
        refused.any(|(program, host, of_port)| {
            program == path && *of_port == port && matcher.is_match(host)
        })
    }
}

impl Recorded {
    fn to_json(&self) -> Value {
        let request = self.request.as_ref();
        json!({
            "seconds_ago": self.at.elapsed().as_secs(),
            "binary": self.binary,
            "host": self.host,
            "port": self.port,
            "method": request.map(|(method, _)| method),
            "path": request.map(|(_, path)| path),
            "layer": self.code.stage().as_str(),
            "reason_code": self.code.as_str(),
            "fix": self.fix,
        })
    }
}
