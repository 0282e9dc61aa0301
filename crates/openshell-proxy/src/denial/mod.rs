//! Refusals: their data, their explanations, and their forms as responses.

pub mod explain;
pub mod refusal;
pub mod reply;
