//! Counts of what the sandbox decides, carries and spends: atomic numbers for words of closed sets.
//! Calls of models, whose routes have names, are counted under a lock that is held for a moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use openshell_events::event::{
    Audit, Decided, Event, ModelCall, RequestDecided, Ssh, TokenUsage, Took,
};
use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_events::words::{Action, Activity, Decision, Door, SshActivity};
use parking_lot::Mutex;

/// The decisions that are counted.
pub(crate) const DECISIONS: [Decision; 4] = [
    Decision::Allow,
    Decision::AllowUpgrade,
    Decision::Audit,
    Decision::Deny,
];
/// The ways of connections.
pub(crate) const DOORS: [Door; 5] = [
    Door::Connect,
    Door::Forward,
    Door::Name,
    Door::Socks,
    Door::Models,
];
/// The protocols of requests.
pub(crate) const PROTOCOLS: [&str; 2] = ["http", "https"];
/// The layers of decisions that are no refusals: on connections, and on requests.
pub(crate) const LAYERS: [DenialStage; 2] = [DenialStage::L4, DenialStage::L7];

/// Upper bounds of durations, in seconds.
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

/// Routes that are counted by name; a policy of an operator has a few.
const ROUTES: usize = 64;

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// By [`LAYERS`], [`DECISIONS`], and 0 or one more than the index in [`ReasonCode::ALL`].
    decisions: OnceLock<Box<[AtomicU64]>>,
    /// By [`PROTOCOLS`] and [`DECISIONS`].
    pub(crate) requests: [[AtomicU64; DECISIONS.len()]; PROTOCOLS.len()],
    /// By [`DOORS`].
    pub(crate) connections: [AtomicU64; DOORS.len()],
    /// Bytes from the workload, of connections that have ended.
    pub(crate) sent: AtomicU64,
    /// The same, to it.
    pub(crate) received: AtomicU64,
    pub(crate) deciding: Durations,
    pub(crate) connecting: Durations,
    pub(crate) credentials: AtomicU64,
    pub(crate) bypasses: AtomicU64,
    sessions_begun: AtomicU64,
    sessions_ended: AtomicU64,
    /// By route.
    models: Mutex<BTreeMap<String, ModelCounts>>,
    reader: OnceLock<Reader>,
}

/// Durations of a step.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    /// By [`BOUNDS`].
    counts: [AtomicU64; BOUNDS.len()],
    nanoseconds: AtomicU64,
}

/// Requests to one route of models, and their tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelCounts {
    /// By `ok`, or the reason of the refusal.
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
    /// Denials of which only the number was kept.
    pub denials_dropped: u64,
    /// Lines of the log that no output took in time.
    pub log_lines_dropped: u64,
}

/// Returns the numbers of this moment; called for each scrape.
pub type Read = Box<dyn Fn() -> Readings + Send + Sync>;

/// Holds the reader.
struct Reader(Read);

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Takes the reader of the numbers that other parts keep, once they are there; the first one
    /// counts.
    pub fn read_with(&self, read: Read) {
        let _ = self.reader.set(Reader(read));
    }

    /// The numbers of other parts, once they are there.
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

    /// Counts of decisions other than 0, each with its layer, decision and reason.
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

    /// Counts for each route.
    pub(crate) fn models(&self) -> BTreeMap<String, ModelCounts> {
        self.models.lock().clone()
    }

    /// Sessions and commands of SSH and `exec` that run.
    pub(crate) fn sessions(&self) -> u64 {
        self.sessions_begun
            .load(Relaxed)
            .saturating_sub(self.sessions_ended.load(Relaxed))
    }

    /// Counts a decision on a connection (0) or a request (1).
    fn decide(&self, layer: usize, decided: &Decided<'_>) {
        let Some(decision) = place(&DECISIONS, &decided.decision) else {
            return;
        };
        let reason = decided
            .code
            .and_then(|code| place(ReasonCode::ALL, &code))
            .map_or(0, |index| index + 1);
        // A reason has a layer of its own.
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
        // A forwarded request is the event of its connection too.
        if let (Some(_), Some(door)) = (request.took.connect, place(&DOORS, &Door::Forward)) {
            self.connections[door].fetch_add(1, Relaxed);
        }
        if let (Some(protocol), Some(decision)) = (
            place(&PROTOCOLS, &request.scheme),
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
        // Forwarded connections have a target.
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

    /// Counts by bound, and the sum in seconds.
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
                // A refusal may carry the activity that it refused.
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
        }
    }
}

/// The index of `word` in its set.
fn place<T: PartialEq>(set: &[T], word: &T) -> Option<usize> {
    set.iter().position(|other| other == word)
}
