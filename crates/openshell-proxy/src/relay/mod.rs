//! What happens once both sides are connected.

mod fill;
pub mod http;
pub mod linger;
pub mod opaque;
pub mod prefixed;
pub mod session;
pub mod upstream;
