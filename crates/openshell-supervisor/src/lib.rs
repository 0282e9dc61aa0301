//! Turns a policy into kernel state and runs commands inside it.
//!
//! Everything that confines a workload is here: namespaces, the egress firewall, Landlock, seccomp, identity, and the
//! init process that starts commands under all of them. Decisions about connections are made elsewhere.

pub mod privilege;
pub mod run_as;
pub mod switches;

pub mod environment;
pub mod filesystem;
pub mod run_dir;
pub mod sandbox_files;

pub mod landlock;
mod learning_home;
mod masked_paths;
pub mod missing;
mod mounts;
pub mod netlink;
pub mod netns;
pub mod pins;
pub mod private_run;
pub mod private_tmp;
pub mod protected;
pub mod regular_files;
pub mod seccomp;
pub mod streams;
pub mod trusted_symlinks;

pub mod carve_outs;
pub mod checks;
pub mod confine;
pub mod file_calls;
pub mod harden;

pub mod init;
pub mod job;
pub mod launch;
pub mod packets;
pub mod peer;
pub mod pty;
pub mod reaper;
pub mod signals;
pub mod waiting_calls;
pub mod witness;

mod sys;
