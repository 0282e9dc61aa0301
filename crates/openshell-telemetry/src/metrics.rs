//! Counts what the sandbox decides, carries and spends, with an atomic number for each word of
//! closed sets. Calls of models, whose routes have arbitrary names, are counted under a lock that
//! is held briefly.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use openshell_events::event::{
    Approval, Audit, Decided, Event, ModelCall, RequestDecided, Ssh, TokenUsage, Took,
};
use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_events::words::{Action, Activity, ApprovalActivity, Decision, Door, SshActivity};
use parking_lot::Mutex;

/// The decisions that are counted.
pub(crate) const DECISIONS: [Decision; 4] = [
    Decision::Allow,
    Decision::AllowUpgrade,
    Decision::Audit,
    Decision::Deny,
];
/// The ways by which connections come.
pub(crate) const DOORS: [Door; 5] = [
    Door::Connect,
    Door::Forward,
    Door::Name,
    Door::Socks,
    Door::Models,
];
/// The protocols of requests.
pub(crate) const PROTOCOLS: [&str; 4] = ["http", "https", "mcp", "json-rpc"];
/// The layers of decisions that are not refusals: on connections, and on requests.
pub(crate) const LAYERS: [DenialStage; 2] = [DenialStage::L4, DenialStage::L7];

/// Upper bounds of the buckets for durations, in seconds.
pub(crate) const BOUNDS: [f64; 12] = [
    0.00002,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.01,
    0.05,
    0.25,
    1.0,
    5.0,
    f64::INFINITY,
];

/// Number of routes that are counted by name; an operator's policy has only a few.
const ROUTES: usize = 64;

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Indexed by [`LAYERS`], [`DECISIONS`], and 0 without a reason, or else one more than the
    /// reason's index in [`ReasonCode::ALL`].
    decisions: OnceLock<Box<[AtomicU64]>>,
    /// Indexed by [`PROTOCOLS`] and [`DECISIONS`].
    pub(crate) requests: [[AtomicU64; DECISIONS.len()]; PROTOCOLS.len()],
    /// Indexed by [`DOORS`].
    pub(crate) connections: [AtomicU64; DOORS.len()],
    /// Bytes that the workload sent over connections that have ended.
    pub(crate) sent: AtomicU64,
    /// Bytes that the workload received over connections that have ended.
    pub(crate) received: AtomicU64,
    pub(crate) deciding: Durations,
    pub(crate) connecting: Durations,
    pub(crate) credentials: AtomicU64,
    pub(crate) bypasses: AtomicU64,
    /// Ends of questions to a person, by who answered and how.
    approvals: Mutex<BTreeMap<(String, String), u64>>,
    sessions_begun: AtomicU64,
    sessions_ended: AtomicU64,
    /// The counts of each route.
    models: Mutex<BTreeMap<String, ModelCounts>>,
    reader: OnceLock<Reader>,
}

/// Durations of a step.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    /// Indexed by [`BOUNDS`].
    counts: [AtomicU64; BOUNDS.len()],
    nanoseconds: AtomicU64,
}

/// The requests to one route of models, and their tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelCounts {
    /// The number of requests by outcome: `ok`, or the reason of the refusal.
    pub(crate) requests: BTreeMap<&'static str, u64>,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// Numbers that other parts of the sandbox keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// Connections at the proxy.
    pub connections_open: u64,
    /// Generation of the policy in force.
    pub policy_generation: u64,
    /// Updates of the policy that were put in force.
    pub reloads_applied: u64,
    /// Updates that were invalid, or could not be read.
    pub reloads_failed: u64,
    /// Denials that were only counted, because there was no room for them.
    pub denials_dropped: u64,
    /// Lines of the log that no output took in time.
    pub log_lines_dropped: u64,
    /// Requests that wait for a person.
    pub approvals_held: u64,
    /// Requests that nobody was asked about, because of a bound.
    pub approvals_limited: u64,
}

/// Returns the current numbers; called for each scrape.
pub type Read = Box<dyn Fn() -> Readings + Send + Sync>;

/// Holds the reader.
struct Reader(Read);

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Returns the ends of questions, by who answered and how.
    pub(crate) fn approvals(&self) -> BTreeMap<(String, String), u64> {
        self.approvals.lock().clone()
    }

    /// Counts the end of a question.
    fn approval(&self, approval: &Approval<'_>) {
        let (by, scope) = match approval.activity {
            ApprovalActivity::Granted | ApprovalActivity::Denied => (approval.by, approval.scope),
            // Its client gave up, or nobody has answered in time.
            ApprovalActivity::Expired if approval.reason.is_empty() => {
                (Some("none"), Some("expired"))
            }
            ApprovalActivity::Expired => (Some("none"), Some("gone")),
            ApprovalActivity::Asked | ApprovalActivity::Revoked => return,
        };
        if let (Some(by), Some(scope)) = (by, scope) {
            let key = (by.to_owned(), scope.to_owned());
            *self.approvals.lock().entry(key).or_default() += 1;
        }
    }

    /// Sets the function that reads the numbers of other parts, once these exist. Only the first
    /// call has an effect.
    pub fn read_with(&self, read: Read) {
        let _ = self.reader.set(Reader(read));
    }

    /// Returns the numbers of other parts, once these exist.
    pub(crate) fn readings(&self) -> Option<Readings> {
        self.reader.get().map(|Reader(read)| read())
    }

    fn decisions(&self) -> &[AtomicU64] {
        let reasons = ReasonCode::ALL.len() + 1;
        self.decisions.get_or_init(|| {
            (0..LAYERS.len() * DECISIONS.len() * reasons)
                .map(|_| AtomicU64::new(0))
                .collect()
        })
    }

    /// Returns all counts of decisions that are not 0, each with its layer, decision and reason.
    pub(crate) fn decided(
        &self,
    ) -> impl Iterator<Item = (DenialStage, Decision, Option<ReasonCode>, u64)> {
        let reasons = ReasonCode::ALL.len() + 1;
        self.decisions()
            .iter()
            .enumerate()
            .filter_map(move |(index, count)| {
                let rest = index / reasons;
                let reason = index % reasons;
                let reason = reason
                    .checked_sub(1)
                    .and_then(|index| ReasonCode::ALL.get(index))
                    .copied();
                let layer = *LAYERS.get(rest / DECISIONS.len())?;
                let layer = reason.map_or(layer, ReasonCode::stage);
                let count = count.load(Relaxed);
                (count > 0).then_some((layer, DECISIONS[rest % DECISIONS.len()], reason, count))
            })
    }

    /// Returns the counts of each route.
    pub(crate) fn models(&self) -> BTreeMap<String, ModelCounts> {
        self.models.lock().clone()
    }

    /// Returns how many sessions and commands of SSH and `exec` are running.
    pub(crate) fn sessions(&self) -> u64 {
        self.sessions_begun
            .load(Relaxed)
            .saturating_sub(self.sessions_ended.load(Relaxed))
    }

    /// Counts a decision on a connection (`layer` 0) or a request (1).
    fn decide(&self, layer: usize, decided: &Decided<'_>) {
        let Some(decision) = place(&DECISIONS, &decided.decision) else {
            return;
        };
        let reason = decided
            .code
            .and_then(|code| place(ReasonCode::ALL, &code))
            .map_or(0, |index| index + 1);
        // A reason implies the layer, so all its decisions have one place.
        let layer = if reason > 0 { 0 } else { layer };
        let index = (layer * DECISIONS.len() + decision) * (ReasonCode::ALL.len() + 1) + reason;
        if let Some(count) = self.decisions().get(index) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn take_time(&self, took: Took) {
        for (durations, took) in [
            (&self.deciding, took.decision),
            (&self.connecting, took.connect),
        ] {
            if let Some(took) = took {
                durations.add(took);
            }
        }
    }

    fn request(&self, request: &RequestDecided<'_>) {
        let decided = &request.decided;
        self.decide(1, decided);
        self.take_time(request.took);
        // The event of a forwarded request stands for its connection too.
        if let (Some(_), Some(door)) = (request.took.connect, place(&DOORS, &Door::Forward)) {
            self.connections[door].fetch_add(1, Relaxed);
        }
        let protocol = match &request.message {
            None => request.scheme,
            Some(message) if message.is_mcp => "mcp",
            Some(_) => "json-rpc",
        };
        if let (Some(protocol), Some(decision)) = (
            place(&PROTOCOLS, &protocol),
            place(&DECISIONS, &decided.decision),
        ) {
            self.requests[protocol][decision].fetch_add(1, Relaxed);
        }
        if decided.decision != Decision::Deny && !request.credentials.is_empty() {
            let names = request.credentials.split(',').count();
            self.credentials
                .fetch_add(u64::try_from(names).unwrap_or(0), Relaxed);
        }
        if let Some(ModelCall { route, usage, .. }) = request.model {
            let status = decided
                .code
                .filter(|_| decided.decision == Decision::Deny)
                .map_or("ok", ReasonCode::as_str);
            self.model(route, status, usage);
        }
    }

    fn model(&self, route: &str, status: &'static str, usage: TokenUsage) {
        let mut models = self.models.lock();
        let route = if models.len() < ROUTES || models.contains_key(route) {
            route
        } else {
            "other"
        };
        let counts = models.entry(route.to_owned()).or_default();
        *counts.requests.entry(status).or_default() += 1;
        counts.input = counts.input.saturating_add(usage.input.unwrap_or(0));
        counts.output = counts.output.saturating_add(usage.output.unwrap_or(0));
    }

    fn session(&self, ssh: &Ssh<'_>) {
        // Only forwarded connections have a target.
        if ssh.action == Action::Allowed && ssh.target.is_none() {
            match ssh.activity {
                SshActivity::Exec => drop(self.sessions_begun.fetch_add(1, Relaxed)),
                SshActivity::Close => drop(self.sessions_ended.fetch_add(1, Relaxed)),
                SshActivity::Open | SshActivity::Auth | SshActivity::Forward => {}
            }
        }
    }
}

impl Durations {
    fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(place) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.counts[place].fetch_add(1, Relaxed);
        }
        self.nanoseconds
            .fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the count of each bucket with its upper bound, and the sum in seconds.
    pub(crate) fn read(&self) -> ([(f64, u64); BOUNDS.len()], f64) {
        let counts = std::array::from_fn(|index| (BOUNDS[index], self.counts[index].load(Relaxed)));
        (
            counts,
            Duration::from_nanos(self.nanoseconds.load(Relaxed)).as_secs_f64(),
        )
    }
}

impl Audit for Metrics {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Connection(connection) => {
                self.decide(0, &connection.decided);
                self.take_time(connection.took);
                let door = connection.way.door.and_then(|door| place(&DOORS, &door));
                // A refusal may have the activity that was refused.
                let is_open = connection.activity == Activity::Open
                    && connection.decided.action == Action::Allowed;
                if let Some(door) = door
                    && is_open
                {
                    self.connections[door].fetch_add(1, Relaxed);
                }
            }
            Event::Request(request) => self.request(request),
            Event::Closed(closed) => {
                self.sent.fetch_add(closed.sent, Relaxed);
                self.received.fetch_add(closed.received, Relaxed);
            }
            Event::Bypass(attempt) => {
                self.decide(0, &attempt.decided);
                self.bypasses.fetch_add(1, Relaxed);
            }
            Event::Ssh(ssh) => self.session(ssh),
            Event::Name(_)
            | Event::Published(_)
            | Event::File(_)
            | Event::Finding(_)
            | Event::Configuration(_)
            | Event::Lifecycle(_)
            | Event::Process(_) => {}
            Event::Approval(approval) => self.approval(approval),
        }
    }
}

/// Returns the index of `word` in its set.
fn place<T: PartialEq>(set: &[T], word: &T) -> Option<usize> {
    set.iter().position(|other| other == word)
}
