//! What happens once both sides are connected.

pub mod confirmed;
pub mod crew;
pub mod http;
pub mod http2;
pub mod linger;
pub mod opaque;
pub mod prefixed;
pub mod session;
pub mod upstream;
pub mod whole;
