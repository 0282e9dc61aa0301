//! System calls of a workload that are answered by the supervisor, and what they tell of it.

pub mod file_calls;
pub mod waiting_calls;
pub mod witness;
