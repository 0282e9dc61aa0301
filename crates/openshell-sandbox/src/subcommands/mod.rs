//! Subcommands, which run no command of the caller.

pub(crate) mod check;
pub(crate) mod copy_self;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod gateway;
