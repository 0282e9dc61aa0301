//! What happens once both sides are connected.

pub mod confirmed;
pub mod http;
pub mod http2;
pub mod opaque;
pub mod session;
pub mod upstream;
