//! Threads that enter network namespaces to open sockets or descriptors there.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

/// Runs `work` inside `namespace` on a separate thread, and waits for it. The calling thread stays
/// in its namespace.
///
/// # Errors
/// Fails if the namespace cannot be entered, or if `work` fails.
pub fn run_in<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let in_namespace = || {
            enter(namespace)?;
            work()
        };
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, in_namespace)?;
        thread.join().unwrap_or_else(|_| Err(panicked()))
    })
}

/// Work that is in progress on a thread that changes its namespace. Dropping it waits until the
/// work ends.
#[derive(Debug)]
pub struct Pending<T>(Option<JoinHandle<T>>);

impl<T: Send + 'static> Pending<T> {
    pub(super) fn start(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        Ok(Self(Some(
            std::thread::Builder::new()
                .name("netns".to_owned())
                .spawn(work)?,
        )))
    }
}

impl<T> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// Fails if the thread panicked.
    pub fn finish(mut self) -> io::Result<T> {
        self.0
            .take()
            .and_then(|thread| thread.join().ok())
            .ok_or_else(panicked)
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        // A panic has already been printed.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

fn panicked() -> io::Error {
    io::Error::other("the namespace thread panicked")
}

/// Moves the calling thread into `namespace`.
pub(super) fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(
        namespace,
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Moves the calling thread into a new, empty and unnamed network namespace. The namespace lives as
/// long as a descriptor, a socket or a process refers to it.
pub(super) fn enter_new() -> io::Result<OwnedFd> {
    crate::sys::unshare_network()?;
    Ok(rustix::fs::open(
        "/proc/thread-self/ns/net",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
