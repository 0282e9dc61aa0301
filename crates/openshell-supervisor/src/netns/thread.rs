//! Threads inside network namespaces, which open sockets or descriptors there.

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
        enter(namespace)?;
        work()
    })?
}

/// Runs `work`, which may change the namespace of its thread, on a thread of its own and waits for it.
pub(super) fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("the namespace thread panicked"))
    })
}

/// Moves the calling thread into `namespace`.
pub(super) fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Moves the calling thread into a new and empty network namespace without a name; it lives as long as a descriptor, a
/// socket or a process refers to it.
pub(super) fn enter_new() -> io::Result<OwnedFd> {
    crate::sys::unshare_network()?;
    Ok(rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
