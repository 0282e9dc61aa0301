//! Relays between a client and its upstream.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod asking;
pub mod body;
pub mod exchange;
pub mod http1;
pub mod http2;
pub mod inspect;
pub mod intercept;
pub mod opaque;
pub mod rpc;
pub mod services;
pub mod tunnel;
pub mod upstream;
