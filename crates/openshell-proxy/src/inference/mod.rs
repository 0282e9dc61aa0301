//! Serves `https://inference.local`: models, with the operator's routes, backends and keys.
//!
//! The host is intercepted without a policy, and only at port 443. The method and path of a request
//! name the call; the first route that serves it responds. The proxy adds the route's key, and
//! removes the client's credentials.

pub mod api;
pub mod backend;
pub mod headers;
pub mod mock;
pub mod model;
pub mod route;
pub mod serve;
pub mod stream;
pub mod tools;
pub mod usage;

use openshell_policy::inference::HOST;

use crate::ground::target::{Scheme, Target};

/// Returns true if `target` is the host and port of the models.
#[must_use]
pub fn is_target(target: &Target) -> bool {
    target.port == Scheme::Https.default_port() && target.host.to_string() == HOST
}
