//! Leads from a decision to an upstream: who may be reached, at which addresses, and the connection
//! to it.

pub mod authorize;
pub mod dial;
pub mod resolve;
