//! What happens once both sides are connected.

pub mod forward;
pub mod opaque;
