//! Health and metrics of a sandbox, for probes and scrapers outside of it.

#![forbid(unsafe_code)]

mod exposition;
pub mod health;
pub mod metrics;
pub mod server;
