//! HTTP as the proxy itself speaks it.

pub mod head;
pub mod reply;
pub mod target;
