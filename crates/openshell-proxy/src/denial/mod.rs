//! Refusals: what each says, to whom, and in which form.

pub mod explain;
pub mod refusal;
pub mod reply;
