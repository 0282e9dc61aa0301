//! Authorization of connections and messages: identity, policy and mode put together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tracing::debug;

use crate::decide::action::Action;
use crate::decide::connection::{judge, observe};
use crate::decide::message::{self, MessagePermit};
use crate::decide::permit::Permit;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::denial::refusal::Refusal;
use crate::identify::Identifier;
use crate::identify::rescan::PendingRescans;
use crate::identify::search::{CancelOnDrop, Search};
use crate::limits::Limits;
use crate::observe::Observations;
use crate::peer::{Caller, Callers, Flow};
use crate::record::Record;
use crate::resolve::guard::Destination;
use crate::target::Target;
use crate::trace::Stopwatch;

/// Handles for authorizations.
#[derive(Debug)]
pub struct Authorizer {
    /// The policy in force.
    pub policy: Arc<PolicyStore>,
    /// Identifies the programs behind a connection.
    pub(super) identifier: Arc<Identifier>,
    /// Slots for look-ups and evaluations at once; [`Limits::IDENTIFYING`] of them.
    pub(super) slots: Arc<Semaphore>,
    /// Sockets with one known owner, to be searched for others.
    pub(super) rescans: PendingRescans,
    /// Treatment of policy violations.
    pub(super) mode: Mode,
}

/// Treatment of policy violations.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Violations are refused.
    Enforce,
    /// Violations that another policy could permit are permitted, and all that is used is noted.
    Observe(Arc<Observations>),
}

/// An authorized connection before it is dialled: its programs and its permit.
#[derive(Debug)]
pub struct Authorization {
    /// The programs that hold the client's socket.
    pub callers: Callers,
    /// The client's socket, if not all processes were searched for owners.
    pub(super) unsearched: Option<u32>,
    /// The permit to reach the target.
    pub permit: Arc<Permit>,
    /// Reports the generation in force.
    pub(super) generations: watch::Receiver<u64>,
}

impl Authorization {
    /// Returns true if another generation has come into force since.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        *self.generations.borrow() != self.permit.generation()
    }
}

#[cfg(test)]
impl Authorization {
    /// Leave of `callers`, who were not looked for, to reach `target` under the policy in force.
    pub(crate) fn assumed(authorizer: &Authorizer, callers: Callers, target: &Target) -> Result<Self, Refusal> {
        let generations = authorizer.policy.subscribe();
        let permit = authorizer.mode.judge(&authorizer.policy.load(), &callers, target, || Ok(()))?;
        Ok(Self { callers, unsearched: None, permit: Arc::new(permit), generations })
    }
}

impl Authorizer {
    /// Creates an authorizer by `policy` for callers found by `identifier`.
    #[must_use]
    pub fn new(policy: Arc<PolicyStore>, identifier: Arc<Identifier>, mode: Mode) -> Self {
        let slots = Arc::new(Semaphore::new(Limits::IDENTIFYING));
        Self { policy, identifier, slots, rescans: PendingRescans::default(), mode }
    }

    /// Identifies the programs behind `flow` and judges their connection to `target`. Runs on a blocking thread, in one
    /// of the slots: reading /proc, hashing a program and evaluating custom rules may take long.
    ///
    /// # Errors
    /// The caller is not identified within [`Limits::JUDGE_DEADLINE`], or the policy refuses the connection.
    pub async fn authorize(&self, flow: Flow, target: &Target, record: &mut Record) -> Result<Authorization, Refusal> {
        let (generations, watch) = (self.policy.subscribe(), Stopwatch::start());
        let (identifier, policy, to) = (Arc::clone(&self.identifier), Arc::clone(&self.policy), target.clone());
        let (slot, mode) = (Arc::clone(&self.slots).acquire_owned(), self.mode.clone());
        let decision = async {
            let slot = slot.await;
            let (search, _guard) = search();
            let work = tokio::task::spawn_blocking(move || {
                let identified = identifier.identify(flow, &search)?;
                let verify = || identifier.verify(&identified);
                let permit = mode.judge(&policy.load(), identified.callers(), &to, verify);
                drop(slot);
                Ok::<_, Refusal>((identified.callers().clone(), identified.unsearched(), permit))
            });
            work.await.map_err(|error| Refusal::engine(error.to_string()))?
        };
        let decided = tokio::time::timeout(Limits::JUDGE_DEADLINE, decision).await;
        let (callers, unsearched, permit) =
            decided.map_err(|_| Refusal::caller_unknown("finding out who asks took too long".to_owned()))??;
        record.called_by(callers.first().clone());
        let us = watch.micros();
        let permit = Arc::new(permit.inspect_err(|refusal| debug!(code = refusal.code().as_str(), us, "denied"))?);
        debug!(policy = permit.policy(), generation = permit.generation(), inspection = %permit.inspection(), us, "authorized");
        record.permitted_by(permit.policy(), permit.observed());
        Ok(Authorization { callers, unsearched, permit, generations })
    }

    /// Identifies the first program behind `flow`, for logs; no decision depends on it.
    pub async fn identify(&self, flow: Flow) -> Option<Caller> {
        let identified = async {
            let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            let identifier = Arc::clone(&self.identifier);
            let (search, _guard) = search();
            let work = tokio::task::spawn_blocking(move || {
                let identified = identifier.identify(flow, &search);
                drop(slot);
                identified
            });
            work.await.ok()?.ok().map(|identified| identified.callers().first().clone())
        };
        tokio::time::timeout(Limits::JUDGE_DEADLINE, identified).await.ok()?
    }

    /// Judges `action`, a message of `callers` inside a connection with `permit`.
    ///
    /// # Errors
    /// The policy refuses the message, or cannot be evaluated.
    pub async fn authorize_message(
        &self,
        permit: &Permit,
        callers: &Callers,
        action: &Action,
    ) -> Result<MessagePermit, Refusal> {
        let watch = Stopwatch::start();
        let judged = message::judge(&self.slots, permit, action).await;
        let us = watch.micros();
        let message_permit =
            judged.inspect_err(|refusal| debug!(code = refusal.code().as_str(), us, "message denied"))?;
        debug!(policy = message_permit.policy(), generation = permit.generation(), us, "message authorized");
        if let Mode::Observe(observations) = &self.mode {
            let (method, path) = action.rule();
            observations.add_request(&callers.first().program.executable, permit.target(), &method, &path);
        }
        Ok(message_permit)
    }

    /// Notes the `destination` of `authorization`, if the run is observed.
    pub fn note_destination(&self, authorization: &Authorization, destination: &Destination) {
        if let Mode::Observe(observations) = &self.mode {
            let program = &authorization.callers.first().program.executable;
            let addresses = destination.addresses().iter().map(|address| address.ip());
            observations.add(program, authorization.permit.target(), addresses);
        }
    }

    /// Notes, if the run is observed, that bytes of `callers` to `target` are relayed uninspected.
    pub(super) fn note_opaque(&self, callers: &Callers, target: &Target) {
        if let Mode::Observe(observations) = &self.mode {
            observations.add_opaque(&callers.first().program.executable, target);
        }
    }

    /// Searches all processes for further owners of sockets, until it is dropped: one rescan for all pending sockets,
    /// then a pause, so that rescans take at most one part in [`Limits::RESCAN_DIVISOR`] of the time.
    pub async fn rescan(&self) {
        loop {
            let waiting = self.rescans.take().await;
            let inodes: Vec<u32> = waiting.keys().copied().collect();
            let identifier = Arc::clone(&self.identifier);
            let start = Instant::now();
            let searched = tokio::task::spawn_blocking(move || identifier.rescan(&inodes)).await;
            let mut searched = searched.unwrap_or_else(|error| Err(Refusal::engine(error.to_string())));
            for (inode, connection) in waiting {
                let found = match &mut searched {
                    Ok(owners) => Ok(owners.remove(&inode).unwrap_or_default().into()),
                    Err(refusal) => Err(refusal.clone()),
                };
                // The connection may have ended meanwhile.
                let _ = connection.send(found);
            }
            let pause = start.elapsed() * (Limits::RESCAN_DIVISOR - 1);
            tokio::time::sleep(pause.max(Duration::from_millis(50))).await;
        }
    }
}

impl Mode {
    /// Judges a connection of `callers` to `target`; `verify` then checks their fingerprints.
    pub(super) fn judge(
        &self,
        snapshot: &Snapshot,
        callers: &Callers,
        target: &Target,
        verify: impl Fn() -> Result<(), Refusal>,
    ) -> Result<Permit, Refusal> {
        match self {
            Self::Enforce => judge(snapshot, callers, target, verify),
            Self::Observe(_) => observe(snapshot, callers, target, verify),
        }
    }
}

/// Creates a search for a caller, and the guard that cancels it when it is dropped.
fn search() -> (Search, CancelOnDrop) {
    let search = Search::new(Limits::SEARCHED_DESCRIPTORS, Limits::JUDGE_DEADLINE);
    let guard = search.guard();
    (search, guard)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use openshell_policy::reason::ReasonCode;
    use tokio::time::Instant;

    use crate::limits::Limits;
    use crate::peer::Flow;
    use crate::record::{Outcome, Record};
    use crate::testing;

    const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    const FLOW: Flow = Flow { client: ANY, server: ANY };

    #[tokio::test]
    async fn a_program_that_is_not_identified_has_no_leave() {
        let (services, audit) = testing::services("{host: web.test, port: 80}");
        let mut record = Record::new(&services.audit, "CONNECT web.test:80".to_owned(), None);
        let authorized = services.authorizer.authorize(FLOW, &testing::target("web.test:80"), &mut record).await;
        let refusal = authorized.unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::CallerUnknown);
        assert!(record.subject().caller.is_none());
        record.finish(Outcome::Refused(&refusal));
        assert_eq!(audit.decisions(), ["caller_unknown"]);
        assert_eq!(services.authorizer.identify(FLOW).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_a_slot_no_longer_than_for_its_judgement() {
        let (services, _) = testing::services("{host: web.test, port: 80}");
        let all = u32::try_from(Limits::IDENTIFYING).unwrap();
        let _held = services.authorizer.slots.acquire_many(all).await.unwrap();
        let (mut record, begin) = (Record::new(&services.audit, String::new(), None), Instant::now());
        let authorized = services.authorizer.authorize(FLOW, &testing::target("web.test:80"), &mut record).await;
        assert_eq!(authorized.unwrap_err().reason(), "finding out who asks took too long");
        assert!(begin.elapsed() >= Limits::JUDGE_DEADLINE);
    }

    #[tokio::test]
    async fn an_authorization_is_stale_once_another_generation_is_in_force() {
        let (services, _) = testing::services("{host: web.test, port: 80}");
        let authorization = testing::authorization(&services, "web.test:80");
        assert!(!authorization.is_stale());
        services.authorizer.policy.replace(testing::snapshot(2, "{host: web.test, port: 80}"));
        assert!(authorization.is_stale());
    }
}
