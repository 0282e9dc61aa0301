//! Turns a policy into kernel state and runs commands inside it.
//!
//! This crate takes a policy, a user and the state of the host. It makes a network from them, and a
//! confined init that starts commands, and it answers the system calls of the workload that wait
//! for the supervisor. Everything that confines a workload is here: namespaces, the egress
//! firewall, Landlock, seccomp and identity. The crate never contains HTTP, TLS, async code, or a
//! decision on a connection.
//!
//! # Paths that others may change meanwhile
//!
//! Other sandboxes and programs may change granted folders while this one starts, runs and ends.
//! The supervisor and init therefore work there on descriptors, and look up no name twice:
//!
//! - [`paths::trusted_symlinks`] follows symlinks on the way to a path.
//! - [`paths::regular_files`] opens the files that are read.
//! - [`paths::own_folder`] and [`runs::run_dir`] hold the supervisor's own folders and sockets:
//!   runs, logs, certificates.
//! - [`files::filesystem`] makes the folders of the policy that are missing, and placeholders.
//! - [`runs::run_dir::created_dirs`] removes what was made.
//! - [`files::carve_outs`] and [`files::protected`] keep carve-outs and secrets from the workload,
//!   by means of [`paths::pins`].
//! - `files::masked_paths`, [`files::private_run`] and `files::learning_home` mount the masks, the
//!   private `/run`, `/tmp` and homes, and what stays visible in them.
//! - [`runs::sandbox_files`] and [`confine`] put the sandbox's files into a file system that init
//!   has made.
//!
//! Searches for settings and for matches of patterns run as the workload's user.

// From the ground up: no module uses one that is below it in this list.

mod sys;

pub use sys::trim_heap;

pub mod host;
pub mod paths;

pub mod identity;
pub mod runs;

pub mod files;
pub mod seccomp;

pub mod calls;
pub mod network;

pub mod command;
pub mod confine;
pub mod covers;

pub mod checks;
pub mod helpers;
pub mod init;
