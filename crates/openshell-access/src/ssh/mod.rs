//! The SSH server: commands, shells, files and forwarding.

mod attach;
mod channels;
mod connection;
pub mod doors;
mod forward;
mod input;
mod limits;
pub mod preface;
mod report;
pub mod server;
mod session;
mod shared;
mod terminal;
mod variables;
