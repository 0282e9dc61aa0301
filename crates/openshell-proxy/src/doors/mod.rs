//! Where connections come in, and what becomes of each.

pub mod bypass;
pub mod dns;
pub mod ingress;
pub mod listener;
pub mod pipeline;
pub mod proxy;
pub mod publish;
