//! Which system calls the workload may make.

pub mod filter;
pub mod rules;

#[cfg(test)]
mod tests;
