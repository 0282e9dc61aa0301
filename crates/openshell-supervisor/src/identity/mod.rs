//! Users: whose the workload's processes are, and who is at the other end of a socket.

pub mod peer;
pub mod run_as;
