//! Where a sandbox's policy, credentials and routes to models come from.
//!
//! Takes paths, flags, variables and a gateway's answers; gives checked policies, credentials with
//! their secrets, routes with their keys, and each later change as an update that is answered.
//! Never contains a decision on a connection: what enforces a policy compiles it ([`policy::Compile`]).

#![forbid(unsafe_code)]

pub mod files;
pub mod gateway;
pub mod input;
pub mod lints;
pub mod origin;
pub mod policy;
pub mod secrets;
pub mod tasks;
pub mod update;
pub mod variables;
pub mod watch;
