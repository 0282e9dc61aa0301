//! Names for programs that use no proxy: each name that the policy permits gets an address of its
//! own, at which a door for each of its ports is open.

mod known;
pub mod message;
pub mod names;
pub mod pool;
pub mod report;
pub mod server;

use std::fmt;
use std::io;
use std::net::{SocketAddrV4, TcpListener};

/// Opens doors: addresses that the workload may connect to, whose connections arrive at a listener
/// for their port.
pub trait Doors: fmt::Debug + Send + Sync {
    /// Opens and closes doors. Connections that are there stay. May block for milliseconds.
    ///
    /// # Errors
    /// The kernel refuses the change; then none of `opened` is open.
    fn change(&self, opened: &[SocketAddrV4], closed: &[SocketAddrV4]) -> io::Result<()>;

    /// Opens a listener for each of `ports`, of every door; one fails if descriptors are exhausted,
    /// or the port is forbidden.
    ///
    /// # Errors
    /// Threads are exhausted.
    fn listen(&self, ports: &[u16]) -> io::Result<Vec<io::Result<TcpListener>>>;
}
