//! Turns a policy into kernel state and runs commands inside it.
//!
//! Everything that confines a workload is here: namespaces, the egress firewall, Landlock, seccomp,
//! identity, and the init process that starts commands under all of them. Decisions about
//! connections are made elsewhere.
//!
//! # What a workload may exchange meanwhile
//!
//! Folders that are granted may be changed by other sandboxes and programs while this one starts,
//! runs and ends. Supervisor and init act there on descriptors, and look no name up twice:
//!
//! | act | module |
//! |---|---|
//! | following symlinks on the way to a path | [`trusted_symlinks`] |
//! | opening files that are read | [`regular_files`] |
//! | folders and sockets of the supervisor's own: runs, logs, certificates | [`own_folder`], [`run_dir`] |
//! | folders of the policy that are missing, and placeholders | [`filesystem`] |
//! | removing what was made | [`run_dir::created_dirs`] |
//! | carve-outs and secrets | [`carve_outs`], [`protected`], by [`pins`] |
//! | masks, the private `/run`, `/tmp` and homes, and what stays visible in them | `masked_paths`, [`private_run`], `learning_home` |
//! | files of the sandbox, in a file system that init has made | [`sandbox_files`], [`confine`] |
//!
//! What is only looked for, settings and matches of patterns, is looked for as the workload's user.

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
pub mod own_folder;
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
