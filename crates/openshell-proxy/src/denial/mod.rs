//! Refusals: their data, their explanations, and their forms as responses.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod explain;
pub mod refusal;
pub mod reply;

#[cfg(test)]
mod tests;
