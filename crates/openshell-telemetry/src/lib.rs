//! What a sandbox tells those who run it: log lines and records, metrics, and health.
//!
//! It takes typed events, an open folder, bound sockets, and a way to a collector or to a gateway's
//! queue. It gives lines on standard error and in files, counts, and answers to probes and
//! scrapers. It never makes a decision, reads an environment variable, or looks at the sandbox
//! itself.

#![forbid(unsafe_code)]

pub mod export;
mod exposition;
mod families;
pub mod health;
pub mod logging;
pub mod metrics;
mod otlp;
pub mod server;
