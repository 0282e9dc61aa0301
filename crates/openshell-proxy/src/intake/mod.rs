//! Doors: requests that open a connection, or are forwarded.

pub mod connect;
pub mod forward;
