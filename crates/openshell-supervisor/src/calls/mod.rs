//! Answers system calls of a workload for the supervisor, and learns from them.

pub mod file_calls;
pub mod waiting_calls;
pub mod witness;
