//! The state that all connections of one sandbox share.

use std::sync::Arc;

use crate::decide::admission::Admission;
use crate::decide::identify::Witness;
use crate::doors::dns::names::Names;
use crate::inference::route::Inference;
use crate::policy_local::serve::PolicyLocal;
use crate::relay::services::Services;
use crate::wire::tls::interceptor::Interceptor;

/// The state that all connections of one sandbox share.
#[derive(Debug)]
pub struct Proxy {
    /// The services that exchanges use.
    pub services: Arc<Services>,
    /// Identifies the programs that connect.
    pub witness: Arc<dyn Witness>,
    /// Bounds the connections of programs.
    pub admission: Admission,
    /// TLS interception.
    pub interceptor: Interceptor,
    /// The names for programs that use no proxy; `None` without a name server.
    pub names: Option<Arc<Names>>,
    /// Inference; `None` if it is not configured.
    pub inference: Option<Arc<Inference>>,
    /// Answers programs that ask about the policy.
    pub policy_local: Arc<PolicyLocal>,
}
