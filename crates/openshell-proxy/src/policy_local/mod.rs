//! Serves `http://policy.local`: programs inside read the policy and their own refusals there, ask
//! what would be refused, and propose lines of policy.

pub mod answer;
pub mod denials;
mod draft;
mod explain;
mod proposals;
mod request;
pub mod review;
pub mod serve;

use openshell_policy::approvals::HOST;

use crate::ground::target::{Origin, Scheme, Target};

/// The text that tells agents how to ask for a line of policy.
pub const SKILL: &str = include_str!("../../../../data/skills/policy-advisor/SKILL.md");

/// What is said to a client that does not come by HTTP.
pub const WRONG_SCHEME: &str =
    "it is served at http://policy.local, port 80, without TLS and without CONNECT";

/// Returns true if `target` is on the sandbox's own host, at whatever port.
#[must_use]
pub fn is_host(target: &Target) -> bool {
    target.host.to_string() == HOST
}

/// Returns true if `origin` is where the host serves.
#[must_use]
pub fn is_origin(origin: &Origin) -> bool {
    origin.scheme == Scheme::Http && is_target(&origin.target)
}

/// Returns true if `target` is where the host serves.
#[must_use]
pub fn is_target(target: &Target) -> bool {
    target.port == Scheme::Http.default_port() && is_host(target)
}
