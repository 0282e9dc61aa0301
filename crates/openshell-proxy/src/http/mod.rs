//! HTTP as the proxy itself speaks it.

pub mod body;
pub mod head;
pub mod reply;
pub mod target;
