//! Authorizes connections and messages from an identity, the policy and the mode.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tracing::{debug, warn};

use crate::decide::connection::{judge, observe};
use crate::decide::identify::{Identified, Identifier, Identity};
use crate::decide::message::rpc::observed::{ObservedMessages, observed};
use crate::decide::message::{Action, Message, Reading};
use crate::decide::own_lines::OwnLines;
use crate::decide::permit::Permit;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::{Generation, PolicyStore};
use crate::decide::verdict::{self, MessagePermit};
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::peer::Caller;
use crate::ground::target::Target;
use crate::ground::trace::Stopwatch;
use crate::reach::authorize::asker::Asker;
use crate::reach::authorize::places::Places;
use crate::reach::resolve::guard::Destination;
use crate::report::observe::Observations;
use crate::report::record::Record;

/// The parts that authorize connections and messages.
#[derive(Debug)]
pub struct Authorizer {
    /// The policy in force.
    pub policy: Arc<PolicyStore>,
    /// Verifies the programs behind connections.
    pub(super) identifier: Arc<Identifier>,
    /// Places for look-ups and evaluations.
    pub(super) places: Arc<Places>,
    /// Treatment of policy violations.
    pub(super) mode: Mode,
}

/// How policy violations are treated.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Violations are refused.
    Enforce,
    /// Violations that another policy could permit are permitted, and everything that is used is
    /// noted.
    Observe(Arc<Observations>),
}

/// The authorization of a connection before it is dialled: its program and its permit.
#[derive(Debug)]
pub struct Authorization {
    /// The program that made the connection.
    pub caller: Caller,
    /// The permit to reach the target.
    pub permit: Arc<Permit>,
    /// The lines under which it holds beside the policy.
    pub own: OwnLines,
    /// The process behind it, unless it is known whether that is modified.
    pub(super) unexamined: Option<Identified>,
    /// Reports the generation in force.
    pub(super) generations: watch::Receiver<Generation>,
}

impl Authorization {
    /// Returns true if another generation has come into force since the permit was given.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.generations.borrow().number != self.permit.generation()
    }
}

#[cfg(test)]
impl Authorization {
    /// Authorizes `caller`, which made no connection, to reach `target` under the policy in force.
    pub(crate) fn assumed(
        authorizer: &Authorizer,
        caller: Caller,
        target: &Target,
    ) -> Result<Self, Refusal> {
        let generations = authorizer.policy.subscribe();
        let permit =
            authorizer
                .mode
                .judge(&authorizer.policy.load(), &caller, target, || Ok(()))?;
        Ok(Self {
            caller,
            permit: Arc::new(permit),
            own: OwnLines::default(),
            unexamined: None,
            generations,
        })
    }
}

impl Authorizer {
    /// Creates an authorizer that decides by `policy` about callers verified by `identifier`.
    #[must_use]
    pub fn new(policy: Arc<PolicyStore>, identifier: Arc<Identifier>, mode: Mode) -> Self {
        Self {
            policy,
            identifier,
            places: Arc::default(),
            mode,
        }
    }

    /// Judges a connection of `identity` to `target` by the policy in force together with the lines
    /// `own`. If the program is verified and was permitted
    /// before, this happens at once. Otherwise it waits for a place and uses a blocking thread,
    /// because hashing a program, reading arguments and evaluating rules may take long.
    ///
    /// # Errors
    /// Fails if the caller is not identified, if it is not judged within
    /// [`Limits::JUDGE_DEADLINE`], or if the policy refuses the connection.
    pub async fn authorize(
        &self,
        identity: &Identity,
        target: &Target,
        own: &OwnLines,
        record: &mut Record,
    ) -> Result<Authorization, Refusal> {
        let generations = self.policy.subscribe();
        let watch = Stopwatch::start();
        let began = Instant::now();
        let identified = identity.as_ref().map_err(Clone::clone)?;
        let known = if own.is_empty() {
            self.judge_at_once(identified, target)
        } else {
            None
        };
        let (caller, is_examined, permit) = match known {
            Some(permit) => (identified.caller().clone(), false, Ok(permit)),
            None => {
                let judged = self.judge(identified.clone(), target.clone(), own.clone());
                judged.await?
            }
        };
        record.called_by(caller.clone());
        record.decided_since(began);
        let us = watch.micros();
        let permit = Arc::new(
            permit.inspect_err(|refusal| debug!(code = refusal.code().as_str(), us, "denied"))?,
        );
        debug!(policy = permit.policy(), generation = permit.generation(), inspection = %permit.inspection(), us, "authorized");
        record.permitted_by(permit.policy(), permit.observed());
        Ok(Authorization {
            caller,
            permit,
            own: own.clone(),
            unexamined: (!is_examined).then(|| identified.clone()),
            generations,
        })
    }

    /// Returns `caller`, whose process is `identified`, for a question.
    #[must_use]
    pub fn asker(&self, identified: &Identified, caller: Caller) -> Asker {
        let identifier = Arc::clone(&self.identifier);
        Asker {
            caller,
            unexamined: Some((identifier, identified.clone())),
        }
    }

    /// Returns a permit if the program is verified, the policy in force has permitted it before,
    /// and no exact entry applies to it.
    fn judge_at_once(&self, identified: &Identified, target: &Target) -> Option<Permit> {
        let policy = self.policy.load();
        let program = &identified.caller().program;
        let is_known = policy.has_permitted(program, target) && !policy.has_exact_entry(program);
        let is_ready = is_known && self.identifier.is_verified(identified);
        is_ready
            .then(|| {
                self.mode
                    .judge(&policy, identified.caller(), target, || Ok(()))
                    .ok()
            })
            .flatten()
    }

    /// Judges a connection on a blocking thread. Returns also whether the caller was examined for
    /// modified code.
    async fn judge(
        &self,
        identified: Identified,
        target: Target,
        own: OwnLines,
    ) -> Result<(Caller, bool, Result<Permit, Refusal>), Refusal> {
        let identifier = Arc::clone(&self.identifier);
        let policy = Arc::clone(&self.policy);
        let mode = self.mode.clone();
        let is_listed = policy.load().lists(&identified.caller().program);
        let place = self
            .places
            .for_new(is_listed, identifier.unread_bytes(&identified));
        let decision = async {
            let place = place.await;
            let work = tokio::task::spawn_blocking(move || {
                let _place = place;
                let policy = own.over(policy.load());
                let caller = identifier.with_arguments(&identified);
                let verify = || identifier.verify(&identified, |path| policy.is_pinned(path));
                let permit = mode.judge(&policy, &caller, &target, verify);
                if permit.is_err() || !policy.has_exact_entry(&caller.program) {
                    return (caller, false, permit);
                }
                let Some(why) = identifier.modified_by(&identified) else {
                    return (caller, true, permit);
                };
                // Another entry may still permit a modified program.
                let caller = caller.modified(true);
                let permit = mode.judge(&policy, &caller, &target, verify);
                let denied = |refusal: Refusal| {
                    if refusal.is_policy_denial() {
                        Refusal::caller_modified(
                            why,
                            identified.caller().program.executable.clone(),
                        )
                    } else {
                        refusal
                    }
                };
                (caller, true, permit.map_err(denied))
            });
            work.await
                .map_err(|error| Refusal::engine(error.to_string()))
        };
        let decided = tokio::time::timeout(Limits::JUDGE_DEADLINE, decision).await;
        decided.map_err(|_| {
            Refusal::caller_unknown("identifying the program took too long".to_owned())
        })?
    }

    /// Reads `message`, which is long, under `permit`. It waits for one of the places of judgements.
    ///
    /// # Errors
    /// As for [`Permit::read`].
    pub async fn read(&self, permit: &Permit, message: &Message) -> Result<Reading, Refusal> {
        let permit = permit.clone();
        let message = message.clone();
        let place = Arc::clone(&self.places.new).acquire_owned().await;
        let place = place.map_err(|error| Refusal::engine(error.to_string()))?;
        let reading = tokio::task::spawn_blocking(move || {
            let _place = place;
            permit.read(&message)
        });
        let reading = reading.await;
        reading.map_err(|error| Refusal::engine(error.to_string()))?
    }

    /// Judges `action`, a message inside a connection with `permit`.
    ///
    /// # Errors
    /// Fails if the policy refuses the message or cannot be evaluated.
    pub async fn authorize_message(
        &self,
        permit: &Permit,
        action: &Action,
    ) -> Result<MessagePermit, Refusal> {
        let watch = Stopwatch::start();
        let judged = verdict::judge(&self.places.new, permit, action).await;
        let us = watch.micros();
        let message_permit = judged
            .inspect_err(|refusal| debug!(code = refusal.code().as_str(), us, "message denied"))?;
        debug!(
            policy = message_permit.policy(),
            generation = permit.generation(),
            us,
            "message authorized"
        );
        Ok(message_permit)
    }

    /// Notes the request of `caller` from which `action` and others were read, and its `message`, if the
    /// run is observed.
    pub async fn note_request(
        &self,
        permit: &Permit,
        caller: &Caller,
        action: &Action,
        message: &Message,
    ) {
        if let Mode::Observe(observations) = &self.mode {
            let program = &caller.program.executable;
            let (method, path) = action.rule();
            let messages = if message.head.is_some() {
                let of_request = message.clone();
                let of_path = path.clone();
                let read = tokio::task::spawn_blocking(move || observed(&of_request, &of_path));
                read.await.unwrap_or_else(|error| {
                    warn!("the messages of an observed request were not read: {error}");
                    Some(ObservedMessages {
                        requests: Vec::new(),
                        is_cut: true,
                    })
                })
            } else {
                None
            };
            observations.add_request(program, permit.target(), (&method, &path), messages);
        }
    }

    /// Notes the `destination` of `authorization` if the run is observed.
    pub fn note_destination(&self, authorization: &Authorization, destination: &Destination) {
        if let Mode::Observe(observations) = &self.mode {
            let program = &authorization.caller.program.executable;
            let addresses = destination.addresses().iter().map(|address| address.ip());
            observations.add(program, authorization.permit.target(), addresses);
        }
    }

    /// Notes, if the run is observed, that bytes from `caller` to `target` are relayed uninspected;
    /// `raw` means that they are not inside TLS.
    pub(super) fn note_opaque(&self, caller: &Caller, target: &Target, raw: bool) {
        if let Mode::Observe(observations) = &self.mode {
            observations.add_opaque(&caller.program.executable, target, raw);
        }
    }
}

impl Mode {
    /// Judges a connection of `caller` to `target`, and then checks its fingerprints by `verify`.
    pub(super) fn judge(
        &self,
        snapshot: &Snapshot,
        caller: &Caller,
        target: &Target,
        verify: impl Fn() -> Result<(), Refusal>,
    ) -> Result<Permit, Refusal> {
        match self {
            Self::Enforce => judge(snapshot, caller, target, verify),
            Self::Observe(_) => observe(snapshot, caller, target, verify),
        }
    }
}

#[cfg(test)]
mod tests {
    use openshell_events::reason::ReasonCode;
    use tokio::time::Instant;

    use crate::decide::identify::Identity;
    use crate::decide::own_lines::OwnLines;
    use crate::denial::refusal::Refusal;
    use crate::ground::limits::Limits;
    use crate::report::record::{Outcome, Record};
    use crate::testing;

    fn nobody() -> Identity {
        Err(Refusal::caller_unknown("nobody".to_owned()))
    }

    #[tokio::test]
    async fn a_program_that_is_not_identified_has_no_leave() {
        let (services, audit) = testing::services("{host: web.test, port: 80}");
        let mut record = Record::new(&services.audit, "CONNECT web.test:80".to_owned(), None);
        let authorized = services
            .authorizer
            .authorize(
                &nobody(),
                &testing::target("web.test:80"),
                &OwnLines::default(),
                &mut record,
            )
            .await;
        let refusal = authorized.unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::CallerUnknown);
        assert!(record.subject().caller.is_none());
        record.finish(Outcome::Refused(&refusal));
        assert_eq!(audit.decisions(), ["caller_unknown"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_a_slot_no_longer_than_for_its_judgement() {
        let (services, _) = testing::services("{host: web.test, port: 80}");
        let all = u32::try_from(Limits::JUDGING).unwrap();
        let _held = services
            .authorizer
            .places
            .new
            .acquire_many(all)
            .await
            .unwrap();
        let mut record = Record::new(&services.audit, String::new(), None);
        let begin = Instant::now();
        let authorized = services
            .authorizer
            .authorize(
                &testing::identity(),
                &testing::target("web.test:80"),
                &OwnLines::default(),
                &mut record,
            )
            .await;
        assert_eq!(
            authorized.unwrap_err().reason(),
            "identifying the program took too long"
        );
        assert!(begin.elapsed() >= Limits::JUDGE_DEADLINE);
    }

    #[tokio::test]
    async fn an_authorization_is_stale_once_another_generation_is_in_force() {
        let (services, _) = testing::services("{host: web.test, port: 80}");
        let authorization = testing::authorization(&services, "web.test:80");
        assert!(!authorization.is_stale());
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, "{host: web.test, port: 80}"));
        assert!(authorization.is_stale());
    }
}
