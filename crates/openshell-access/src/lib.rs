//! The ways into a running sandbox: SSH, further commands, and copies of files.
//!
//! Takes bound sockets, and the sandbox's init as a [`Launcher`]; gives clients commands, shells,
//! files and forwarded ports, under the confinement of the main command, and the clients' own half.
//! Never contains a way around init, a variable of the environment, or a look at the proxy.
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
