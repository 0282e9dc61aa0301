//! Finds out what the supervisor may do on this host, and what the host forbids.

pub mod privilege;
pub mod switches;
