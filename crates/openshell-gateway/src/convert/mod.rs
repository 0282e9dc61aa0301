//! Messages as the rest of the supervisor has them. Nothing else sees a message.

pub mod config;
pub mod denials;
pub mod environment;
pub mod policy;
pub mod routes;
