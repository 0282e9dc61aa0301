//! May it: whether a caller may reach a target, by one immutable generation of the policy.

pub mod connection;
pub mod current;
pub mod document;
pub mod engine;
pub mod request;
pub mod snapshot;

#[cfg(test)]
mod tests;
