//! Everything that the connections of one sandbox share.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::inference::route::Inference;
use crate::relay::services::Services;
use crate::tls::interceptor::Interceptor;

/// Everything that the connections of one sandbox share.
#[derive(Debug)]
pub struct Proxy {
    /// Handles of exchanges.
    pub services: Arc<Services>,
    /// Means to intercept TLS.
    pub interceptor: Interceptor,
    /// Models; `None` if none are configured.
    pub inference: Option<Arc<Inference>>,
    /// The address of the workload's end of connections; others are closed unanswered.
    pub workload: Ipv4Addr,
}
