//! `https://inference.local`: models by the operator's routes, backends and keys.
//!
//! The host is intercepted without a policy, at port 443 alone. Method and path of a request name
//! the call; the first route that serves it responds. The route's key is added here, and the
//! client's credentials are removed.

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

/// Returns true if `target` is that of the models.
#[must_use]
pub fn is_target(target: &Target) -> bool {
    target.port == Scheme::Https.default_port() && target.host.to_string() == HOST
}
