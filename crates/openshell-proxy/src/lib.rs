//! The path of a connection out of the sandbox, and every decision on it.
//!
//! Takes sockets, a compiled policy, credentials, routes and a witness of callers; gives connections
//! and answers that are permitted, and one event for each decision.
//! Never contains a namespace, a command line, a log, or a gateway.
//!
//! Folders are listed from the ground up: none uses one below it. A connection goes the other way,
//! from its door to an upstream. A stage is a function from the previous stage's type to its own:
//! nothing is dialled without a [`decide::permit::Permit`], and no address without a check.

#![forbid(unsafe_code)]

pub mod ground;
pub mod secrets;

pub mod denial;

pub mod wire;

pub mod decide;
pub mod report;

pub mod credentials;
pub mod reach;

pub mod approvals;

pub mod relay;

pub mod inference;
pub mod policy_local;

pub mod doors;

#[cfg(test)]
mod testing;
