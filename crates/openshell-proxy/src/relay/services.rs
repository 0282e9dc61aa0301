//! Handles that every exchange needs.

use std::sync::Arc;

use crate::credentials::leaks::detector::LeakDetector;
use crate::credentials::watched::CurrentVault;
use crate::reach::authorize::authorizer::Authorizer;
use crate::reach::dial::Egress;
use crate::wire::memory::Memory;
use openshell_events::event::Audit;

/// Handles that every exchange needs.
#[derive(Debug)]
pub struct Services {
    /// Authorizes connections and requests.
    pub authorizer: Authorizer,
    /// Connects to upstreams.
    pub egress: Egress,
    /// Credentials.
    pub vault: Arc<CurrentVault>,
    /// Searches requests for secrets.
    pub leaks: Arc<LeakDetector>,
    /// Memory shared by all connections.
    pub memory: Memory,
    /// Receives every decision.
    pub audit: Arc<dyn Audit>,
}
