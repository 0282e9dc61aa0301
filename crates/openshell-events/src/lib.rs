//! What happens in a sandbox, as typed events: decisions, findings, refusals, and its own state.
//!
//! Every other crate hands its facts to this one, in words of closed sets. It defines one event for
//! each decision, which goes to whoever implements [`event::Audit`], and counts refusals. It never
//! contains I/O, a clock, a policy, or the format in which a log, a metric or a gateway shows an
//! event, because all other crates depend on it.

#![forbid(unsafe_code)]

pub mod denial;
pub mod event;
pub mod facts;
pub mod lines;
pub mod packet;
pub mod reason;
pub mod text;
pub mod words;
