//! The SSH server of a sandbox: commands, shells, files and forwarding. It starts nothing itself:
//! the [`Launcher`] does, under the same confinement as the main command.
//!
//! [`Launcher`]: openshell_supervisor::init::launch::Launcher

#![forbid(unsafe_code)]

mod attach;
mod channels;
pub mod command_line;
mod connection;
pub mod doors;
mod forward;
mod input;
mod limits;
pub mod main_process;
pub mod packet_socket;
pub mod preface;
mod report;
pub mod server;
mod session;
pub mod sftp;
mod shared;
pub mod streamlocal;
mod terminal;
pub mod transfer;
mod variables;
pub mod workload;
