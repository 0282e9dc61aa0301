//! Subcommands, which run no command of the caller.

pub(crate) mod ca;
pub(crate) mod check;
pub(crate) mod copy_self;
pub(crate) mod cp;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod gateway;
pub(crate) mod internal;
pub(crate) mod presets;
pub(crate) mod ps;
mod replay;
