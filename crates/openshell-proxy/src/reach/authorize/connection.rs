//! An authorized connection: its program and addresses, the permit in force for it, and the
//! activities that need one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::decide::identify::{Identified, Identifier};
use crate::decide::message::Message;
use crate::decide::own_lines::OwnLines;
use crate::decide::permit::Permit;
use crate::decide::snapshot::Snapshot;
use crate::decide::verdict;
use crate::denial::refusal::Refusal;
use crate::ground::peer::Caller;
use crate::ground::target::Target;
use crate::reach::authorize::asker::Asker;
use crate::reach::authorize::authorizer::{Authorization, Authorizer, Mode};
use crate::reach::authorize::places::Place;
use crate::reach::resolve::guard;

/// A permitted connection, which is judged again whenever the policy changes.
#[derive(Debug)]
pub struct Connection {
    caller: Caller,
    /// The process that made it, unless it is known whether that is modified.
    unexamined: Option<Identified>,
    /// The lines under which it was permitted.
    own: OwnLines,
    target: Target,
    /// Addresses of its upstream connections.
    addresses: Mutex<Vec<IpAddr>>,
    permit: Mutex<Arc<Permit>>,
    activities: Mutex<Activities>,
    /// Fires before the connection ends; received by connections that send their client a last
    /// message.
    shutdown: watch::Sender<bool>,
}

/// The number of a stream within its connection, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(NonZeroU64);

impl StreamId {
    /// Returns the id of the stream that comes after `count` others.
    #[must_use]
    pub fn after(count: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(count))
    }

    /// Returns the id as a number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// The activities of a connection, all of which a later generation must permit as well.
#[derive(Clone, Debug, Default)]
struct Activities {
    /// True once bytes are relayed uninspected.
    is_opaque: bool,
    /// The last message of an HTTP/1.1 connection. It stays after it is answered and after it has
    /// upgraded the connection.
    message: Option<Permitted>,
    /// The messages of open streams.
    streams: BTreeMap<StreamId, Permitted>,
}

/// A message, with the lines under which it is permitted beside those of its connection.
#[derive(Clone, Debug)]
struct Permitted {
    message: Message,
    own: OwnLines,
}

impl Connection {
    /// Creates the connection of `authorization`, which leads to `address`.
    #[must_use]
    pub fn new(authorization: Authorization, address: IpAddr) -> Self {
        let Authorization {
            caller,
            permit,
            own,
            unexamined,
            ..
        } = authorization;
        Self {
            caller,
            unexamined,
            own,
            target: permit.target().clone(),
            addresses: Mutex::new(vec![address]),
            permit: Mutex::new(permit),
            activities: Mutex::default(),
            shutdown: watch::Sender::new(false),
        }
    }

    /// Returns the program that made the client's connection.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the caller for a question.
    #[must_use]
    pub fn asker(&self, authorizer: &Authorizer) -> Asker {
        let identifier = Arc::clone(&authorizer.identifier);
        let process = self.unexamined.clone();
        Asker {
            caller: self.caller.clone(),
            unexamined: process.map(|process| (identifier, process)),
        }
    }

    /// Returns the lines under which the connection was permitted.
    #[must_use]
    pub fn own(&self) -> &OwnLines {
        &self.own
    }

    /// Returns the host and port of the upstream.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the last permit.
    #[must_use]
    pub fn permit(&self) -> Arc<Permit> {
        Arc::clone(&self.permit.lock())
    }

    /// Notes an upstream connection to `address` that replaces all earlier ones.
    pub fn moved_to(&self, address: IpAddr) {
        *self.addresses.lock() = vec![address];
    }

    /// Notes an additional upstream connection, to `address`.
    pub fn also_at(&self, address: IpAddr) {
        let mut addresses = self.addresses.lock();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }

    /// Returns the permit under the policy in force. If the policy has changed, the connection is
    /// judged again first.
    ///
    /// # Errors
    /// Fails if the policy no longer permits the connection.
    pub async fn current_permit(&self, authorizer: &Authorizer) -> Result<Arc<Permit>, Refusal> {
        let permit = self.permit();
        if permit.generation() == authorizer.policy.load().generation() {
            return Ok(permit);
        }
        self.reauthorize(authorizer)
            .await
            .map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))
    }

    /// Returns the permit for a message under its `own` lines, among them those of the connection, like
    /// [`Self::current_permit`].
    ///
    /// # Errors
    /// Fails like [`Self::current_permit`].
    pub async fn permit_with(
        &self,
        authorizer: &Authorizer,
        own: &OwnLines,
    ) -> Result<Arc<Permit>, Refusal> {
        let permit = self.current_permit(authorizer).await?;
        if own.lines() == self.own.lines() {
            return Ok(permit);
        }
        let judging = self.judging(authorizer).await?;
        let own = own.clone();
        let judged = tokio::task::spawn_blocking(move || judging.permit(&own));
        let judged = judged.await;
        judged.unwrap_or_else(|error| Err(Refusal::engine(error.to_string())))
    }

    /// Replaces the message of an HTTP/1.1 connection by `message`, which has lines of its `own`, and
    /// returns the permit like [`Self::current_permit`].
    ///
    /// # Errors
    /// Fails like [`Self::current_permit`].
    pub async fn replace_message(
        &self,
        authorizer: &Authorizer,
        message: Message,
        own: &OwnLines,
    ) -> Result<Arc<Permit>, Refusal> {
        self.activities.lock().message = Some(Permitted {
            message,
            own: own.clone(),
        });
        self.permit_with(authorizer, own).await
    }

    /// Removes the message of an HTTP/1.1 connection, which has been answered.
    pub fn forget_message(&self) {
        self.activities.lock().message = None;
    }

    /// Notes that bytes are relayed uninspected from now on, and checks this like
    /// [`Self::current_permit`]. An observed run also notes whether they are `raw`, not inside TLS.
    ///
    /// # Errors
    /// Fails like [`Self::current_permit`], and if the permit has rules for messages.
    pub async fn start_opaque(&self, authorizer: &Authorizer, raw: bool) -> Result<(), Refusal> {
        self.activities.lock().is_opaque = true;
        let permit = self.current_permit(authorizer).await?;
        let activities = self.activities.lock().clone();
        activities.permitted_by(&permit, &self.own, |_| Ok(Arc::clone(&permit)))?;
        authorizer.note_opaque(&self.caller, &self.target, raw);
        Ok(())
    }

    /// Registers the `message` of a stream, which was judged by `permit` with lines of its `own`;
    /// returns false if the policy has changed since.
    #[must_use]
    pub fn register(
        &self,
        authorizer: &Authorizer,
        permit: &Permit,
        stream: StreamId,
        message: Message,
        own: &OwnLines,
    ) -> bool {
        let own = own.clone();
        let permitted = Permitted { message, own };
        self.activities.lock().streams.insert(stream, permitted);
        permit.generation() == authorizer.policy.load().generation()
    }

    /// Removes the message of a stream that has ended.
    pub fn complete(&self, stream: StreamId) {
        self.activities.lock().streams.remove(&stream);
    }

    /// Subscribes to the shutdown signal. While a receiver exists, the connection ends only after a
    /// delay in which its last message can be sent.
    #[must_use]
    pub fn shutdown_signal(&self) -> watch::Receiver<bool> {
        self.shutdown.subscribe()
    }

    /// Signals the shutdown; returns true if a receiver has a last message for the client.
    #[must_use]
    pub fn notify_shutdown(&self) -> bool {
        self.shutdown.send(true).is_ok()
    }

    /// Takes a place for a judgement of the connection, and returns what it needs.
    async fn judging(&self, authorizer: &Authorizer) -> Result<Judging, Refusal> {
        let in_force = authorizer.policy.load();
        let place = authorizer.places.for_open().await;
        Ok(Judging {
            _place: place.map_err(|error| Refusal::engine(error.to_string()))?,
            in_force,
            mode: authorizer.mode.clone(),
            identifier: Arc::clone(&authorizer.identifier),
            unexamined: self.unexamined.clone(),
            caller: self.caller.clone(),
            target: self.target.clone(),
        })
    }

    /// Judges the connection and its activities again by the policy in force.
    pub(super) async fn reauthorize(
        &self,
        authorizer: &Authorizer,
    ) -> Result<Arc<Permit>, Refusal> {
        let judging = self.judging(authorizer).await?;
        let own = self.own.clone();
        let addresses = self.addresses.lock().clone();
        let activities = self.activities.lock().clone();
        let judged = tokio::task::spawn_blocking(move || {
            let permit = judging.permit(&own)?;
            guard::check(&permit, addresses)?;
            activities.permitted_by(&permit, &own, |of_message| judging.permit(of_message))?;
            Ok(permit)
        });
        let permit = judged
            .await
            .unwrap_or_else(|error| Err(Refusal::engine(error.to_string())))?;
        // Another judgement by a newer policy may have ended meanwhile.
        let mut known = self.permit.lock();
        if known.generation() <= permit.generation() {
            *known = Arc::clone(&permit);
        }
        Ok(permit)
    }
}

/// What the judgement of a connection by the policy in force needs.
struct Judging {
    _place: Place,
    in_force: Arc<Snapshot>,
    mode: Mode,
    identifier: Arc<Identifier>,
    unexamined: Option<Identified>,
    caller: Caller,
    target: Target,
}

impl Judging {
    /// Returns the permit under the policy in force together with `own`. Blocks.
    fn permit(&self, own: &OwnLines) -> Result<Arc<Permit>, Refusal> {
        let snapshot = own.over(Arc::clone(&self.in_force));
        let is_asked = snapshot.has_exact_entry(&self.caller.program);
        let unexamined = self.unexamined.as_ref().filter(|_| is_asked);
        let is_modified = |process| self.identifier.modified_by(process).is_some();
        let caller = self.caller.modified(unexamined.is_some_and(is_modified));
        let permit = self
            .mode
            .judge(&snapshot, &caller, &self.target, || Ok(()))?;
        Ok(Arc::new(permit))
    }
}

impl Activities {
    /// Checks that `permit`, which is of the connection with its lines, covers all activities, and that
    /// what `permit_with` returns covers the messages with other lines.
    fn permitted_by(
        &self,
        permit: &Arc<Permit>,
        connections: &OwnLines,
        permit_with: impl Fn(&OwnLines) -> Result<Arc<Permit>, Refusal>,
    ) -> Result<(), Refusal> {
        if permit.rules().is_none() {
            return Ok(());
        }
        if self.is_opaque {
            let what = "the policy now has rules for what is inside, but the proxy does not \
                        inspect this connection";
            return Err(Refusal::unsupported_protocol(
                what,
                permit.policy().map(str::to_owned),
            ));
        }
        for Permitted { message, own } in self.message.iter().chain(self.streams.values()) {
            if own.lines() == connections.lines() {
                verdict::judge_read(permit, message)?;
            } else {
                verdict::judge_read(&*permit_with(own)?, message)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hyper::Method;
    use openshell_events::reason::ReasonCode;

    use super::StreamId;
    use crate::decide::message::Message;
    use crate::decide::own_lines::OwnLines;
    use crate::testing;

    const PLAIN: &str = "{host: web.test, port: 80}";
    const FULL: &str =
        "{host: web.test, port: 80, protocol: rest, enforcement: enforce, access: full}";
    const ONLY_B: &str = "{host: web.test, port: 80, protocol: rest, enforcement: enforce, rules: \
                          [{allow: {method: GET, path: /b}}]}";
    const LISTED: &str = "{host: web.test, port: 80, allowed_ips: [8.8.8.0/24]}";

    fn get(path: &str) -> Message {
        Message::of_head(Method::GET, path.parse().unwrap())
    }

    #[tokio::test]
    async fn a_connection_that_a_later_generation_permits_has_its_permit() {
        let (services, _) = testing::services(PLAIN);
        let connection = testing::connection(&services, "web.test:80");
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, FULL));
        assert_eq!(
            connection
                .current_permit(&services.authorizer)
                .await
                .unwrap()
                .generation(),
            2
        );
        assert!(connection.permit().rules().is_some());
    }

    #[tokio::test]
    async fn a_connection_that_a_later_generation_refuses_keeps_its_permit_and_has_leave_for_nothing()
     {
        let (services, _) = testing::services(PLAIN);
        let connection = testing::connection(&services, "web.test:80");
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, "{host: other.test, port: 80}"));
        let refusal = connection
            .current_permit(&services.authorizer)
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::PolicyChanged);
        assert_eq!(connection.permit().generation(), 1);
        assert!(
            connection
                .replace_message(&services.authorizer, get("/b"), &OwnLines::default())
                .await
                .is_err()
        );
        assert!(
            connection
                .start_opaque(&services.authorizer, true)
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn a_connection_with_rules_is_not_relayed_uninspected() {
        let (services, _) = testing::services(FULL);
        let connection = testing::connection(&services, "web.test:80");
        let refusal = connection
            .start_opaque(&services.authorizer, true)
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::UnsupportedL7Protocol);
    }

    #[tokio::test]
    async fn an_uninspected_connection_is_refused_once_there_are_rules() {
        let (services, _) = testing::services(PLAIN);
        let connection = testing::connection(&services, "web.test:80");
        connection
            .start_opaque(&services.authorizer, true)
            .await
            .unwrap();
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, FULL));
        let refusal = connection
            .current_permit(&services.authorizer)
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::PolicyChanged);
        assert_eq!(
            refusal.reason(),
            "the policy now has rules for what is inside, but the proxy does not inspect this \
             connection"
        );
    }

    #[tokio::test]
    async fn the_last_message_of_a_connection_is_judged_again_and_none_before_it() {
        for (last, is_permitted) in [("/a", false), ("/b", true)] {
            let (services, _) = testing::services(FULL);
            let connection = testing::connection(&services, "web.test:80");
            for path in ["/first", last] {
                connection
                    .replace_message(&services.authorizer, get(path), &OwnLines::default())
                    .await
                    .unwrap();
            }
            services
                .authorizer
                .policy
                .replace(testing::snapshot(2, ONLY_B));
            assert_eq!(
                connection
                    .current_permit(&services.authorizer)
                    .await
                    .is_ok(),
                is_permitted,
                "{last}"
            );
        }
    }

    #[tokio::test]
    async fn the_message_of_every_stream_is_judged_again_until_it_has_ended() {
        let (services, _) = testing::services(FULL);
        let connection = testing::connection(&services, "web.test:80");
        let permit = connection.permit();
        let [one, other] = [0, 1].map(StreamId::after);
        assert!(connection.register(
            &services.authorizer,
            &permit,
            one,
            get("/a"),
            &OwnLines::default()
        ));
        assert!(connection.register(
            &services.authorizer,
            &permit,
            other,
            get("/b"),
            &OwnLines::default()
        ));
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, ONLY_B));
        assert!(
            connection
                .current_permit(&services.authorizer)
                .await
                .is_err()
        );
        connection.complete(one);
        assert_eq!(
            connection
                .current_permit(&services.authorizer)
                .await
                .unwrap()
                .generation(),
            2
        );
    }

    #[tokio::test]
    async fn a_stream_that_an_earlier_generation_permitted_is_told_so_when_it_registers() {
        let (services, _) = testing::services(FULL);
        let connection = testing::connection(&services, "web.test:80");
        let permit = connection.permit();
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, FULL));
        assert!(!connection.register(
            &services.authorizer,
            &permit,
            StreamId::after(0),
            get("/a"),
            &OwnLines::default()
        ));
    }

    #[tokio::test]
    async fn every_address_that_a_connection_leads_to_is_judged_again() {
        let elsewhere: IpAddr = "8.8.4.4".parse().unwrap();
        let (services, _) = testing::services(PLAIN);
        let authorizer = &services.authorizer;
        let moved = testing::connection(&services, "web.test:80");
        let both = testing::connection(&services, "web.test:80");
        let returned = testing::connection(&services, "web.test:80");
        let unmoved = testing::connection(&services, "web.test:80");
        moved.moved_to(elsewhere);
        both.also_at(elsewhere);
        returned.moved_to(elsewhere);
        returned.moved_to(testing::UPSTREAM);
        authorizer.policy.replace(testing::snapshot(2, LISTED));
        assert!(moved.current_permit(authorizer).await.is_err());
        assert!(both.current_permit(authorizer).await.is_err());
        assert!(returned.current_permit(authorizer).await.is_ok());
        assert!(unmoved.current_permit(authorizer).await.is_ok());
    }

    #[tokio::test]
    async fn only_a_connection_with_a_last_message_is_waited_for_at_its_end() {
        let (services, _) = testing::services(PLAIN);
        let connection = testing::connection(&services, "web.test:80");
        assert!(!connection.notify_shutdown());
        let mut signal = connection.shutdown_signal();
        assert!(connection.notify_shutdown());
        assert!(*signal.borrow_and_update());
    }
}
