//! Refusals: their data, their explanations, and the responses that tell them.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod answer;
mod asked;
pub mod explain;
pub(crate) mod flags;
pub mod guidance;
pub mod judged;
pub mod refusal;
pub mod reply;

#[cfg(test)]
mod tests;
