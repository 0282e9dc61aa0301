//! The way of a connection out of the sandbox, and every decision on it.
//!
//! The modules stand in the order in which a byte meets them. A stage is a function from the previous stage's type to
//! its own, so that nothing is dialled without a [`decide::permit::Permit`], and no address that was not checked.

#![forbid(unsafe_code)]

pub mod proxy;

pub mod listener;
pub mod workers;

pub mod pipeline;

pub mod ingress;

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

pub mod inference;

pub mod bypass;
pub mod denial;
pub mod observe;
pub mod record;

pub mod io;
pub mod limits;
pub mod memory;
pub mod peer;
pub mod placeholder;
pub mod quota;
pub mod target;

mod socket;
mod trace;

#[cfg(test)]
mod testing;
