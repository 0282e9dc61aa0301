//! The reports of decisions, and of the ends of connections.

pub mod closing;
pub mod finding;
mod message;
pub mod observe;
pub mod record;
