//! The supervisor as a process: its parent, signals, terminal, stages and exit code.

pub(crate) mod exit;
pub(crate) mod parent;
pub(crate) mod signals;
pub(crate) mod terminal;
pub(crate) mod timings;
