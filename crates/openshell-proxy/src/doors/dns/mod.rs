//! Names for programs that use no proxy. Each name that the policy permits gets its own address,
//! where a door is open for each of its ports.

mod known;
pub mod message;
pub mod names;
pub mod pool;
pub mod report;
pub mod server;
pub mod table;
pub mod unknown;

use std::fmt;
use std::io;
use std::net::{SocketAddrV4, TcpListener};

/// Opens doors: addresses to which the workload may connect. Their connections arrive at the
/// listener for their port.
pub trait Doors: fmt::Debug + Send + Sync {
    /// Opens and closes doors. Open connections stay. May block for milliseconds.
    ///
    /// # Errors
    /// The kernel refuses the change; then none of `opened` is open.
    fn change(&self, opened: &[SocketAddrV4], closed: &[SocketAddrV4]) -> io::Result<()>;

    /// Opens a listener for each of `ports`, which serves all doors with that port. A listener
    /// fails if descriptors are exhausted, or if its port is forbidden.
    ///
    /// # Errors
    /// Threads are exhausted.
    fn listen(&self, ports: &[u16]) -> io::Result<Vec<io::Result<TcpListener>>>;
}
