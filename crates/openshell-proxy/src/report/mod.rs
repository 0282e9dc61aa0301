//! What is told of a decision, and of a connection's end.

pub mod closing;
pub mod observe;
pub mod record;
