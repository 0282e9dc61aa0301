//! The handles that every exchange needs.

use std::sync::Arc;

use crate::approvals::desk::Desk;
use crate::credentials::leaks::detector::LeakDetector;
use crate::credentials::watched::CurrentVault;
use crate::denial::guidance::Guidance;
use crate::reach::authorize::authorizer::Authorizer;
use crate::reach::dial::Egress;
use crate::relay::rpc::sessions::Sessions;
use crate::wire::memory::Memory;
use openshell_events::event::Audit;

/// The handles that every exchange needs.
#[derive(Debug)]
pub struct Services {
    /// The authorizer of connections and requests.
    pub authorizer: Authorizer,
    /// The connector to upstreams.
    pub egress: Egress,
    /// The current credentials.
    pub vault: Arc<CurrentVault>,
    /// The detector of secrets in requests.
    pub leaks: Arc<LeakDetector>,
    /// The open requests in sessions of MCP.
    pub sessions: Arc<Sessions>,
    /// The memory that all connections share.
    pub memory: Arc<Memory>,
    /// Asks a person about what is refused; `None` if nobody is asked.
    pub approvals: Option<Arc<Desk>>,
    /// What refusals tell programs that may ask for a line of policy.
    pub guidance: Arc<Guidance>,
    /// The receiver of every decision.
    pub audit: Arc<dyn Audit>,
}
