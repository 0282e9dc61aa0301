//! State shared by the connections of one sandbox.

use std::sync::Arc;

use crate::decide::admission::Admission;
use crate::decide::identify::Witness;
use crate::doors::dns::names::Names;
use crate::inference::route::Inference;
use crate::relay::services::Services;
use crate::wire::tls::interceptor::Interceptor;

/// State shared by the connections of one sandbox.
#[derive(Debug)]
pub struct Proxy {
    /// Handles of exchanges.
    pub services: Arc<Services>,
    /// Tells who makes connections.
    pub witness: Arc<dyn Witness>,
    /// Bounds on the connections of programs.
    pub admission: Admission,
    /// TLS interception.
    pub interceptor: Interceptor,
    /// Names of programs that use no proxy; `None` without a name server.
    pub names: Option<Arc<Names>>,
    /// Inference; `None` if it is not configured.
    pub inference: Option<Arc<Inference>>,
}
