//! What is told of a run: events to their receivers, refusals and servers at its end, files, and a
//! gateway.

pub(crate) mod audit;
pub(crate) mod background_reporter;
pub(crate) mod file_refusals;
pub(crate) mod gateway_reports;
pub(crate) mod look_up;
pub(crate) mod refusals;
pub(crate) mod refused_packets;
pub(crate) mod run_reports;
pub(crate) mod servers;
