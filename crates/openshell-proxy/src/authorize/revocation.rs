//! The end of an authorization: the policy changes, or a further owner of the client's socket is found that it refuses.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::authorize::authorizer::{Authorization, Authorizer};
use crate::authorize::connection::Connection;
use crate::denial::refusal::Refusal;
use crate::identify::rescan::{Owners, RescanResult};

/// Watches over one authorized connection.
#[derive(Debug)]
pub struct RevocationWatch {
    connection: Arc<Connection>,
    generations: watch::Receiver<u64>,
    /// The generation that judged it last here; a message in it may have been judged by another since.
    generation: u64,
    /// Its socket, if not all processes were searched and no rescan has been requested.
    unsearched: Option<u32>,
    /// The result of a rescan, once it is there…
    rescan: Option<oneshot::Receiver<RescanResult>>,
    /// …and until it has been judged.
    found: Option<Owners>,
}

impl RevocationWatch {
    /// Watches over `authorization`, with which a connection to `address` was made.
    #[must_use]
    pub fn new(authorization: Authorization, address: IpAddr) -> Self {
        let Authorization { callers, permit, generations, unsearched } = authorization;
        let generation = permit.generation();
        let connection = Arc::new(Connection::new(callers, permit, address));
        Self { connection, generations, generation, unsearched, rescan: None, found: None }
    }

    /// Takes over the rescan of an earlier request of the same client connection, as it concerns this one too.
    pub fn inherit(&mut self, earlier: Self) {
        self.rescan = earlier.rescan;
        self.found = earlier.found;
    }

    /// The connection.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns when the connection is permitted no longer, with the reason. Cancel safe.
    pub async fn revoked(&mut self, authorizer: &Authorizer) -> Refusal {
        loop {
            match self.next(authorizer).await {
                Ok(()) => {}
                Err(refusal) => return refusal,
            }
        }
    }

    /// Waits for one change, and judges the connection by it.
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
                // Without a sender the policy stays.
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

/// The result of the rescan; pending for ever without one.
async fn receive(rescan: &mut Option<oneshot::Receiver<RescanResult>>) -> RescanResult {
    match rescan {
        Some(receiver) => receiver.await.unwrap_or_else(|_| {
            Err(Refusal::caller_unknown("the search for further owners of the socket was given up".to_owned()))
        }),
        None => std::future::pending().await,
    }
}
