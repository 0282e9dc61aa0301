//! Bytes on their way: HTTP, TLS and streams, each with its bounds.

pub mod detect;
pub mod http;
pub mod io;
pub mod json;
pub mod memory;
pub mod tls;
