//! An authorized connection: its programs and addresses, the permit in force for it, and the activities that need one.

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

/// A permitted connection, which is judged again whenever the policy or its owners change.
#[derive(Debug)]
pub struct Connection {
    callers: Mutex<Callers>,
    target: Target,
    /// Addresses of its upstream connections.
    addresses: Mutex<Vec<IpAddr>>,
    permit: Mutex<Arc<Permit>>,
    activities: Mutex<Activities>,
    /// Fires before the connection ends; received by connections that send their client a last message.
    shutdown: watch::Sender<bool>,
}

/// Number of a stream within its connection, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(NonZeroU64);

impl StreamId {
    /// The id of the stream after `count` others.
    #[must_use]
    pub fn after(count: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(count))
    }

    /// The id as a number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Activities of a connection, all of which a later generation must permit as well.
#[derive(Clone, Debug, Default)]
struct Activities {
    /// True once bytes are relayed uninspected.
    is_opaque: bool,
    /// The last message of an HTTP/1.1 connection; it stays when it is answered, or has upgraded the connection.
    message: Option<Message>,
    /// The messages of open streams.
    streams: BTreeMap<StreamId, Message>,
}

impl Connection {
    /// Creates a connection of `callers` to the target of `permit`, at `address`.
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

    /// The host and port of the upstream.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The last permit.
    #[must_use]
    pub fn permit(&self) -> Arc<Permit> {
        Arc::clone(&lock(&self.permit))
    }

    /// Notes an upstream connection to `address` that replaces the one before.
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

    /// Returns the permit under the policy in force, after judging the connection again if that has changed.
    ///
    /// # Errors
    /// The policy no longer permits the connection.
    pub async fn current_permit(&self, authorizer: &Authorizer) -> Result<Arc<Permit>, Refusal> {
        let permit = self.permit();
        if permit.generation() == authorizer.policy.load().generation() {
            return Ok(permit);
        }
        self.reauthorize(authorizer, None).await.map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))
    }

    /// Notes `message` as the activity in place of the one before; then as [`Self::current_permit`].
    ///
    /// # Errors
    /// As [`Self::current_permit`].
    pub async fn replace_message(&self, authorizer: &Authorizer, message: Message) -> Result<Arc<Permit>, Refusal> {
        lock(&self.activities).message = Some(message);
        self.current_permit(authorizer).await
    }

    /// Notes that bytes are relayed uninspected from now on; then as [`Self::current_permit`].
    ///
    /// # Errors
    /// As [`Self::current_permit`], or the permit has rules for messages.
    pub async fn start_opaque(&self, authorizer: &Authorizer) -> Result<(), Refusal> {
        lock(&self.activities).is_opaque = true;
        let permit = self.current_permit(authorizer).await?;
        let activities = lock(&self.activities).clone();
        activities.permitted_by(&permit)?;
        authorizer.note_opaque(&self.callers(), &self.target);
        Ok(())
    }

    /// Registers the `message` of a stream, judged by `permit`; returns false if the policy has changed since.
    #[must_use]
    pub fn register(&self, authorizer: &Authorizer, permit: &Permit, stream: StreamId, message: Message) -> bool {
        lock(&self.activities).streams.insert(stream, message);
        permit.generation() == authorizer.policy.load().generation()
    }

    /// Removes the message of a stream that has ended.
    pub fn complete(&self, stream: StreamId) {
        lock(&self.activities).streams.remove(&stream);
    }

    /// Subscribes to the shutdown signal. While a receiver exists, the end of the connection is delayed for its last
    /// message.
    #[must_use]
    pub fn shutdown_signal(&self) -> watch::Receiver<bool> {
        self.shutdown.subscribe()
    }

    /// Signals the shutdown; returns true if a receiver has a last message for the client.
    #[must_use]
    pub fn notify_shutdown(&self) -> bool {
        self.shutdown.send(true).is_ok()
    }

    /// Judges the connection and its activities by the policy in force. `further` owners of its socket are judged with
    /// it, and their fingerprints verified.
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
            // An observed run refuses no owner.
            let verified = further.filter(|_| matches!(mode, Mode::Enforce));
            let verify =
                || verified.iter().flat_map(|owners| owners.iter()).try_for_each(|o| identifier.verify_owner(o));
            let permit = mode.judge(&snapshot, &callers, &target, verify)?;
            guard::check(&own, &permit, addresses)?;
            activities.permitted_by(&permit)?;
            Ok(Arc::new(permit))
        });
        let permit = judged.await.unwrap_or_else(|error| Err(Refusal::engine(error.to_string())))?;
        // Another judgement may have ended meanwhile; its owners are kept.
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
    /// Checks that `permit` covers all activities.
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

/// Locks a value that is consistent at every moment, so a poisoned lock is used all the same.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
