//! Revocation: the policy changes, and no longer permits an open connection.

use std::future::pending;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::decide::store::Generation;
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::reach::authorize::authorizer::{Authorization, Authorizer};
use crate::reach::authorize::connection::Connection;
use crate::reach::authorize::pause::Pause;

/// A watch over one authorized connection that notices its revocation.
#[derive(Debug)]
pub struct RevocationWatch {
    connection: Arc<Connection>,
    generations: watch::Receiver<Generation>,
    /// The generation by which this watch last judged the connection. A message inside may have
    /// been judged by a newer one.
    generation: u64,
    /// When lines of the connection's own expire.
    until: Option<Instant>,
}

impl RevocationWatch {
    /// Watches `authorization`, whose connection leads to `address`.
    #[must_use]
    pub fn new(authorization: Authorization, address: IpAddr) -> Self {
        let generations = authorization.generations.clone();
        let generation = authorization.permit.generation();
        let until = authorization.own.until();
        Self {
            connection: Arc::new(Connection::new(authorization, address)),
            generations,
            generation,
            until,
        }
    }

    /// Returns the watched connection.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns the reason when the connection is no longer permitted, or cannot be judged within
    /// [`Limits::JUDGE_DEADLINE`]. From [`Limits::HOLD_AFTER`] after the change until the
    /// judgement, `pause` stops the connection's work. Poll that work after this future: then no
    /// byte passes even if the thread had no time for the connection for so long. Cancel safe.
    pub async fn revoked(&mut self, authorizer: &Authorizer, pause: &Pause) -> Refusal {
        loop {
            match self.next(authorizer, pause).await {
                Ok(()) => {}
                Err(refusal) => return refusal,
            }
        }
    }

    /// Waits for a change of the policy, or until lines expire; returns when it was.
    async fn changed(&mut self) -> Instant {
        let generation = self.generation;
        let until = self.until;
        let expired = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => pending().await,
            }
        };
        let changed = async {
            let is_new = |current: &Generation| current.number != generation;
            let changed = self.generations.wait_for(is_new).await;
            match changed.map(|current| current.since) {
                Ok(since) => since,
                // Without a sender there are no more generations.
                Err(_) => pending().await,
            }
        };
        tokio::select! {
            since = changed => since,
            () = expired => {
                self.until = None;
                Instant::now()
            }
        }
    }

    /// Waits for one change of the policy, and judges the connection by the new one.
    async fn next(&mut self, authorizer: &Authorizer, pause: &Pause) -> Result<(), Refusal> {
        let changed = self.changed().await;
        let mut judging = pin!(self.connection.reauthorize(authorizer));
        let judged = match timeout_at(changed + Limits::HOLD_AFTER, &mut judging).await {
            Ok(judged) => judged,
            Err(_) => {
                let _paused = pause.begin();
                let late = timeout(Limits::JUDGE_DEADLINE - Limits::HOLD_AFTER, judging).await;
                late.unwrap_or_else(|_| {
                    Err(Refusal::engine(
                        "judging the connection by the new policy took too long".to_owned(),
                    ))
                })
            }
        };
        let permit =
            judged.map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))?;
        self.generation = permit.generation();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::{Limits, Pause, RevocationWatch};

    use openshell_events::reason::ReasonCode;
    use tokio::time::timeout;

    use crate::testing;

    const PLAIN: &str = "{host: web.test, port: 80}";
    const DAY: Duration = Duration::from_secs(86_400);

    #[tokio::test(start_paused = true)]
    async fn a_generation_that_refuses_a_connection_ends_it_with_the_reason() {
        let (services, _) = testing::services(PLAIN);
        let mut watch = testing::watch(&services, "web.test:80");
        assert!(
            timeout(DAY, watch.revoked(&services.authorizer, &Pause::default()))
                .await
                .is_err()
        );
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, "{host: other.test, port: 80}"));
        let refusal = watch.revoked(&services.authorizer, &Pause::default()).await;
        assert_eq!(refusal.code(), ReasonCode::PolicyChanged);
        assert!(
            refusal.reason().contains("web.test"),
            "{}",
            refusal.reason()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_generation_that_permits_a_connection_ends_nothing() {
        let (services, _) = testing::services(PLAIN);
        let mut watch = testing::watch(&services, "web.test:80");
        for generation in 2..5 {
            services
                .authorizer
                .policy
                .replace(testing::snapshot(generation, PLAIN));
            assert!(
                timeout(DAY, watch.revoked(&services.authorizer, &Pause::default()))
                    .await
                    .is_err()
            );
            assert_eq!(watch.connection().permit().generation(), generation);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_judged_again_in_time_passes_nothing_and_ends() {
        let (services, _) = testing::services(PLAIN);
        let authorizer = &services.authorizer;
        let mut watch = testing::watch(&services, "web.test:80");
        let all = u32::try_from(Limits::JUDGING_OPEN).unwrap();
        let taken = authorizer.places.open.acquire_many(all).await.unwrap();
        let pause = Pause::default();
        let passed = AtomicU32::new(0);
        let second = Duration::from_secs(1);
        let mut work = pin!(async {
            loop {
                tokio::time::sleep(second / 10).await;
                passed.fetch_add(1, Ordering::Relaxed);
            }
        });
        authorizer.policy.replace(testing::snapshot(2, PLAIN));
        // The judgement is late: the work is held, and then permitted.
        let late = async {
            tokio::time::sleep(5 * second).await;
            assert!(passed.load(Ordering::Relaxed) <= 10, "{passed:?}");
            drop(taken);
            tokio::time::sleep(second).await;
            assert!(passed.load(Ordering::Relaxed) >= 9 + 9, "{passed:?}");
        };
        tokio::select! {
            refusal = watch.revoked(authorizer, &pause) => panic!("{refusal:?}"),
            () = pause.over(work.as_mut()) => {}
            () = late => {}
        }
        // The judgement never comes.
        let _taken = authorizer.places.open.acquire_many(all).await.unwrap();
        let before = passed.load(Ordering::Relaxed);
        let begun = tokio::time::Instant::now();
        authorizer.policy.replace(testing::snapshot(3, PLAIN));
        let refusal = tokio::select! {
            refusal = watch.revoked(authorizer, &pause) => refusal,
            () = pause.over(work.as_mut()) => pending().await,
        };
        assert_eq!(refusal.code(), ReasonCode::PolicyChanged);
        assert!(
            begun.elapsed() >= Limits::JUDGE_DEADLINE
                && begun.elapsed() < Limits::JUDGE_DEADLINE + second
        );
        assert!(
            passed.load(Ordering::Relaxed) - before <= 11,
            "{passed:?} {before}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_had_no_time_for_a_connection_passes_none_of_its_bytes_afterwards() {
        let (services, _) = testing::services(PLAIN);
        let authorizer = &services.authorizer;
        let mut watch = testing::watch(&services, "web.test:80");
        let all = u32::try_from(Limits::JUDGING_OPEN).unwrap();
        let _taken = authorizer.places.open.acquire_many(all).await.unwrap();
        let pause = Pause::default();
        let passed = AtomicU32::new(0);
        let mut work = pin!(std::future::poll_fn(|_| {
            passed.fetch_add(1, Ordering::Relaxed);
            std::task::Poll::<()>::Pending
        }));
        authorizer
            .policy
            .replace(testing::snapshot(2, "{host: other.test, port: 80}"));
        tokio::time::advance(2 * Limits::HOLD_AFTER).await;
        tokio::select! {
            biased;
            refusal = watch.revoked(authorizer, &pause) => assert_eq!(refusal.code(), ReasonCode::PolicyChanged),
            () = pause.over(work.as_mut()) => {}
        }
        assert_eq!(passed.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_generation_between_the_judgement_and_the_watch_counts() {
        let (services, _) = testing::services(PLAIN);
        let authorization = testing::authorization(&services, "web.test:80");
        services
            .authorizer
            .policy
            .replace(testing::snapshot(2, "{host: other.test, port: 80}"));
        let mut watch = RevocationWatch::new(authorization, testing::UPSTREAM);
        assert_eq!(
            watch
                .revoked(&services.authorizer, &Pause::default())
                .await
                .code(),
            ReasonCode::PolicyChanged
        );
    }
}
