//! Runs closures inside a network namespace, to open sockets or descriptors there.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

/// Runs `work` inside `namespace` on a thread of its own and waits for it. The calling thread stays in its namespace.
///
/// # Errors
/// The namespace cannot be entered, or the error of `work`.
pub fn run_in<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    on_thread(|| {
        rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        work()
    })
}

/// Creates an empty network namespace without a name; it lives as long as a descriptor or a process refers to it.
pub(super) fn create() -> io::Result<OwnedFd> {
    on_thread(|| {
        crate::sys::unshare_network()?;
        current()
    })
}

fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the namespace thread panicked")))
    })
}

/// Opens the network namespace of the calling thread.
pub(super) fn current() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
