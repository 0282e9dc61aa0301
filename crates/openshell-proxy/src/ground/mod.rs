//! The base of every part of the proxy: bounds, targets, callers and threads.

pub mod limits;
pub mod peer;
pub mod quota;
pub(crate) mod sequence;
pub mod shares;
pub(crate) mod socket;
pub mod target;
pub(crate) mod trace;
pub mod workers;
