//! Which system calls the workload may make, and which the supervisor.

pub mod filter;
pub mod options;
pub mod rules;

#[cfg(test)]
mod tests;
