//! Upstream connections for the streams of one client: one HTTP/2 connection shared by all, or a few of HTTP/1.1, each
//! for one stream at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::denial::refusal::Refusal;
use crate::egress::Egress;
use crate::io::tasks::ConnectionTasks;
use crate::limits::Limits;
use crate::quota::QuotaGuard;
use crate::relay::http1::KeptUpstream;
use crate::relay::upstream::Upstream;

/// Pool of upstream connections of one client.
#[derive(Debug)]
pub struct UpstreamPool {
    /// The HTTP/2 connection, if the upstream speaks it.
    shared: Option<Upstream>,
    /// Turns true when prior knowledge of HTTP/2 is confirmed; `None` after ALPN.
    confirmed: Option<watch::Receiver<bool>>,
    /// Idle HTTP/1.1 connections, each with its quota guard; unused if the upstream speaks HTTP/2.
    idle: Mutex<Vec<KeptUpstream>>,
    /// Slots for HTTP/1.1 connections in use.
    slots: Arc<Semaphore>,
    tasks: ConnectionTasks,
}

impl UpstreamPool {
    /// Creates the pool around its `first` connection. If that is HTTP/2 by prior knowledge, `confirmed` turns true
    /// when the server's SETTINGS arrives.
    #[must_use]
    pub fn new(first: Upstream, confirmed: Option<watch::Receiver<bool>>) -> Arc<Self> {
        let tasks = first.tasks().clone();
        let (shared, idle) = match first.is_shared() {
            true => (Some(first), Vec::new()),
            false => (None, vec![KeptUpstream { upstream: first, quota: None }]),
        };
        let slots = Arc::new(Semaphore::new(Limits::POOLED_CONNECTIONS));
        Arc::new(Self { shared, confirmed, idle: Mutex::new(idle), slots, tasks })
    }

    /// Tasks of all its connections.
    #[must_use]
    pub fn tasks(&self) -> &ConnectionTasks {
        &self.tasks
    }

    /// Number of streams that the pool can serve concurrently.
    #[must_use]
    pub fn max_concurrent_streams(&self) -> u32 {
        match self.shared {
            Some(_) => Limits::STREAMS,
            None => u32::try_from(Limits::POOLED_CONNECTIONS).unwrap_or(u32::MAX),
        }
    }

    /// Acquires a connection for a request of `program`, as soon as one is free.
    ///
    /// # Errors
    /// The upstream does not speak HTTP/2, or the program has all of its connections.
    pub async fn acquire(self: &Arc<Self>, egress: &Egress, program: &str) -> Result<PooledConnection, Refusal> {
        if let Some(upstream) = self.shared.as_ref().and_then(Upstream::clone_http2) {
            if let Some(confirmed) = &self.confirmed {
                let mut confirmed = confirmed.clone();
                let said = timeout(Limits::CONNECT_DEADLINE, confirmed.wait_for(|is_http2| *is_http2)).await;
                said.map_err(|_| Refusal::upstream_timeout())?.map_err(|_| Refusal::upstream_without_http2())?;
            }
            return Ok(PooledConnection { upstream, quota: None, slot: None, pool: Arc::clone(self) });
        }
        // The semaphore is never closed.
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok();
        let idle = self.idle().pop();
        let KeptUpstream { upstream, quota } = match idle {
            Some(idle) => idle,
            None => {
                let quota = Some(egress.reserve(program)?);
                KeptUpstream { upstream: Upstream::new(self.tasks.clone()), quota }
            }
        };
        Ok(PooledConnection { upstream, quota, slot, pool: Arc::clone(self) })
    }

    /// Slots that are free.
    #[cfg(test)]
    pub(super) fn free_slots(&self) -> usize {
        self.slots.available_permits()
    }

    /// Locks the idle connections, which are consistent at every moment, so a poisoned lock is used all the same.
    fn idle(&self) -> MutexGuard<'_, Vec<KeptUpstream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl PooledConnection {
    /// Returns true if no other stream uses the connection.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.slot.is_some()
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if self.slot.is_some() {
            let upstream = std::mem::replace(&mut self.upstream, Upstream::new(self.pool.tasks.clone()));
            self.pool.idle().push(KeptUpstream { upstream, quota: self.quota.take() });
        }
    }
}
