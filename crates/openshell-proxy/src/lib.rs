//! The way of a connection out of the sandbox, and every decision on it.
//!
//! The modules stand in the order in which a byte meets them. A stage is a function from the previous stage's type to
//! its own, so that nothing is dialled without a [`decide::permit::Permit`], and no address that was not checked.

#![forbid(unsafe_code)]

pub mod limits;
pub mod proxy;

pub mod listener;
pub mod workers;

pub mod pipeline;

pub mod ingress;

pub mod identify;

pub mod decide;

pub mod resolve;

pub mod egress;

pub mod authorize;

pub mod detect;

pub mod tls;

pub mod relay;

pub mod http;

pub mod credentials;

pub mod inference;

pub mod bypass;
pub mod denial;

pub mod observe;
pub mod record;

pub mod memory;
pub mod quota;
mod socket;
mod trace;

pub mod io;
pub mod peer;
pub mod placeholder;
pub mod target;

#[cfg(test)]
mod testing;
