//! An authorized connection: the programs that have it, its addresses, and the permit and the activities that it has by now.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::authorize::authorizer::{Authorizer, Mode};
use crate::decide::action::Message;
use crate::decide::message;
use crate::decide::permit::Permit;
use crate::denial::refusal::Refusal;
use crate::identify::rescan::Owners;
use crate::peer::Callers;
use crate::resolve::guard;
use crate::target::Target;

/// A connection that was permitted, and is judged again whenever something changes.
#[derive(Debug)]
pub struct Connection {
    callers: Mutex<Callers>,
    target: Target,
    /// Addresses that it leads to; several, where it has several upstream connections.
    addresses: Mutex<Vec<IpAddr>>,
    permit: Mutex<Arc<Permit>>,
    activities: Mutex<Activities>,
    /// Told before the connection ends, where it has a message for its client.
    shutdown: watch::Sender<bool>,
}

/// Number of a stream within its connection, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(NonZeroU64);

impl StreamId {
    /// The stream after `count` others.
    #[must_use]
    pub fn after(count: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(count))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Everything under way in a connection, which a later generation must permit as well.
#[derive(Clone, Debug, Default)]
struct Activities {
    /// Bytes are relayed uninspected.
    is_opaque: bool,
    /// The last message of a connection that carries them one after the other, also once it is answered or has upgraded the
    /// connection.
    message: Option<Message>,
    /// The messages of streams.
    streams: BTreeMap<StreamId, Message>,
}

impl Connection {
    /// A connection of `callers` to the target of `permit`, at `address`.
    #[must_use]
    pub fn new(callers: Callers, permit: Arc<Permit>, address: IpAddr) -> Self {
        Self {
            callers: Mutex::new(callers),
            target: permit.target().clone(),
            addresses: Mutex::new(vec![address]),
            permit: Mutex::new(permit),
            activities: Mutex::default(),
            shutdown: watch::Sender::new(false),
        }
    }

    /// The programs that hold the client's socket.
    #[must_use]
    pub fn callers(&self) -> Callers {
        lock(&self.callers).clone()
    }

    /// The host and port that it leads to.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The last permit.
    #[must_use]
    pub fn permit(&self) -> Arc<Permit> {
        Arc::clone(&lock(&self.permit))
    }

    /// Notes an upstream connection to `address`, in place of the one before.
    pub fn moved_to(&self, address: IpAddr) {
        *lock(&self.addresses) = vec![address];
    }

    /// Notes a further upstream connection, to `address`.
    pub fn also_at(&self, address: IpAddr) {
        let mut addresses = lock(&self.addresses);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }

    /// The permit under the policy in force.
    ///
    /// # Errors
    /// The policy has changed, and permits the connection no longer.
    pub async fn current_permit(&self, authorizer: &Authorizer) -> Result<Arc<Permit>, Refusal> {
        let permit = self.permit();
        if permit.generation() == authorizer.policy.load().generation() {
            return Ok(permit);
        }
        self.reauthorize(authorizer, None).await.map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))
    }

    /// As [`Self::current_permit`], for a connection whose activity is `message` from now on.
    ///
    /// # Errors
    /// As [`Self::current_permit`].
    pub async fn replace_message(&self, authorizer: &Authorizer, message: Message) -> Result<Arc<Permit>, Refusal> {
        lock(&self.activities).message = Some(message);
        self.current_permit(authorizer).await
    }

    /// As [`Self::current_permit`], for a connection whose bytes are relayed uninspected from now on.
    ///
    /// # Errors
    /// As [`Self::current_permit`], or there are rules for its messages.
    pub async fn start_opaque(&self, authorizer: &Authorizer) -> Result<(), Refusal> {
        lock(&self.activities).is_opaque = true;
        let permit = self.current_permit(authorizer).await?;
        let activities = lock(&self.activities).clone();
        activities.permitted_by(&permit)?;
        authorizer.note_opaque(&self.callers(), &self.target);
        Ok(())
    }

    /// Registers the `message` of a stream, which was judged by `permit`; false if that is no longer the permit in force.
    #[must_use]
    pub fn register(&self, authorizer: &Authorizer, permit: &Permit, stream: StreamId, message: Message) -> bool {
        lock(&self.activities).streams.insert(stream, message);
        permit.generation() == authorizer.policy.load().generation()
    }

    /// Removes the message of a stream that has ended.
    pub fn complete(&self, stream: StreamId) {
        lock(&self.activities).streams.remove(&stream);
    }

    /// Receiver of the signal to shut down; until it is dropped, the connection is waited for.
    #[must_use]
    pub fn shutdown_signal(&self) -> watch::Receiver<bool> {
        self.shutdown.subscribe()
    }

    /// Signals that the connection ends; true if it has a message for its client first.
    #[must_use]
    pub fn notify_shutdown(&self) -> bool {
        self.shutdown.send(true).is_ok()
    }

    /// Judges the connection and everything under way in it by the policy in force; `further` owners of its socket, which are new,
    /// also by their fingerprints.
    pub(super) async fn reauthorize(
        &self,
        authorizer: &Authorizer,
        further: Option<Owners>,
    ) -> Result<Arc<Permit>, Refusal> {
        let (snapshot, identifier) = (authorizer.policy.load(), Arc::clone(&authorizer.identifier));
        let mut callers = self.callers();
        let new = further.iter().flat_map(|owners| owners.iter()).map(|owner| owner.caller.clone()).collect::<Vec<_>>();
        if !new.is_empty() {
            callers = callers.with(new.iter().cloned());
        }
        let (target, addresses, activities) =
            (self.target.clone(), lock(&self.addresses).clone(), lock(&self.activities).clone());
        let (mode, own) = (authorizer.mode.clone(), Arc::clone(&authorizer.own));
        let slot = Arc::clone(&authorizer.slots).acquire_owned().await;
        let slot = slot.map_err(|error| Refusal::engine(error.to_string()))?;
        let judged = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            // In a run that is observed nobody has more to lose.
            let verified = further.filter(|_| matches!(mode, Mode::Enforce));
            let verify =
                || verified.iter().flat_map(|owners| owners.iter()).try_for_each(|o| identifier.verify_owner(o));
            let permit = mode.judge(&snapshot, &callers, &target, verify)?;
            guard::check(&own, &permit, addresses)?;
            activities.permitted_by(&permit)?;
            Ok(Arc::new(permit))
        });
        let permit = judged.await.unwrap_or_else(|error| Err(Refusal::engine(error.to_string())))?;
        // Another judgement may have ended meanwhile, and what it found is kept.
        let mut callers = lock(&self.callers);
        *callers = callers.with(new.into_iter());
        let mut known = lock(&self.permit);
        if known.generation() <= permit.generation() {
            *known = Arc::clone(&permit);
        }
        Ok(permit)
    }
}

impl Activities {
    /// Checks that `permit` is also for everything under way.
    fn permitted_by(&self, permit: &Permit) -> Result<(), Refusal> {
        if permit.rules().is_none() {
            return Ok(());
        }
        if self.is_opaque {
            let what = "there are rules now for what is inside, which is not looked at";
            return Err(Refusal::unsupported_protocol(what, permit.policy().map(str::to_owned)));
        }
        let mut messages = self.message.iter().chain(self.streams.values());
        messages.try_for_each(|message| message::judge_now(permit, &permit.action(message)?).map(drop))
    }
}

/// Locks a value that is whole at every moment.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
