//! System-call filters of the workload and of the supervisor.

mod bpf;
mod conditions;
pub mod filter;
pub mod harden;
pub mod ioctls;
pub mod notify;
pub mod options;
mod row;
pub mod rules;

#[cfg(test)]
mod tests;
