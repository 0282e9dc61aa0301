//! The handles for the interception of TLS.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::wire::tls::authority::Authority;

/// The handles for the interception of TLS.
#[derive(Debug)]
pub struct Interceptor {
    /// The sandbox's CA; `None` if its trust files could not be installed. Connections that need
    /// interception are then refused.
    authority: Option<Authority>,
    /// The slots for HTTP/2 connections: [`Limits::HTTP2_CONNECTIONS`] of them.
    http2_slots: Arc<Semaphore>,
}

impl Interceptor {
    /// Creates an interceptor with `authority`, if its trust files could be installed.
    #[must_use]
    pub fn new(authority: Option<Authority>) -> Self {
        Self {
            authority,
            http2_slots: Arc::new(Semaphore::new(Limits::HTTP2_CONNECTIONS)),
        }
    }

    /// Returns the CA.
    ///
    /// # Errors
    /// Fails if there is no CA.
    pub fn authority(&self) -> Result<&Authority, Refusal> {
        self.authority
            .as_ref()
            .ok_or(Refusal::authority_unavailable())
    }

    /// Returns a slot for an HTTP/2 connection, if one is free.
    #[must_use]
    pub fn http2_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.http2_slots).try_acquire_owned().ok()
    }
}
