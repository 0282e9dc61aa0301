//! Identifies users: the user of the workload, and the user at the other end of a socket.

pub mod peer;
pub mod run_as;
