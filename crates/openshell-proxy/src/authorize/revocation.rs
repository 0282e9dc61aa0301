//! Revocation: the end of an authorization because the policy changes, or because it refuses a further owner of the
//! client's socket.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::authorize::authorizer::{Authorization, Authorizer};
use crate::authorize::connection::Connection;
use crate::denial::refusal::Refusal;
use crate::identify::rescan::{Owners, RescanResult};

/// Watches one authorized connection for its revocation.
#[derive(Debug)]
pub struct RevocationWatch {
    connection: Arc<Connection>,
    generations: watch::Receiver<u64>,
    /// The generation by which this watch last judged the connection; a message in it may have been judged by a newer
    /// one.
    generation: u64,
    /// The client's socket, if not all processes were searched and no rescan has been requested.
    unsearched: Option<u32>,
    /// A rescan that is pending.
    rescan: Option<oneshot::Receiver<RescanResult>>,
    /// The owners that it found, until they are judged.
    found: Option<Owners>,
}

impl RevocationWatch {
    /// Watches `authorization`, whose connection leads to `address`.
    #[must_use]
    pub fn new(authorization: Authorization, address: IpAddr) -> Self {
        let Authorization { callers, permit, generations, unsearched } = authorization;
        let generation = permit.generation();
        let connection = Arc::new(Connection::new(callers, permit, address));
        Self { connection, generations, generation, unsearched, rescan: None, found: None }
    }

    /// Takes over the rescan of an earlier request on the same client connection: it is for the same socket.
    pub fn inherit(&mut self, earlier: Self) {
        self.rescan = earlier.rescan;
        self.found = earlier.found;
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
        if let Some(found) = self.found.clone() {
            self.generation = self.connection.reauthorize(authorizer, Some(found)).await?.generation();
            self.found = None;
            return Ok(());
        }
        if self.rescan.is_none() {
            self.rescan = self.unsearched.take().map(|inode| authorizer.rescans.add(inode));
        }
        let (generations, generation) = (&mut self.generations, self.generation);
        let changed = async { generations.wait_for(|current| *current != generation).await.is_ok() };
        tokio::select! {
            changed = changed => {
                // Without a sender there are no more generations.
                if !changed {
                    std::future::pending::<()>().await;
                }
            }
            found = receive(&mut self.rescan) => {
                self.rescan = None;
                self.found = Some(found?);
                return Ok(());
            }
        }
        let judged = self.connection.reauthorize(authorizer, None).await;
        let permit = judged.map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))?;
        self.generation = permit.generation();
        Ok(())
    }
}

/// The result of the rescan; pending without one.
async fn receive(rescan: &mut Option<oneshot::Receiver<RescanResult>>) -> RescanResult {
    match rescan {
        Some(receiver) => receiver.await.unwrap_or_else(|_| {
            Err(Refusal::caller_unknown("the search for further owners of the socket was given up".to_owned()))
        }),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use openshell_policy::reason::ReasonCode;
    use tokio::time::timeout;

    use super::RevocationWatch;
    use crate::denial::refusal::Refusal;
    use crate::relay::services::Services;
    use crate::testing;

    const PLAIN: &str = "{host: web.test, port: 80}";
    const DAY: Duration = Duration::from_secs(86_400);

    /// The watch over a connection of which one owner was found, and the others are still looked for.
    fn unsearched(services: &Services) -> RevocationWatch {
        let mut authorization = testing::authorization(services, "web.test:80");
        authorization.unsearched = Some(4711);
        RevocationWatch::new(authorization, testing::UPSTREAM)
    }

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

    #[tokio::test]
    async fn a_failed_search_for_further_owners_ends_the_connection() {
        let (services, _) = testing::services(PLAIN);
        let mut watch = unsearched(&services);
        let search = async {
            let mut waiting = services.authorizer.rescans.take().await;
            waiting.remove(&4711).unwrap().send(Err(Refusal::caller_unknown("unreadable".to_owned()))).unwrap();
        };
        let (refusal, ()) = tokio::join!(watch.revoked(&services.authorizer), search);
        assert_eq!((refusal.code(), refusal.reason()), (ReasonCode::CallerUnknown, "unreadable"));
    }

    #[tokio::test]
    async fn a_search_that_is_given_up_ends_the_connection() {
        let (services, _) = testing::services(PLAIN);
        let mut watch = unsearched(&services);
        let search = async { drop(services.authorizer.rescans.take().await) };
        let (refusal, ()) = tokio::join!(watch.revoked(&services.authorizer), search);
        assert_eq!(refusal.code(), ReasonCode::CallerUnknown);
    }

    #[tokio::test(start_paused = true)]
    async fn a_search_without_further_owners_ends_nothing() {
        let (services, _) = testing::services(PLAIN);
        let mut watch = unsearched(&services);
        let search = async {
            let mut waiting = services.authorizer.rescans.take().await;
            waiting.remove(&4711).unwrap().send(Ok(Vec::new().into())).unwrap();
        };
        let (revoked, ()) = tokio::join!(timeout(DAY, watch.revoked(&services.authorizer)), search);
        assert!(revoked.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_search_of_an_earlier_request_ends_the_connection_of_a_later_one() {
        let (services, _) = testing::services(PLAIN);
        let (mut earlier, mut later) = (unsearched(&services), testing::watch(&services, "web.test:80"));
        assert!(timeout(DAY, earlier.revoked(&services.authorizer)).await.is_err());
        later.inherit(earlier);
        let search = async {
            let mut waiting = services.authorizer.rescans.take().await;
            waiting.remove(&4711).unwrap().send(Err(Refusal::caller_unknown("unreadable".to_owned()))).unwrap();
        };
        let ended = async { tokio::join!(later.revoked(&services.authorizer), search) };
        let (refusal, ()) = timeout(DAY, ended).await.unwrap();
        assert_eq!(refusal.reason(), "unreadable");
    }
}
