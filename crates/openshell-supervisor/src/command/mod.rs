//! Makes what a command gets: environment, standard streams, terminals and signals.

pub mod environment;
pub mod job;
pub mod packets;
pub mod pty;
pub mod reaper;
pub mod signals;
pub mod streams;
