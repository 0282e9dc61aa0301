//! Denials and counts of decisions, which are summed up and sent at intervals.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use openshell_events::denial::{Denial, Denials};
use openshell_events::event::{Audit, Decided, Event};
use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_events::words::Action;
use openshell_gateway::client::Gateway;
use openshell_gateway::convert::denials::Activity;
use openshell_gateway::error::CallError;
use openshell_policy::proposal::{self, Proposal};
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_sources::gateway::Receiver;
use parking_lot::Mutex;

use crate::reports::look_up::LookedUp;
use crate::reports::refusals::now_ms;

/// Denials and counts that the gateway has not acknowledged.
pub(crate) struct DenialReports {
    receiver: Receiver,
    resolver: Arc<Resolver>,
    pending: Mutex<Pending>,
    /// The hosts, ports and programs of lines that were proposed while a request waited.
    proposed: Mutex<BTreeSet<(String, u16, String)>>,
    /// Addresses of refused names. Locked while a report is being sent, so that the next report
    /// waits until the gateway has acknowledged it.
    sending: tokio::sync::Mutex<LookedUp>,
}

/// The most lines that are remembered as proposed.
const PROPOSED: usize = 1_024;

/// Whether addresses of refused names are looked up for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookUp {
    Yes,
    /// There is no time to look them up.
    No,
}

#[derive(Default)]
struct Pending {
    denials: Denials,
    activity: Activity,
    /// True if the loss of the gateway was logged. Each loss is logged once.
    is_lost: bool,
}

impl fmt::Debug for DenialReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialReports").finish_non_exhaustive()
    }
}

impl DenialReports {
    pub(super) fn new(receiver: Receiver, resolver: Arc<Resolver>) -> Self {
        Self {
            receiver,
            resolver,
            pending: Mutex::default(),
            proposed: Mutex::default(),
            sending: tokio::sync::Mutex::default(),
        }
    }

    /// Notes that a line for this host, port and program was proposed already.
    pub(crate) fn note_proposed(&self, host: String, port: u16, binary: String) {
        let mut proposed = self.proposed.lock();
        if proposed.len() < PROPOSED {
            proposed.insert((host, port, binary));
        }
    }

    /// Returns true if a line like `proposal` was proposed already; once for each.
    fn was_proposed(&self, proposal: &Proposal) -> bool {
        let key = (
            proposal.host.clone(),
            proposal.port,
            proposal.binary.clone(),
        );
        self.proposed.lock().remove(&key)
    }

    /// Sends denials at intervals.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.receiver.denials_every).await;
            self.flush(LookUp::Yes).await;
        }
    }

    /// Sends counts of decisions at intervals, to gateways that accept them.
    pub(super) async fn run_activity(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.receiver.activity_every).await;
            self.flush_activity().await;
        }
    }

    /// Sends the counts so far, unless there are none or the gateway does not take them.
    pub(super) async fn flush_activity(&self) {
        if !self.gateway().is_later() {
            self.pending().activity = Activity::default();
            return;
        }
        let activity = std::mem::take(&mut self.pending().activity);
        if activity == Activity::default() {
            return;
        }
        let workspace = self.workspace();
        if self
            .gateway()
            .submit_activity(&activity, &workspace)
            .await
            .is_err_and(|error| !error.is_unimplemented())
        {
            self.pending().activity.merge(activity);
        }
    }

    /// Sends the denials so far, unless there are none. Denials that the gateway does not accept
    /// are kept.
    pub(super) async fn flush(&self, look_up: LookUp) {
        let mut looked_up = self.sending.lock().await;
        if self.pending().denials.is_empty() {
            return;
        }
        let denials = std::mem::take(&mut self.pending().denials);
        let summaries = denials.summaries();
        if look_up == LookUp::Yes {
            // A name that was only looked up, never connected to, is not proposed.
            let is_proposed = |denial: &&Denial| denial.code.is_policy_denial() && denial.port != 0;
            let hosts = summaries
                .iter()
                .map(|summary| &summary.first)
                .filter(is_proposed);
            looked_up
                .add(&self.resolver, hosts.map(|denial| denial.host.clone()))
                .await;
        }
        let mut proposals = proposal::propose(summaries, |host| looked_up.get(host));
        proposals.retain(|proposal| !self.was_proposed(proposal));
        // The workspace is known since the first call; some gateways have none.
        match self
            .gateway()
            .submit_denials(&denials, &proposals, &self.workspace())
            .await
        {
            Ok(()) => self.pending().is_lost = false,
            Err(error) => self.keep(denials, &error),
        }
    }

    /// Keeps denials that were not sent for the next report, unless the gateway has no such call.
    fn keep(&self, denials: Denials, error: &CallError) {
        let mut pending = self.pending();
        let is_new = !std::mem::replace(&mut pending.is_lost, true);
        if !error.is_unimplemented() {
            // Merged in this order because the newer denials may not fit.
            let since = std::mem::replace(&mut pending.denials, denials);
            pending.denials.merge(since);
        }
        drop(pending);
        if is_new {
            tracing::warn!("cannot send denials to the gateway: {error}");
        }
    }

    fn gateway(&self) -> &Gateway {
        &self.receiver.gateway
    }

    fn workspace(&self) -> String {
        self.receiver.workspace.borrow().clone()
    }

    fn pending(&self) -> parking_lot::MutexGuard<'_, Pending> {
        self.pending.lock()
    }
}

impl Audit for DenialReports {
    fn event(&self, event: &Event<'_>) {
        let decision = match event {
            Event::Connection(event) => Some((&event.decided, "connect_policy")),
            Event::Request(event) if event.number.is_none() => {
                Some((&event.decided, "forward_policy"))
            }
            Event::Request(event) => Some((&event.decided, "l7_policy")),
            Event::Bypass(event) => Some((&event.decided, "bypass")),
            _ => None,
        };
        let mut pending = self.pending();
        if let Some((decided, door)) = decision {
            count(&mut pending.activity, decided, door);
        }
        if let Some(denial) = event.denial() {
            pending.denials.add(denial.clone(), now_ms());
        }
    }
}

/// Counts a decision. A refusal is also counted in one of the groups that gateways know.
fn count(activity: &mut Activity, decided: &Decided<'_>, door: &'static str) {
    activity.decisions = activity.decisions.saturating_add(1);
    if decided.action != Action::Denied {
        return;
    }
    let group = match (decided.code, decided.code.map(ReasonCode::stage)) {
        (Some(ReasonCode::PolicyChanged), _) => "policy_stale",
        (
            Some(
                ReasonCode::BadRequest
                | ReasonCode::MessageInvalid
                | ReasonCode::UnsupportedL7Protocol,
            ),
            _,
        ) => "l7_parse_rejection",
        (_, Some(DenialStage::L4 | DenialStage::Identity)) => door,
        (_, Some(DenialStage::L7)) => "l7_policy",
        (_, Some(DenialStage::Ssrf)) => "ssrf",
        (_, Some(DenialStage::Bypass)) => "bypass",
        _ => "unknown",
    };
    let known = activity.denied.entry(group).or_default();
    *known = known.saturating_add(1);
}
