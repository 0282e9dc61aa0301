//! What happens once both sides are connected.

pub mod http;
pub mod linger;
pub mod opaque;
pub mod prefixed;
pub mod session;
pub mod upstream;
