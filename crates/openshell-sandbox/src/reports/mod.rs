//! Reports about a run: events for their receivers, the refusals and servers for its end, files,
//! and what a gateway is told.

pub(crate) mod approvals;
pub(crate) mod audit;
pub(crate) mod background_reporter;
pub(crate) mod file_refusals;
pub(crate) mod gateway_reports;
pub(crate) mod look_up;
pub(crate) mod refusals;
pub(crate) mod refused_packets;
pub(crate) mod run_reports;
pub(crate) mod servers;
