//! The ways into a running sandbox: SSH, further commands, and copies of files.
//!
//! Takes bound sockets, and the sandbox's init as a [`Launcher`]. Gives clients commands, shells,
//! files and forwarded ports under the confinement of the main command, and contains the clients'
//! side too. The crate has no way around init, reads no environment variable, and does not look at
//! the proxy.
//!
//! [`Launcher`]: openshell_supervisor::init::launch::Launcher

#![forbid(unsafe_code)]

mod attended;
pub mod command_line;
pub mod control;
pub mod main_process;
pub mod packet_socket;
pub mod sftp;
pub mod ssh;
pub mod streamlocal;
pub mod transfer;
pub mod workload;
