//! What happens in a sandbox, as typed events: decisions, findings, refusals, and its own state.
//!
//! Takes facts from every other crate, each with its word from a closed set; gives one event for
//! each decision to whoever implements [`event::Audit`], and counts of refusals.
//! Never contains I/O, a clock, a policy, or the form in which a log, a metric or a gateway shows
//! an event: the leaf under all crates.

#![forbid(unsafe_code)]

pub mod denial;
pub mod event;
pub mod facts;
pub mod lines;
pub mod packet;
pub mod reason;
pub mod text;
pub mod words;
