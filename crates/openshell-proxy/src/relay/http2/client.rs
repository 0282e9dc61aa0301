//! The state that the streams of one client connection share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use tokio::sync::Notify;

use super::pool::UpstreamPool;
use crate::relay::tunnel::HttpTunnel;

/// The state that the streams of one client connection share.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) tunnel: HttpTunnel,
    pub(super) pool: Arc<UpstreamPool>,
    /// Signals that the shared upstream connection has ended.
    pub(super) upstream_ended: Notify,
    /// Signals that too many streams were cancelled or are kept open.
    pub(super) flooded: Notify,
    /// The number of streams so far.
    pub(super) count: AtomicU64,
    /// The number of streams that have not ended.
    pub(super) open: AtomicUsize,
    /// The number of streams that were cancelled before their responses.
    pub(super) cancelled: AtomicU64,
}

impl Client {
    /// Creates the client of `tunnel`, whose requests go through `pool`.
    #[must_use]
    pub(super) fn new(tunnel: HttpTunnel, pool: Arc<UpstreamPool>) -> Arc<Self> {
        Arc::new(Self {
            tunnel,
            pool,
            upstream_ended: Notify::new(),
            flooded: Notify::new(),
            count: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            cancelled: AtomicU64::new(0),
        })
    }
}
