//! HTTP as the proxy itself speaks it.

pub mod reply;
