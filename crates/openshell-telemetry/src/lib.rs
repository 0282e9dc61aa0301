//! What a sandbox tells those who run it: log lines and records, metrics, and health.
//!
//! Takes typed events, an open folder, bound sockets, and a way to a collector or to a gateway's
//! queue; gives lines on standard error and in files, counts, and answers to probes and scrapers.
//! Never contains a decision, a variable of the environment, or a look at the sandbox itself.

#![forbid(unsafe_code)]

pub mod export;
mod exposition;
mod families;
pub mod health;
pub mod logging;
pub mod metrics;
mod otlp;
pub mod server;
