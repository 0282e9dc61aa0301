//! The upstream connections for the streams of one client: one HTTP/2 connection that all share, or
//! a few HTTP/1.1 connections that each serve one stream at a time.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::approvals::desk::Desk;
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::quota::QuotaGuard;
use crate::reach::dial::Egress;
use crate::relay::http1::KeptUpstream;
use crate::relay::tunnel::{Lent, Resumed};
use crate::relay::upstream::Upstream;
use crate::wire::io::tasks::ConnectionTasks;

/// The pool of one client's upstream connections.
#[derive(Debug)]
pub struct UpstreamPool {
    /// The HTTP/2 connection, if the upstream speaks it.
    shared: Option<Upstream>,
    /// Turns true when prior knowledge of HTTP/2 is confirmed; `None` after ALPN.
    confirmed: Option<watch::Receiver<bool>>,
    /// Idle HTTP/1.1 connections, each with its quota guard; unused if the upstream speaks HTTP/2.
    idle: Mutex<Vec<KeptUpstream>>,
    /// The slots for HTTP/1.1 connections in use.
    slots: Arc<Semaphore>,
    tasks: ConnectionTasks,
}

impl UpstreamPool {
    /// Creates the pool with its `first` connection. If that is HTTP/2 by prior knowledge,
    /// `confirmed` turns true when the server's SETTINGS arrive.
    #[must_use]
    pub fn new(first: Upstream, confirmed: Option<watch::Receiver<bool>>) -> Arc<Self> {
        let tasks = first.tasks().clone();
        let (shared, idle) = if first.is_shared() {
            (Some(first), Vec::new())
        } else {
            (
                None,
                vec![KeptUpstream {
                    upstream: first,
                    quota: None,
                }],
            )
        };
        let slots = Arc::new(Semaphore::new(Limits::POOLED_CONNECTIONS));
        Arc::new(Self {
            shared,
            confirmed,
            idle: Mutex::new(idle),
            slots,
            tasks,
        })
    }

    /// Returns the tasks of all its connections.
    #[must_use]
    pub fn tasks(&self) -> &ConnectionTasks {
        &self.tasks
    }

    /// Returns the number of streams that the pool can serve at the same time, and beside them those
    /// that wait for a person, if one is asked.
    #[must_use]
    pub fn max_concurrent_streams(&self, is_asked: bool) -> u32 {
        let held = if is_asked { Desk::HELD_OF_PROGRAM } else { 0 };
        match self.shared {
            Some(_) => Limits::STREAMS,
            None => u32::try_from(Limits::POOLED_CONNECTIONS + held).unwrap_or(u32::MAX),
        }
    }

    /// Acquires a connection for a request of `program`, as soon as one is free.
    ///
    /// # Errors
    /// Fails if the upstream does not speak HTTP/2, or if the program's quota of connections is
    /// used up.
    pub async fn acquire(
        self: &Arc<Self>,
        egress: &Egress,
        program: &str,
    ) -> Result<PooledConnection, Refusal> {
        if let Some(upstream) = self.shared.as_ref().and_then(Upstream::clone_http2) {
            if let Some(confirmed) = &self.confirmed {
                let mut confirmed = confirmed.clone();
                let settled = timeout(
                    Limits::CONNECT_DEADLINE,
                    confirmed.wait_for(|is_http2| *is_http2),
                )
                .await;
                settled
                    .map_err(|_| Refusal::upstream_timeout())?
                    .map_err(|_| Refusal::upstream_without_http2())?;
            }
            return Ok(PooledConnection {
                upstream,
                quota: None,
                slot: None,
                pool: Arc::clone(self),
                is_resting: false,
            });
        }
        // The semaphore is never closed.
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok();
        let idle = self.idle().pop();
        let KeptUpstream { upstream, quota } = match idle {
            Some(idle) => idle,
            None => {
                let quota = Some(egress.reserve(program)?);
                KeptUpstream {
                    upstream: Upstream::new(self.tasks.clone()),
                    quota,
                }
            }
        };
        Ok(PooledConnection {
            upstream,
            quota,
            slot,
            pool: Arc::clone(self),
            is_resting: false,
        })
    }

    /// Returns the number of free slots.
    #[cfg(test)]
    pub(super) fn free_slots(&self) -> usize {
        self.slots.available_permits()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<KeptUpstream>> {
        self.idle.lock()
    }
}

/// A connection in use by one stream, until its request and response have ended.
#[derive(Debug)]
pub struct PooledConnection {
    /// The connection.
    pub upstream: Upstream,
    quota: Option<QuotaGuard>,
    slot: Option<OwnedSemaphorePermit>,
    pool: Arc<UpstreamPool>,
    /// True while another stream may use the connection.
    is_resting: bool,
}

impl PooledConnection {
    /// Returns true if no other stream uses the connection.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.slot.is_some()
    }

    /// Lets another stream use the connection, if this one has it alone.
    fn give_back(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        let new = Upstream::new(self.pool.tasks.clone());
        let upstream = std::mem::replace(&mut self.upstream, new);
        self.pool.idle().push(KeptUpstream {
            upstream,
            quota: self.quota.take(),
        });
        drop(slot);
    }
}

impl Lent for PooledConnection {
    fn upstream(&mut self) -> &mut Upstream {
        &mut self.upstream
    }

    fn is_shared(&self) -> bool {
        self.upstream.is_shared()
    }

    fn rest(&mut self) {
        self.is_resting = self.is_exclusive();
        self.give_back();
    }

    fn resume<'f>(&'f mut self, egress: &'f Egress, program: &'f str) -> Resumed<'f> {
        Box::pin(async move {
            if std::mem::take(&mut self.is_resting) {
                let pool = Arc::clone(&self.pool);
                *self = pool.acquire(egress, program).await?;
            }
            Ok(())
        })
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use openshell_events::reason::ReasonCode;
    use tokio::io::{DuplexStream, duplex};
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::{ConnectionTasks, Egress, Limits, PooledConnection, Upstream, UpstreamPool};
    use crate::ground::target::{Origin, Scheme};
    use crate::testing;
    use crate::wire::memory::Memory;

    const CURL: &str = "/usr/bin/curl";
    const ADDRESS: SocketAddr = SocketAddr::new(testing::UPSTREAM, 80);

    fn origin() -> Origin {
        Origin {
            scheme: Scheme::Http,
            target: testing::target("web.test:80"),
        }
    }

    /// Creates a pool with a connection of HTTP/1.1; returns the connection's other end, too.
    async fn exclusive() -> (Arc<UpstreamPool>, DuplexStream) {
        let (near, far) = duplex(64);
        let mut first = Upstream::new(ConnectionTasks::default());
        first.establish(origin(), ADDRESS, near).await.unwrap();
        (UpstreamPool::new(first, None), far)
    }

    /// Creates a pool with a connection of HTTP/2; returns its other end and what confirms it, too.
    async fn shared() -> (Arc<UpstreamPool>, DuplexStream, watch::Sender<bool>) {
        let (near, far) = duplex(64);
        let mut first = Upstream::new(ConnectionTasks::default());
        let windows = Memory::default().windows();
        drop(
            first
                .establish_http2(origin(), ADDRESS, near, &windows)
                .await
                .unwrap(),
        );
        let (confirm, confirmed) = watch::channel(false);
        (UpstreamPool::new(first, Some(confirmed)), far, confirm)
    }

    async fn acquired(pool: &Arc<UpstreamPool>, egress: &Egress) -> PooledConnection {
        pool.acquire(egress, CURL).await.unwrap()
    }

    #[tokio::test]
    async fn a_connection_of_http_1_is_one_requests_own_until_it_goes_back() {
        let (pool, _far) = exclusive().await;
        let (services, _) = testing::services("");
        let first = acquired(&pool, &services.egress).await;
        assert!(first.is_exclusive() && first.upstream.is_open_to(&origin()));
        let second = acquired(&pool, &services.egress).await;
        assert!(second.is_exclusive() && second.upstream.is_unused());
        assert_eq!(pool.free_slots(), Limits::POOLED_CONNECTIONS - 2);
        drop(second);
        drop(first);
        assert_eq!(pool.free_slots(), Limits::POOLED_CONNECTIONS);
        assert!(
            acquired(&pool, &services.egress)
                .await
                .upstream
                .is_open_to(&origin())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_beyond_the_pool_waits_for_a_connection() {
        let (pool, _far) = exclusive().await;
        let (services, _) = testing::services("");
        let mut taken = Vec::new();
        for _ in 0..Limits::POOLED_CONNECTIONS {
            taken.push(acquired(&pool, &services.egress).await);
        }
        assert!(
            timeout(
                Duration::from_secs(3600),
                pool.acquire(&services.egress, CURL)
            )
            .await
            .is_err()
        );
        taken.pop();
        assert!(pool.acquire(&services.egress, CURL).await.is_ok());
    }

    #[tokio::test]
    async fn further_connections_are_the_programs_and_the_first_was_before() {
        let (pool, _far) = exclusive().await;
        let (services, _) = testing::services("");
        let reserve = |_| services.egress.reserve(CURL).unwrap();
        let mut all: Vec<_> = (0..Limits::CONNECTIONS_PER_PROGRAM).map(reserve).collect();
        let _first = acquired(&pool, &services.egress).await;
        let refusal = pool.acquire(&services.egress, CURL).await.unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::LimitReached);
        assert_eq!(
            pool.free_slots(),
            Limits::POOLED_CONNECTIONS - 1,
            "a request that is refused keeps no slot"
        );
        all.pop();
        let second = acquired(&pool, &services.egress).await;
        assert!(services.egress.reserve(CURL).is_err());
        drop(second);
        assert!(
            services.egress.reserve(CURL).is_err(),
            "it is kept for the next request"
        );
    }

    #[tokio::test]
    async fn a_connection_of_http_2_is_shared_once_it_is_confirmed() {
        let (pool, _far, confirm) = shared().await;
        let (services, _) = testing::services("");
        confirm.send_replace(true);
        let [one, other] = [
            acquired(&pool, &services.egress).await,
            acquired(&pool, &services.egress).await,
        ];
        assert!(!one.is_exclusive() && one.upstream.is_shared() && other.upstream.is_shared());
        drop((one, other));
        assert!(acquired(&pool, &services.egress).await.upstream.is_shared());
        assert_eq!(pool.max_concurrent_streams(true), Limits::STREAMS);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_does_not_confirm_http_2_gets_no_request() {
        let (pool, _far, confirm) = shared().await;
        let (services, _) = testing::services("");
        let refusal = pool.acquire(&services.egress, CURL).await.unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::UpstreamTimeout);
        drop(confirm);
        let refusal = pool.acquire(&services.egress, CURL).await.unwrap_err();
        assert_eq!(
            refusal.reason(),
            "the upstream does not speak HTTP/2, which gRPC needs"
        );
    }
}
