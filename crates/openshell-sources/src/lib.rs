//! Where a sandbox's policy, credentials and routes to models come from.
//!
//! It takes paths, flags, variables and a gateway's answers. It gives checked policies, credentials
//! with their secrets, routes with their keys, and each later change as an update that is answered.
//! It never decides about a connection: what enforces a policy compiles it ([`policy::Compile`]).

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
