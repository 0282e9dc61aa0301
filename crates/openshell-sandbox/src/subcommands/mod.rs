//! Subcommands that read a policy and run nothing.

pub(crate) mod check;
pub(crate) mod explain;
