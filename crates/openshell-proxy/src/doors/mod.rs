//! The ways by which connections come in, and what happens to each connection.

pub mod bypass;
pub mod dns;
pub mod ingress;
pub mod listener;
pub mod pipeline;
pub mod proxy;
pub mod publish;
