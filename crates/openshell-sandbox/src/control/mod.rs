//! The control socket of a running sandbox, in its run directory: what it is, and further commands
//! in it.

pub(crate) mod client;
mod exec;
pub(crate) mod server;
pub(crate) mod wire;
