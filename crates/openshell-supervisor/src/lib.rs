//! Turns a policy into kernel state and runs commands inside it.
//!
//! Takes a policy, a user, and what is on the host; gives a network, a confined init that starts
//! commands, and answers to calls that wait. All that confines a workload is here: namespaces, the
//! egress firewall, Landlock, seccomp and identity.
//! Never contains HTTP, TLS, async code, or a decision on a connection.
//!
//! # What a workload may exchange meanwhile
//!
//! Folders that are granted may be changed by other sandboxes and programs while this one starts,
//! runs and ends. Supervisor and init act there on descriptors, and look no name up twice:
//!
//! | act | module |
//! |---|---|
//! | following symlinks on the way to a path | [`paths::trusted_symlinks`] |
//! | opening files that are read | [`paths::regular_files`] |
//! | folders and sockets of the supervisor's own: runs, logs, certificates | [`paths::own_folder`], [`runs::run_dir`] |
//! | folders of the policy that are missing, and placeholders | [`files::filesystem`] |
//! | removing what was made | [`runs::run_dir::created_dirs`] |
//! | carve-outs and secrets | [`files::carve_outs`], [`files::protected`], by [`paths::pins`] |
//! | masks, the private `/run`, `/tmp` and homes, and what stays visible in them | `files::masked_paths`, [`files::private_run`], `files::learning_home` |
//! | files of the sandbox, in a file system that init has made | [`runs::sandbox_files`], [`confine`] |
//!
//! What is only looked for, settings and matches of patterns, is looked for as the workload's user.

// From the ground up: none uses one below it in this list.

mod sys;

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
pub mod init;
