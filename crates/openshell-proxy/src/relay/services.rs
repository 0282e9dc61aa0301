//! Handles that every exchange needs.

use std::sync::Arc;

use crate::authorize::authorizer::Authorizer;
use crate::credentials::vault::CurrentVault;
use crate::egress::Egress;
use crate::memory::Memory;
use openshell_policy::event::Audit;

/// Handles that every exchange needs.
#[derive(Debug)]
pub struct Services {
    /// Authorizes connections and requests.
    pub authorizer: Authorizer,
    /// Connects to upstreams.
    pub egress: Egress,
    /// The secrets that placeholders stand for.
    pub vault: Arc<CurrentVault>,
    /// Memory that all connections share.
    pub memory: Memory,
    /// Takes every decision.
    pub audit: Arc<dyn Audit>,
}
