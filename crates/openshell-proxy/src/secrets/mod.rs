//! Secrets in text: their placeholders, and the search for them in each form that they take.

pub mod needles;
pub mod placeholder;
