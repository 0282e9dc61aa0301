//! The path of a connection out of the sandbox, and every decision on it.
//!
//! Modules are listed in the order of that path. A stage is a function from the previous stage's
//! type to its own: nothing is dialled without a [`decide::permit::Permit`], and no address without
//! a check.

#![forbid(unsafe_code)]

pub mod proxy;

pub mod listener;
pub mod workers;

pub mod pipeline;

pub mod dns;
pub mod ingress;
pub mod publish;

pub mod admission;
pub mod authorize;
pub mod decide;
pub mod identify;

pub mod egress;
pub mod resolve;

pub mod detect;
pub mod tls;

pub mod relay;

pub mod credentials;
pub mod http;
pub mod leaks;

pub mod inference;

pub mod bypass;
pub mod closing;
pub mod denial;
pub mod observe;
pub mod record;

pub mod io;
pub mod limits;
pub mod memory;
pub mod needles;
pub mod peer;
pub mod placeholder;
pub mod quota;
pub mod shares;
pub mod target;

mod socket;
mod trace;

#[cfg(test)]
mod testing;
