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
