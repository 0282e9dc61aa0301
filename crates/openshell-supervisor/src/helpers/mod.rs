//! Programs that a person names and that help the supervisor from outside of the sandbox. They have
//! one parent, the runner: a process that is forked before the supervisor has a filter, a secret or
//! a thread, and that the supervisor asks for what it needs.
//!
//! A program runs as the caller: with the caller's user, environment, limits and namespaces. Its
//! arguments are fixed before the workload starts. All else goes by its standard input.

pub mod program;
pub mod runner;
mod running;
pub mod wire;
