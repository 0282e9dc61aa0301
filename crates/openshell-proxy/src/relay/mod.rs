//! What happens once both sides are connected.

pub mod opaque;
