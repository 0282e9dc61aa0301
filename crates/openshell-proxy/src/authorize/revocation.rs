//! Revocation: the end of an authorization because the policy changes.

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::authorize::authorizer::{Authorization, Authorizer};
use crate::authorize::connection::Connection;
use crate::denial::refusal::Refusal;

/// Watches one authorized connection for its revocation.
#[derive(Debug)]
pub struct RevocationWatch {
    connection: Arc<Connection>,
    generations: watch::Receiver<u64>,
    /// The generation by which this watch last judged the connection; a message in it may have been judged by a newer
    /// one.
    generation: u64,
}

impl RevocationWatch {
    /// Watches `authorization`, whose connection leads to `address`.
    #[must_use]
    pub fn new(authorization: Authorization, address: IpAddr) -> Self {
        let Authorization { caller, permit, generations } = authorization;
        let generation = permit.generation();
        let connection = Arc::new(Connection::new(caller, permit, address));
        Self { connection, generations, generation }
    }

    /// The watched connection.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns the reason once the connection is permitted no longer. Cancel safe.
    pub async fn revoked(&mut self, authorizer: &Authorizer) -> Refusal {
        loop {
            match self.next(authorizer).await {
                Ok(()) => {}
                Err(refusal) => return refusal,
            }
        }
    }

    /// Waits for one change, and judges the connection after it.
    async fn next(&mut self, authorizer: &Authorizer) -> Result<(), Refusal> {
        let generation = self.generation;
        if self.generations.wait_for(|current| *current != generation).await.is_err() {
            // Without a sender there are no more generations.
            pending::<()>().await;
        }
        let judged = self.connection.reauthorize(authorizer).await;
        let permit = judged.map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))?;
        self.generation = permit.generation();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::RevocationWatch;
    use std::time::Duration;

    use openshell_policy::reason::ReasonCode;
    use tokio::time::timeout;

    use crate::testing;

    const PLAIN: &str = "{host: web.test, port: 80}";
    const DAY: Duration = Duration::from_secs(86_400);

    #[tokio::test(start_paused = true)]
    async fn a_generation_that_refuses_a_connection_ends_it_with_the_reason() {
        let (services, _) = testing::services(PLAIN);
        let mut watch = testing::watch(&services, "web.test:80");
        assert!(timeout(DAY, watch.revoked(&services.authorizer)).await.is_err());
        services.authorizer.policy.replace(testing::snapshot(2, "{host: other.test, port: 80}"));
        let refusal = watch.revoked(&services.authorizer).await;
        assert_eq!(refusal.code(), ReasonCode::PolicyChanged);
        assert!(refusal.reason().contains("web.test"), "{}", refusal.reason());
    }

    #[tokio::test(start_paused = true)]
    async fn a_generation_that_permits_a_connection_ends_nothing() {
        let (services, _) = testing::services(PLAIN);
        let mut watch = testing::watch(&services, "web.test:80");
        for generation in 2..5 {
            services.authorizer.policy.replace(testing::snapshot(generation, PLAIN));
            assert!(timeout(DAY, watch.revoked(&services.authorizer)).await.is_err());
            assert_eq!(watch.connection().permit().generation(), generation);
        }
    }

    #[tokio::test]
    async fn a_generation_between_the_judgement_and_the_watch_counts() {
        let (services, _) = testing::services(PLAIN);
        let authorization = testing::authorization(&services, "web.test:80");
        services.authorizer.policy.replace(testing::snapshot(2, "{host: other.test, port: 80}"));
        let mut watch = RevocationWatch::new(authorization, testing::UPSTREAM);
        assert_eq!(watch.revoked(&services.authorizer).await.code(), ReasonCode::PolicyChanged);
    }
}
