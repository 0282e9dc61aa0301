//! Health and metrics of a sandbox, for probes and scrapers outside of it.

#![forbid(unsafe_code)]

pub mod export;
mod exposition;
mod families;
pub mod health;
pub mod metrics;
mod otlp;
pub mod server;
