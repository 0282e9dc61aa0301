//! HTTP messages: canonical targets, heads and bodies.

pub mod body;
pub mod head;
pub mod reply;
pub mod target;
pub mod websocket;
