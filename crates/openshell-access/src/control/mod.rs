//! The control socket of a running sandbox, in its run directory: it describes the sandbox and
//! starts further commands in it.

pub mod approvals;
mod attached;
pub mod client;
pub mod console;
pub mod copy;
mod exec;
pub mod run;
pub mod server;
pub mod wire;
