//! `https://inference.local`: models for whoever runs inside, by the operator's routes, backends and keys.
//!
//! The host is intercepted before any policy is asked, at port 443 alone. What a request asks for, its method and path say;
//! the first route that serves it answers. The key is put in here, and what the client sends of the like is left out.

pub mod api;
pub mod backend;
pub mod headers;
pub mod mock;
pub mod model;
pub mod route;
pub mod serve;
pub mod stream;
pub mod usage;

use openshell_policy::inference::HOST;

use crate::target::{Scheme, Target};

/// True if models answer at `target`.
#[must_use]
pub fn is_target(target: &Target) -> bool {
    target.port == Scheme::Https.default_port() && target.host.to_string() == HOST
}
