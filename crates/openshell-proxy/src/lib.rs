//! The way of a connection out of the sandbox, and every decision on it.
//!
//! The modules stand in the order in which a byte meets them. A stage is a function from the previous stage's type to
//! its own, so that nothing is dialled without a [`decide::permit::Permit`], and no address that was not checked.

#![forbid(unsafe_code)]

pub mod context;
pub mod limits;

pub mod listener;
pub mod workers;

pub mod pipeline;

pub mod intake;

pub mod approve;

pub mod identify;

pub mod decide;

pub mod resolve;

pub mod connect;

pub mod tenure;

pub mod detect;

pub mod tls;

pub mod relay;

pub mod http;

pub mod credentials;

pub mod inference;

pub mod bypass;

pub mod observe;
pub mod record;
pub mod refusal;

pub mod memory;
pub mod quota;
mod socket;

pub mod io;
pub mod peer;
pub mod placeholder;
pub mod target;
