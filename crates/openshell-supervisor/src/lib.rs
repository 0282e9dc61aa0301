//! Turns a policy into kernel state and runs commands inside it.
//!
//! Everything that confines a workload is here: namespaces, fence, Landlock, seccomp, identity, and the init process
//! that starts commands under all of them. What a connection may reach is decided elsewhere.

pub mod run_as;

pub mod environment;
pub mod filesystem;
pub mod made;
pub mod run_dir;

mod cover;
pub mod landlock;
pub mod netlink;
pub mod netns;
pub mod own_run;
pub mod resolve;
pub mod seccomp;
pub mod streams;

pub mod confine;

pub mod init;
pub mod job;
pub mod launch;
pub mod reaper;
pub mod signals;

mod sys;
