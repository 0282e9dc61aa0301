//! Decisions on connections and on the messages inside them, by one immutable generation of the
//! policy.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod admission;
pub mod connection;
pub mod engine;
pub mod entries;
pub mod identify;
pub mod line;
pub mod message;
pub mod own_lines;
mod paths;
pub mod permit;
pub mod rego_data;
pub mod rules;
pub mod snapshot;
pub mod store;
pub mod verdict;

#[cfg(test)]
mod tests;
